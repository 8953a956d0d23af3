"""The lives of applications: how they come, move along the table of their states (``states.py``), and go.

Also those that were not let in: they are remembered for a while, for those who look for them.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from muster_si.constants import APP_TAG_STATE_AWARE_DISABLE

from muster_scheduler.core.commands import AppItem, Termination
from muster_scheduler.core.gangs import LEFTOVER_MESSAGE
from muster_scheduler.core.limits import link_event
from muster_scheduler.core.objects import Application, in_order
from muster_scheduler.core.outcome import Change, Detail, EventType, Outcome, UpdatedApplication
from muster_scheduler.core.resources import INT64_MAX
from muster_scheduler.core.states import (
    APP_TERMINAL,
    COMPLETING_TIMEOUT_NS,
    DYNAMIC_QUEUE_LINGER_NS,
    STARTING,
    TERMINATED_TIMEOUT_NS,
    AppEvent,
    AppState,
    GangPhase,
    QueueState,
    next_app_state,
)

if TYPE_CHECKING:
    from muster_scheduler.core.partition import Partition

_APP_DETAILS = {
    AppState.NEW: Detail.APP_NEW,
    AppState.ACCEPTED: Detail.APP_ACCEPTED,
    AppState.RUNNING: Detail.APP_RUNNING,
    AppState.COMPLETING: Detail.APP_COMPLETING,
    AppState.COMPLETED: Detail.APP_COMPLETED,
    AppState.FAILING: Detail.APP_FAILING,
    AppState.FAILED: Detail.APP_FAILED,
    AppState.RESUMING: Detail.APP_RESUMING,
    AppState.EXPIRED: Detail.APP_EXPIRED,
}
# States that an application remembers: one that runs and idles by turns for months must not grow with each turn.
STORY_MAX = 64
# Of rejected applications kept: an RM that is refused again and again must not fill the memory.
REJECTED_MAX = 1000
_REJECTED_TEXT_MAX, _REJECTED_GROUPS_MAX = 256, 16


class Lifecycle:
    """What becomes of the applications of one partition; they are in ``Partition.apps`` and ``.rejected``, by id."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    # ---- coming and going ------------------------------------------------------------------------------------------

    def take_id(self, app: Application, out: Outcome) -> None:
        """The id of a finished application is used again; that one stays visible under ``<id>-<seconds>``.

        As a copy: what it held may have gone in this very outcome, and its tombstones carry the id that it had.
        """
        partition = self._partition
        finished = partition.apps.pop(app.app_id, None)
        if finished is None:
            return
        name = f"{finished.app_id}-{finished.finished_ns // 1_000_000_000}"
        while name in partition.apps:
            name += "x"
        renamed = copy(finished)
        renamed.app_id, renamed.published = name, False
        finished.gone = True
        partition.apps[name] = renamed
        if renamed.deadline_ns:
            partition.deadlines.append((renamed.deadline_ns, renamed))
        out.touch(renamed, partition.name)
        app.published, finished.published = finished.published, False  # the record under the id is the new one's

    def add_application(self, app: Application) -> None:
        """Takes an application into its queue."""
        partition = self._partition
        partition.apps[app.app_id] = app
        if app.state not in APP_TERMINAL:
            app.queue.applications[app.app_id] = app
            partition.limits.join(app)

    def remove_application(self, app: Application, out: Outcome, now_ns: int) -> None:
        """Removes an application with everything under it, at the word of who brought it."""
        partition = self._partition
        for ask in sorted(app.asks.values(), key=lambda ask: ask.submission):
            partition.remove_ask(ask, out, now_ns, Detail.REQUEST_CANCEL)
        for allocation in in_order(app.allocations.values()):
            partition.releases.release(
                allocation,
                Termination.STOPPED_BY_RM,
                f"Application {app.app_id} Removed",
                Detail.ALLOC_CANCEL,
                out,
                now_ns,
                tell=not allocation.source,
                completing=False,
            )
        if app.counted:
            self._count(app, -1)
        self._leave_queue(app, out, now_ns)
        self.forget_application(app)
        out.touch(app, partition.name)

    def forget_application(self, app: Application) -> None:
        """Drops a finished application."""
        partition = self._partition
        if partition.apps.get(app.app_id) is app:
            del partition.apps[app.app_id]
        if app.queue.applications.pop(app.app_id, None) is not None:
            partition.gangs.withdraw(app)
            partition.limits.leave(app)
        app.gone = True
        partition.types.release(app.allocated, app.pending)

    def _leave_queue(self, app: Application, out: Outcome, now_ns: int) -> None:
        partition = self._partition
        queue = app.queue
        if queue.applications.pop(app.app_id, None) is None:
            return
        if app.waiting_at is not None:
            partition.waiting.stop_waiting(app)
        partition.waiting.refresh_app(app)
        partition.gangs.withdraw(app)
        trackers = app.trackers
        partition.limits.leave(app)
        link_event(app, app.user_group, Change.REMOVE, out, now_ns)
        if trackers:
            partition.waiting.forget_those_of(queue, trackers, out)
        out.track(EventType.APP, Change.REMOVE, Detail.NONE, app.app_id, now_ns=now_ns)
        out.track(EventType.QUEUE, Change.REMOVE, Detail.QUEUE_APP, queue.path, app.app_id, now_ns=now_ns)
        partition.external.application_left(app.app_id)
        if not queue.applications and (not queue.managed or queue.state is QueueState.DRAINING):
            partition.deadlines.append((now_ns + DYNAMIC_QUEUE_LINGER_NS, queue))

    # ---- states ----------------------------------------------------------------------------------------------------

    def change_state(self, app: Application, event: AppEvent, out: Outcome, now_ns: int, message: str = "") -> None:
        """Moves the application along its table, with everything that follows from it."""
        partition = self._partition
        before = app.state
        app.state = state = next_app_state(f"application {app.app_id}", before, event, tuple(app.story))
        if state is before:
            return
        if state is AppState.RUNNING and not app.started_ns and partition.previous_generation and not app.source:
            self._tell_starting(app, event, out, now_ns)
        app.story.append((now_ns, state))
        if len(app.story) > STORY_MAX:
            del app.story[1]
        app.deadline_ns = 0
        self.recount(app)
        if state is AppState.RUNNING:
            if not app.started_ns:
                app.started_ns = now_ns
            if app.execution_timeout_ms > 0 and app.placeholder_ask is None:  # else it is the placeholders' time-out
                self._set_deadline(app, app.started_ns + app.execution_timeout_ms * 1_000_000)
        if state is AppState.COMPLETING:
            self._set_deadline(app, now_ns + COMPLETING_TIMEOUT_NS)
        elif state in APP_TERMINAL and state is not AppState.EXPIRED:
            app.finished_ns = now_ns
            app.reason = None
            self._set_deadline(app, now_ns + TERMINATED_TIMEOUT_NS)
            self._leave_queue(app, out, now_ns)
        out.track(EventType.APP, Change.SET, _APP_DETAILS[state], app.app_id, message=message, now_ns=now_ns)
        if not app.source:
            out.facts.append(UpdatedApplication(app.app_id, state, now_ns, message or event))
        out.touch(app, partition.name)

    def _tell_starting(self, app: Application, event: AppEvent, out: Outcome, now_ns: int) -> None:
        if app.tags.get(APP_TAG_STATE_AWARE_DISABLE, "").lower() == "true":
            return
        app.story.append((now_ns, STARTING))
        out.track(EventType.APP, Change.SET, Detail.APP_STARTING, app.app_id, now_ns=now_ns)
        out.facts.append(UpdatedApplication(app.app_id, STARTING, now_ns, event))

    def started(self, app: Application, out: Outcome, now_ns: int) -> None:
        """The application has its first real allocation (or has one again)."""
        self._partition.gangs.real_placed(app, out)
        if app.state in (AppState.NEW, AppState.RESUMING):
            self.change_state(app, AppEvent.RUN, out, now_ns)
        if app.state in (AppState.ACCEPTED, AppState.COMPLETING):
            self.change_state(app, AppEvent.RUN, out, now_ns)

    def complete_if_idle(self, app: Application, out: Outcome, now_ns: int) -> None:
        """An application without asks and real allocations begins to complete; one that is ending may have ended.

        Placeholders are not what an application runs (seed 003, "Application completion"). But while its gang is still
        to be used, they are what it waits with. What a source brought ends when the source says so.
        """
        if app.source:
            return
        gang = app.gang
        placeholders = gang.held if gang is not None else 0
        if app.state is AppState.RESUMING and not placeholders:
            self.change_state(app, AppEvent.RUN, out, now_ns)
        if app.asks or len(app.allocations) > placeholders:
            return
        if app.state is AppState.FAILING:
            if not placeholders:
                self.change_state(app, AppEvent.FAIL, out, now_ns)
        elif app.state is AppState.COMPLETING:
            if not placeholders and not app.deadline_ns:  # its time was up before
                self.change_state(app, AppEvent.COMPLETE, out, now_ns)
        elif app.state in (AppState.ACCEPTED, AppState.RUNNING) and (
            not placeholders or (gang is not None and gang.phase is GangPhase.USED)
        ):
            self.change_state(app, AppEvent.COMPLETE, out, now_ns)

    def fail(self, app: Application, message: str, out: Outcome, now_ns: int) -> None:
        """Ends an application: its asks go, its allocations are told to; when all are gone it is Failed."""
        partition = self._partition
        # (In this order: an RM that works off what it is told has ended everything before it hears of the end.)
        for ask in sorted(app.asks.values(), key=lambda ask: ask.submission):
            partition.time_out_ask(ask, message, Detail.REQUEST_CANCEL, out, now_ns)
        for allocation in in_order(app.allocations.values()):
            partition.releases.time_out(allocation, message, out, now_ns)
        self.change_state(app, AppEvent.FAIL, out, now_ns, message)
        self.complete_if_idle(app, out, now_ns)

    def expire(self, app: Application, out: Outcome, now_ns: int) -> None:
        """The deadline of the application's state has come."""
        partition = self._partition
        app.deadline_ns = 0
        if app.state is AppState.REJECTED:
            self.forget_rejected(app, out)
        elif app.state is AppState.COMPLETING:
            # Placeholders that nobody needed go first; the application is completed when all of them are gone.
            partition.gangs.release_unused(app, LEFTOVER_MESSAGE, out, now_ns)
            out.touch(app, partition.name)
            self.complete_if_idle(app, out, now_ns)
        elif app.state is AppState.RUNNING:
            over = f"the application's execution time-out of {app.execution_timeout_ms} ms is over"
            self.fail(app, over, out, now_ns)
        elif app.state in APP_TERMINAL:
            if app.state is not AppState.EXPIRED:
                self.change_state(app, AppEvent.EXPIRE, out, now_ns)
            self.forget_application(app)
            out.touch(app, partition.name)

    def _set_deadline(self, app: Application, deadline_ns: int) -> None:
        app.deadline_ns = min(deadline_ns, INT64_MAX)  # (what the RM says may be centuries)
        self._partition.deadlines.append((app.deadline_ns, app))

    # ---- counts ----------------------------------------------------------------------------------------------------

    def recount(self, app: Application) -> None:
        """Whether the application counts against the maxima of applications, as its state and its gang say."""
        counts = counts_as_running(app)
        if counts != app.counted:
            self._count(app, 1 if counts else -1)

    def _count(self, app: Application, step: int) -> None:
        partition = self._partition
        app.counted = step > 0
        if app.counted and app.waiting_at is not None:  # an allocation that the RM reported made it run
            partition.waiting.stop_waiting(app)
            partition.waiting.refresh_app(app)
        for ledger in app.ledgers:
            ledger.running_applications += step
            partition.waiting.wake_app(ledger)

    # ---- rejected --------------------------------------------------------------------------------------------------

    def keep_rejected(self, item: AppItem, reason: str, submission: int, out: Outcome, now_ns: int) -> None:
        """Remembers an application that was refused, for those who look for it; the same id again replaces it."""
        partition = self._partition
        app = Application(partition.types, item.app_id, partition.root, submission, now_ns)
        partition.types.release(app.allocated, app.pending)
        # As much as tells which one it was: what is refused may be refused for its size.
        app.requested_queue, app.user = item.queue[:_REJECTED_TEXT_MAX], item.user[:_REJECTED_TEXT_MAX]
        app.groups_of_user = tuple(group[:_REJECTED_TEXT_MAX] for group in item.groups[:_REJECTED_GROUPS_MAX])
        app.rejected_message = reason
        app.story = [(now_ns, AppState.NEW)]
        app.state = next_app_state(f"application {app.app_id}", app.state, AppEvent.REJECT, tuple(app.story))
        app.story.append((now_ns, app.state))
        app.finished_ns = now_ns
        self._set_deadline(app, now_ns + TERMINATED_TIMEOUT_NS)
        old = partition.rejected.pop(app.app_id, None)
        if old is not None:
            app.published, old.published, old.gone = old.published, False, True
        partition.rejected[app.app_id] = app
        out.touch(app, partition.name)
        while len(partition.rejected) > REJECTED_MAX:
            self.forget_rejected(next(iter(partition.rejected.values())), out)

    def forget_rejected(self, app: Application, out: Outcome) -> None:
        """Nobody looks for it any more."""
        partition = self._partition
        del partition.rejected[app.app_id]
        app.gone = True
        out.touch(app, partition.name)


def counts_as_running(app: Application) -> bool:
    """Whether the application counts against the maxima of applications: it runs, or its gang forms."""
    if app.state is AppState.ACCEPTED:  # (the RM may be asked about its first allocation)
        return app.proposed > 0 or (app.gang is not None and app.gang.counts_as_running)
    if app.state is AppState.RESUMING:
        return app.proposed > 0
    return app.state is AppState.RUNNING
