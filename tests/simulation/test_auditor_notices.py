"""The auditor notices: the core is broken on purpose, one thing at a time, and within a few lives the auditor says so.

Not an assertion of the core, nor its invariants, which are not looked at here: the core must have no part in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from muster_core.allocation import backfill, cycle, recovery
from muster_core.allocation.allocation_facts import AllocationFacts
from muster_core.allocation.reservations import Reservations
from muster_core.allocation.scheduling_queue import SchedulingQueue
from muster_core.model.application import Ask
from muster_core.model.decayed_usage import UserUsage
from muster_core.model.outcome import EventDetail, Outcome
from muster_core.model.queue import Queue
from muster_core.model.resources import fits
from muster_core.model.wait_points import WaitQueue
from muster_core.nodes.node_accounting import NodeAccounting
from muster_core.nodes.node_index import NodeIndex
from muster_core.partition import Partition
from muster_core.queues import ordering, rank, reload
from muster_core.requests import allocation_requests
from muster_core.scheduler import SchedulerCore
from simulation.life import Life
from simulation.noticing import must_be_noticed

# (Preemption by guarantee is rare in random lives.)
SEEDS = range(250)
# Lives in which what comes up seldom comes up; then all others are tried.
HINTS = {"guarantee": [1], "events apart": [41], "priority fence": [19], "priority behind": [462]}
STEPS = 50

Break = Callable[[pytest.MonkeyPatch], None]


def _node_fit(patch: pytest.MonkeyPatch) -> None:
    """A node counts as roomy when it has room for all but one of the types."""
    patch.setattr(
        NodeIndex, "first_fit", lambda self, items: next((n for n in self if fits(items[1:], n.available)), None)
    )


def _priority_fence(patch: pytest.MonkeyPatch) -> None:
    """Priorities are lent over fences."""
    whole = ordering.queue_key

    def without_fence(queue: Queue) -> tuple[Any, ...]:
        policy = queue.policy
        queue.policy = replace(policy, priority_fence=False)
        try:
            return whole(queue)
        finally:
            queue.policy = policy

    patch.setattr(ordering, "queue_key", without_fence)


def _priority_behind(patch: pytest.MonkeyPatch) -> None:
    """Of waiting asks only the first of a kind is woken, so a more urgent one behind it does not count."""

    def without(self: WaitQueue[Any], *given: Any, **named: Any) -> None:
        made(self, *given, **named)
        self.urgent = None

    made = WaitQueue.__init__
    patch.setattr(WaitQueue, "__init__", without)
    patch.setattr(SchedulingQueue, "_wake_urgent", lambda self, waitlist: None)


def _priority_unfit(patch: pytest.MonkeyPatch) -> None:
    """An ask that was not tried yet moves its queue forward, also if it does not fit."""
    patch.setattr(cycle.SchedulingCycle, "_refuse_urgent", lambda self, leaf, app, out, now_ns: False)


def _queue_share(patch: pytest.MonkeyPatch) -> None:
    """The queue that has most goes first."""
    whole = ordering.queue_share
    patch.setattr(ordering, "queue_share", lambda queue: -whole(queue))


def _application_order(patch: pytest.MonkeyPatch) -> None:
    """The youngest application goes first."""

    def youngest_first(app: Any) -> tuple[Any, ...]:
        return (app.ready[0][0] if app.ready else 0, -app.submitted_ns, -app.submission)

    patch.setattr(ordering, "app_key", youngest_first)


def _no_use(patch: pytest.MonkeyPatch) -> None:
    """What users used does not matter."""
    patch.setattr(UserUsage, "charge", lambda self, items, sign, now: None)


def _backfill(patch: pytest.MonkeyPatch) -> None:
    """Short asks take ten times as long as they declare."""
    whole = backfill.declared_ms
    patch.setattr(backfill, "declared_ms", lambda ask: whole(ask) // 10)


def _promise_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What was backfilled ends when the RM says, also later than promised."""
    patch.setattr(recovery, "outlives", lambda held, said_ms: False)
    patch.setattr(recovery, "promised", lambda held, demand: None)


