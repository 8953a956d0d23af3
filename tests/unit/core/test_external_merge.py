"""The short ways of ``external_merge.py`` come to what its general rules do, and so does what is not looked at anew."""

from __future__ import annotations

import random

import pytest
from muster_core.external.external_merge import all_parts_of, merge, merge_all, reports_by_source
from muster_core.external.model import (
    ExternalAllocation,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    OfferState,
    SourceState,
    id_of,
    kind_of,
)
from muster_core.external.reports import NodeReports, PartitionReports, ReportedObject, SourceEntry
from muster_core.model.node import NodeReport
from outside import Outside

SEEDS = range(100)
NAMES = ("vcore", "memory", "gpu")


def amounts(dice: random.Random) -> dict[str, int]:
    return {name: dice.randrange(4) for name in dice.sample(NAMES, dice.randrange(4))}


def texts(dice: random.Random) -> dict[str, str]:
    return {name: dice.choice("xyz") for name in dice.sample("abc", dice.randrange(3))}


def an_object(dice: random.Random, number: int) -> ExternalObject:
    match dice.choice(("node", "allocation", "allocation", "offer")):
        case "node":
            capacity = None if dice.random() < 0.2 else amounts(dice)
            flags = [dice.random() < 0.7 for _ in range(3)]
            return ExternalNode("n", capacity, amounts(dice), texts(dice), *flags)
        case "allocation":
            return ExternalAllocation(f"v{number}", "n", amounts(dice))
        case _:
            return ExternalOffer(f"o{number}", "n", amounts(dice), texts(dice))


def a_node_of(dice: random.Random) -> NodeReports:
    """What up to two sources say of one node: often one of them, often nothing but the node and what runs there."""
    books = PartitionReports("default")
    simple = dice.random() < 0.6
    for source in ("mesos", "vms")[: dice.choice((1, 1, 2))]:
        owner = SourceEntry("default", source, SourceState.LIVE, "1")
        owner.lost, owner.drains, owner.reason = dice.random() < 0.3, dice.random() < 0.5, dice.choice(("", "late"))
        for number in range(dice.randrange(4)):
            said = an_object(dice, number)
            if (simple and isinstance(said, ExternalOffer)) or (kind_of(said), id_of(said)) in owner.entries:
                continue
            entry = ReportedObject(owner, kind_of(said), id_of(said), said, "1", 1, dice.random() < 0.2)
            if isinstance(said, ExternalOffer):
                entry.offer_state = dice.choice(list(OfferState))
            owner.entries[entry.kind, entry.object_id] = entry
            books.index(entry)
    return books.nodes.get("n", NodeReports())


def a_report(dice: random.Random) -> NodeReport | None:
    if dice.random() < 0.4:
        return None
    return NodeReport(texts(dice), amounts(dice) if dice.random() < 0.8 else None, amounts(dice), dice.random() < 0.7)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_short_ways_come_to_the_same(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(20):
        on, report = a_node_of(dice), a_report(dice)
        parts = all_parts_of(on)
        assert reports_by_source(on) == parts
        assert merge(report, parts) == merge_all(report, parts)


def test_values_that_an_allocation_does_not_merge_again() -> None:
    """A node takes part in what becomes of its source's allocations only where one of them is stale, or was."""
    cluster = Outside()
    cluster.says("vms", ExternalNode("n", {"vcore": 9}))
    cluster.sets("vms", SourceState.LIVE)
    vm = ExternalAllocation("v", "n", {"vcore": 2})
    cluster.says("vms", vm)
    node = cluster.core.partitions["default"].nodes["n"]
    assert node.schedulable
    cluster.distrusts("vms", vm)
    assert not node.schedulable
    cluster.says("vms", vm)
    assert node.schedulable
    cluster.says("mesos", ExternalAllocation("w", "n", {"vcore": 1}))
    assert node.sources == ("mesos", "vms")
