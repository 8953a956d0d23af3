"""The core's two entry points: ``apply`` takes commands, ``cycle`` makes allocations. Nothing else changes the state.

One :class:`SchedulerCore` is one RM: its partitions, queues, nodes and applications, in one total order. Time and
configuration are arguments. The core reads no clock, does no I/O and uses no randomness.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

from muster_core.allocation.exclusivity import RmScope
from muster_core.allocation.unqualified_releases import UnqualifiedReleases
from muster_core.config.queue_config import ClusterConfig, PartitionConfig, QueueConfig, partition_name, queue_paths
from muster_core.deadline_heap import DeadlineHeap
from muster_core.external.model import ApplyExternalChanges, SetSourceState
from muster_core.external.problems import no_partition
from muster_core.external.reports import ExternalReports, ReportedObject
from muster_core.model.application import Application
from muster_core.model.circles import vacate
from muster_core.model.commands import (
    Command,
    EndApplication,
    PredicateAnswer,
    PredicateAnswers,
    SetCallbacks,
    SetEvents,
    SetGeneration,
    SetQuotas,
    SetSchedulingEnabled,
    UpdateAllocations,
    UpdateApplications,
    UpdateConfiguration,
    UpdateNodes,
)
from muster_core.model.outcome import ConfigurationResult, EventChange, EventDetail, EventType, Outcome
from muster_core.model.quotas import RmQuotaState
from muster_core.model.scopes import CallbackPolicy
from muster_core.model.steps import FEW, GROWTH, LIGHT_STEP, SOME, STEP, Pace, Steps, emptied, finish
from muster_core.partition import CONNECTED, Partition
from muster_core.queues import reload
from muster_core.queues.limits import limit_events, link_event
from muster_core.queues.quota_enforcement import rearm
from muster_core.requests.allocation_requests import AllocationRequests
from muster_core.requests.application_requests import ApplicationRequests
from muster_core.requests.deregistration import ANEW, ENDED_ONE_BY_ONE_MAX, emit_app_ended, emit_totals_ended
from muster_core.requests.node_requests import NodeRequests

# A search may free room for which other asks wait, such as a reservation that is not needed any more: these asks are
# tried in the next pass. One cycle has up to so many passes. The rest follows in the next cycle, after new requests.
_PASSES_MAX = 10


class SchedulerCore:
    """The scheduler of one RM.

    :param external: the statements of external sources; they outlive this core.
    :param reports_until_ns: until when an RM that registered again may still report its allocations; 0: it did not
        register again.
    :param built: with its partitions; otherwise :meth:`build_in_steps` makes them, before any other use.
    :ivar next_submission: the number of the next submitted node, application or ask. It decides ties.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        searching: bool = True,
        external: ExternalReports | None = None,
        rm_id: str = "",
        reports_until_ns: int = 0,
        built: bool = True,
    ) -> None:
        self.config = config
        self.rm_id = rm_id
        self._reports_until_ns = reports_until_ns
        self.external = external if external is not None else ExternalReports()
        self._searching = searching
        self._deciding = True
        self._policy = CallbackPolicy()
        self._previous_generation = False
        self._events = SetEvents()
        self._one = RmScope()
        self.partitions: dict[str, Partition] = {}
        self.quotas = RmQuotaState(self.partitions)
        self.next_submission = 1
        self._applications = ApplicationRequests(self.partitions, self._submission)
        self._allocations = AllocationRequests(self.partitions, self._submission)
        self._nodes = NodeRequests(self.partitions, self._allocations.handle)
        self._deadlines = DeadlineHeap()
        if built:
            finish(self.build_in_steps())

    def build_in_steps(self) -> Steps:
        """Makes the partitions of the configuration, in steps."""
        for partition_config in self.config.partitions:
            self.partitions[partition_config.name] = yield from self._new_partition(partition_config)

    # ---- entry point: apply ----------------------------------------------------------------------------------------

    def start(self, now_ns: int, out: Outcome | None = None, before: SchedulerCore | None = None) -> Outcome:
        """Announces the queues of a new registration, and applies the statements of external sources.

        :param before: the core of the RM's registration before; its users' decayed use goes on.
        """
        out = self._outcome(out)
        finish(self.start_in_steps(now_ns, out, before))
        return out

    def start_in_steps(self, now_ns: int, out: Outcome, before: SchedulerCore | None = None) -> Steps:
        """Does the same in steps. Nothing else may use the core between them."""
        self._outcome(out)
        for partition in self.partitions.values():
            yield from partition.queue_tree.announce_in_steps(out, now_ns)
            yield from partition.external.begin(out, now_ns)
        if before is not None:
            yield from self._take_uses(before, out, now_ns)
        yield from self._follow_up(out, now_ns)
        yield from self._leave_dormant(out)
        yield from self._follow_up(out, now_ns)

    def _take_uses(self, before: SchedulerCore, out: Outcome, now_ns: int) -> Steps:
        """Takes the decayed use of users from the RM's registration before, which has ended: it does not forget who
        used much lately.
        """
        for name, partition in self.partitions.items():
            old = before.partitions.get(name)
            for count, (path, queue) in enumerate(partition.queues.items() if old is not None else (), 1):
                if not count % LIGHT_STEP:
                    yield
                old_queue = old.queues.get(path) if old is not None else None
                if old_queue is not None and old_queue.fair_uses is not None:
                    partition.fair_shares.carry_over(queue, old_queue.fair_uses, out, now_ns)

    def _outcome(self, out: Outcome | None) -> Outcome:
        """The outcome to add to, with the events that are wanted now."""
        out = out if out is not None else Outcome()
        out.tracking, out.requests = self._events.tracking, self._events.requests
        return out

    def end(self, now_ns: int, out: Outcome | None = None, reason: str = ANEW) -> Outcome:
        """Adds the events of everything that ends with the RM's registration. The objects themselves just disappear.

        Very many asks and allocations get no events of their own: each of their sums ends with one event.
        """
        out = self._outcome(out)
        finish(self.end_in_steps(now_ns, out, reason))
        return out

    def end_in_steps(self, now_ns: int, out: Outcome, reason: str = ANEW) -> Steps:
        """Does the same in steps. Nothing else may use the core between them."""
        self._outcome(out)
        apps: dict[Partition, list[Application]] = {}
        ended = total = 0
        for partition in self.partitions.values():
            own = apps[partition] = []
            for queue in partition.queues.values():
                for app in partition.apps_in(queue):
                    own.append(app)
                    ended += len(app.allocations)
                    total += len(app.allocations) + len(app.asks)
                    if not len(own) % LIGHT_STEP:
                        yield
        out.ended += ended
        out.dropped += ended
        pace = Pace()
        for partition in self.partitions.values():
            if total > ENDED_ONE_BY_ONE_MAX and out.tracking:
                yield from emit_totals_ended(partition, apps[partition], out, now_ns, reason)
            for app in apps[partition]:
                if pace.is_over():
                    yield
                if total <= ENDED_ONE_BY_ONE_MAX and out.tracking:
                    yield from emit_app_ended(app, out, now_ns, reason, pace)
                link_event(app, app.user_group, EventChange.REMOVE, out, now_ns)
                out.add_event(
                    EventType.APP, EventChange.REMOVE, EventDetail.NONE, app.app_id, message=reason, now_ns=now_ns
                )
                change, detail, path = EventChange.REMOVE, EventDetail.QUEUE_APP, app.queue.path
                out.add_event(EventType.QUEUE, change, detail, path, app.app_id, message=reason, now_ns=now_ns)
            for count, (node_id, node) in enumerate(partition.nodes.items(), 1):
                if not count % STEP:
                    yield
                change, detail, capacity = EventChange.REMOVE, EventDetail.NODE_DECOMISSION, node.named_capacity()
                out.add_event(EventType.NODE, change, detail, node_id, "", capacity, reason, now_ns=now_ns)
            limit_events(partition.limits.all_limits(), {}, out, now_ns)
            for count, queue in enumerate(reversed(partition.queues.values()), 1):
                detail = EventDetail.NONE if queue.managed else EventDetail.QUEUE_DYNAMIC
                out.add_event(EventType.QUEUE, EventChange.REMOVE, detail, queue.path, message=reason, now_ns=now_ns)
                if not count % STEP:
                    yield

    def dispose(self) -> Steps:
        """Empties a core that has ended, so that its memory is free before a full collection. It must not be used any
        more. In steps: to free 100,000 objects takes as long as to decide about thousands.

        What its last outcome refers to stays whole.
        """
        for partition in self.partitions.values():
            yield from partition.dispose()
        yield from self._deadlines.clear_in_steps()
        self._unlink()

    def _unlink(self) -> None:
        """Breaks the circles of its queues, of its partitions' parts, and its own."""
        for partition in self.partitions.values():
            _unlink(partition)
        vacate(self, _blank())
        self.partitions = {}

    def apply(self, command: Command, now_ns: int, out: Outcome | None = None) -> Outcome:
        """Applies one command.

        :param out: an outcome to add to; None: a new one. Bad items are answered in the outcome; they change nothing.
        """
        out = self._outcome(out)
        finish(self.apply_in_steps(command, now_ns, out))
        return out

    def apply_in_steps(self, command: Command, now_ns: int, out: Outcome) -> Steps:
        """Applies one command in steps of some hundred objects, to the same outcome.

        Between two steps, the core and the outcome are in the middle of the command: nothing may use them.
        """
        self._outcome(out)
        match command:
            case UpdateAllocations() | UpdateApplications() | UpdateNodes():
                yield from self._take_items(command, out, now_ns)
            case EndApplication():
                yield from self._applications.end(command.partition, command.app_id, command.message, out, now_ns)
            case UpdateConfiguration():
                obstacles = yield from self._reconfigure(command.config, out, now_ns)
                out.facts.append(ConfigurationResult(obstacles))
            case SetSchedulingEnabled():
                self._deciding = command.deciding
                self._review_deciding()
                for partition in self.partitions.values() if not command.deciding else ():
                    partition.questions.withdraw_all(out)
            case SetCallbacks():
                self._policy = command.policy
                for partition in self.partitions.values():
                    partition.questions.set_policy(command.policy, out, now_ns)
                self._review_deciding()
            case PredicateAnswers():
                self._answer(command, out, now_ns)
            case ApplyExternalChanges() | SetSourceState():
                yield from self._apply_source(command, out, now_ns)
            case SetEvents():
                self._events = command
                self._outcome(out)
                for partition in self.partitions.values():
                    partition.notifications.set_enabled(command.requests)
            case SetQuotas():
                self.quotas.limits = command.limits
            case SetGeneration():
                self._previous_generation = command.previous
                for partition in self.partitions.values():
                    partition.previous_generation = command.previous
        yield from self._follow_up(out, now_ns)

    def _take_items(
        self, command: UpdateAllocations | UpdateApplications | UpdateNodes, out: Outcome, now_ns: int
    ) -> Steps:
        """Handles each item in the state that the items before it left, as if each came in a message of its own."""
        size = out.size + GROWTH
        match command:
            case UpdateAllocations():
                unnamed = UnqualifiedReleases(command.releases, self.partitions)
                for count, release in enumerate(command.releases, 1):
                    for named in unnamed.named(release):
                        yield from self._allocations.release(named, unnamed, out, now_ns)
                    yield from self._follow_up(out, now_ns)
                    if not count % SOME or out.size > size:
                        yield
                        size = out.size + GROWTH
                for count, ask_item in enumerate(command.asks, 1):
                    self._allocations.handle(ask_item, out, now_ns)
                    yield from self._follow_up(out, now_ns)
                    if not count % SOME:
                        yield
            case UpdateApplications():
                for count, app_item in enumerate(command.new, 1):
                    self._applications.add(app_item, out, now_ns)
                    yield from self._follow_up(out, now_ns)
                    if not count % FEW:
                        yield
                for count, (partition, app_id) in enumerate(command.remove, 1):
                    yield from self._applications.remove(partition, app_id, out, now_ns)
                    yield from self._follow_up(out, now_ns)
                    # (An application may have a hundred allocations, which are no step yet.)
                    if not count % FEW or out.size > size:
                        yield
                        size = out.size + GROWTH
            case UpdateNodes():
                for count, node_item in enumerate(command.nodes, 1):
                    yield from self._nodes.update(node_item, out, now_ns)
                    yield from self._follow_up(out, now_ns)
                    if not count % FEW or out.size > size:
                        yield
                        size = out.size + GROWTH

    def _follow_up(self, out: Outcome, now_ns: int) -> Iterable[None]:
        """Handles the consequences of an item or a cycle elsewhere: returns the steps. (It runs after each ask, so it
        avoids calls.)
        """
        for partition in self.partitions.values():
            if partition.deadlines or partition.moved_offers or partition.external.vacant:
                return self._followed_up(out, now_ns)
        return ()

    def _followed_up(self, out: Outcome, now_ns: int) -> Steps:
        for partition in self.partitions.values():
            if partition.external.vacant:
                yield from partition.external.catch_up(out, now_ns)
            if partition.moved_offers:
                yield from partition.offers.reconcile(out, now_ns)
            if partition.deadlines:
                yield from self._collect_deadlines(partition)

    def _apply_source(self, command: ApplyExternalChanges | SetSourceState, out: Outcome, now_ns: int) -> Steps:
        """Applies a source's statements."""
        partition = self.partitions.get(partition_name(command.partition))
        changes = yield from self.external.apply_in_steps(command, now_ns, has_offers=partition is not None)
        if partition is not None:
            yield from partition.external.apply(changes, out, now_ns)
            partition.questions.on_limits_lowered(out)
            return
        for count, (entry, _, _) in enumerate(emptied(changes), 1):
            out.mark_changed(entry, entry.partition)
            if isinstance(entry, ReportedObject):
                no_partition(entry, out)
            if not count % STEP:
                yield

    def _leave_dormant(self, out: Outcome) -> Steps:
        """Marks statements about partitions that do not exist."""
        pace = Pace()
        for name, books in self.external.partitions.items():
            if name not in self.partitions:
                for entry in books.entries():
                    no_partition(entry, out)
                    if pace.is_over():
                        yield

    def conflicts(self, config: ClusterConfig) -> tuple[str, ...]:
        """Why a configuration that is valid in itself cannot be applied to the present state; empty: it can."""
        configs = {partition_config.name: partition_config for partition_config in config.partitions}
        problems: list[str] = []
        for name, partition in self.partitions.items():
            problems += (
                reload.conflicts(partition, configs[name]) if name in configs else reload.removal_obstacles(partition)
            )
        if self.quotas.limits.queues and (problem := self.quotas.queues_problem(self._queues_with(config))):
            problems.append(problem)
        return tuple(problems)

    def _queues_with(self, config: ClusterConfig) -> int:
        """How many queues there are under a configuration: its own, and those that stay or drain."""
        count = 0
        for partition_config in config.partitions:
            paths = set(queue_paths(partition_config))
            partition = self.partitions.get(partition_config.name)
            for queue in partition.queues.values() if partition is not None else ():
                if not queue.managed or queue.applications:
                    paths.update(above.path for above in queue.ancestry)
            count += len(paths)
        return count

    def _reconfigure(self, config: ClusterConfig, out: Outcome, now_ns: int) -> Generator[None, None, tuple[str, ...]]:
        problems = self.conflicts(config)
        if problems:
            return problems
        yield
        configs = {partition_config.name: partition_config for partition_config in config.partitions}
        for name in [name for name in self.partitions if name not in configs]:
            going = self.partitions.pop(name)
            yield from reload.remove(going, out, now_ns)
            _unlink(going)
        for name, partition_config in configs.items():
            partition = self.partitions.get(name)
            if partition is not None:
                partition.questions.withdraw_all(out)
                yield from reload.reconfigure(partition, partition_config, out, now_ns)
                if self._searching:  # (a follower takes the consequences from the records)
                    yield from partition.external.reconfigured(out, now_ns)
                continue
            self.partitions[name] = new = yield from self._new_partition(partition_config)
            new.questions.set_policy(self._policy, out, now_ns)
            new.deciding = self._deciding and not new.questions.silent
            new.previous_generation = self._previous_generation
            yield from new.queue_tree.announce_in_steps(out, now_ns)
            if self._searching:
                yield from new.external.begin(out, now_ns)
        in_order = {name: self.partitions[name] for name in configs}  # in the order of the configuration
        self.partitions.clear()  # (It stays the same mapping: the handlers of requests hold it.)
        self.partitions.update(in_order)
        self.config = config
        return ()

    def _new_partition(self, config: PartitionConfig) -> Generator[None, None, Partition]:
        books = self.external.for_partition(config.name)
        partition = Partition(
            config,
            searching=self._searching,
            external=books,
            rm_id=self.rm_id,
            reports_until_ns=self._reports_until_ns,
            built=False,
        )
        yield from partition.build_in_steps()
        # (All numbers have one order, which survives restarts.)
        partition.questions.number = partition.node_lives.number = self._submission
        partition.questions.turns.attach(self._one)
        partition.quotas = self.quotas
        partition.notifications.set_enabled(self._events.requests)
        return partition

    def _review_deciding(self) -> None:
        """Stops or resumes decisions: there are none while the RM is stopped or paused, or must be asked and is not
        connected.
        """
        for partition in self.partitions.values():
            deciding = self._deciding and not partition.questions.silent
            if deciding and not partition.deciding:
                rearm(partition)
                partition.offers.rearm()
            partition.deciding = deciding

    def _answer(self, command: PredicateAnswers, out: Outcome, now_ns: int) -> None:
        # (Refusals first: if several nodes were asked about for one ask, all refused ones are known when one is
        # chosen.)
        first: dict[int, PredicateAnswer] = {}
        for answer in command.answers:
            first.setdefault(answer.question, answer)
        for answer in sorted(first.values(), key=lambda answer: answer.fits):
            for partition in self.partitions.values():
                if answer.question in partition.questions.open:
                    partition.questions.apply_answer(
                        answer.question, answer.fits, answer.reason, out, now_ns, index=answer.last_victim
                    )
                    break

    # ---- entry point: cycle ----------------------------------------------------------------------------------------

    def cycle(self, now_ns: int, budget: int, out: Outcome | None = None) -> Outcome:
        """Handles due deadlines, then makes up to ``budget`` allocations. ``exhausted`` says whether more could
        follow.
        """
        out = self._outcome(out)
        finish(self.cycle_in_steps(now_ns, budget, out))
        return out

    def cycle_in_steps(self, now_ns: int, budget: int, out: Outcome) -> Steps:
        """Does the same in steps, see :meth:`apply_in_steps`."""
        self._outcome(out)
        if self._deadlines:
            yield from self._fire_deadlines(out, now_ns)
        remaining = budget
        for partition in self._in_turn():
            for _ in range(_PASSES_MAX):
                allocated = yield from partition.cycle.run(out, now_ns, remaining)
                remaining -= allocated
                if remaining <= 0 or not partition.waiting.has_wakeups:
                    break
        yield from self._follow_up(out, now_ns)
        self.exhausted = remaining > 0 and not any(partition.unfinished for partition in self.partitions.values())

    def _in_turn(self) -> Sequence[Partition]:
        """The partitions in the order of this cycle. While the RM sees one proposal at a time, the partitions take
        turns.
        """
        partitions = list(self.partitions.values())
        names = list(self.partitions)
        if len(partitions) < 2 or self._one.last not in names:
            return partitions
        after = names.index(self._one.last) + 1
        return [*partitions[after:], *partitions[:after]]

    #: After a cycle: nothing more fits until something changes. False: the budget ran out first.
    exhausted: bool = False

    def activate(self, now_ns: int = 0, decided_ns: int = 0) -> None:
        """Ends a fold: from now on this core may decide.

        :param decided_ns: the time of the last decision before; 0: as ``now_ns``.
        """
        self._searching = True
        for partition in self.partitions.values():
            partition.activate(now_ns, decided_ns or now_ns)
            finish(self._collect_deadlines(partition))

    def forget_deadlines(self) -> None:
        """Drops all deadlines. A follower, which has no clock, keeps outdated ones until it is activated."""
        self._deadlines.clear()
        for partition in self.partitions.values():
            partition.deadlines.clear()

    def next_deadline_ns(self) -> int | None:
        """When ``cycle`` must be called even if no command comes in; None: never."""
        return self._deadlines.first_ns()

    def _fire_deadlines(self, out: Outcome, now_ns: int) -> Steps:
        count = 0
        while (due := self._deadlines.pop_due(now_ns)) is not None:
            count += 1
            if not count % STEP:
                yield
            due_ns, _, partition, obj = due
            # (An external entry outlives a partition that a new configuration removes.)
            if not obj.gone and self.partitions.get(partition.name) is partition:
                yield from partition.on_deadline(obj, due_ns, out, now_ns)

    def _collect_deadlines(self, partition: Partition) -> Steps:
        for count, (due_ns, obj) in enumerate(emptied(partition.deadlines), 1):
            self._deadlines.add(due_ns, partition, obj)
            if not count % STEP:
                yield

    def _submission(self) -> int:
        number = self.next_submission
        self.next_submission = number + 1
        return number


_BLANK: list[SchedulerCore] = []


def _blank() -> SchedulerCore:
    """A core that was never used, with one partition."""
    if not _BLANK:
        _BLANK.append(SchedulerCore(ClusterConfig((PartitionConfig("default", QueueConfig("root")),))))
    return _BLANK[0]


def _unlink(partition: Partition) -> None:
    """Breaks the circles of a partition that has ended."""
    partition.questions.turns.detach()
    for ledger in (*partition.queues.values(), *partition.limits):
        ledger.unlink()
    for blank in _blank().partitions.values():
        for name in CONNECTED:
            vacate(getattr(partition, name), getattr(blank, name))
        vacate(partition, blank)
