"""The RM's requests about asks and allocations."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace

from muster_si.constants import FOREIGN

from muster_core.allocation import item_conversion
from muster_core.allocation.backfill import outlives
from muster_core.allocation.unqualified_releases import UnqualifiedReleases
from muster_core.config.queue_config import INDEPENDENT, INDEPENDENT_PATH, partition_name
from muster_core.model.allocation import made_uuid, unique_key
from muster_core.model.allocation_order import asks_in_steps, held_in_steps, ordered_in_steps
from muster_core.model.application import Allocation, Application, Ask
from muster_core.model.commands import AskItem, ReleaseItem, Termination
from muster_core.model.outcome import EventDetail, Outcome, ReleasedAllocation, ReleasedAsk
from muster_core.model.quotas import QuotaKind, text_bytes
from muster_core.model.resources import Shape, TooManyTypes
from muster_core.model.scopes import SCOPE_TAG, SCOPES
from muster_core.model.states import AppEvent, AppState
from muster_core.model.steps import LIGHT_STEP, STEP, Steps, emptied
from muster_core.partition import Partition
from muster_core.requests.item_validation import SHOWN_MAX, NegativeQuantity, announce, begin, refuse_negative, reject

_RELEASE_DETAILS = {
    Termination.TIMEOUT: EventDetail.ALLOC_TIMEOUT,
    Termination.PREEMPTED_BY_SCHEDULER: EventDetail.ALLOC_PREEMPT,
    Termination.PLACEHOLDER_REPLACED: EventDetail.ALLOC_REPLACED,
}

# These terminations end an allocation and keep its ask.
_KEEPING = (Termination.TIMEOUT, Termination.SCHEDULING_FAILED_ON_RM)


class AllocationRequests:
    """Handles asks, reported allocations and releases of the RM.

    :param partitions: the core's partitions, by name.
    :param submission: makes the next submission number.
    """

    def __init__(self, partitions: Mapping[str, Partition], submission: Callable[[], int]) -> None:
        self._partitions = partitions
        self._submission = submission

    def handle(self, item: AskItem, out: Outcome, now_ns: int) -> None:
        try:
            if item.quantities and min(item.quantities.values()) < 0:
                refuse_negative("allocation", item.quantities)
            if item.node_id or FOREIGN in item.tags:
                self._adopt(item, out, now_ns)
            else:
                self._ask(item, out, now_ns)
        except (TooManyTypes, NegativeQuantity) as error:
            reject(item, str(error), out)

    def _ask(self, item: AskItem, out: Outcome, now_ns: int) -> None:
        partition = self._partitions.get(item.partition) or self._partitions.get(partition_name(item.partition))
        if partition is None:
            reject(item, f"partition {item.partition!r} does not exist", out)
            return
        app = partition.live_application(item.app_id or INDEPENDENT)
        if problem := _owner_problem(partition, app, item):
            reject(item, problem, out)
            return
        if app is not None and app.state is AppState.FAILING:
            reject(item, f"application {item.app_id} is failing: nothing more is scheduled for it", out)
            return
        if not any(item.quantities.values()):
            reject(item, "allocation contains no resources", out)
            return
        if (
            scope_tag := item.tags.get(SCOPE_TAG) if item.tags else None
        ) is not None and scope_tag.strip().lower() not in SCOPES:
            reject(item, f"allocationTags[{SCOPE_TAG!r}]: {scope_tag[:SHOWN_MAX]!r}, expected {', '.join(SCOPES)}", out)
            return
        if item.wanted < 1:
            reject(item, f"maxAllocations is {item.wanted}, expected at least 1", out)
            return
        old = app.asks.get(item.key) if app is not None else None
        allocated = old.allocated if old is not None else app.allocated_count(item.key) if app is not None else 0
        if problem := _quota_problem(partition, app, item, old, allocated):
            reject(item, problem, out)
            return
        shape = partition.types.shape(item.quantities)
        if app is None or app.independent:
            app, item = self._independent(partition, out, now_ns), _without_gang(item)
        if allocated:
            self._change_held(partition, app, item, shape, out, now_ns)
        if allocated >= item.wanted:  # the request is met: further pending allocations are not wanted any more
            if old is not None:
                partition.asks.remove_ask(old, out, now_ns, EventDetail.APP_REQUEST)
                partition.lifecycle.complete_if_idle(app, out, now_ns)
            return
        submission = old.submission if old is not None else self._submission()
        demand = item_conversion.demand_of(item, shape, submission, old.created_ns if old is not None else now_ns)
        ask = Ask(app, demand, item.wanted - allocated, allocated)
        if old is not None:
            demand.admitted_ns = old.demand.admitted_ns  # it has waited since then
            if old.pending == ask.pending and old.demand.same_as(demand):
                return
            ask.published, old.published = old.published, False
            partition.reservations.transfer(old, ask, out, now_ns)
        partition.announcements.ask_changed(old, ask, out, now_ns)
        if old is not None:
            partition.asks.remove_ask(old, out, now_ns, None)
        if demand.placeholder:
            partition.gangs.adjust_requested(demand, app, ask.pending)
            out.mark_changed(app, partition.name)
        partition.asks.add_ask(ask, out)
        if app.state is AppState.NEW:
            # (The event names its first request, because events of this kind are about a request.)
            out.add_user_event(item.key, app.app_id, shape, "New application added", now_ns)
        if app.state in (AppState.NEW, AppState.COMPLETING):
            partition.lifecycle.change_state(app, AppEvent.RUN, out, now_ns)

    def _adopt(self, item: AskItem, out: Outcome, now_ns: int) -> None:
        """Takes an allocation that exists already: one of the RM (recovery), or a foreign one."""
        name = partition_name(item.partition)
        partition = self._partitions.get(name)
        if partition is None:
            reject(item, f"partition {item.partition!r} does not exist", out)
            return
        foreign = FOREIGN in item.tags
        if foreign and not item.node_id:
            reject(item, f"trying to add a foreign request (non-allocation) {item.key}: nodeID is empty", out)
            return
        node = partition.nodes.get(item.node_id)
        if node is None:
            reject(item, f"failed to find node {item.node_id} for allocation {item.key}", out)
            return
        if not any(item.quantities.values()):
            reject(item, "allocation contains no resources", out)
            return
        app = None if foreign else partition.live_application(item.app_id or INDEPENDENT)
        if problem := _foreign_problem(partition, item) if foreign else _owner_problem(partition, app, item):
            reject(item, problem, out)
            return
        if problem := _adoption_problem(partition, app, item, foreign=foreign):
            reject(item, problem, out)
            return
        shape = partition.types.shape(item.quantities)
        reported_app_id = item.app_id
        if not foreign and (app is None or app.independent):
            app, item = self._independent(partition, out, now_ns), _without_gang(item)
        old = partition.foreign.get(item.key) if app is None else _reported_before(app, item)
        duplicate = _with_uuid_of(app, item, old) if app is not None and item.uuid else None
        if duplicate is not None:
            reason = f"UUID {item.uuid} is that of allocation {duplicate.key} of application {duplicate.app_id} already"
            reject(replace(item, app_id=reported_app_id), f"allocation {item.key}: {reason}", out)
            return
        if old is not None:
            demand = item_conversion.demand_of(
                _with_stored_properties(item, old), shape, old.submission, old.created_ns
            )
            declared = item.execution_timeout_ms > 0
            allocation = partition.recovery.change(
                old, demand, item.node_id, item.uuid, out, now_ns, echo=True, declared=declared
            )
            if app is None:
                return
        else:
            allocation = item_conversion.allocation_of(item, app, shape, self._submission(), now_ns)
            if app is None:
                partition.recovery.adopt(allocation, out, now_ns)
                return
            allocation.ordinal = app.allocated_count(
                item.key
            )  # each allocation of an ask with repeats has its own UUID
            if not allocation.uuid:  # previous generation: the scheduler makes missing ids
                allocation.uuid = made_uuid(allocation.submission, 0, now_ns)
            if (ask := app.asks.get(item.key)) is not None:
                if ask.notified:
                    partition.notifications.on_allocated(ask, out, now_ns)
                partition.announcements.ask_changed(ask, None, out, now_ns)
                partition.asks.remove_ask(ask, out, now_ns, None)
            partition.recovery.adopt(allocation, out, now_ns)
        if app.state is AppState.FAILING:
            partition.releases.time_out(allocation, f"application {app.app_id} is failing", out, now_ns)

    def _change_held(
        self, partition: Partition, app: Application, item: AskItem, shape: Shape, out: Outcome, now_ns: int
    ) -> None:
        """Gives the running allocations of an ask that was sent again the ask's new properties.

        (So the outcome does not depend on how many allocations the ask had when it was sent again. The allocations'
        role in their gang does not change.)
        """
        for allocation in app.allocations_of(item.key):
            updated = replace(
                item,
                task_group=allocation.task_group,
                placeholder=allocation.placeholder,
                previous_generation=allocation.previous_generation,
            )
            demand = item_conversion.demand_of(updated, shape, allocation.submission, allocation.created_ns)
            if not demand.same_as(allocation.demand) or outlives(allocation, demand.execution_timeout_ms):
                partition.recovery.change(allocation, demand, allocation.node_id, "", out, now_ns, echo=False)

    def _independent(self, partition: Partition, out: Outcome, now_ns: int) -> Application:
        """The scheduler's own application for independent allocations, created when needed."""
        app = partition.live_application(INDEPENDENT)
        if app is None:
            queue, created, problem = partition.queue_tree.create_queue(INDEPENDENT_PATH)
            assert queue is not None, problem  # below root, which is active and no leaf; nobody may configure it
            app = Application(partition.types, INDEPENDENT, queue, self._submission(), now_ns)
            begin(partition, app, out, now_ns)
            for new in created:
                partition.queue_tree.announce_queue(new, out, now_ns)
            announce(app, "", out, now_ns)
        return app

    def release(self, item: ReleaseItem, unnamed: UnqualifiedReleases, out: Outcome, now_ns: int) -> Steps:
        """Handles one release, and acknowledges it, even if there was nothing to end. A confirmation of a release that
        the scheduler began gets no answer. In steps: it may concern everything that an application has.
        """
        partition = self._partitions.get(item.partition) or self._partitions.get(partition_name(item.partition))
        if partition is None:
            _acknowledge(item, item.partition, f"partition {item.partition!r} does not exist", out)
        elif not item.app_id and not _is_independent(partition, item):
            self._release_foreign(partition, item, out, now_ns)
        else:
            app = partition.live_application(item.app_id or INDEPENDENT)
            if app is None:
                reason = f"application {item.app_id} does not exist: there is nothing to release"
                _acknowledge(item, partition.name, reason, out)
            elif app.source:
                _acknowledge(item, partition.name, f"{_of_source(app)}: nothing is released", out)
            else:
                named = item._replace(app_id=app.app_id)
                gained: list[str] | None = [] if unnamed.are_some else None
                yield from self._release_of(partition, app, named, gained, out, now_ns)
                for count, key in enumerate(emptied(gained or []), 1):
                    unnamed.gained(partition, app, key)
                    if not count % STEP:
                        yield

    def _release_of(
        self,
        partition: Partition,
        app: Application,
        item: ReleaseItem,
        gained: list[str] | None,
        out: Outcome,
        now_ns: int,
    ) -> Steps:
        """Ends the asks and allocations that the item names.

        :param gained: gets the keys for which the application may have another ask or UUID then; None: nobody asks.
        """
        ended: list[Allocation] = []
        if item.uuid or item.key:
            ended = [] if item.ask_only else (yield from _allocations_of(app, item))
        elif not item.ask_only:
            ended = yield from ordered_in_steps(app.allocations.values())
        if gained is not None:
            yield from _add_gained(ended, item, gained)
        asks: list[Ask] = []
        ends, cancels = bool(ended), False
        if item.termination is Termination.SCHEDULING_FAILED_ON_RM and app.state is not AppState.FAILING and ended:
            for count, allocation in enumerate(emptied(ended), 1):
                if not count % STEP:
                    yield
                needless = allocation.placeholder and app.state is AppState.COMPLETING
                if allocation.timed_out or allocation.replaced_by is not None or needless:  # it was releasing
                    self._release_one(partition, allocation, item, out, now_ns)
                else:
                    self._ask_again(partition, app, allocation, item.message, out, now_ns)
        else:
            confirms = item.termination in _RELEASE_DETAILS and (item.key or item.uuid)
            releasing = (yield from _releasing(ended)) if confirms else []
            # A confirmation concerns released allocations, not the ask's other or pending allocations.
            ended = releasing or ended
            if item.ask_only or (item.termination not in _KEEPING and not releasing):
                asks = _asks_of(app, item) if item.key or item.uuid else (yield from asks_in_steps(app.asks.values()))
            cancels = bool(asks)
            answered: list[Ask] = []
            for count, ask in enumerate(emptied(asks), 1):
                # (Beside an allocation of the same key that ends, the release is answered as that of an allocation.)
                if not (ends and app.has(ask.key)):
                    answered.append(ask)
                partition.asks.remove_ask(ask, out, now_ns, EventDetail.APP_REQUEST)
                if not count % STEP:
                    yield
            for count, allocation in enumerate(emptied(ended), 1):
                self._release_one(partition, allocation, item, out, now_ns)
                if not count % STEP:
                    yield
            for count, ask in enumerate(emptied(answered), 1):
                _acknowledge(item, partition.name, item.message, out, ask)
                if not count % LIGHT_STEP:
                    yield
        if cancels or ends:  # (a release of nothing changes nothing)
            partition.lifecycle.complete_if_idle(app, out, now_ns)
        else:
            _acknowledge(item, partition.name, _nothing_there(app, item), out)

    def _release_one(
        self, partition: Partition, allocation: Allocation, item: ReleaseItem, out: Outcome, now_ns: int
    ) -> None:
        # The RM confirms a release that the scheduler began (preemption, time-out, replacement): the scheduler does not
        # echo it.
        confirms = allocation.releasing and (
            item.termination in _RELEASE_DETAILS or item.termination is Termination.SCHEDULING_FAILED_ON_RM
        )
        partition.releases.release(
            allocation,
            Termination.STOPPED_BY_RM,
            item.message,
            _RELEASE_DETAILS.get(item.termination, EventDetail.ALLOC_CANCEL),
            out,
            now_ns,
            tell=not confirms,
            completing=False,
        )
        if allocation.replaced_by is not None:
            partition.gangs.complete_replacement(allocation, out, now_ns)

    def _ask_again(
        self, partition: Partition, app: Application, allocation: Allocation, message: str, out: Outcome, now_ns: int
    ) -> None:
        """Makes an allocation that the RM could not start a pending ask again. The application keeps its state."""
        old = app.asks.get(allocation.key)
        allocated = app.allocated_count(allocation.key) if old is None else old.allocated
        partition.releases.release(
            allocation,
            Termination.SCHEDULING_FAILED_ON_RM,
            message,
            EventDetail.ALLOC_CANCEL,
            out,
            now_ns,
            tell=False,
            completing=False,
        )
        demand = replace(allocation.demand, submission=self._submission(), changed_ns=0)
        ask = Ask(app, demand, 1 if old is None else old.pending + 1, allocated - 1)
        partition.announcements.ask_changed(old, ask, out, now_ns, message)
        if old is not None:
            ask.notified = old.notified
            ask.published, old.published = old.published, False
            partition.asks.remove_ask(old, out, now_ns, None)
        if demand.placeholder:
            partition.gangs.restore_pending(demand, app, ask.pending)
        partition.asks.add_ask(ask, out)

    def _release_foreign(self, partition: Partition, item: ReleaseItem, out: Outcome, now_ns: int) -> None:
        foreign = partition.foreign.get(item.key) if not (item.ask_only or item.uuid) else None
        if foreign is not None:
            partition.releases.release(
                foreign, Termination.STOPPED_BY_RM, item.message, EventDetail.ALLOC_CANCEL, out, now_ns
            )
            return
        subject = f"UUID {item.uuid}" if item.uuid else f"key {item.key}" if item.key else "an empty key"
        kind = "ask" if item.ask_only else "allocation" if item.uuid else "foreign allocation"
        _acknowledge(item, partition.name, f"there is no {kind} with {subject}: there is nothing to release", out)


