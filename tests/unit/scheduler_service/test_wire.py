"""Records of the hand-written encoder (``wire.py``) decode to the stubs' values and have the stubs' length."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from google.protobuf.message import Message
from muster_core.external.model import (
    ExternalAllocation,
    ExternalApplication,
    ExternalChange,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
    OfferState,
    id_of,
    kind_of,
)
from muster_core.external.reports import ReportedObject, SourceEntry
from muster_core.model.allocation import PreemptionRecord, ReplacedPlaceholder
from muster_core.model.application import Allocation, Application, Ask
from muster_core.model.demand import Demand
from muster_core.model.node import Node, NodeReport
from muster_core.model.queue import Queue
from muster_core.model.resources import ResourceTypes, saturated
from muster_proto.muster.bus.v1 import envelope_pb2
from muster_proto.muster.bus.v1 import state_pb2 as pb
from muster_state import external_codec as codec
from muster_state import protobuf_wire, state_codec

SEEDS = 50
TEXTS = ("", "a", "rack/12", "x" * 127, "y" * 128, "z" * 5_000, "größe-日本", "\x00", "\U0001f600" * 40)
NAMES = ("vcore", "memory", "pods", "größe", "z" * 256, "\U0001f600", "\uffff")
AMOUNTS = (0, 1, 127, 128, 300_000, 2**53, 2**63 - 1)
SUMS = (*AMOUNTS, -1, -(2**63), 2**63, 2**70, -(2**70))
TIMES = (0, 1, 127, 128, 1_763_780_000_000_000_000, 2**63 - 1, -1)


def amounts(dice: random.Random, values: tuple[int, ...] = AMOUNTS) -> dict[str, int]:
    return {name: dice.choice(values) for name in dice.sample(NAMES, dice.randrange(len(NAMES)))}


def texts(dice: random.Random) -> dict[str, str]:
    return {name: dice.choice(TEXTS) for name in dice.sample(TEXTS, dice.randrange(4))}


def quantities(values: Mapping[str, int] | None) -> pb.Quantities | None:
    if values is None:
        return None
    return pb.Quantities(values={name: saturated(value) for name, value in values.items()})


def assert_says(written: bytes, expected: Message) -> None:
    """Compare decoded values, not bytes: if one name begins with another, the stubs write the longer one first."""
    assert type(expected).FromString(written) == expected
    assert len(written) == expected.ByteSize()


def a_report(dice: random.Random) -> NodeReport:
    capacity = amounts(dice, SUMS) if dice.random() < 0.8 else None
    return NodeReport(texts(dice), capacity, amounts(dice, SUMS), dice.random() < 0.5)


def a_node(dice: random.Random) -> Node:
    types = ResourceTypes()
    for name in NAMES:
        types.number(name)
    node = Node(types, dice.choice(TEXTS[1:]))
    node.set_attributes(texts(dice))
    for number in range(len(NAMES)):
        node.capacity[number] = dice.choice(SUMS)
    if dice.random() < 0.3:
        node.pooled[dice.randrange(len(NAMES))] = dice.choice(AMOUNTS)
    node.reported_occupied = amounts(dice, SUMS)
    node.schedulable = dice.random() < 0.5
    node.submission, node.created_ns = dice.choice(AMOUNTS), dice.choice(TIMES)
    node.sources = tuple(dice.sample(TEXTS[1:], dice.randrange(3)))
    node.reported = a_report(dice) if dice.random() < 0.5 else None
    return node


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nodes(seed: int) -> None:
    dice = random.Random(seed)
    node = a_node(dice)
    said = node.reported
    expected = pb.NodeObject(
        partition="default",
        node_id=node.node_id,
        attributes=node.attributes,
        capacity=quantities(node.named_capacity()),
        occupied=quantities(node.reported_occupied),
        schedulable=node.schedulable,
        submission=node.submission,
        created_ns=node.created_ns,
        sources=node.sources,
        reported=None
        if said is None
        else pb.NodeReport(
            attributes=said.attributes,
            capacity=quantities(said.capacity),
            occupied=quantities(said.occupied),
            schedulable=said.schedulable,
        ),
    )
    assert_says(state_codec.encode("default", node), expected)


def an_allocation(dice: random.Random) -> Allocation:
    def flag() -> bool:
        return dice.random() < 0.3

    types = ResourceTypes()
    app = None
    if flag():
        app = Application(types, dice.choice(TEXTS[1:]), Queue(types, "root", None, leaf=True, managed=True), 1, 1)
    priority = dice.choice((0, 1, -1, 2**31 - 1, -(2**31)))
    shape, tags, key = types.shape(amounts(dice)), texts(dice), dice.choice(TEXTS[1:])
    demand = Demand(
        key=key,
        shape=shape,
        priority=priority,
        submission=dice.choice(AMOUNTS),
        created_ns=dice.choice(TIMES),
        tags=tags,
    )
    demand.task_group, demand.placeholder, demand.originator = dice.choice(TEXTS), flag(), flag()
    demand.allow_preempt_self, demand.allow_preempt_other, demand.has_preemption_policy = flag(), flag(), flag()
    demand.execution_timeout_ms, demand.changed_ns = dice.choice(TIMES), dice.choice(TIMES)
    demand.previous_generation = flag()
    node_id, ordinal = dice.choice(TEXTS), dice.choice((0, 0, 7, 300))
    allocation = Allocation(app, demand, node_id, dice.choice(TIMES), ordinal, dice.choice(TEXTS))
    allocation.timed_out, allocation.releasing_since_ns = flag(), dice.choice(TIMES) if flag() else 0
    allocation.replaced_by = dice.choice(TEXTS) if flag() else None
    if flag():
        allocation.preempted = PreemptionRecord("REVOKED", "a", "k", "root.a", 3, 0.5, 0.25, 0.0, 1.0)
    if flag():
        allocation.replaces = ReplacedPlaceholder(dice.choice(TEXTS), dice.choice(TIMES))
    allocation.source = dice.choice(TEXTS)
    return allocation


def demanded(demand: Demand, app_id: str) -> pb.Demand:
    return pb.Demand(
        allocation_key=demand.key,
        application_id=app_id,
        partition="default",
        resource=quantities(demand.shape.quantities),
        priority=demand.priority,
        tags=demand.tags,
        task_group=demand.task_group,
        placeholder=demand.placeholder,
        originator=demand.originator,
        allow_preempt_self=demand.allow_preempt_self,
        allow_preempt_other=demand.allow_preempt_other,
        has_preemption_policy=demand.has_preemption_policy,
        execution_timeout_ms=demand.execution_timeout_ms,
        submission=demand.submission,
        created_ns=demand.created_ns,
        changed_ns=demand.changed_ns,
    )


@pytest.mark.parametrize("seed", range(20))
def test_asks(seed: int) -> None:
    dice = random.Random(seed)
    demand, types = an_allocation(dice).demand, ResourceTypes()
    app = Application(types, dice.choice(TEXTS[1:]), Queue(types, "root", None, leaf=True, managed=True), 1, 1)
    ask = Ask(app, demand, 3)
    ask.notified = 4
    expected = pb.AskObject(
        demand=demanded(demand, app.app_id), pending=3, previous_generation=demand.previous_generation, told=4
    )
    assert_says(state_codec.encode("default", ask), expected)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_allocations(seed: int) -> None:
    what = an_allocation(random.Random(seed))
    demand, why, replaces = what.demand, what.preempted, what.replaces
    expected = pb.AllocationObject(
        demand=demanded(demand, what.app_id),
        node_id=what.node_id,
        uuid=what.uuid,
        allocated_ns=what.allocated_ns,
        foreign=what.foreign,
        previous_generation=demand.previous_generation,
        ordinal=what.ordinal,
        preempted=None
        if why is None
        else pb.PreemptedObject(
            rule=why.rule,
            application_id=why.app_id,
            allocation_key=why.key,
            queue=why.queue,
            since_ns=why.since_ns,
            victim_share_before=why.victim_share_before,
            victim_share_after=why.victim_share_after,
            asker_share_before=why.asker_share_before,
            asker_share_after=why.asker_share_after,
        ),
        timed_out=what.timed_out,
        replaced_by=what.replaced_by,
        told_ns=what.releasing_since_ns,
        replaces=None
        if replaces is None
        else pb.ReplacedObject(allocation_key=replaces.key, created_ns=replaces.created_ns),
        source=what.source,
    )
    assert_says(state_codec.encode("default", what), expected)


def an_object(dice: random.Random) -> ExternalObject:
    name = dice.choice(TEXTS[1:])
    match dice.choice(list(ExternalKind)):
        case ExternalKind.NODE:
            flags = (dice.random() < 0.5, dice.random() < 0.5, dice.random() < 0.5)
            capacity = amounts(dice) if dice.random() < 0.8 else None
            return ExternalNode(name, capacity, amounts(dice), texts(dice), *flags)
        case ExternalKind.ALLOCATION:
            priority = dice.choice((0, 1, -1, 2**31 - 1, -(2**31)))
            app_id, node_id = dice.choice(TEXTS), dice.choice(TEXTS[1:])
            return ExternalAllocation(name, node_id, amounts(dice), app_id, priority, texts(dice))
        case ExternalKind.QUEUE:
            return ExternalQueue(name, amounts(dice))
        case ExternalKind.APPLICATION:
            return ExternalApplication(name, "root.a", dice.choice(TEXTS), ("a", "b"), texts(dice))
        case ExternalKind.OFFER:
            return ExternalOffer(name, "n", amounts(dice), texts(dice), dice.choice(AMOUNTS), dice.random() < 0.5, 7)
        case ExternalKind.POOL:
            return ExternalPool(name, dice.choice(AMOUNTS), dice.choice(AMOUNTS))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_statements_of_sources(seed: int) -> None:
    dice = random.Random(seed)
    what = an_object(dice)
    owner = SourceEntry("default", dice.choice(TEXTS[1:]), life="life")
    entry = ReportedObject(owner, kind_of(what), id_of(what), what, dice.choice(TEXTS), dice.choice(TIMES))
    entry.stale, entry.problem = dice.random() < 0.3, dice.choice(TEXTS)
    if entry.kind is ExternalKind.OFFER:
        entry.offer_state, entry.withdrawn = dice.choice(list(OfferState)), dice.random() < 0.5
        entry.idle_since_ns, entry.deadline_ns = dice.choice(TIMES), dice.choice(TIMES)
    said = codec.to_proto(ExternalChange(entry.kind, entry.object_id, what), stale=entry.stale)
    expected = pb.ExternalRecord(
        partition="default",
        source=owner.source,
        life=entry.life,
        said=said,
        since_ns=entry.since_ns,
        problem=entry.problem,
        offer_state=entry.offer_state or "",
        idle_since_ns=entry.idle_since_ns,
        deadline_ns=entry.deadline_ns,
        withdrawn=entry.withdrawn,
    )
    assert_says(state_codec.encode("default", entry), expected)
    assert_says(codec.to_wire(entry.kind, entry.object_id, what, stale=entry.stale), said)


@pytest.mark.parametrize("seed", range(20))
def test_maps_whatever_order_they_are_in(seed: int) -> None:
    dice = random.Random(seed)
    names = list(NAMES)
    dice.shuffle(names)
    values = {name: dice.choice([each for each in SUMS if -(2**63) <= each < 2**63]) for name in names}
    number = protobuf_wire.field(pb.Quantities, "values")
    written = protobuf_wire.amounts_field(number, values)
    assert_says(written, pb.Quantities(values=values))
    assert written == protobuf_wire.amounts_field(number, {name: values[name] for name in NAMES})
    number = protobuf_wire.field(envelope_pb2.ExternalNode, "attributes")
    written = protobuf_wire.texts_field(number, {name: name for name in names})
    assert_says(written, envelope_pb2.ExternalNode(attributes={name: name for name in names}))
    assert written == protobuf_wire.texts_field(number, {name: name for name in NAMES})


def test_an_amount_that_no_int64_holds_is_no_record() -> None:
    for value in (2**63, -(2**63) - 1):
        with pytest.raises(ValueError, match=r"vcore: -?[0-9]+, expected an int64"):
            protobuf_wire.amounts_field(1, {"vcore": value})
