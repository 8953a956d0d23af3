"""Random lives under the policies that know the workload: what they know is true, and does not depend on the past."""

from __future__ import annotations

import random

import pytest
from muster_core.model.resources import Shape
from muster_core.nodes.policies.fragmentation import FragmentationIndex, ShapeFrequencies
from muster_core.nodes.policies.registry import policy_named
from muster_core.nodes.policies.shape_index import ShapeIndex
from muster_core.partition import Partition
from simulation.life import Life

SEEDS = range(3)
STEPS = 40


def _work(partition: Partition) -> dict[Shape, int]:
    found: dict[Shape, int] = {}
    for app in partition.apps.values():
        for waiting in app.asks.values():
            found[waiting.shape] = found.get(waiting.shape, 0) + waiting.pending
        for held in app.allocations.values():
            found[held.shape] = found.get(held.shape, 0) + 1
    names = partition.types.names
    return {
        shape: count
        for shape, count in found.items()
        if count and any("gpu" in names[number] for number, _ in shape.items)
    }


def _check(partition: Partition) -> None:
    index = partition.index
    assert isinstance(index, ShapeIndex)
    work = _work(partition)
    if isinstance(index, FragmentationIndex):
        expected = ShapeFrequencies()
        for shape, count in work.items():
            expected.add(shape, count)
        assert index.workload.shapes() == expected.shapes()
    fresh = policy_named(partition.config.node_sort_policy).new_index(partition.types)
    for node in reversed(partition.nodes.values()):
        if node.index_key is not None:
            fresh.add(node, node.index_key[0])
    for shape, count in work.items():
        fresh.count_shape(shape, count)
    for shape in work:
        assert fresh.first_fit(shape.items) is index.first_fit(shape.items)


def _shaped(life: Life) -> list[Partition]:
    """The partitions whose policy, after whatever configurations came, still is one of these."""
    return [each for each in life.run.core.partitions.values() if isinstance(each.index, ShapeIndex)]


@pytest.mark.parametrize("policy", ["dotproduct", "fragmentation"])
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_a_random_life_and_its_recovery_find_the_same_nodes(seed: int, policy: str) -> None:
    life = Life(seed, policy=policy)
    for step in range(STEPS):
        life.step()
        for partition in _shaped(life):
            _check(partition)
        if step % 13 != 12:
            continue
        core = life.run.folded(random.Random(step))
        core.activate(life.run.now_ns, life.run.now_ns)
        for before in _shaped(life):
            folded = core.partitions[before.name]
            _check(folded)
            for shape in _work(before):
                there, here = (
                    folded.index.first_fit(folded.types.shape(shape.quantities).items),
                    before.index.first_fit(shape.items),
                )
                assert (there and there.node_id) == (here and here.node_id)