def _promise_not_told(patch: pytest.MonkeyPatch) -> None:
    """The promised end is kept, and the RM is answered with the one that it said."""
    patch.setattr(backfill, "in_force_ms", lambda held: held.execution_timeout_ms)


def _longer_wait_not_told(patch: pytest.MonkeyPatch) -> None:
    """A report makes a reservation wait longer, and no event says why."""
    patch.setattr(backfill.Backfill, "tell_moved", staticmethod(lambda before, changed, out, now_ns: None))


def _reservation_hiding(patch: pytest.MonkeyPatch) -> None:
    """Nodes that are kept free stay in the search."""
    whole = NodeAccounting.update_index

    def listed(self: NodeAccounting, node: Any) -> None:
        kept, node.reservations = node.reservations, {}
        try:
            whole(self, node)
        finally:
            node.reservations = kept

    patch.setattr(NodeAccounting, "update_index", listed)


def _reservation_age(patch: pytest.MonkeyPatch) -> None:
    """Nodes are kept free at once."""
    whole = Partition.set_policies

    def at_once(self: Partition, config: Any) -> None:
        whole(self, replace(config, reservation=replace(config.reservation, delay_ns=0)))

    patch.setattr(Partition, "set_policies", at_once)


def _answered_twice(patch: pytest.MonkeyPatch) -> None:
    """A refused ask is refused twice."""
    whole = allocation_requests.reject

    def twice(item: Any, reason: str, out: Outcome) -> None:
        whole(item, reason, out)
        whole(item, reason, out)

    patch.setattr(allocation_requests, "reject", twice)


def _confirmation_told(patch: pytest.MonkeyPatch) -> None:
    """What the RM confirms is echoed."""
    patch.setattr(allocation_requests, "_RELEASE_DETAILS", {})


def _events_apart(patch: pytest.MonkeyPatch) -> None:
    """What a node holds is told before the application that holds it."""
    whole = AllocationFacts.on_allocated

    def turned(self: AllocationFacts, allocation: Any, out: Outcome, *given: Any, **named: Any) -> None:
        before = len(out.events)
        whole(self, allocation, out, *given, **named)
        out.events[before : before + 2] = reversed(out.events[before : before + 2])

    patch.setattr(AllocationFacts, "on_allocated", turned)


def _forgotten(patch: pytest.MonkeyPatch) -> None:
    """Who waits for a limit is not woken when it has room again."""
    patch.setattr("muster_core.allocation.scheduling_queue.SchedulingQueue.on_limit_gained", lambda self, app: None)


def _record_lost(patch: pytest.MonkeyPatch) -> None:
    """A change of an ask is not written."""
    whole = Outcome.mark_changed

    def without_asks(self: Outcome, changed: Any, partition: str) -> None:
        if type(changed).__name__ != "Ask" or changed.gone or not changed.published:
            whole(self, changed, partition)

    patch.setattr(Outcome, "mark_changed", without_asks)


def _reload_half(patch: pytest.MonkeyPatch) -> None:
    """Queues that vanish from the configuration do not drain."""
    patch.setattr(reload, "_drain", lambda partition, kept, out, now_ns: iter(()))


def _budget(patch: pytest.MonkeyPatch) -> None:
    """A cycle goes beyond its budget."""
    whole = SchedulerCore.cycle
    patch.setattr(SchedulerCore, "cycle", lambda self, now_ns, budget, out=None: whole(self, now_ns, budget + 1, out))


def _node_keeps_its_capacity(patch: pytest.MonkeyPatch) -> None:
    """A node that goes takes nothing along."""
    whole = Outcome.add_event

    def without(self: Outcome, about: Any, change: Any, detail: EventDetail, *given: Any, **named: Any) -> None:
        whole(self, about, change, detail, *given, **{**named, **_NOTHING.get(detail, {})})

    patch.setattr(Outcome, "add_event", without)


_NOTHING: dict[EventDetail, dict[str, Any]] = {EventDetail.NODE_DECOMISSION: {"resource": None}}


