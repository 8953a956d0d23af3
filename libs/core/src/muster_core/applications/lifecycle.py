"""The lives of applications: adds them, moves them along their state table (``model/states.py``), and removes them.

Keeps rejected applications for a while, so that people can look them up.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Protocol

from muster_si.constants import APP_TAG_STATE_AWARE_DISABLE

from muster_core.gangs.messages import LEFTOVER_MESSAGE
from muster_core.model.allocation_order import asks_in_steps, ordered_in_steps
from muster_core.model.application import Application
from muster_core.model.commands import AppItem, Termination
from muster_core.model.outcome import EventChange, EventDetail, EventType, Outcome, UpdatedApplication
from muster_core.model.quotas import text_bytes
from muster_core.model.resources import INT64_MAX
from muster_core.model.states import (
    APP_ENDING,
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
from muster_core.model.steps import STEP, Steps, emptied, finish
from muster_core.queues.limits import link_event

if TYPE_CHECKING:
    from muster_core.allocation.asks import Asks
    from muster_core.allocation.releases import Releases
    from muster_core.allocation.scheduling_queue import SchedulingQueue
    from muster_core.model.partition_state import PartitionState
    from muster_core.queues.limits import UserLimits

_APP_DETAILS = {
    AppState.NEW: EventDetail.APP_NEW,
    AppState.ACCEPTED: EventDetail.APP_ACCEPTED,
    AppState.RUNNING: EventDetail.APP_RUNNING,
    AppState.COMPLETING: EventDetail.APP_COMPLETING,
    AppState.COMPLETED: EventDetail.APP_COMPLETED,
    AppState.FAILING: EventDetail.APP_FAILING,
    AppState.FAILED: EventDetail.APP_FAILED,
    AppState.RESUMING: EventDetail.APP_RESUMING,
    AppState.EXPIRED: EventDetail.APP_EXPIRED,
}
# Limit of states that an application remembers: an application that runs and idles by turns for months must not grow.
STATE_LOG_MAX = 64
# Limit of rejected applications kept: an RM that is refused again and again must not fill the memory.
REJECTED_MAX = 1000
_REJECTED_TEXT_MAX, _REJECTED_GROUPS_MAX = 256, 16
# With fewer finished applications than this, a search for forgotten ones does not pay.
_FINISHED_MIN = 1024


class ApplicationGangListener(Protocol):
    """The operations on gangs that applications need."""

    def on_real_allocated(self, app: Application, out: Outcome) -> None:
        """Notes a real allocation of the application that was made, or reported by the RM."""

    def release_unused(self, app: Application, message: str, out: Outcome, now_ns: int) -> Steps:
        """Releases the placeholders that no real ask has replaced, in steps."""

    def remove_promises(self, app: Application) -> None:
        """Withdraws the gang's promises from the limits, because the application does not count there any more."""

    def add_promises(self, app: Application) -> None:
        """Counts the gang's promises in the limits again: they depend on the application's state."""


class FreedIdListener(Protocol):
    """Is called when an application id becomes free."""

    def on_id_freed(self, app_id: str) -> None:
        """Notes that an application id is free again."""


