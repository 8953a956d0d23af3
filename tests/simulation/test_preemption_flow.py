"""Preemption from the first ask to the last confirmation, with a kill and a fold wherever one may happen.

A longer run: ``MUSTER_SIMULATION_SEEDS=2000 pytest tests/simulation/test_preemption_flow.py``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from builders import snapshot
from muster_bus.log import Record
from muster_core import invariants
from muster_core.allocation import escalation
from muster_core.model.application import Ask
from muster_core.model.commands import Command, ReleaseItem, Termination, UpdateAllocations
from muster_core.model.outcome import EventDetail, Outcome
from muster_core.model.reasons import NoPreemptionReason
from muster_core.partition import Partition
from muster_core.preemption import victim_search
from muster_core.preemption.plan import Plan
from muster_core.preemption.search_context import SearchContext
from muster_state import state_codec
from muster_state.state_folder import RmInfo, StateFolder, encode_registration, encode_rm
from preempting import Arena, Laws, item, told

PER_TEST = 20
RUNS = max(int(os.environ.get("MUSTER_SIMULATION_SEEDS", "40")), 40)
BATCHES = [range(first, first + PER_TEST) for first in range(0, RUNS, PER_TEST)]
QUEUES = """{name: root, submitacl: '*', queues: [
  {name: poor, resources: {guaranteed: {memory: 10}}, properties: {preemption.delay: 20s}},
  {name: rich, resources: {guaranteed: {memory: 4}}},
  {name: top, resources: {guaranteed: {memory: 8}, max: {memory: 30}}, queues: [
    {name: left, resources: {guaranteed: {memory: 3}}, properties: {preemption.delay: 5s, priority.offset: '1'}},
    {name: right}]}]}""".replace("\n", " ")


class Recorded(Arena):
    """An arena with the state topic beside it, as a dictionary."""

    def __init__(self) -> None:
        super().__init__(QUEUES)
        self.topic: dict[bytes, bytes] = {}
        self.seen = 0
        self.write()

    def do(self, *commands: Command, budget: int = 1 << 30) -> Outcome:
        """As the service does: cycle after cycle, until nothing is left to decide."""
        out = super().do(*commands, budget=budget)
        for _ in range(100):
            if self.core.exhausted:
                return out
            self.core.cycle(self.now_ns, budget, out)
        raise AssertionError("it never comes to an end")

    def write(self) -> None:
        for out in self.outcomes[self.seen :]:
            for partition, what, alive in out.objects():
                key = state_codec.key_of("rm", partition, what)
                if alive:
                    self.topic[key] = state_codec.encode(partition, what)
                else:
                    del self.topic[key]
        self.seen = len(self.outcomes)

    def kill(self, dice: random.Random) -> None:
        """The process dies; another one folds what is recorded and goes on."""
        self.write()
        folder = StateFolder()
        info = RmInfo("rm", config=self.text, registrations=1, next_submission=self.core.next_submission)
        folder.fold(Record("state", 0, 0, 0, b"rm/rm/-", encode_rm(info, info.next_submission)))
        folder.fold(Record("state", 0, 0, 0, b"rm/reg/-", encode_registration(info)))
        order = list(self.topic.items())
        dice.shuffle(order)  # a compacted topic has them in no useful order
        for number, (key, value) in enumerate(order):
            folder.fold(Record("state", 0, number, 0, key, value))
        folder.build()
        before = (_known(self), _plans(self))
        self.core = folder.rms["rm"].core
        self.core.activate(self.now_ns)
        assert (_known(self), _plans(self)) == before
        invariants.check(self.core)
        self.do()


def _known(arena: Arena) -> dict[str, object]:
    """What is known of preemption, by ask and allocation."""
    found: dict[str, object] = {}
    for app in arena.partition.apps.values():
        for ask in app.asks.values():
            node = ask.reserved_node
            found[f"{app.app_id}/{ask.key}"] = (ask.pending, ask.preempts, node)
        for held in app.allocations.values():
            found[f"{app.app_id}/{held.unique_key} on {held.node_id}"] = held.preempted
    return found


def _plans(arena: Arena) -> list[object]:
    """What a search would find for each ask: it must not depend on the order in which states were folded."""
    arena.partition.queue_tree.recompute_fair_max()
    found: list[object] = []
    for app_id in sorted(arena.partition.apps):
        for key, ask in sorted(arena.application(app_id).asks.items()):
            plan = victim_search.search(arena.partition.cluster, ask, arena.now_ns)
            if isinstance(plan, Plan):
                node = plan.node.node_id if plan.node is not None else ""
                found.append((key, node, [(victim.allocation.unique_key, victim.why) for victim in plan.victims]))
            else:
                found.append((key, plan))
    return found


# ---- one story -----------------------------------------------------------------------------------------------------


def _story(arena: Recorded) -> Iterator[Outcome]:
    yield arena.node("n1", memory=10)
    yield arena.node("n2", memory=10)
    yield arena.app("r", "root.rich")
    yield arena.app("p", "root.poor")
    yield arena.want("r", "old-1", memory=6, priority=1)
    yield arena.want("r", "old-2", memory=6, priority=1)
    yield arena.wait(1)
    yield arena.do(UpdateAllocations([item("r", f"young-{n}", memory=2) for n in range(4)]))
    yield arena.want("p", "ask", memory=4, priority=1)
    yield arena.wait(19)
    yield arena.wait(1)  # 20 s old: two of the young go, on one node
    yield arena.wait(60)  # nobody else is told to go meanwhile
    yield arena.do(UpdateAllocations((), [_gone(arena.outcomes, 0)]))
    yield arena.do(UpdateAllocations((), [_gone(arena.outcomes, 1)]))


def _gone(outcomes: list[Outcome], number: int) -> ReleaseItem:
    app_id, key = [each for out in outcomes for each in told(out)][number]
    return ReleaseItem("default", app_id, key, Termination.PREEMPTED_BY_SCHEDULER)


def test_an_ask_waits_victims_go_and_it_comes_to_the_node_that_is_kept_for_it() -> None:
    arena = Recorded()
    story = _story(arena)
    for _ in range(10):
        next(story)
    ask = arena.the_ask("p", "ask")
    assert arena.pending("p") == {"ask": "NO_NODE_HAS_ROOM"}
    assert not ask.preempts  # 19 s old
    # 1. At its age, enough of the youngest on one node are told, with the whole story; the node is kept for the ask.
    out = next(story)
    assert ask.preempts
    node = arena.partition.nodes[ask.reserved_node]
    young = {key for key, node_id in arena.placed("r").items() if node_id == node.node_id and "young" in key}
    assert {key for _, key in told(out)} == young
    assert len(young) == 2
    victims = [held for held in arena.application("r").allocations.values() if held.preempted is not None]
    assert [held.node_id for held in victims] == [node.node_id] * 2
    why = victims[0].preempted
    assert why is not None
    assert (why.rule, why.app_id, why.key, why.queue) == ("GUARANTEE", "p", "ask", "root.poor")
    assert (why.victim_share_before, why.victim_share_after) == (5.0, 4.0)  # 20 and 16, of a guarantee of 4
    assert (why.asker_share_before, why.asker_share_after) == (0.0, 0.4)
    assert {event.object_id for event in out.events if "Preempted by" in event.message} == young
    # 2. They count until the RM says that they went. Nobody is told twice.
    assert arena.queue("root.rich").preempting == [4 if name == "memory" else 0 for name in arena.partition.types.names]
    assert told(next(story)) == []
    # 3. With the last of them gone the ask comes, there.
    next(story)
    assert arena.pending("p") == {"ask": "NO_NODE_HAS_ROOM"}
    out = next(story)
    assert arena.placed("p") == {"ask": node.node_id}
    assert not node.reservations
    assert EventDetail.ALLOC_PREEMPT in [event.detail for event in out.events]


@pytest.mark.parametrize("after", range(15))
def test_a_kill_anywhere_in_the_story_changes_nothing_of_it(after: int) -> None:
    whole, killed = Recorded(), Recorded()
    for number, (one, other) in enumerate(zip(_story(whole), _story(killed), strict=True)):
        assert told(one) == told(other)
        if number == after:
            killed.kill(random.Random(after))
    assert snapshot(whole.core) == snapshot(killed.core)
    assert whole.placed("p") == killed.placed("p") != {}


# ---- many lives ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: f"seeds-{batch.start}")
def test_in_random_lives_every_preemption_is_lawful(batch: range, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Plan] = []
    search = victim_search.search

    def watched(cluster: SearchContext, ask: Ask, now_ns: int) -> Plan | NoPreemptionReason:
        found = search(cluster, ask, now_ns)
        if isinstance(found, Plan):
            assert isinstance(cluster.state, Partition)
            victims, rules = zip(*((victim.allocation, victim.why.rule) for victim in found.victims), strict=True)
            Laws(cluster.state, ask).check(found.node, list(victims), list(rules))
            plans.append(found)
        return found

    monkeypatch.setattr(escalation.victim_search, "search", watched)
    for seed in batch:
        _live(random.Random(f"flow-{seed}"))
    assert len(plans) > len(batch)
    assert {victim.why.rule for plan in plans for victim in plan.victims} == {
        "GUARANTEE",
        "PRIORITY",
    }


def _live(dice: random.Random) -> None:
    arena = Recorded()
    for n in range(3):
        arena.node(f"n{n}", memory=10)
    leaves = [queue.path for queue in arena.partition.queues.values() if queue.leaf]
    for n in range(6):
        arena.app(f"app{n}", leaves[n % len(leaves)])
    asked: list[tuple[str, str]] = []
    seen = len(arena.outcomes)
    for n in range(60):
        arena.wait(dice.choice([0, 1, 5, 16, 31]))
        kind = dice.choice(["ask", "ask", "ask", "confirm", "confirm", "release", "kill"])
        if kind == "ask":
            for each in range(3):
                app_id = f"app{dice.randrange(6)}"
                arena.want(app_id, f"k{n}-{each}", priority=dice.randint(0, 3), memory=dice.randint(1, 5))
        elif kind == "confirm" and asked:
            arena.do(UpdateAllocations((), [_confirmed(asked.pop(dice.randrange(len(asked))))]))
        elif kind == "release":
            app = dice.choice(list(arena.partition.apps.values()))
            if app.allocations:
                arena.release(app.app_id, dice.choice(list(app.allocations.values())).key)
        elif kind == "kill":
            arena.kill(dice)
        asked += [each for out in arena.outcomes[seen:] for each in told(out)]
        seen = len(arena.outcomes)
    # Everybody goes who was told to: then those for whom they went are there, unless a limit came into the way.
    while asked:
        out = arena.do(UpdateAllocations((), [_confirmed(gone) for gone in asked]))
        asked = told(out)
    for app in arena.partition.apps.values():
        for ask in app.asks.values():
            kept = ask.preempts and bool(ask.reserved_node)
            assert not kept or Laws(arena.partition, ask).over(), f"{ask} was forgotten"


def _confirmed(gone: tuple[str, str]) -> ReleaseItem:
    return ReleaseItem("default", *gone, Termination.PREEMPTED_BY_SCHEDULER)
