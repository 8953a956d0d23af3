"""The auditor of storms finds nothing in true evidence, and each deliberate falsification of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
from chaos.storm.auditor import audit, shown_by_state
from chaos.storm.evidence import Asked, Event, Evidence, Heard, row_of
from muster_bus.log import Record
from muster_bus.topics import parse_state_key
from muster_proto.muster.bus.v1 import envelope_pb2, state_pb2
from muster_proto.si.v1 import si_pb2 as si
from unit.scheduler_service import rig as make

CONFIG = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - name: a
            resources: {max: {vcore: 8}}
            limits: [{limit: one, users: [alice], maxresources: {vcore: 7}}]
"""
E = si.EventRecord


@pytest.fixture(scope="module")
def true() -> Evidence:
    """Of a small life: three allocations that run, one that ended, one ask that waits, one that is rejected."""
    rig = make.Rig()
    rig.register(CONFIG)
    rig.send(make.node("n1", vcore=4_000), make.node("n2", vcore=4_000))
    rig.send(make.application("app", "root.a"))
    wants = {"k1": 2_000, "k2": 2_000, "k3": 3_000, "k4": 1_000}
    for key, cores in wants.items():
        rig.send(make.asks(make.allocation("app", key, vcore=cores)))
        rig.settle()
    rig.send(make.asks(make.allocation("nobody", "k5", vcore=1_000)))
    rig.send(make.release("app", "k1"))
    rig.settle()
    rig.send(make.asks(make.allocation("app", "k6", vcore=9_000)))
    rig.settle()
    evidence = Evidence(make.RM, config=CONFIG, nodes={"n1": 4, "n2": 4})
    written = [
        Record(each.topic, 0, offset, 0, each.key, each.value, each.headers) for offset, each in enumerate(rig.written)
    ]
    evidence.take_events(each for each in written if each.topic == rig.topics.events)
    evidence.take_responses(each for each in written if each.topic == rig.topics.responses)
    evidence.take_state(each for each in written if each.topic == rig.topics.state)
    evidence.history = [(each.id, row_of(each.record)) for each in evidence.events]
    evidence.asked = {key: Asked(key, "app", 0.0) for key in (*wants, "k6")}
    evidence.asked["k5"] = Asked("k5", "nobody", 0.0)
    evidence.asked["k1"].released = True
    for envelope in evidence.responses:
        if envelope.stream == envelope_pb2.STREAM_ALLOCATION:
            _hear(evidence, si.AllocationResponse.FromString(envelope.response))
    evidence.shown = shown_by_state(evidence)
    evidence.shown_pending = {name for name, ask in evidence.asks_in_state().items() if ask.pending}
    return evidence


def _hear(evidence: Evidence, response: si.AllocationResponse) -> None:
    for new in response.new:
        evidence.heard.append(Heard(0.0, "new", new.allocationKey, new.applicationID, new.nodeID))
        evidence.running[new.allocationKey] = (new.applicationID, new.nodeID)
    for gone in response.released:
        evidence.heard.append(Heard(0.0, "released", gone.allocationKey, gone.applicationID, "STOPPED_BY_RM"))
        evidence.running.pop(gone.allocationKey, None)
    for no in response.rejectedAllocations:
        evidence.heard.append(Heard(0.0, "rejected", no.allocationKey, no.applicationID, no.reason))


def test_nothing_is_found_in_true_evidence(true: Evidence) -> None:
    assert audit(true) == []
    # It has what the falsifications below falsify.
    assert {each.what for each in true.heard} == {"new", "released", "rejected"}
    assert len(true.running) == 3
    assert true.shown_pending == {("app", "k6")}


# ---- falsifications -------------------------------------------------------------------------------------------------


def _heard(evidence: Evidence, what: str) -> Heard:
    return next(each for each in evidence.heard if each.what == what)


def an_allocation_is_not_heard(it: Evidence) -> None:
    it.heard.remove(_heard(it, "new"))


def an_allocation_is_heard_twice(it: Evidence) -> None:
    it.heard.append(_heard(it, "new"))


def an_allocated_ask_is_also_rejected(it: Evidence) -> None:
    it.heard.append(replace(_heard(it, "new"), what="rejected"))


def a_rejection_is_heard_twice(it: Evidence) -> None:
    it.heard.append(_heard(it, "rejected"))


def a_rejection_is_lost(it: Evidence) -> None:
    it.heard.remove(_heard(it, "rejected"))


def an_ask_never_came(it: Evidence) -> None:
    it.asked["lost"] = Asked("lost", "app", 0.0)


def a_pending_ask_is_gone(it: Evidence) -> None:
    _drop(it, "ask")


def a_pending_ask_is_not_shown(it: Evidence) -> None:
    it.shown_pending = set()


def an_ask_is_shown_that_is_not_pending(it: Evidence) -> None:
    assert it.shown_pending is not None
    it.shown_pending.add(("app", "k2"))


def a_response_is_missing(it: Evidence) -> None:
    del it.responses[-2]


def a_response_is_doubled(it: Evidence) -> None:
    it.responses.append(it.responses[-1])


def an_event_is_missing(it: Evidence) -> None:
    del it.events[5]


def an_event_is_doubled(it: Evidence) -> None:
    it.events.insert(5, it.events[5])


def an_event_id_is_skipped(it: Evidence) -> None:
    it.events[-1] = replace(it.events[-1], id=it.events[-1].id + 1)