def _nothing_gives_way(patch: pytest.MonkeyPatch) -> None:
    """A reservation by age holds against every rank."""
    patch.setattr(Ask, "yields", property(lambda self: False))


def _rank_without_priority(patch: pytest.MonkeyPatch) -> None:
    """Priorities do not count in the rank."""
    patch.setattr(rank, "outranks", lambda ask, other: ask.age < other.age)
    patch.setattr(cycle, "outranks", lambda ask, other: ask.age < other.age)


def _rank_without_guarantee(patch: pytest.MonkeyPatch) -> None:
    """Guarantees do not count in the rank."""
    patch.setattr(rank, "_is_within_guarantee", lambda ask, queues: False)


def _claim_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A claim whose victims are gone for nothing stays."""
    patch.setattr(Reservations, "review", lambda self, *given, **named: None)


def _claim_for_a_moment(patch: pytest.MonkeyPatch) -> None:
    """A claim is lost before its victims are gone."""

    def lost(self: Reservations, ask: Any, node: Any, out: Outcome, now_ns: int, *, limited: bool) -> None:
        if ask.preempts and not ask.demand.required_node:
            self.unreserve(ask, out, now_ns, "others use it")

    patch.setattr(Reservations, "review", lost)


def _reservations_stay(patch: pytest.MonkeyPatch) -> None:
    """Reservations by age stay in force when reservations are switched off."""
    patch.setattr(Reservations, "reconfigured", lambda self, out, now_ns: None)


# What is broken, how, and which checks may be the ones that notice.
BROKEN: dict[str, tuple[Break, set[str]]] = {
    "node fit": (_node_fit, {"node fit"}),  # rare
    "priority fence": (_priority_fence, {"queue order"}),  # rare
    "priority behind": (_priority_behind, {"queue order"}),  # several places
    "priority unfit": (_priority_unfit, {"queue order"}),  # order
    "queue share": (_queue_share, {"queue order"}),  # order
    "application order": (_application_order, {"application order"}),  # order
    "decayed use": (_no_use, {"application order"}),  # rare
    "backfill": (_backfill, {"backfill"}),  # rare
    "promise forgotten": (_promise_forgotten, {"promise", "answer"}),  # several places
    "promise not told": (_promise_not_told, {"promise"}),  # rare
    "longer wait not told": (_longer_wait_not_told, {"promise"}),  # rare
    "reservation hiding": (_reservation_hiding, {"reserved node"}),  # rare
    "reservation age": (_reservation_age, {"reservation"}),  # outside
    "nothing gives way": (_nothing_gives_way, {"rank"}),  # rare
    "rank without priority": (_rank_without_priority, {"rank"}),  # several places
    "rank without guarantee": (_rank_without_guarantee, {"rank"}),  # open
    "claim for ever": (_claim_for_ever, {"claim", "left pending"}),  # rare
    "claim for a moment": (_claim_for_a_moment, {"claim"}),  # several places
    "reservations stay": (_reservations_stay, {"claim", "event sum", "record", "reservation"}),  # rare
    "answered twice": (_answered_twice, {"answer"}),  # order
    "confirmation told": (_confirmation_told, {"answer"}),  # outside
    "events apart": (_events_apart, {"event sum"}),  # order
    "node keeps its capacity": (_node_keeps_its_capacity, {"history"}),  # outside
    "forgotten": (_forgotten, {"left pending", "reason"}),  # rare
    "record lost": (_record_lost, {"record"}),  # several places
    "reload half": (_reload_half, {"answer", "record", "deadline"}),  # rare
    "budget": (_budget, {"budget"}),  # outside
}


@pytest.mark.parametrize("what", list(BROKEN))
def test_the_auditor_notices_broken(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks, checks = BROKEN[what]
    breaks(monkeypatch)
    seeds = [*HINTS.get(what, ()), *SEEDS]
    must_be_noticed(what, checks, seeds, STEPS, lambda seed: Life(seed, check_core=False))