def _quota_problem(
    partition: Partition, app: Application | None, item: AskItem, old: Ask | None, allocated: int
) -> str:
    """Why the RM's quotas have no room for an ask; "": they have.

    :param old: the pending ask that it replaces.
    :param allocated: the number of allocations that it has.
    """
    more = max(item.wanted - allocated, 0)
    more_text = text_bytes(item.tags) * more if item.tags else 0
    if old is not None:
        more -= old.pending
        more_text -= text_bytes(old.tags) * old.pending
    if allocated and app is not None:
        tag_bytes = text_bytes(item.tags)
        more_text += sum(tag_bytes - text_bytes(allocation.tags) for allocation in app.allocations_of(item.key))
    problem = partition.quotas.asks_problem(more, more_text)
    return f"allocation {item.key}: {problem}" if problem else ""


def _adoption_problem(partition: Partition, app: Application | None, item: AskItem, *, foreign: bool) -> str:
    """Why the RM's quotas have no room for an allocation that runs; "": they have."""
    existing = _reported_before(app, item) if app is not None else None
    old = partition.foreign.get(item.key) if foreign else existing
    ask = app.asks.get(item.key) if app is not None and old is None else None
    text = text_bytes(item.tags) if item.tags else 0
    if old is not None:
        text -= text_bytes(old.tags)
    elif ask is not None:
        text -= text_bytes(ask.tags) * ask.pending
    quotas = partition.quotas
    problem = "" if old is not None or ask is not None else quotas.problem(QuotaKind.ALLOCATIONS, 1)
    problem = problem or quotas.problem(QuotaKind.TEXT_BYTES, text)
    return f"allocation {item.key}: {problem}" if problem else ""


