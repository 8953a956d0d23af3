"""The core's two doors: ``apply`` takes what the RM says, ``cycle`` decides. Nothing else changes the state.

One :class:`SchedulerCore` is one RM: its partitions, queues, nodes and applications, in one total order. Time and
configuration are arguments; there is no clock, no I/O and no randomness in here (design §2).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace

from muster_si.constants import FOREIGN, NODE_PARTITION, NODE_READY_ATTRIBUTE

from muster_scheduler.core import acl, admission, namespace, placement, reload
from muster_scheduler.core.commands import (
    Answer,
    Answers,
    AppItem,
    AskItem,
    Command,
    NodeAction,
    NodeItem,
    ReleaseItem,
    SetCallbacks,
    SetDeciding,
    SetEvents,
    SetGeneration,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateConfiguration,
    UpdateNodes,
)
from muster_scheduler.core.config import ClusterConfig, PartitionConfig, partition_name
from muster_scheduler.core.external import SetSource, UpdateExternal
from muster_scheduler.core.external_books import ExternalBooks, ExternalEntry
from muster_scheduler.core.external_partition import no_partition
from muster_scheduler.core.inquiries import CallbackPolicy
from muster_scheduler.core.limits import limit_events, link_event, usage_events
from muster_scheduler.core.objects import (
    Allocation,
    Application,
    Ask,
    Node,
    NodeReport,
    in_order,
    is_ready,
    made_uuid,
    unique_key,
)
from muster_scheduler.core.outcome import (
    AcceptedApplication,
    AcceptedNode,
    Change,
    ConfigurationAnswer,
    Detail,
    EventType,
    Outcome,
    RejectedApplication,
    RejectedAsk,
    RejectedNode,
    ReleasedAllocation,
    ReleasedAsk,
)
from muster_scheduler.core.partition import Partition, Timed, is_awaited
from muster_scheduler.core.quota import rearm
from muster_scheduler.core.resources import Shape, TooManyTypes
from muster_scheduler.core.states import AppEvent, AppState

_SHOWN_MAX = 200  # characters of a name in an answer
# So many asks and allocations that go because the RM registers anew have their own events: they are all in one
# transaction with its registration, which must not take too long.
ENDED_ONE_BY_ONE_MAX = 100_000
_ANEW = "the resource manager registered again"

# A search may set something free (a reservation that is not needed any more) for which others wait: they look in the
# next pass. So many in one cycle; what is left then comes in the next, behind what came in meanwhile.
_PASSES_MAX = 10
# Of so many deadlines it is not worth to look which ones nobody waits for any more.
_DEADLINES_MIN = 1024

_RELEASE_DETAILS = {
    Termination.TIMEOUT: Detail.ALLOC_TIMEOUT,
    Termination.PREEMPTED_BY_SCHEDULER: Detail.ALLOC_PREEMPT,
    Termination.PLACEHOLDER_REPLACED: Detail.ALLOC_REPLACED,
}
# What ends an allocation so, keeps its ask.
_KEEPING = (Termination.TIMEOUT, Termination.SCHEDULING_FAILED_ON_RM)


class SchedulerCore:
    """One RM's scheduler.

    :param external: what sources outside of the RM said: it outlives this core.
    :param reports_until_ns: until when an RM that began anew may not have said yet what it runs; 0: it did not.
    :ivar next_submission: number that the next submitted node, application or ask gets: the order of ties.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        searching: bool = True,
        external: ExternalBooks | None = None,
        rm_id: str = "",
        reports_until_ns: int = 0,
    ) -> None:
        self.config = config
        self.rm_id = rm_id
        self._reports_until_ns = reports_until_ns
        self.external = external if external is not None else ExternalBooks()
        self._searching = searching
        self._deciding = True
        self._policy = CallbackPolicy()
        self._previous_generation = False
        self._events = SetEvents()
        self.partitions = {each.name: self._new_partition(each) for each in config.partitions}
        self.next_submission = 1
        self._deadlines: list[tuple[int, int, Partition, Timed]] = []
        self._deadline_order = 0
        self._deadlines_max = _DEADLINES_MIN

    # ---- door one --------------------------------------------------------------------------------------------------

    def start(self, now_ns: int, out: Outcome | None = None) -> Outcome:
        """Announces the queues of a fresh registration, and takes in what sources outside of the RM have said."""
        out = self._outcome(out)
        for partition in self.partitions.values():
            partition.queue_tree.announce_queues(out, now_ns)
            partition.external.begin(out, now_ns)
        self._catch_up(out, now_ns)
        self._leave_dormant(out)
        self._collect_deadlines()
        return out

    def _outcome(self, out: Outcome | None) -> Outcome:
        """The one to add to, with the events that are wanted now."""
        out = out if out is not None else Outcome()
        out.tracking, out.requests = self._events.tracking, self._events.requests
        return out

    def end(self, now_ns: int, out: Outcome | None = None) -> Outcome:
        """The events of everything that goes because the RM registers anew; the objects are simply not there any more.

        Of very many asks and allocations it is not said one by one: they end with their applications.
        """
        out = self._outcome(out)
        apps = {
            partition: [app for queue in partition.queues.values() for app in queue.applications.values()]
            for partition in self.partitions.values()
        }
        held = sum(len(app.asks) + len(app.allocations) for each in apps.values() for app in each)
        for partition in self.partitions.values():
            for app in apps[partition]:
                if held <= ENDED_ONE_BY_ONE_MAX and out.tracking:
                    _end_holdings(app, out, now_ns)
                link_event(app, app.user_group, Change.REMOVE, out, now_ns)
                out.track(EventType.APP, Change.REMOVE, Detail.NONE, app.app_id, message=_ANEW, now_ns=now_ns)
                change, detail, path = Change.REMOVE, Detail.QUEUE_APP, app.queue.path
                out.track(EventType.QUEUE, change, detail, path, app.app_id, message=_ANEW, now_ns=now_ns)
            for node_id in partition.nodes:
                change, detail = Change.REMOVE, Detail.NODE_DECOMISSION
                out.track(EventType.NODE, change, detail, node_id, message=_ANEW, now_ns=now_ns)
            limit_events(partition.limits.standing(), {}, out, now_ns)
            for queue in reversed(partition.queues.values()):
                detail = Detail.NONE if queue.managed else Detail.QUEUE_DYNAMIC
                out.track(EventType.QUEUE, Change.REMOVE, detail, queue.path, message=_ANEW, now_ns=now_ns)
        return out

    def apply(self, command: Command, now_ns: int, out: Outcome | None = None) -> Outcome:
        """Takes one command.

        :param out: an outcome to add to; without it a new one. Bad items are answered in it; they change nothing.
        """
        out = self._outcome(out)
        match command:
            case UpdateAllocations():
                self._update_allocations(command, out, now_ns)
            case UpdateApplications():
                for app_item in command.new:
                    self._add_application(app_item, out, now_ns)
                for partition, app_id in command.remove:
                    self._remove_application(partition, app_id, out, now_ns)
            case UpdateNodes():
                for node_item in command.nodes:
                    self._update_node(node_item, out, now_ns)
            case UpdateConfiguration():
                out.facts.append(ConfigurationAnswer(self._reconfigure(command.config, out, now_ns)))
            case SetDeciding():
                self._deciding = command.deciding
                self._review_deciding()
                for each in self.partitions.values() if not command.deciding else ():
                    each.questions.withdraw_all(out)
            case SetCallbacks():
                self._policy = command.policy
                for each in self.partitions.values():
                    each.questions.take_policy(command.policy, out, now_ns)
                self._review_deciding()
            case Answers():
                self._answer(command, out, now_ns)
            case UpdateExternal() | SetSource():
                self._hear(command, out, now_ns)
            case SetEvents():
                self._events = command
                self._outcome(out)
                for each in self.partitions.values():
                    each.telling.want(command.requests)
            case SetGeneration():
                self._previous_generation = command.previous
                for each in self.partitions.values():
                    each.previous_generation = command.previous
        self._catch_up(out, now_ns)
        self._collect_deadlines()
        return out

    def _hear(self, command: UpdateExternal | SetSource, out: Outcome, now_ns: int) -> None:
        """What a source says."""
        partition = self.partitions.get(partition_name(command.partition))
        changes = self.external.apply(command, now_ns, lends=partition is not None)
        if partition is not None:
            partition.external.apply(changes, out, now_ns)
            return
        for what, _, _ in changes:
            out.touch(what, what.partition)
            if isinstance(what, ExternalEntry):
                no_partition(what, out)

    def _leave_dormant(self, out: Outcome) -> None:
        """What sources say of partitions that there are not."""
        for name, books in self.external.partitions.items():
            if name not in self.partitions:
                for entry in books.entries():
                    no_partition(entry, out)

    def _catch_up(self, out: Outcome, now_ns: int) -> None:
        for partition in self.partitions.values():
            if partition.external.is_behind:
                partition.external.catch_up(out, now_ns)
            if partition.offers.moved:
                partition.offers.settle(out, now_ns)

    def obstacles(self, config: ClusterConfig) -> tuple[str, ...]:
        """Why another configuration, valid in itself, cannot be applied to what is there; empty: it can."""
        wanted = {each.name: each for each in config.partitions}
        found: list[str] = []
        for name, partition in self.partitions.items():
            found += (
                reload.obstacles(partition, wanted[name]) if name in wanted else reload.removal_obstacles(partition)
            )
        return tuple(found)

    def _reconfigure(self, config: ClusterConfig, out: Outcome, now_ns: int) -> tuple[str, ...]:
        found = self.obstacles(config)
        if found:
            return found
        wanted = {each.name: each for each in config.partitions}
        for name in [name for name in self.partitions if name not in wanted]:
            reload.remove(self.partitions.pop(name), out, now_ns)
        for name, each in wanted.items():
            known = self.partitions.get(name)
            if known is not None:
                known.questions.withdraw_all(out)
                reload.reconfigure(known, each, out, now_ns)
                if self._searching:  # (a follower takes what follows from it as it is recorded)
                    known.external.reconfigured(out, now_ns)
                continue
            self.partitions[name] = new = self._new_partition(each)
            new.questions.take_policy(self._policy, out, now_ns)
            new.deciding = self._deciding and not new.questions.silent
            new.previous_generation = self._previous_generation
            new.queue_tree.announce_queues(out, now_ns)
            if self._searching:
                new.external.begin(out, now_ns)
        self.partitions = {name: self.partitions[name] for name in wanted}  # in the order of the configuration
        self.config = config
        return ()

    def _new_partition(self, config: PartitionConfig) -> Partition:
        books = self.external.of(config.name)
        partition = Partition(
            config,
            searching=self._searching,
            external=books,
            rm_id=self.rm_id,
            reports_until_ns=self._reports_until_ns,
        )
        # (One order for all numbers: it survives restarts.)
        partition.questions.number = partition.node_lives.number = self._submission
        partition.telling.want(self._events.requests)
        return partition

    def _review_deciding(self) -> None:
        """Nothing is decided while the RM is stopped or held, nor where it must be asked and is not there."""
        for partition in self.partitions.values():
            deciding = self._deciding and not partition.questions.silent
            if deciding and not partition.deciding:
                rearm(partition)
                partition.offers.rearm()
            partition.deciding = deciding

    def _answer(self, command: Answers, out: Outcome, now_ns: int) -> None:
        # (Refusals first: of several nodes asked about for one ask, all that will not do are known when one is taken.)
        first: dict[int, Answer] = {}
        for answer in command.answers:
            first.setdefault(answer.question, answer)
        for answer in sorted(first.values(), key=lambda each: each.fits):
            for partition in self.partitions.values():
                if answer.question in partition.questions.open:
                    partition.questions.answer(
                        answer.question, answer.fits, answer.reason, out, now_ns, index=answer.last_victim
                    )
                    break

    # ---- door two --------------------------------------------------------------------------------------------------

    def cycle(self, now_ns: int, budget: int, out: Outcome | None = None) -> Outcome:
        """Fires what is due, then makes up to ``budget`` allocations; ``exhausted`` says whether more could follow."""
        out = self._outcome(out)
        self._fire_deadlines(out, now_ns)
        left = budget
        for partition in self.partitions.values():
            for _ in range(_PASSES_MAX):
                left -= partition.cycle.run(out, now_ns, left)
                if left <= 0 or not partition.waiting.stirred:
                    break
        self._catch_up(out, now_ns)
        self.exhausted = left > 0 and not any(partition.unfinished for partition in self.partitions.values())
        self._collect_deadlines()
        return out

    #: After a cycle: nothing more fits until something changes. False: the budget ran out first.
    exhausted: bool = False

    def activate(self, now_ns: int = 0, decided_ns: int = 0) -> None:
        """Ends a fold: from here on this core may decide.

        :param decided_ns: the last time that something was decided before; 0: as ``now_ns``.
        """
        self._searching = True
        for partition in self.partitions.values():
            partition.activate(now_ns, decided_ns or now_ns)
        self._collect_deadlines()

    def next_deadline_ns(self) -> int | None:
        """When ``cycle`` must be called even if nothing comes in; None: never."""
        return self._deadlines[0][0] if self._deadlines else None

    def _fire_deadlines(self, out: Outcome, now_ns: int) -> None:
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            due_ns, _, partition, what = heapq.heappop(self._deadlines)
            # (What a source said outlives a partition that another configuration does not have.)
            if not what.gone and self.partitions.get(partition.name) is partition:
                partition.come(what, due_ns, out, now_ns)

    def _collect_deadlines(self) -> None:
        for partition in self.partitions.values():
            for due_ns, what in partition.deadlines:
                self._deadline_order += 1
                heapq.heappush(self._deadlines, (due_ns, self._deadline_order, partition, what))
            partition.deadlines.clear()
        if len(self._deadlines) > self._deadlines_max:
            # Those of what is gone: they would keep it in memory until their time.
            self._deadlines = [each for each in self._deadlines if is_awaited(each[3], each[0])]
            heapq.heapify(self._deadlines)
            self._deadlines_max = max(_DEADLINES_MIN, 2 * len(self._deadlines))

    def _submission(self) -> int:
        number = self.next_submission
        self.next_submission = number + 1
        return number

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def _update_node(self, item: NodeItem, out: Outcome, now_ns: int) -> None:
        """One node's change: accepted or rejected, once; and each allocation that it brings likewise."""
        creates = item.action in (NodeAction.CREATE, NodeAction.CREATE_DRAIN)
        partition, reason = self._partition_of_node(item, creates=creates)
        if partition is not None:
            try:
                _refuse_negative(f"node {item.node_id}", item.capacity or {}, item.occupied or {})
                partition.types.reserve([*(item.capacity or {}), *(item.occupied or {})])
                if creates:
                    reason = self._create_node(partition, item, out, now_ns)
                elif item.action is NodeAction.UNKNOWN:
                    reason = f"node {item.node_id}: action is not set"
                else:
                    reason = self._change_node(partition, item, out, now_ns)
            except (TooManyTypes, _Negative) as error:
                reason = str(error)
        if reason:
            out.facts.append(RejectedNode(item.node_id, reason))
        elif not creates:
            out.facts.append(AcceptedNode(item.node_id))
        for existing in item.existing:
            if reason or partition is None or item.action is NodeAction.DECOMISSION:
                why = f"was rejected: {reason}" if reason else "is removed"
                _reject(existing, f"node {item.node_id} {why}", out)
            elif existing.node_id not in ("", item.node_id):
                why = f"comes with node {item.node_id} and says that it is on node {existing.node_id[:_SHOWN_MAX]}"
                _reject(existing, f"allocation {existing.key} {why}, expected the same", out)
            else:
                self._take_ask(existing._replace(node_id=item.node_id, partition=partition.name), out, now_ns)

    def _partition_of_node(self, item: NodeItem, *, creates: bool) -> tuple[Partition | None, str]:
        """The partition that an item is about; or None, and why there is none.

        A node stays in the partition that it was created in. What names none is about the node of that id, wherever.
        """
        name = partition_name(item.partition)
        partition = self.partitions.get(name)
        known = partition.nodes.get(item.node_id) if partition is not None else None
        if creates or (known is not None and (known.of_rm or item.partition)):
            return partition, "" if partition is not None else _no_partition(item)
        holders = [each for each in self.partitions.values() if item.node_id in each.nodes]
        # (One that a source brought is meant only where the RM has none of that id.)
        own = [each for each in holders if each.nodes[item.node_id].of_rm]
        others = [each.name for each in own or holders]
        if not item.partition and len(others) == 1:
            return self.partitions[others[0]], ""
        if others:
            held = f"node {item.node_id} is in partition {', '.join(others)}"
            if item.partition:
                return None, f"{held}, not in {name}: a node does not change its partition, DECOMISSION and CREATE it"
            return None, f"{held}: attributes[{NODE_PARTITION!r}] must say which one is meant"
        return partition, "" if partition is not None else _no_partition(item)

    def _create_node(self, partition: Partition, item: NodeItem, out: Outcome, now_ns: int) -> str:
        node = partition.nodes.get(item.node_id)
        if node is not None and node.of_rm:
            return f"failure while adding new node: existing node {item.node_id}, node name must be unique"
        if problem := _ready_problem(item):
            return problem
        schedulable = item.action is NodeAction.CREATE
        report = NodeReport(dict(item.attributes), item.capacity or {}, item.occupied or {}, schedulable)
        partition.node_lives.settle(item.node_id, report, out, now_ns)
        out.facts.append(AcceptedNode(item.node_id))
        return ""

    def _change_node(self, partition: Partition, item: NodeItem, out: Outcome, now_ns: int) -> str:
        node = partition.nodes.get(item.node_id)
        if node is None:
            return (
                f"node {item.node_id} does not exist in partition {partition.name}: {item.action.name} is not possible"
            )
        if item.action in (NodeAction.UPDATE, NodeAction.DECOMISSION) and not node.of_rm:
            by = ", ".join(node.sources)
            return f"node {item.node_id} was brought by {by}: CREATE it first, {item.action.name} is not possible"
        if item.action is NodeAction.UPDATE:
            return self._refresh_node(partition, node, item, out, now_ns)
        if item.action is NodeAction.DECOMISSION:
            partition.node_lives.decommission(node, out, now_ns)
            return ""
        drains = item.action is NodeAction.DRAIN_NODE
        report = partition.node_lives.report_of(node)
        if not drains and (report is None or report.schedulable):
            others = "" if node.schedulable else f" by the RM, but by {', '.join(node.sources)}"
            return f"node {node.node_id} is not draining{others}: DRAIN_TO_SCHEDULABLE is not possible"
        if report is None:
            # (Of a node that it did not create it says no more.)
            report = NodeReport({}, None, {}, schedulable=False, by_operator=item.by_operator)
        elif report.capacity is None:
            report = replace(report, by_operator=item.by_operator) if drains else None
        else:
            report = replace(report, schedulable=not drains, by_operator=drains and item.by_operator)
        partition.node_lives.settle(node.node_id, report, out, now_ns)
        return ""

    def _refresh_node(self, partition: Partition, node: Node, item: NodeItem, out: Outcome, now_ns: int) -> str:
        if problem := _ready_problem(item):
            return problem
        report = partition.node_lives.report_of(node, item.capacity)
        assert report is not None, f"{node} is not the RM's"
        said = NodeReport(
            _attributes_after(report.attributes, item.attributes),
            item.capacity if item.capacity is not None else report.capacity,
            item.occupied if item.occupied is not None else report.occupied,
            report.schedulable,
            report.by_operator,
        )
        partition.node_lives.settle(node.node_id, said, out, now_ns)
        return ""

    # ---- applications ----------------------------------------------------------------------------------------------

    def _add_application(self, item: AppItem, out: Outcome, now_ns: int) -> None:
        reason = self._place_application(item, out, now_ns)
        if reason:
            partition = self.partitions.get(partition_name(item.partition))
            if partition is not None:
                partition.lifecycle.keep_rejected(item, reason, self._submission(), out, now_ns)
            out.facts.append(RejectedApplication(item.app_id, reason))
            out.track(EventType.APP, Change.REMOVE, Detail.APP_REJECT, item.app_id, message=reason, now_ns=now_ns)

    def _place_application(self, item: AppItem, out: Outcome, now_ns: int) -> str:
        name = partition_name(item.partition)
        partition = self.partitions.get(name)
        if partition is None:
            return f"partition {item.partition!r} does not exist"
        live = partition.live_application(item.app_id)
        if live is not None:
            by = f" (source {live.source} brought it)" if live.source else ""
            return f"adding application {item.app_id} to partition {name}, but application already existed{by}"
        user, groups = item.user, item.groups
        if item.refused:
            return item.refused
        if not user:
            if not placement.is_forced(item.tags):
                return "empty user cannot resolve: ugi.user must name the owner"
            user, groups = "nobody", ("nogroup",)
        elif groups and not acl.USER_NAME.match(user):
            return f"invalid username, it contains invalid characters: {user[:_SHOWN_MAX]!r}"
        groups = groups or (user,)  # nobody resolved them: the user's own group (§2.6)
        gang = item.placeholder_ask if item.placeholder_ask and any(item.placeholder_ask.values()) else None
        if gang is not None:
            try:
                _refuse_negative("placeholderAsk", gang)
            except _Negative as error:
                return str(error)
        path, reason = placement.place(partition, item.queue, user, groups, item.tags)
        if reason:
            return f"failed to place application {item.app_id}: {reason}"
        queue, created, reason = partition.queue_tree.create_queue(path)
        if queue is None:
            return f"failed to place application {item.app_id}: {reason}"
        quota = namespace.quota_of(item.tags) if not queue.managed else None
        if quota and not _known_types(partition, quota):
            quota = None
        if gang is not None:
            most = quota.maximum if quota else None
            reason = admission.gang_refused(partition, queue, item.app_id, gang, user, groups, most)
            try:
                partition.types.reserve(() if reason else gang)
            except TooManyTypes as error:
                reason = str(error)
            if reason:
                for new in reversed(created):
                    partition.queue_tree.remove_queue(new)
                return reason
        app = Application(partition.types, item.app_id, queue, self._submission(), now_ns)
        app.requested_queue = item.queue
        app.user, app.groups_of_user = user, groups
        app.tags = dict(item.tags)
        app.execution_timeout_ms = item.execution_timeout_ms
        app.placeholder_ask, app.gang_style = item.placeholder_ask, item.gang_style
        app.story.append((now_ns, AppState.NEW))
        partition.lifecycle.take_id(app, out)
        partition.lifecycle.add_application(app)
        if gang is not None:
            partition.gangs.of(app)
        for new in created:
            partition.queue_tree.announce_queue(new, out, now_ns)
        if quota:
            partition.queue_tree.limit_dynamic_queue(queue, *quota, out, now_ns)
        out.touch(app, partition.name)
        out.facts.append(AcceptedApplication(app.app_id))
        out.track(EventType.APP, Change.ADD, Detail.NONE, app.app_id, now_ns=now_ns)
        out.track(EventType.APP, Change.SET, Detail.APP_NEW, app.app_id, now_ns=now_ns)
        out.track(EventType.QUEUE, Change.ADD, Detail.QUEUE_APP, queue.path, app.app_id, now_ns=now_ns)
        link_event(app, app.user_group, Change.SET, out, now_ns)
        return ""

    def _remove_application(self, partition_text: str, app_id: str, out: Outcome, now_ns: int) -> None:
        partition = self.partitions.get(partition_name(partition_text))
        app = partition.live_application(app_id) if partition is not None else None
        if app is not None and app.source:
            reason = f"application {app_id} was brought by source {app.source}, which alone ends it"
            out.facts.append(RejectedApplication(app_id, reason))
        elif partition is not None and app is not None:
            partition.lifecycle.remove_application(app, out, now_ns)

    # ---- asks and allocations --------------------------------------------------------------------------------------

    def _update_allocations(self, command: UpdateAllocations, out: Outcome, now_ns: int) -> None:
        for release in _with_application(command.releases, self.partitions):
            self._release(release, out, now_ns)
        for item in command.asks:
            self._take_ask(item, out, now_ns)

    def _take_ask(self, item: AskItem, out: Outcome, now_ns: int) -> None:
        try:
            _refuse_negative("allocation", item.quantities)
            if item.node_id or FOREIGN in item.tags:
                self._adopt(item, out, now_ns)
            else:
                self._ask(item, out, now_ns)
        except (TooManyTypes, _Negative) as error:
            _reject(item, str(error), out)

    def _ask(self, item: AskItem, out: Outcome, now_ns: int) -> None:
        partition = self.partitions.get(item.partition) or self.partitions.get(partition_name(item.partition))
        if partition is None:
            _reject(item, f"partition {item.partition!r} does not exist", out)
            return
        app = partition.live_application(item.app_id)
        if app is None:
            _reject(item, f"failed to find application {item.app_id}", out)
            return
        if app.source:
            _reject(item, _of_source(app), out)
            return
        if app.state is AppState.FAILING:
            _reject(item, f"application {item.app_id} is failing: nothing more is scheduled for it", out)
            return
        if not any(item.quantities.values()):
            _reject(item, "allocation contains no resources", out)
            return
        if item.wanted < 1:
            _reject(item, f"maxAllocations is {item.wanted}, expected at least 1", out)
            return
        shape = partition.types.shape(item.quantities)
        old = app.asks.get(item.key)
        made = old.allocated if old is not None else app.made(item.key)
        if made:
            self._change_held(partition, app, item, shape, out, now_ns)
        if made >= item.wanted:  # it is met: what is pending of it beyond that is wanted no more
            if old is not None:
                partition.remove_ask(old, out, now_ns, Detail.APP_REQUEST)
                partition.lifecycle.complete_if_idle(app, out, now_ns)
            return
        submission = old.submission if old is not None else self._submission()
        demand = partition.demand_of(item, shape, submission, old.created_ns if old is not None else now_ns)
        ask = Ask(app, demand, item.wanted - made, made)
        if old is not None:
            if old.pending == ask.pending and old.demand.same_as(demand):
                return
            ask.published, old.published = old.published, False
            partition.pass_on(old, ask)
            partition.remove_ask(old, out, now_ns, None)
        else:
            out.track(EventType.APP, Change.ADD, Detail.APP_REQUEST, app.app_id, item.key, shape, now_ns=now_ns)
        if demand.placeholder:
            partition.gangs.ask_more(demand, app, ask.pending)
            out.touch(app, partition.name)
        partition.add_ask(ask, out)
        if app.state is AppState.NEW:
            # (With its first request, because events of this kind are about a request.)
            out.tell_people(item.key, app.app_id, shape, "New application added", now_ns)
        if app.state in (AppState.NEW, AppState.COMPLETING):
            partition.lifecycle.change_state(app, AppEvent.RUN, out, now_ns)

    def _adopt(self, item: AskItem, out: Outcome, now_ns: int) -> None:
        """An allocation that exists already: the RM's report (recovery), or somebody else's (foreign)."""
        name = partition_name(item.partition)
        partition = self.partitions.get(name)
        if partition is None:
            _reject(item, f"partition {item.partition!r} does not exist", out)
            return
        foreign = FOREIGN in item.tags
        if foreign and not item.node_id:
            _reject(item, f"trying to add a foreign request (non-allocation) {item.key}: nodeID is empty", out)
            return
        node = partition.nodes.get(item.node_id)
        if node is None:
            _reject(item, f"failed to find node {item.node_id} for allocation {item.key}", out)
            return
        if not any(item.quantities.values()):
            _reject(item, "allocation contains no resources", out)
            return
        app = None if foreign else partition.live_application(item.app_id)
        if app is None and not foreign:
            _reject(item, f"failed to find application {item.app_id}", out)
            return
        if app is not None and app.source:
            _reject(item, _of_source(app), out)
            return
        shape = partition.types.shape(item.quantities)
        old = partition.foreign.get(item.key) if app is None else _reported_before(app, item)
        other = _with_uuid_of(app, item, old) if app is not None and item.uuid else None
        if other is not None:
            why = f"UUID {item.uuid} is that of allocation {other.key} of application {other.app_id} already"
            _reject(item, f"allocation {item.key}: {why}", out)
            return
        if old is not None:
            demand = partition.demand_of(_as_far_as_said(item, old), shape, old.submission, old.created_ns)
            allocation = partition.adoption.change(old, demand, item.node_id, item.uuid, out, now_ns, echo=True)
            if app is None:
                return
        else:
            allocation = partition.allocation_of(item, app, shape, self._submission(), now_ns)
            if app is None:
                partition.adoption.adopt(allocation, out, now_ns)
                return
            allocation.ordinal = app.made(item.key)  # of an ask with repeats each has its own UUID (seed 001)
            if not allocation.uuid:  # seed 001: ids are made for those that have none
                allocation.uuid = made_uuid(allocation.submission, 0, now_ns)
            if (asked := app.asks.get(item.key)) is not None:
                if asked.told:
                    partition.telling.passed(asked, out, now_ns)
                partition.remove_ask(asked, out, now_ns, None)
            partition.adoption.adopt(allocation, out, now_ns)
        if app.state is AppState.FAILING:
            partition.releases.time_out(allocation, f"application {app.app_id} is failing", out, now_ns)

    def _change_held(
        self, partition: Partition, app: Application, item: AskItem, shape: Shape, out: Outcome, now_ns: int
    ) -> None:
        """An ask is sent again, and some of it runs: what runs is as the ask says from now on, all of it.

        (Whatever part of it was allocated when the ask came again, the outcome is the same. What the allocation is to
        its gang does not change.)
        """
        for held in app.held(item.key):
            said = item._replace(
                task_group=held.task_group,
                placeholder=held.placeholder,
                previous_generation=held.previous_generation,
            )
            demand = partition.demand_of(said, shape, held.submission, held.created_ns)
            if not demand.same_as(held.demand):
                partition.adoption.change(held, demand, held.node_id, "", out, now_ns, echo=False)

    def _release(self, item: ReleaseItem, out: Outcome, now_ns: int) -> None:
        """One item: acknowledged, what it ended or that there was nothing to end; unless it confirms what we began."""
        partition = self.partitions.get(item.partition) or self.partitions.get(partition_name(item.partition))
        if partition is None:
            _acknowledge(item, item.partition, f"partition {item.partition!r} does not exist", out)
        elif not item.app_id:
            self._release_foreign(partition, item, out, now_ns)
        else:
            app = partition.live_application(item.app_id)
            if app is None:
                why = f"application {item.app_id} does not exist: there is nothing to release"
                _acknowledge(item, partition.name, why, out)
            elif app.source:
                _acknowledge(item, partition.name, f"{_of_source(app)}: nothing is released", out)
            else:
                self._release_of(partition, app, item, out, now_ns)

    def _release_of(self, partition: Partition, app: Application, item: ReleaseItem, out: Outcome, now_ns: int) -> None:
        ended = [] if item.ask_only else _allocations_of(app, item)
        asks: list[Ask] = []
        if item.termination is Termination.SCHEDULING_FAILED_ON_RM and app.state is not AppState.FAILING and ended:
            for allocation in ended:
                needless = allocation.placeholder and app.state is AppState.COMPLETING
                if allocation.timed_out or allocation.replaced_by is not None or needless:  # it was to go anyway
                    self._release_one(partition, allocation, item, out, now_ns)
                else:
                    self._ask_again(partition, app, allocation, item.message, out, now_ns)
        else:
            confirms = item.termination in _RELEASE_DETAILS and (item.key or item.uuid)
            told = [allocation for allocation in ended if allocation.told] if confirms else []
            # A confirmation concerns what was told to go: not its ask's other allocations, nor what is pending of it.
            ended = told or ended
            if item.ask_only or (item.termination not in _KEEPING and not told):
                asks = _asks_of(app, item)
            for ask in asks:
                partition.remove_ask(ask, out, now_ns, Detail.APP_REQUEST)
            for allocation in ended:
                self._release_one(partition, allocation, item, out, now_ns)
        if asks:
            keys = {allocation.key for allocation in ended}  # whose release is told as an allocation's
            for ask in asks:
                if ask.key not in keys:
                    _acknowledge(item, partition.name, item.message, out, ask)
        elif not ended:
            _acknowledge(item, partition.name, _nothing_there(app, item), out)
        partition.lifecycle.complete_if_idle(app, out, now_ns)

    def _release_one(
        self, partition: Partition, allocation: Allocation, item: ReleaseItem, out: Outcome, now_ns: int
    ) -> None:
        # What the scheduler began (preemption, time-out, replacement) is confirmed by the RM, and not echoed.
        confirms = allocation.told and (
            item.termination in _RELEASE_DETAILS or item.termination is Termination.SCHEDULING_FAILED_ON_RM
        )
        partition.releases.release(
            allocation,
            Termination.STOPPED_BY_RM,
            item.message,
            _RELEASE_DETAILS.get(item.termination, Detail.ALLOC_CANCEL),
            out,
            now_ns,
            tell=not confirms,
            completing=False,
        )
        if allocation.replaced_by is not None:
            partition.gangs.swap(allocation, out, now_ns)

    def _ask_again(
        self, partition: Partition, app: Application, held: Allocation, message: str, out: Outcome, now_ns: int
    ) -> None:
        """The RM could not start it: the allocation is a pending ask again, and the application stays what it is."""
        old = app.asks.get(held.key)
        made = app.made(held.key) if old is None else old.allocated
        partition.releases.release(
            held,
            Termination.SCHEDULING_FAILED_ON_RM,
            message,
            Detail.ALLOC_CANCEL,
            out,
            now_ns,
            tell=False,
            completing=False,
        )
        demand = replace(held.demand, submission=self._submission(), changed_ns=0)
        ask = Ask(app, demand, 1 if old is None else old.pending + 1, made - 1)
        if old is not None:
            ask.told = old.told
            ask.published, old.published = old.published, False
            partition.remove_ask(old, out, now_ns, None)
        if demand.placeholder:
            partition.gangs.not_lost(demand, app, ask.pending)
        out.track(
            EventType.APP, Change.ADD, Detail.APP_REQUEST, app.app_id, held.key, held.shape, message, now_ns=now_ns
        )
        partition.add_ask(ask, out)

    def _release_foreign(self, partition: Partition, item: ReleaseItem, out: Outcome, now_ns: int) -> None:
        foreign = partition.foreign.get(item.key) if not (item.ask_only or item.uuid) else None
        if foreign is not None:
            partition.releases.release(
                foreign, Termination.STOPPED_BY_RM, item.message, Detail.ALLOC_CANCEL, out, now_ns
            )
            return
        what = f"UUID {item.uuid}" if item.uuid else f"key {item.key}" if item.key else "an empty key"
        kind = "ask" if item.ask_only else "allocation" if item.uuid else "foreign allocation"
        _acknowledge(item, partition.name, f"there is no {kind} with {what}: there is nothing to release", out)


