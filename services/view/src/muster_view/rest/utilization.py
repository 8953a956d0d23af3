"""The use of nodes in ten buckets for each resource type (``/scheduler/node-utilizations``)."""

from __future__ import annotations

from collections.abc import Iterator

from muster_core.model.node import Node
from muster_core.partition import Partition
from muster_rest.shapes.measures import BucketDao, TypeDao, UtilizationDao
from muster_runtime.go_json import go_json

from muster_view.rest.dao import percent

_BUCKETS = 10
# Nodes that are counted between two pieces.
_PER_STEP = 100


def pieces(rm_id: str, partition: Partition) -> Iterator[bytes]:
    """A partition's JSON. A node counts for each of its types; empty pieces let other tasks run."""
    buckets: dict[str, list[list[str]]] = {}
    # (Many nodes are alike: equal capacity and use are computed once.)
    places: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[str, int]]] = {}
    for number, node in enumerate(list(partition.nodes.values())):
        if number % _PER_STEP == 0:
            yield b""
        if node.gone:
            continue
        like = (tuple(node.capacity), tuple(node.allocated))
        found_places = places.get(like)
        if found_places is None:
            found_places = places[like] = _places(partition, node)
        for name, bucket in found_places:
            of_type = buckets.get(name)
            if of_type is None:
                of_type = buckets[name] = [[] for _ in range(_BUCKETS)]
            of_type[bucket].append(node.node_id)
    utilizations = [TypeDao(type=name, utilization=_named(buckets[name])) for name in sorted(buckets)]
    yield go_json(UtilizationDao(cluster_id=rm_id, partition=partition.name, utilizations=utilizations))


def _places(partition: Partition, node: Node) -> list[tuple[str, int]]:
    """The bucket of a node, for each of its types."""
    capacity = partition.types.quantities(node.capacity)
    used = percent(partition.types.quantities(node.allocated), capacity)
    return [(name, bucket_of(used.get(name, 0))) for name in capacity]


def bucket_of(used_percent: int) -> int:
    """0 and 10 are in the first bucket; 11 is in the second. More than 100 is in the last."""
    return min(max(-(-used_percent // _BUCKETS) - 1, 0), _BUCKETS - 1)


def _named(buckets: list[list[str]]) -> list[BucketDao]:
    return [
        BucketDao(bucket_name=f"{number * 10}-{number * 10 + 10}%", num_of_nodes=len(names), node_names=names)
        for number, names in enumerate(buckets)
    ]