def _with_stored_properties(item: AskItem, allocation: Allocation) -> AskItem:
    """Properties for which an allocation's message has no field stay as its ask had them."""
    timeout_ms = item.execution_timeout_ms or allocation.execution_timeout_ms
    item = replace(item, execution_timeout_ms=timeout_ms, previous_generation=allocation.previous_generation)
    if not allocation.previous_generation:
        return item
    return replace(
        item,
        originator=allocation.originator,
        allow_preempt_self=allocation.allow_preempt_self,
        allow_preempt_other=allocation.allow_preempt_other,
        has_preemption_policy=allocation.has_preemption_policy,
    )


def _acknowledge(item: ReleaseItem, partition: str, message: str, out: Outcome, ask: Ask | None = None) -> None:
    """Answers a release that ended no allocation, with the item's own names."""
    app_id, key = item.app_id, item.key if ask is None else ask.key
    if item.ask_only or ask is not None:
        out.facts.append(ReleasedAsk(partition, app_id, key, Termination.STOPPED_BY_RM, message, item.ask_only))
        return
    out.facts.append(
        ReleasedAllocation(partition, app_id, key, item.uuid, Termination.STOPPED_BY_RM, message, bool(item.uuid))
    )


def _nothing_there(app: Application, item: ReleaseItem) -> str:
    subject = f"UUID {item.uuid}" if item.uuid else f"key {item.key}" if item.key else ""
    kind = "ask" if item.ask_only else "allocation"
    has = f"has no {kind} with {subject}" if subject else f"has no {kind}"
    if item.termination in _KEEPING and not item.ask_only and item.key in app.asks:
        has += f", and {item.termination.name} keeps its ask"
    return f"application {app.app_id} {has}: there is nothing to release"