def _with_application(releases: Sequence[ReleaseItem], partitions: Mapping[str, Partition]) -> Sequence[ReleaseItem]:
    """Seed 001: an ask may be named by its key alone, an allocation by its UUID alone.

    The release of an ask then concerns that key of every application; what nobody has is left as it is.
    """
    unnamed = [item for item in releases if not item.app_id and (item.ask_only or item.uuid)]
    if not unnamed:
        return releases
    keys = {item.key for item in unnamed if item.ask_only and item.key}
    uuids = {item.uuid for item in unnamed if not item.ask_only}
    owners: dict[tuple[str, str, bool], list[str]] = {}
    for name, partition in partitions.items():
        for app in partition.apps.values():
            for key in sorted(keys & app.asks.keys()):
                owners.setdefault((name, key, True), []).append(app.app_id)
            for uuid in sorted(uuids & app.by_uuid.keys()):
                owners.setdefault((name, uuid, False), []).append(app.app_id)
    found: list[ReleaseItem] = []
    for item in releases:
        if item.app_id or not (item.ask_only or item.uuid):
            found.append(item)
            continue
        named = (partition_name(item.partition), item.key if item.ask_only else item.uuid, item.ask_only)
        found.extend(item._replace(app_id=app_id) for app_id in owners.get(named, ("",)))
    return found


