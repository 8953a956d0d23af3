"""Books the use of users in leaves whose applications are in the order of decayed use (``model/decayed_usage.py``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster_core.model.decayed_usage import FORGOTTEN_HALVES, LeafUsage, UserUsage

if TYPE_CHECKING:
    from muster_core.allocation.scheduling_queue import SchedulingQueue
    from muster_core.model.application import Application
    from muster_core.model.outcome import Outcome
    from muster_core.model.partition_state import PartitionState
    from muster_core.model.queue import Queue
    from muster_core.model.resources import Shape


class FairShareAccounting:
    """The decayed use of one partition's users. The leaves hold it."""

    def __init__(self, state: PartitionState, *, waiting: SchedulingQueue) -> None:
        self._state = state
        self._waiting = waiting

    def charge(self, app: Application, shape: Shape, sign: int, out: Outcome, now_ns: int) -> None:
        """Books amounts that the application holds from now on (``sign`` 1), or does not any more (-1)."""
        uses = app.queue.fair_uses
        if uses is None:
            return
        use = uses.get_or_create(app.user)
        use.charge(shape.items, sign, uses.now(now_ns))
        use.changed_ns = now_ns
        out.mark_changed(use, self._state.name)
        self._watch(uses, now_ns)
        uses.move(use)
        self._waiting.requeue_queue(app.queue)

    def propose(self, app: Application, shape: Shape, sign: int) -> None:
        """Counts a proposal to the RM (``sign`` 1), or not any more (-1)."""
        uses = app.queue.fair_uses
        if uses is not None:
            use = uses.get_or_create(app.user)
            use.propose(shape.items, sign)
            uses.move(use)
            self._waiting.requeue_queue(app.queue)

    def on_deadline(self, uses: LeafUsage, out: Outcome, now_ns: int) -> None:
        """A period is over: moves the horizon, and forgets users whose use is long ago."""
        leaf = self._state.queues[uses.leaf.path]
        uses.due_ns = 0
        uses.look_ahead(now_ns)
        before_ns = now_ns - FORGOTTEN_HALVES * uses.half_life_ns
        for user, use in sorted(uses.users.items()):
            if use.held:
                uses.move(use)
            elif use.changed_ns < before_ns and use.idle and not self._is_known(leaf, user):
                del uses.users[user]
                use.gone = True
                out.mark_changed(use, self._state.name)
        if uses.users:
            self._watch(uses, now_ns)
        self._waiting.requeue_queue(leaf)

    def activate(self, now_ns: int) -> None:
        """After a fold: sets the horizons."""
        for queue in self._state.queues.values():
            if queue.fair_uses is not None and queue.fair_uses.users:
                self._watch(queue.fair_uses, now_ns)
                queue.fair_uses.move_all()

    def reconfigured(self, leaf: Queue, before: LeafUsage | None, out: Outcome, now_ns: int) -> None:
        """The leaf's order, or its half-life, may have changed. A new half-life keeps each user's present use; in a
        new order by use, all users begin with what they hold.
        """
        uses = leaf.fair_uses
        if uses is before:
            return
        if uses is None:
            for use in before.forget() if before is not None else ():
                out.mark_changed(use, self._state.name)
            return
        if before is not None:
            before.gone = True
            for use in before.users.values():
                self._take(uses, use, before, now_ns)
        else:
            for app in self._state.apps_in(leaf):
                items = [(number, value) for number, value in enumerate(app.allocated) if value]
                uses.get_or_create(app.user).charge(items, 1, uses.now(now_ns))
        for _, use in sorted(uses.users.items()):
            use.changed_ns = use.changed_ns or now_ns
            out.mark_changed(use, self._state.name)
        if uses.users:
            self._watch(uses, now_ns)
            uses.move_all()

    def carry_over(self, leaf: Queue, before: LeafUsage, out: Outcome, now_ns: int) -> None:
        """The RM registered again, and everything ended: the users' past use stays."""
        uses = leaf.fair_uses
        if uses is None:
            return
        for _, old in sorted(before.users.items()):
            if not (old.charged or old.held):
                continue
            old.charge(list(old.held.items()), -1, before.now(now_ns))
            use = self._take(uses, old, before, now_ns)
            use.changed_ns = old.changed_ns
            out.mark_changed(use, self._state.name)
        if uses.users:
            self._watch(uses, now_ns)
            uses.move_all()

    @staticmethod
    def _take(uses: LeafUsage, old: UserUsage, before: LeafUsage, now_ns: int) -> UserUsage:
        """Takes a user's use in another half-life: the same amount x seconds at this time."""
        new = uses.get_or_create(old.user)
        was, now = before.now(now_ns), uses.now(now_ns)
        used = old.weighted(was)
        new.held, new.halves = dict(old.held), now.halves
        new.charged = {}
        for number, value in used.items():
            # (use = weighted sum / weight x half-life, for both.)
            weighted = value * now.weight * before.half_life_ns // (was.since(old.halves) * uses.half_life_ns)
            charged = weighted - new.held.get(number, 0) * now.weight
            if charged:
                new.charged[number] = charged
        new.changed_ns, new.published = old.changed_ns, old.published
        return new

    def _is_known(self, leaf: Queue, user: str) -> bool:
        return any(app.user == user for app in self._state.apps_in(leaf))

    def _watch(self, uses: LeafUsage, now_ns: int) -> None:
        """Sets the horizon, unless it moves at its deadline."""
        if not uses.due_ns:
            uses.look_ahead(now_ns)
            uses.due_ns = (uses.period + 1) * uses.period_ns
            self._state.deadlines.append((uses.due_ns, uses))