def _reported_before(app: Application, item: AskItem) -> Allocation | None:
    """The allocation that the RM reports again: found by its UUID, else by its key. Another UUID is another
    allocation.
    """
    for allocation in app.by_uuid.get(item.uuid, ()) if item.uuid else ():
        if allocation.key == item.key:
            return allocation
    first = app.allocations.get(unique_key(item.key, 0))
    return first if first is not None and (not item.uuid or first.uuid in ("", item.uuid)) else None


def _with_uuid_of(app: Application, item: AskItem, old: Allocation | None) -> Allocation | None:
    """Another allocation of the application with the item's UUID: a release could not distinguish the two.

    (Only within the application: one lookup for each of the many allocations that a restarted RM reports.)
    """
    if old is not None and old.uuid == item.uuid:
        return None
    return next(iter(app.by_uuid.get(item.uuid, ())), None)


def _asks_of(app: Application, item: ReleaseItem) -> list[Ask]:
    """(A UUID names one allocation: the others of an ask with repeats stay wanted.)"""
    if item.uuid:
        return []
    ask = app.asks.get(item.key)
    return [] if ask is None else [ask]


def _allocations_of(app: Application, item: ReleaseItem) -> Generator[None, None, list[Allocation]]:
    if item.uuid:
        return list(app.by_uuid.get(item.uuid, ()))
    return (yield from held_in_steps(app, item.key))