def _as_far_as_said(item: AskItem, held: Allocation) -> AskItem:
    """What the message of an allocation has no field for stays as its ask had it."""
    item = item._replace(execution_timeout_ms=held.execution_timeout_ms, previous_generation=held.previous_generation)
    if not held.previous_generation:
        return item
    return item._replace(
        originator=held.originator,
        allow_preempt_self=held.allow_preempt_self,
        allow_preempt_other=held.allow_preempt_other,
        has_preemption_policy=held.has_preemption_policy,
    )


def _end_holdings(app: Application, out: Outcome, now_ns: int) -> None:
    """The events of an application's asks and allocations, which all go because the RM registers anew."""
    for ask in sorted(app.asks.values(), key=lambda ask: ask.submission):
        if ask.reserved is not None:
            change, detail, node_id = Change.REMOVE, Detail.NODE_RESERVATION, ask.reserved.node_id
            out.track(EventType.NODE, change, detail, node_id, ask.key, ask.shape, _ANEW, now_ns=now_ns)
        change, detail = Change.REMOVE, Detail.REQUEST_CANCEL
        out.track(EventType.APP, change, detail, app.app_id, ask.key, ask.shape, _ANEW, now_ns=now_ns)
    for held in in_order(app.allocations.values()):
        key, shape = held.key, held.shape
        out.track(EventType.APP, Change.REMOVE, Detail.ALLOC_CANCEL, app.app_id, key, shape, _ANEW, now_ns=now_ns)
        out.track(EventType.NODE, Change.REMOVE, Detail.NODE_ALLOC, held.node_id, key, shape, _ANEW, now_ns=now_ns)
        usage_events(app, Change.REMOVE, shape, out, now_ns)