def an_event_is_missing_in_history(it: Evidence) -> None:
    del it.history[7]


def an_event_is_twice_in_history(it: Evidence) -> None:
    it.history.append(it.history[7])


def history_has_another_message(it: Evidence) -> None:
    number, row = it.history[7]
    it.history[7] = (number, (*row[:5], "another", row[6]))


def history_has_an_event_of_nobody(it: Evidence) -> None:
    it.history.append((10_000, it.history[7][1]))


def the_state_lost_an_allocation(it: Evidence) -> None:
    _drop(it, "alloc")


def the_state_has_an_allocation_elsewhere(it: Evidence) -> None:
    key = _key(it, "alloc")
    changed = state_pb2.AllocationObject.FromString(it.state[key])
    changed.node_id = "n1" if changed.node_id == "n2" else "n2"
    it.state[key] = changed.SerializeToString()


def the_state_has_a_larger_allocation(it: Evidence) -> None:
    key = _key(it, "alloc")
    changed = state_pb2.AllocationObject.FromString(it.state[key])
    changed.demand.resource.values["vcore"] += 1
    it.state[key] = changed.SerializeToString()


def the_state_lost_a_node(it: Evidence) -> None:
    _drop(it, "node")


def the_state_has_an_old_size_of_a_node(it: Evidence) -> None:
    it.nodes["n1"] = 5


def the_state_takes_a_drained_node(it: Evidence) -> None:
    it.drained.add("n1")


def the_state_has_an_old_configuration(it: Evidence) -> None:
    it.config = CONFIG + "\n# another"


def the_view_shows_less(it: Evidence) -> None:
    assert it.shown is not None
    it.shown.figures["allocated"]["app"]["vcore"] -= 1


def the_rm_runs_what_is_not_there(it: Evidence) -> None:
    it.running["k9"] = ("app", "n1")


def a_vm_is_missing(it: Evidence) -> None:
    it.vms = {"vm-1": "n1"}


def an_allocation_is_on_a_refused_node(it: Evidence) -> None:
    # (Some node or other is refused for each key.)
    it.is_asked = True
    first = _heard(it, "new")
    it.heard += [replace(first, more=f"node-{number}") for number in range(50)]


def a_node_is_overcommitted(it: Evidence) -> None:
    _shrink(it, E.NODE, E.DETAILS_NONE)


def a_queue_is_over_its_max(it: Evidence) -> None:
    _shrink(it, E.QUEUE, E.QUEUE_MAX)


def a_user_is_over_the_limit(it: Evidence) -> None:
    _shrink(it, E.USERGROUP, E.UG_USER_LIMIT)


def a_record_could_not_be_read(it: Evidence) -> None:
    it.dead_letters.append("no envelope")


def _shrink(it: Evidence, kind: int, detail: int) -> None:
    """A limit was lower than it is said to be."""
    for place, event in enumerate(it.events):
        record = event.record
        if (record.type, record.eventChangeDetail) == (kind, detail) and record.resource.resources:
            changed = E.FromString(record.SerializeToString())
            changed.resource.resources["vcore"].value = 2_500
            it.events[place] = Event(event.id, event.offset, event.instance, changed)


def _key(it: Evidence, kind: str) -> bytes:
    return next(key for key in it.state if parse_state_key(key)[1] == kind)


def _drop(it: Evidence, kind: str) -> None:
    del it.state[_key(it, kind)]


FALSIFICATIONS: dict[Callable[[Evidence], None], str] = {
    an_allocation_is_not_heard: "heard",
    an_allocation_is_heard_twice: "one answer",
    an_allocated_ask_is_also_rejected: "one answer",
    a_rejection_is_heard_twice: "one answer",
    a_rejection_is_lost: "heard",
    an_ask_never_came: "one answer",
    a_pending_ask_is_gone: "one answer",
    a_pending_ask_is_not_shown: "one answer",
    an_ask_is_shown_that_is_not_pending: "one answer",
    a_response_is_missing: "response numbers",
    a_response_is_doubled: "response numbers",
    an_event_is_missing: "event ids",
    an_event_is_doubled: "event ids",
    an_event_id_is_skipped: "event ids",
    an_event_is_missing_in_history: "history",
    an_event_is_twice_in_history: "history",
    history_has_another_message: "history",
    history_has_an_event_of_nobody: "history",
    the_state_lost_an_allocation: "recount",
    the_state_has_an_allocation_elsewhere: "recount",
    the_state_has_a_larger_allocation: "recount",
    the_state_lost_a_node: "recount",
    the_state_has_an_old_size_of_a_node: "nodes",
    the_state_takes_a_drained_node: "nodes",
    the_state_has_an_old_configuration: "configuration",
    the_view_shows_less: "view",
    the_rm_runs_what_is_not_there: "running",
    a_vm_is_missing: "source",
    an_allocation_is_on_a_refused_node: "predicates",
    a_node_is_overcommitted: "limits",
    a_queue_is_over_its_max: "limits",
    a_user_is_over_the_limit: "limits",
    a_record_could_not_be_read: "dead letters",
}


@pytest.mark.parametrize("falsify", FALSIFICATIONS, ids=lambda each: each.__name__)
def test_it_notices(true: Evidence, falsify: Callable[[Evidence], None]) -> None:
    false = copy.deepcopy(true)
    falsify(false)
    found = audit(false)
    assert FALSIFICATIONS[falsify] in {each.law for each in found}, found
