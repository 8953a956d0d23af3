"""Asks that wait for the RM's answer about another ask: every endpoint gives the same reason, at low cost."""

from __future__ import annotations

import json
from collections.abc import ValuesView
from typing import Any

import pytest
from muster_core.model.commands import UpdateAllocations
from muster_core.model.outcome import Outcome
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_state.state_folder import RmEntry, RmInfo
from muster_view.explain import asks as explain
from muster_view.explain import node as explain_node
from muster_view.explain import queue as explain_queue
from muster_view.metrics.recent import RecentAllocations
from muster_view.rest.snapshot import Section, SnapshotQuery, ViewLag, snapshot
from preempting import Arena, item
from unit.view.explained import decoded, one_queue

ASKS = 20


@pytest.fixture
def arena() -> Arena:
    """Undecided asks as a follower sees them between two proposals."""
    arena = one_queue()
    asks = [item("app", f"k{n}", preempts=False, vcore=1_000) for n in range(ASKS)]
    arena.core.apply(UpdateAllocations(asks), arena.now_ns, Outcome())
    return arena


def state_of(arena: Arena, open_proposals: int) -> RmEntry:
    stream = pb.CallbackStream(connected=True, predicates=True, open_proposals=open_proposals)
    return RmEntry(RmInfo("rm", life="RUNNING", callbacks=stream), arena.core)


@pytest.mark.parametrize(("open_proposals", "code"), [(0, "WAITING_FOR_TURN"), (1, "RM_TURN"), (4, "RM_TURN")])
def test_every_answer_says_the_same_of_it(arena: Arena, open_proposals: int, code: str) -> None:
    partition, now_ns, state = arena.partition, arena.now_ns, state_of(arena, open_proposals)
    wanted, turns = {code: ASKS}, explain.turns_of(state)
    assert explain.summary(state, "").counts == wanted
    queue = partition.queues["root.a"]
    assert decoded(explain_queue.explain(partition, queue, now_ns, pause=None, turns=turns))["asks"] == wanted
    node = explain_node.explain(partition, partition.nodes["n1"], now_ns, pause=None, turns=turns)
    assert json.loads(b"".join(node))["waiting"]["reasons"] == wanted
    only = SnapshotQuery(frozenset({Section.SCHEDULER}), partition, partition.root, 1)
    shown = json.loads(b"".join(snapshot(state, only, ViewLag(0, 0.0), RecentAllocations(), now_ns, "")))
    assert shown["scheduler"]["pendingByReason"] == wanted
    assert json.loads(b"".join(explain.pending(state, now_ns)))["counts"] == wanted


def test_an_application_is_searched_once_for_what_is_proposed(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for each ask would be O(n²): 5,000 asks took seconds for each answer."""
    searched: list[object] = []

    class Counted(dict[str, Any]):
        def values(self) -> ValuesView[Any]:
            searched.append(self)
            return super().values()

    app = arena.application("app")
    asks = list(app.asks.values())
    monkeypatch.setattr(app, "asks", Counted(app.asks))
    turns = explain.turns_of(state_of(arena, 1))
    assert {explain.reason_of(each, pause=None, turns=turns).code for each in asks} == {"RM_TURN"}
    assert len(searched) == 1