class ApplicationLifecycle:
    """Moves the applications of one partition through their lives. They are in ``PartitionState.apps`` and
    ``.rejected``, by id.
    """

    _gangs: ApplicationGangListener
    _external: FreedIdListener

    def __init__(
        self,
        state: PartitionState,
        *,
        limits: UserLimits,
        waiting: SchedulingQueue,
        asks: Asks,
        releases: Releases,
    ) -> None:
        self._state = state
        self._limits = limits
        self._waiting = waiting
        self._asks = asks
        self._releases = releases
        # Finished applications by their end; None: not needed yet. The numbers tell a renamed one from its original.
        self._finished: list[tuple[int, int, int, Application]] | None = None
        self._finished_count = 0

    def connect(self, *, gangs: ApplicationGangListener, external: FreedIdListener) -> None:
        """Takes the parts that are built after this one."""
        self._gangs = gangs
        self._external = external

    # ---- arrival and removal ---------------------------------------------------------------------------------------

    def free_id(self, app: Application, out: Outcome) -> None:
        """Frees the id of a finished application for a new one. The finished one stays visible under
        ``<id>-<seconds>``.

        The finished one continues as a copy: this same outcome may have tombstones of its objects under the old id.
        """
        state = self._state
        finished = state.apps.pop(app.app_id, None)
        if finished is None:
            return
        name = f"{finished.app_id}-{finished.finished_ns // 1_000_000_000}"
        while name in state.apps:
            name += "x"
        renamed = finished.renamed(name)
        finished.gone = True
        state.apps[name] = renamed
        self._note_finished(renamed)
        if renamed.deadline_ns:
            state.deadlines.append((renamed.deadline_ns, renamed))
        out.mark_changed(renamed, state.name)
        # The record under the id is the new application's.
        app.published, finished.published = finished.published, False

    def add_application(self, app: Application) -> None:
        """Adds an application to its queue."""
        state = self._state
        state.apps[app.app_id] = app
        state.text_bytes += text_bytes(app.tags)
        if app.state not in APP_TERMINAL:
            app.queue.applications[app.app_id] = None
            self._limits.attach(app)

    def remove_in_steps(self, app: Application, out: Outcome, now_ns: int) -> Steps:
        """Removes an application with all its asks and allocations, on request of the RM or of the source that brought
        it. In steps.
        """
        state = self._state
        asks = yield from asks_in_steps(app.asks.values())
        for count, ask in enumerate(emptied(asks), 1):
            self._asks.remove_ask(ask, out, now_ns, EventDetail.REQUEST_CANCEL)
            if not count % STEP:
                yield
        allocations = yield from ordered_in_steps(app.allocations.values())
        for count, allocation in enumerate(emptied(allocations), 1):
            self._releases.release(
                allocation,
                Termination.STOPPED_BY_RM,
                f"Application {app.app_id} Removed",
                EventDetail.ALLOC_CANCEL,
                out,
                now_ns,
                tell=not allocation.source,
                completing=False,
            )
            if not count % STEP:
                yield
        if app.counted:
            self._count(app, -1)
        self._leave_queue(app, out, now_ns)
        self.forget_application(app)
        out.mark_changed(app, state.name)

    def forget_application(self, app: Application) -> None:
        """Drops a finished application."""
        state = self._state
        if state.apps.get(app.app_id) is app:
            del state.apps[app.app_id]
            state.text_bytes -= text_bytes(app.tags)
        if app.app_id in app.queue.applications:
            del app.queue.applications[app.app_id]
            self._gangs.remove_promises(app)
            self._limits.detach(app)
        app.gone = True
        app.gang = None  # each refers to the other
        state.types.release(app.allocated, app.pending)

    def _leave_queue(self, app: Application, out: Outcome, now_ns: int) -> None:
        state = self._state
        queue = app.queue
        if app.app_id not in queue.applications:
            return
        del queue.applications[app.app_id]
        if app.waiting_at is not None:
            self._waiting.unpark_app(app)
        self._waiting.requeue_app(app)
        self._gangs.remove_promises(app)
        trackers = app.trackers
        self._limits.detach(app)
        link_event(app, app.user_group, EventChange.REMOVE, out, now_ns)
        if trackers:
            self._waiting.forget_those_of(queue, trackers, out)
        out.add_event(EventType.APP, EventChange.REMOVE, EventDetail.NONE, app.app_id, now_ns=now_ns)
        out.add_event(EventType.QUEUE, EventChange.REMOVE, EventDetail.QUEUE_APP, queue.path, app.app_id, now_ns=now_ns)
        self._external.on_id_freed(app.app_id)
        if not queue.applications and (not queue.managed or queue.state is QueueState.DRAINING):
            state.deadlines.append((now_ns + DYNAMIC_QUEUE_LINGER_NS, queue))

    # ---- states ----------------------------------------------------------------------------------------------------

    def change_state(self, app: Application, event: AppEvent, out: Outcome, now_ns: int, message: str = "") -> None:
        """Moves the application along its state table, with all consequences."""
        before = app.state
        app.state = state = next_app_state(f"application {app.app_id}", before, event, tuple(app.state_log))
        if state is before:
            return
        if state is AppState.RUNNING and not app.started_ns and self._state.previous_generation and not app.source:
            self._tell_starting(app, event, out, now_ns)
        app.state_log.append((now_ns, state))
        if len(app.state_log) > STATE_LOG_MAX:
            del app.state_log[1]
        app.deadline_ns = 0
        self.recount(app)
        if app.gang is not None and (before in APP_ENDING) != (state in APP_ENDING):
            self._gangs.add_promises(app)
        if state is AppState.RUNNING:
            if not app.started_ns:
                app.started_ns = now_ns
            # Otherwise the deadline is the placeholders' time-out.
            if app.execution_timeout_ms > 0 and app.placeholder_ask is None:
                self._set_deadline(app, app.started_ns + app.execution_timeout_ms * 1_000_000)
        if state is AppState.COMPLETING:
            self._set_deadline(app, now_ns + COMPLETING_TIMEOUT_NS)
        elif state in APP_TERMINAL and state is not AppState.EXPIRED:
            app.finished_ns = now_ns
            app.reason = None
            self._note_finished(app)
            self._set_deadline(app, now_ns + TERMINATED_TIMEOUT_NS)
            self._leave_queue(app, out, now_ns)
        out.add_event(EventType.APP, EventChange.SET, _APP_DETAILS[state], app.app_id, message=message, now_ns=now_ns)
        if not app.source and not app.independent:
            out.facts.append(UpdatedApplication(app.app_id, state, now_ns, message or event))
        out.mark_changed(app, self._state.name)

    def _tell_starting(self, app: Application, event: AppEvent, out: Outcome, now_ns: int) -> None:
        if app.independent or app.tags.get(APP_TAG_STATE_AWARE_DISABLE, "").lower() == "true":
            return
        app.state_log.append((now_ns, STARTING))
        out.add_event(EventType.APP, EventChange.SET, EventDetail.APP_STARTING, app.app_id, now_ns=now_ns)
        out.facts.append(UpdatedApplication(app.app_id, STARTING, now_ns, event))

    def on_first_allocation(self, app: Application, out: Outcome, now_ns: int) -> None:
        """Handles the application's first real allocation (or the first one after it had none)."""
        self._gangs.on_real_allocated(app, out)
        if app.state in (AppState.NEW, AppState.RESUMING):
            self.change_state(app, AppEvent.RUN, out, now_ns)
        if app.state in (AppState.ACCEPTED, AppState.COMPLETING):
            self.change_state(app, AppEvent.RUN, out, now_ns)

    def complete_if_idle(self, app: Application, out: Outcome, now_ns: int) -> None:
        """Completes an application without asks and real allocations; ends one that is failing or completing, if
        nothing is left.

        Placeholders do not count as work of the application (the gang design, "Application completion"). But while its
        gang is still to be used, the application waits with them. An external application ends when its source says so.
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
            if not placeholders and not app.deadline_ns:  # its time-out was over before
                self.change_state(app, AppEvent.COMPLETE, out, now_ns)
        elif app.state in (AppState.ACCEPTED, AppState.RUNNING) and (
            not placeholders or (gang is not None and gang.phase is GangPhase.USED)
        ):
            self.change_state(app, AppEvent.COMPLETE, out, now_ns)

    def fail(self, app: Application, message: str, out: Outcome, now_ns: int) -> Steps:
        """Ends an application: removes its asks and releases its allocations. When all are gone, it is Failed. In
        steps.
        """
        # (In this order, an RM that handles messages one by one has ended everything before it gets the final state.)
        yield from self._asks.time_out_all(app.asks.values(), message, EventDetail.REQUEST_CANCEL, out, now_ns)
        yield from self._releases.time_out_all(app.allocations.values(), message, out, now_ns)
        app.failed_message = message
        self.change_state(app, AppEvent.FAIL, out, now_ns, message)
        self.complete_if_idle(app, out, now_ns)

    def expire(self, app: Application, out: Outcome, now_ns: int) -> Steps:
        """Handles the deadline of the application's state, in steps."""
        state = self._state
        app.deadline_ns = 0
        if app.state is AppState.REJECTED:
            self.forget_rejected(app, out)
        elif app.state is AppState.COMPLETING:
            # Unused placeholders go first. The application is completed when all of them are gone.
            yield from self._gangs.release_unused(app, LEFTOVER_MESSAGE, out, now_ns)
            out.mark_changed(app, state.name)
            self.complete_if_idle(app, out, now_ns)
        elif app.state is AppState.RUNNING:
            over = f"the application's execution time-out of {app.execution_timeout_ms} ms is over"
            yield from self.fail(app, over, out, now_ns)
        elif app.state in APP_TERMINAL:
            if app.state is not AppState.EXPIRED:
                self.change_state(app, AppEvent.EXPIRE, out, now_ns)
            self.forget_application(app)
            out.mark_changed(app, state.name)

    def expire_oldest(self, out: Outcome, now_ns: int) -> bool:
        """Forgets the application that finished first of those that are kept. Returns whether there was one. O(log n)
        after the first call.
        """
        state = self._state
        if self._finished is None:
            self._finished = []
            for app in state.apps.values():
                if app.state in APP_TERMINAL:
                    self._note_finished(app)
        while self._finished:
            *_, app = heapq.heappop(self._finished)
            if not app.gone and state.apps.get(app.app_id) is app:
                finish(self.expire(app, out, now_ns))  # (it has nothing left)
                return True
        return False

    def _note_finished(self, app: Application) -> None:
        if self._finished is None:  # nobody has asked yet
            return
        self._finished_count += 1
        heapq.heappush(self._finished, (app.finished_ns, app.submission, self._finished_count, app))
        if len(self._finished) > 2 * len(self._state.apps) + _FINISHED_MIN:
            self._finished = [entry for entry in self._finished if not entry[-1].gone]
            heapq.heapify(self._finished)

    def _set_deadline(self, app: Application, deadline_ns: int) -> None:
        app.deadline_ns = min(deadline_ns, INT64_MAX)  # (the RM's values may be centuries)
        self._state.deadlines.append((app.deadline_ns, app))

    # ---- counts ----------------------------------------------------------------------------------------------------

    def recount(self, app: Application) -> None:
        """Updates whether the application counts against limits of running applications, from its state and its
        gang.
        """
        counts = counts_as_running(app)
        if counts != app.counted:
            self._count(app, 1 if counts else -1)

    def _count(self, app: Application, step: int) -> None:
        app.counted = step > 0
        if app.counted and app.waiting_at is not None:  # an allocation that the RM reported made it run
            self._waiting.unpark_app(app)
            self._waiting.requeue_app(app)
        for ledger in app.ledgers:
            ledger.running_applications += step
            self._waiting.wake_app(ledger)

    # ---- rejected --------------------------------------------------------------------------------------------------

    def remember_rejected(self, item: AppItem, reason: str, submission: int, out: Outcome, now_ns: int) -> None:
        """Remembers a rejected application for people who look for it. The same id again replaces it."""
        state = self._state
        app = Application(state.types, item.app_id, state.root, submission, now_ns)
        state.types.release(app.allocated, app.pending)
        # Keeps only its identity: an application may be rejected for its size.
        app.requested_queue, app.user = item.queue[:_REJECTED_TEXT_MAX], item.user[:_REJECTED_TEXT_MAX]
        app.groups_of_user = tuple(group[:_REJECTED_TEXT_MAX] for group in item.groups[:_REJECTED_GROUPS_MAX])
        app.rejected_message = reason
        app.state_log = [(now_ns, AppState.NEW)]
        app.state = next_app_state(f"application {app.app_id}", app.state, AppEvent.REJECT, tuple(app.state_log))
        app.state_log.append((now_ns, app.state))
        app.finished_ns = now_ns
        self._set_deadline(app, now_ns + TERMINATED_TIMEOUT_NS)
        old = state.rejected.pop(app.app_id, None)
        if old is not None:
            app.published, old.published, old.gone = old.published, False, True
        state.rejected[app.app_id] = app
        out.mark_changed(app, state.name)
        while len(state.rejected) > REJECTED_MAX:
            self.forget_rejected(next(iter(state.rejected.values())), out)

    def forget_rejected(self, app: Application, out: Outcome) -> None:
        """Forgets a rejected application."""
        state = self._state
        del state.rejected[app.app_id]
        app.gone = True
        app.gang = None
        out.mark_changed(app, state.name)


def counts_as_running(app: Application) -> bool:
    """Whether the application counts against limits of running applications: it runs, or its gang forms."""
    if app.independent:
        return False
    if app.state is AppState.ACCEPTED:  # (the RM may be asked about its first allocation)
        return app.proposed > 0 or (app.gang is not None and app.gang.counts_as_running)
    if app.state is AppState.RESUMING:
        return app.proposed > 0
    return app.state is AppState.RUNNING
