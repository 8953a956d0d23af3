"""How full nodes are, in ten buckets for each resource type (core-features §2.19: ``/scheduler/node-utilizations``)."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from muster_service.go_json import go_json

from muster_scheduler.core.objects import Node
from muster_scheduler.core.partition import Partition
from muster_scheduler.view.dao import percent

_BUCKETS = 10
# Nodes that are looked at between two pieces.
_PER_STEP = 100


class BucketDao(Struct, omit_defaults=True, kw_only=True, rename="camel"):
    """The nodes in one tenth, by id."""

    bucket_name: str = ""
    num_of_nodes: int = 0
    node_names: list[str] = []


class TypeDao(Struct, omit_defaults=True, kw_only=True, rename="camel"):
    """One resource type: always ten buckets, emptiest nodes first."""

    type: str = ""
    utilization: list[BucketDao] = []


class UtilizationDao(Struct, omit_defaults=True, kw_only=True, rename="camel"):
    """One partition; types by name. Without nodes there are none: an empty list, into which the web UI looks unseen."""

    cluster_id: str
    partition: str
    utilizations: list[TypeDao]


def pieces(rm_id: str, partition: Partition) -> Iterator[bytes]:
    """A partition's JSON. A node counts for each type that it has any of; the empty pieces give others a turn."""
    buckets: dict[str, list[list[str]]] = {}
    # (Many nodes are alike: what is as large and as full is worked out once.)
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
    found = [TypeDao(type=name, utilization=_named(buckets[name])) for name in sorted(buckets)]
    yield go_json(UtilizationDao(cluster_id=rm_id, partition=partition.name, utilizations=found))


def _places(partition: Partition, node: Node) -> list[tuple[str, int]]:
    """In which bucket a node is, for each type that it has."""
    capacity = partition.types.quantities(node.capacity)
    used = percent(partition.types.quantities(node.allocated), capacity)
    return [(name, bucket_of(used.get(name, 0))) for name in capacity]


def bucket_of(used_percent: int) -> int:
    """0 is in the first bucket, and so is 10; 11 is in the second. What is over 100 stays in the last."""
    return min(max(-(-used_percent // _BUCKETS) - 1, 0), _BUCKETS - 1)


def _named(buckets: list[list[str]]) -> list[BucketDao]:
    return [
        BucketDao(bucket_name=f"{number * 10}-{number * 10 + 10}%", num_of_nodes=len(names), node_names=names)
        for number, names in enumerate(buckets)
    ]
