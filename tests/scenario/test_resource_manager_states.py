"""The effect of each RM state on what the RM runs: the table of docs/resource-managers.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from unit.scheduler_service import rig as make
from unit.scheduler_service.rig import RM, Rig

DOCS = Path(__file__).parents[2] / "docs" / "resource-managers.md"
STATES = ("RUNNING", "DISCONNECTED", "STOPPED", "held")
DECIDING = {"RUNNING", "DISCONNECTED"}


def rows() -> dict[str, list[str]]:
    """Of the table: row → cells."""
    text = DOCS.read_text().partition("## RM states and their effect")[2]
    found = {}
    for line in re.findall(r"^\|(.*)\|$", text.partition("| | RUNNING |")[2].partition("\n\n")[0], re.MULTILINE):
        name, *cells = (cell.strip() for cell in line.split("|"))
        found[name] = cells
    return found


def lived(state: str) -> Rig:
    """An RM with a node of 10, an allocation of 8 with 100 s to live, and an ask of 4; then the state."""
    rig = Rig()
    rig.register()
    asked = make.old_ask("x", "runs", 1, vcore=8)
    asked.asks[0].executionTimeoutMilliSeconds = 100_000
    rig.send(make.node("n", vcore=10), make.application("x", "root.c"), asked)
    rig.send(make.old_ask("x", "waits", 1, vcore=4))
    if state == "held":
        rig.send(pb.AdminCommand(pause="new racks"))
    else:
        rig.send(make.life(pb.RmLifecycle.State.Value(state)))
    return rig


def held_keys(rig: Rig) -> list[str]:
    return sorted(rig.core.partitions["default"].apps["x"].allocations)


def told(rig: Rig) -> list[tuple[str, int]]:
    return [(item.allocationKey, item.terminationType) for item in rig.of("released")]  # type: ignore[attr-defined]


@pytest.mark.parametrize("state", STATES)
def test_running_allocations_continue_and_count(state: str) -> None:
    rig = lived(state)
    rig.wait(50)
    assert held_keys(rig) == ["runs"]
    assert rig.core.partitions["default"].queues["root.c"].allocated[0] == 8
    rig.rebuild()
    assert held_keys(rig) == ["runs"]


@pytest.mark.parametrize("state", STATES)
def test_pending_asks_are_placed_where_something_is_decided(state: str) -> None:
    rig = lived(state)
    rig.send(make.release("x", "runs"))  # (a gateway lets none of a stopped RM in; one may be in the log before)
    assert told(rig) == [("runs", si.STOPPED_BY_RM)]
    placed = ["waits"] if state in DECIDING else []
    assert held_keys(rig) == placed
    rig.rebuild()
    rig.settle()
    assert held_keys(rig) == placed
    if state == "held":
        rig.send(pb.AdminCommand(resume=True))
        assert held_keys(rig) == ["waits"]
    elif state == "STOPPED":
        rig.send(make.registration())
        assert rig.core.partitions["default"].apps == {}


@pytest.mark.parametrize("state", STATES)
def test_time_outs_and_reminders_go_on(state: str) -> None:
    rig = lived(state)
    rig.wait(100)
    assert told(rig) == [("runs", si.TIMEOUT)]
    rig.wait(300)
    assert told(rig) == [("runs", si.TIMEOUT)] * 2
    rig.send(make.release("x", "runs", kind=si.TIMEOUT), make.ask_release("x", "waits"))
    rig.settle()
    assert rig.core.partitions["default"].apps["x"].state == "Completing"
    rig.wait(30)
    assert rig.core.partitions["default"].apps["x"].state == "Completed"


@pytest.mark.parametrize("state", STATES)
def test_nodes_are_kept_free_where_something_is_decided(state: str) -> None:
    rig = lived(state)
    rig.wait(2)
    reserved = rig.core.partitions["default"].apps["x"].asks["waits"].reserved_node
    assert bool(reserved) == (state in DECIDING)


SHOWN: dict[str, Callable[[str], bool]] = {
    "running allocations": lambda cell: cell == "run, and count",
    "execution time-outs, gangs' time-outs, Completing, expiry": lambda cell: cell == "continue",
    "reminders of requested releases": lambda cell: cell == "continue",
}


def test_the_table_says_what_is_tested_here() -> None:
    found = rows()
    for name, holds in SHOWN.items():
        assert all(map(holds, found[name])), name
    decided = dict(zip(STATES, found["pending asks"], strict=True))
    assert {state for state, cell in decided.items() if cell == "placed"} == DECIDING
    looked = dict(zip(STATES, found["preemption and reservations"], strict=True))
    assert {state for state, cell in looked.items() if cell == "active"} == DECIDING


# What events say when the RM of `lived` registers again: all that it had ends, then its queues come anew.
ENDED = """
APP REMOVE REQUEST_CANCEL x waits
APP REMOVE ALLOC_CANCEL x runs
NODE REMOVE NODE_ALLOC n runs
USERGROUP REMOVE UG_USER_RESOURCE alice root.c
APP REMOVE DETAILS_NONE x
QUEUE REMOVE QUEUE_APP root.c x
NODE REMOVE NODE_DECOMISSION n
QUEUE REMOVE DETAILS_NONE root.c
QUEUE REMOVE DETAILS_NONE root.b.y
QUEUE REMOVE DETAILS_NONE root.b.x
QUEUE REMOVE DETAILS_NONE root.b
QUEUE REMOVE DETAILS_NONE root.a
QUEUE REMOVE DETAILS_NONE root
""".strip().splitlines()
BEGUN = """
QUEUE ADD DETAILS_NONE root
QUEUE ADD DETAILS_NONE root.a
QUEUE ADD DETAILS_NONE root.b
QUEUE SET QUEUE_MAX root.b
QUEUE ADD DETAILS_NONE root.b.x
QUEUE ADD DETAILS_NONE root.b.y
QUEUE SET QUEUE_GUARANTEED root.b.y
QUEUE ADD DETAILS_NONE root.c
""".strip().splitlines()


def _in_words(event: si.EventRecord) -> str:
    kind, change = si.EventRecord.Type.Name(event.type), si.EventRecord.ChangeType.Name(event.eventChangeType)
    detail = si.EventRecord.ChangeDetail.Name(event.eventChangeDetail)
    return f"{kind} {change} {detail} {event.objectID} {event.referenceID}".strip()


def test_a_registration_drops_everything_and_expects_the_full_state() -> None:
    rig = lived("RUNNING")
    rig.send(make.asks(make.allocation("", "f", "n", {"foreign": "static"}, vcore=1)))
    heard, events = len(rig.responses), len(rig.events)
    rig.send(make.registration())
    assert not [key for key in rig.state if key.split(b"/")[1] in (b"node", b"app", b"ask", b"alloc", b"why")]
    assert [_in_words(event) for _, event in rig.events[events:]] == ENDED + BEGUN
    assert len(rig.responses) == heard  # nothing of it is told as released
    # The full report: what ran is echoed with its node, what waited is asked for again.
    reported = make.allocation("x", "runs", "n", vcore=8)
    rig.send(make.node("n", vcore=10), make.application("x", "root.c"), make.asks(reported))
    rig.send(make.asks(make.allocation("", "f", "n", {"foreign": "static"}, vcore=1)))
    assert [item.allocationKey for item in rig.of("new")][-2:] == ["runs", "f"]  # type: ignore[attr-defined]
    assert rig.core.partitions["default"].nodes["n"].available[0] == 1
    rig.check_counters()


def test_reported_allocations_of_unknown_nodes_or_applications_are_rejected_each() -> None:
    rig = lived("RUNNING")
    rig.send(
        make.asks(
            make.allocation("x", "a", "nowhere", vcore=1),
            make.allocation("ghost", "b", "n", vcore=1),
            make.allocation("x", "c", "n", vcore=20),
        )
    )
    rejected = [(item.allocationKey, item.reason) for item in rig.of("rejectedAllocations")]  # type: ignore[attr-defined]
    assert rejected == [
        ("a", "failed to find node nowhere for allocation a"),
        ("b", "failed to find application ghost"),
    ]
    assert held_keys(rig) == ["c", "runs"]
    assert rig.core.partitions["default"].nodes["n"].available[0] == -18
    assert rig.machine.rms[RM].info.life == "RUNNING"