def _acknowledge(item: ReleaseItem, partition: str, message: str, out: Outcome, ask: Ask | None = None) -> None:
    """The answer to a release that ended no allocation: in the words that it came in."""
    app_id, key = item.app_id, item.key if ask is None else ask.key
    if item.ask_only or ask is not None:
        out.facts.append(ReleasedAsk(partition, app_id, key, Termination.STOPPED_BY_RM, message, item.ask_only))
        return
    out.facts.append(
        ReleasedAllocation(partition, app_id, key, item.uuid, Termination.STOPPED_BY_RM, message, bool(item.uuid))
    )


def _nothing_there(app: Application, item: ReleaseItem) -> str:
    what = f"UUID {item.uuid}" if item.uuid else f"key {item.key}" if item.key else ""
    kind = "ask" if item.ask_only else "allocation"
    has = f"has no {kind} with {what}" if what else f"has no {kind}"
    if item.termination in _KEEPING and not item.ask_only and item.key in app.asks:
        has += f", and {item.termination.name} keeps its ask"
    return f"application {app.app_id} {has}: there is nothing to release"


def _reported_before(app: Application, item: AskItem) -> Allocation | None:
    """The allocation that the RM reports again: by its UUID, else by its key; another UUID is another allocation."""
    for held in app.by_uuid.get(item.uuid, ()) if item.uuid else ():
        if held.key == item.key:
            return held
    first = app.allocations.get(unique_key(item.key, 0))
    return first if first is not None and (not item.uuid or first.uuid in ("", item.uuid)) else None