def _add_gained(ended: Sequence[Allocation], item: ReleaseItem, gained: list[str]) -> Steps:
    keeps = item.termination in _KEEPING
    for count, allocation in enumerate(ended, 1):
        if allocation.replaced_by or keeps:
            gained.append(allocation.replaced_by or allocation.key)
        if not count % LIGHT_STEP:
            yield


def _releasing(allocations: Sequence[Allocation]) -> Generator[None, None, list[Allocation]]:
    releasing: list[Allocation] = []
    for count, allocation in enumerate(allocations, 1):
        if allocation.releasing:
            releasing.append(allocation)
        if not count % LIGHT_STEP:
            yield
    return releasing


def _owner_problem(partition: Partition, app: Application | None, item: AskItem) -> str:
    """Why items for this application (or for no application) are not accepted; "": they are accepted.

    :param app: the live application with this id; for an item of no application, the scheduler's own, if it exists.
    """
    if not item.app_id:
        foreign = partition.foreign.get(item.key)
        on = f" on node {foreign.node_id}" if foreign is not None else ""
        return f"allocation {item.key} is a foreign one{on}: release it first" if foreign is not None else ""
    if app is None or app.independent:
        return f"failed to find application {item.app_id}"
    return _of_source(app) if app.source else ""


def _foreign_problem(partition: Partition, item: AskItem) -> str:
    """Why a foreign allocation is not accepted: a release names foreign and independent allocations by their keys
    alone.
    """
    own = partition.live_application(INDEPENDENT)
    if own is None or not (item.key in own.asks or own.has(item.key)):
        return ""
    return f"allocation {item.key} is an independent one, of the scheduler's own: release it first"


def _is_independent(partition: Partition, item: ReleaseItem) -> bool:
    """Whether a release without application id concerns an independent ask or allocation."""
    own = partition.live_application(INDEPENDENT)
    if own is None:
        return False
    if item.uuid:
        return item.uuid in own.by_uuid
    return bool(item.key) and (item.key in own.asks or (not item.ask_only and own.has(item.key)))


def _without_gang(item: AskItem) -> AskItem:
    """The item for the scheduler's own application, without a gang: only applications of the RM have gangs."""
    return replace(item, app_id=INDEPENDENT, task_group="", placeholder=False)


def _of_source(app: Application) -> str:
    return f"application {app.app_id} was brought by source {app.source}: it is not the resource manager's"