def _with_uuid_of(app: Application, item: AskItem, old: Allocation | None) -> Allocation | None:
    """Another allocation of the application with the UUID that ``item`` would get: a release could not tell them apart.

    (Of the application only: no more than one look for each of the many that a restarted RM reports.)
    """
    if old is not None and old.uuid == item.uuid:
        return None
    return next(iter(app.by_uuid.get(item.uuid, ())), None)


def _asks_of(app: Application, item: ReleaseItem) -> list[Ask]:
    """(A UUID names one allocation: of an ask with repeats the others stay wanted.)"""
    if item.uuid:
        return []
    if not item.key:
        return sorted(app.asks.values(), key=lambda ask: ask.submission)
    ask = app.asks.get(item.key)
    return [] if ask is None else [ask]


def _allocations_of(app: Application, item: ReleaseItem) -> list[Allocation]:
    if item.uuid:
        return list(app.by_uuid.get(item.uuid, ()))
    return app.held(item.key) if item.key else in_order(app.allocations.values())


def _no_partition(item: NodeItem) -> str:
    return f"failed to find partition {item.partition!r} for node {item.node_id}"


def _ready_problem(item: NodeItem) -> str:
    """Why the ready flag cannot be read; "": it can, or there is none."""
    said = item.attributes.get(NODE_READY_ATTRIBUTE)
    if said is None or is_ready(item.attributes) is not None:
        return ""
    return f"node {item.node_id}: attributes[{NODE_READY_ATTRIBUTE!r}]: {said[:_SHOWN_MAX]!r}, expected true or false"


def _attributes_after(before: Mapping[str, str], said: Mapping[str, str]) -> dict[str, str]:
    """New attributes replace those reported before (seed 000), as a whole.

    But an update that says no more than where the node is, and whether it is ready, is about that: shims of the
    previous generation send the ready flag, and nothing else, with each change.
    """
    if said.keys() <= {NODE_PARTITION, NODE_READY_ATTRIBUTE}:
        return {**before, **said}
    kept = {NODE_PARTITION: before[NODE_PARTITION]} if NODE_PARTITION in before else {}
    return {**kept, **said}


def _of_source(app: Application) -> str:
    return f"application {app.app_id} was brought by source {app.source}: it is not the resource manager's"


def _known_types(partition: Partition, quota: namespace.NamespaceQuota) -> bool:
    """Whether the partition can count in these types; what it cannot count is no quota."""
    try:
        partition.types.reserve(dict.fromkeys([*(quota.guaranteed or ()), *(quota.maximum or ())]))
    except TooManyTypes:
        return False
    return True


class _Negative(ValueError):
    """A quantity below zero."""


def _refuse_negative(what: str, *resources: dict[str, int]) -> None:
    for quantities in resources:
        for name, value in quantities.items():
            if value < 0:
                raise _Negative(f"{what} contains negative resources: {name} {value}")


def _reject(item: AskItem, reason: str, out: Outcome) -> None:
    """In the words that the item came in; what has a node is an allocation, in both generations."""
    asked = item.previous_generation and not item.node_id
    out.facts.append(RejectedAsk(item.key, item.app_id, reason, asked))
