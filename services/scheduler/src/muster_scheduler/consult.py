"""Asks event handlers about the RM's own objects (step "consult", between reading requests and "ingest").

``external/native.py`` defines the terms. For each batch of requests it takes these steps: 1 find requests of RMs with a
native handler; 2 derive the handler calls that they mean, in the log's order, with the previous objects; 3 ask the
handler, in bounded time; 4 keep its verdicts in the machine for their requests.

After a new start (of this process, of the informers' process, or of the RM by a registration), the handler first gets
all objects that exist. Its answers replace its earlier ones. A verdict is part of the transaction that takes its
request: a crash before that loses both, and the next machine asks again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import structlog
from muster_bus.clock import Clock
from muster_bus.log import Record
from muster_core.config.queue_config import INDEPENDENT, partition_name
from muster_core.external.errors import HandlerExited, HandlerTimeout
from muster_core.external.model import (
    ApplyExternalChanges,
    ExternalAllocation,
    ExternalApplication,
    ExternalChange,
    ExternalKind,
    ExternalNode,
    SetSourceState,
    SourceState,
)
from muster_core.model.application import Allocation, Application, Ask
from muster_core.model.commands import (
    AppItem,
    AskItem,
    NodeAction,
    NodeItem,
    ReleaseItem,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_core.model.outcome import Outcome, RejectedAsk, RejectedNode
from muster_core.partition import Partition
from muster_core.requests.node_requests import attributes_after
from muster_core.scheduler import SchedulerCore
from muster_informers import metrics
from muster_informers.indexer import SourceKey, key_of
from muster_informers.native_handler import CallResult, HandlerCall, ObjectEvent, RmObject, call_of, failure
from muster_runtime.watchdog import Usage, patiently, until_stuck
from muster_si.constants import FOREIGN
from muster_si.tags import is_forced
from muster_state.external_codec import change_of

from muster_scheduler import ingest

log = structlog.get_logger(__name__)

# Pause after a handler did not answer in time. Meanwhile its calls count as failed.
PAUSE_S = 30.0

_CALLS_MAX = 500  # calls of one question; other tasks run between questions
_CREATIONS = (NodeAction.CREATE, NodeAction.CREATE_DRAIN)

Command = UpdateAllocations | UpdateApplications | UpdateNodes


class HandlerHost(Protocol):
    """The handlers, in this process or in another (``ExternalService``, ``ExternalProcess``)."""

    @property
    def synced(self) -> bool: ...

    async def handlers_ready(self) -> int:
        """Returns when handlers can be asked; the result is the number of this life. Raises LogUnavailable when
        stopping.
        """
        ...

    async def call_handler(
        self, name: str, life: int, begins: bool, calls: Sequence[HandlerCall]
    ) -> Sequence[CallResult]:
        """Asks one handler. Raises HandlerExited if that life has ended."""
        ...

    def usage(self) -> Usage:
        """Returns what their process had of the processor."""
        ...

    def abandon(self, life: int, reason: str) -> None:
        """Ends a life that does not answer."""
        ...


@dataclass(frozen=True, slots=True)
class NativeSource:
    """A configured informer of kind ``native``."""

    name: str
    rm_id: str
    partition: str
    handler: str
    drains: bool
    timeout_s: float


@dataclass(slots=True)
class RequestVerdict:
    """A handler's verdict on one request. A request that the handler accepts without changes has none.

    :ivar changes: by the item's place in the request: the commands to apply right before it.
    :ivar begins: likewise, before ``changes``, if the RM's number of registrations is ``registrations``.
    :ivar refused: likewise: the reason of a refusal.
    """

    registrations: int
    begins: dict[int, list[ApplyExternalChanges | SetSourceState]] = field(default_factory=dict)
    changes: dict[int, list[ApplyExternalChanges | SetSourceState]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)

    def commands_before(self, at: int, registrations: int) -> list[ApplyExternalChanges | SetSourceState]:
        """Returns the commands to apply before the request's item at that place."""
        begins = self.begins.get(at, ()) if registrations == self.registrations else ()
        return [*begins, *self.changes.get(at, ())]

    def apply_to(self, item: Command, at: int, out: Outcome) -> Command | None:
        """Returns a request's item as the core must take it; None: it is refused and answered."""
        reason = self.refused.get(at)
        if not reason:
            return item
        match item:
            case UpdateApplications():
                return replace(item, new=tuple(replace(app, refused=reason) for app in item.new))
            case UpdateNodes():
                for node in item.nodes:
                    out.facts.append(RejectedNode(node.node_id, reason))
                    gone = f"node {node.node_id} was rejected: {reason}"
                    out.facts += (RejectedAsk(ask.key, ask.app_id, gone, False) for ask in node.existing)
            case UpdateAllocations():
                out.facts += (RejectedAsk(ask.key, ask.app_id, reason, ask.previous_generation) for ask in item.asks)
        return None


class VerdictTarget(Protocol):
    """The part of a machine that this module uses."""

    def core_of(self, rm_id: str) -> tuple[SchedulerCore | None, int]:
        """Returns an RM's core, and the number of its registrations."""
        ...

    def set_verdicts(self, verdicts: Mapping[int, RequestVerdict]) -> None:
        """Takes verdicts, by the offset of their requests, which come next."""
        ...


@dataclass(slots=True)
class _SourceProgress:
    """One source, and the progress of its handler.

    :ivar knows: (machine, registrations, life of the handler) that got everything.
    :ivar silent: why the handler is not asked until ``silent_until_s``.
    """

    source: NativeSource
    knows: tuple[VerdictTarget, int, int] | None = None
    lives: int = 0
    silent: str = ""
    silent_until_s: float = 0.0


class NativeConsultation:
    """See the module's docstring. One object serves all partitions of a process.

    :param life: id of this process; prefix of its sources' lives on the log.
    """

    def __init__(
        self,
        sources: Sequence[NativeSource],
        handlers: HandlerHost,
        clock: Clock,
        life: str,
        sync_timeout_s: float,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._handlers, self._clock, self._life = handlers, clock, life
        self._sync_timeout_s, self._pause_s = sync_timeout_s, pause_s
        self._by_key: dict[bytes, list[_SourceProgress]] = {}
        for source in sources:
            self._by_key.setdefault(source.rm_id.encode(), []).append(_SourceProgress(source))

    def problems(self) -> list[str]:
        """Returns the handlers that are not asked now, one sentence each."""
        now_s = self._clock.monotonic()
        return [
            f"informer {spoken.source.name} (native): {spoken.silent}; it is asked again after "
            f"{spoken.silent_until_s - now_s:.0f} s"
            for of_rm in self._by_key.values()
            for spoken in of_rm
            if now_s < spoken.silent_until_s
        ]

    async def consult(self, machine: VerdictTarget, records: Sequence[Record]) -> None:
        """Asks handlers about the machine's next requests. Raises LogUnavailable when everything stops."""
        # 1. find the requests
        by_rm: dict[bytes, list[Record]] = {}
        for record in records:
            if record.key in self._by_key:
                by_rm.setdefault(record.key, []).append(record)
        verdicts: dict[int, RequestVerdict] = {}
        for key, of_rm in by_rm.items():
            for spoken in self._by_key[key]:
                await self._consult(spoken, machine, of_rm, verdicts)
        # 4. the verdicts
        machine.set_verdicts(verdicts)

    async def _consult(
        self,
        spoken: _SourceProgress,
        machine: VerdictTarget,
        records: Sequence[Record],
        verdicts: dict[int, RequestVerdict],
    ) -> None:
        source = spoken.source
        core, registrations = machine.core_of(source.rm_id)
        foreseen = _ForeseenObjects(core, source.partition)
        origins: list[_CallOrigin] = []
        for record in records:
            # 2. the calls
            body, command = ingest.summarize_request(record.value)
            if body == "register":
                await self._ask(spoken, machine, registrations, foreseen, origins, verdicts)
                registrations, origins = registrations + 1, []
                foreseen = _ForeseenObjects(None, source.partition)
            elif command is not None and registrations:
                origins += (_CallOrigin(record.offset, *call) for call in foreseen.calls(command))
        await self._ask(spoken, machine, registrations, foreseen, origins, verdicts)

    async def _ask(
        self,
        spoken: _SourceProgress,
        machine: VerdictTarget,
        registrations: int,
        foreseen: _ForeseenObjects,
        origins: Sequence[_CallOrigin],
        verdicts: dict[int, RequestVerdict],
    ) -> None:
        """3. Asks the handler about the requests of one registration."""
        if not origins:
            return
        source = spoken.source
        began_s = self._clock.monotonic()
        listed: list[CallResult] | None = None
        try:
            listed, judged = await self._answers(
                spoken, machine, registrations, foreseen, [origin.call for origin in origins]
            )
        except HandlerTimeout as silent:
            spoken.knows = None
            judged = [failure(origin.call, str(silent), drains=source.drains) for origin in origins]
        metrics.native_seconds.labels(source.name).observe(self._clock.monotonic() - began_s)
        source_id, life = (source.partition, source.name), f"{self._life}/{spoken.lives}"
        for origin, result in zip(origins, judged, strict=True):
            metrics.native_objects.labels(source.name, _became(result)).inc()
            if changes := foreseen.news(source.name, result.changes):
                verdict = verdicts.setdefault(origin.offset, RequestVerdict(registrations))
                verdict.changes.setdefault(origin.at, []).append(ApplyExternalChanges(*source_id, life, changes))
            if result.refused and origin.is_refusable:
                verdicts.setdefault(origin.offset, RequestVerdict(registrations)).refused[origin.at] = result.refused
        if listed is not None:
            words = tuple(change for result in listed for raw in result.changes if (change := change_of(raw)).what)
            verdict = verdicts.setdefault(origins[0].offset, RequestVerdict(registrations))
            first = verdict.begins.setdefault(origins[0].at, [])
            first += (
                SetSourceState(*source_id, life, SourceState.LISTING, source.drains),
                ApplyExternalChanges(*source_id, life, words),
                SetSourceState(*source_id, life, SourceState.LIVE, source.drains),
            )

    async def _answers(
        self,
        spoken: _SourceProgress,
        machine: VerdictTarget,
        registrations: int,
        foreseen: _ForeseenObjects,
        calls: Sequence[HandlerCall],
    ) -> tuple[list[CallResult] | None, list[CallResult]]:
        """Returns the handler's answers: to everything that existed, if the handler began again (else None), and to the
        calls.

        Raises HandlerTimeout, LogUnavailable.
        """
        source, handlers = spoken.source, self._handlers
        patience_s = source.timeout_s if handlers.synced else max(source.timeout_s, self._sync_timeout_s)
        reason = f"event handler {source.handler} did not answer within {patience_s:g} s"
        if self._clock.monotonic() < spoken.silent_until_s:
            raise HandlerTimeout(f"{spoken.silent}, a moment ago")
        life = 0

        async def call_in_batches() -> tuple[list[CallResult] | None, list[CallResult]]:
            nonlocal life
            while True:
                life = await handlers.handlers_ready()
                knows = (machine, registrations, life)
                listing = [] if spoken.knows == knows else foreseen.listing()
                begins, all_calls = spoken.knows != knows, [*listing, *calls]
                judged: list[CallResult] = []
                try:
                    for start in range(0, len(all_calls), _CALLS_MAX):
                        some = all_calls[start : start + _CALLS_MAX]
                        judged += await handlers.call_handler(source.name, life, begins and not start, some)
                except HandlerExited:
                    spoken.knows = None
                    continue
                if begins:
                    spoken.knows, spoken.lives = knows, spoken.lives + 1
                return (judged[: len(listing)] if begins else None), judged[len(listing) :]

        try:
            # (Its process is ended if it is stuck. So the wait counts its available time.)
            return await patiently(call_in_batches(), until_stuck(lambda: 0, handlers.usage, lambda: patience_s))
        except TimeoutError:
            spoken.silent = reason
            spoken.silent_until_s = self._clock.monotonic() + self._pause_s
            log.error("event handler does not answer", source=source.name, why=reason, left_alone_s=self._pause_s)
            handlers.abandon(life, reason)
            raise HandlerTimeout(reason) from None


class _CallOrigin(NamedTuple):
    """A call, and its item: the request's offset, and the item's place in the request."""

    offset: int
    at: int
    is_refusable: bool
    call: HandlerCall


def _became(result: CallResult) -> str:
    if result.failed:
        return "FAILED"
    return "REFUSED" if result.refused else "TAKEN"


class _ForeseenObjects:
    """An RM's objects in one partition, with the foreseeable effects of the batch's requests.

    (The core has not taken the requests yet. If it refuses an object, a later request reports the object as new again.)

    :param core: None: the RM has just registered, and has nothing.
    """

    def __init__(self, core: SchedulerCore | None, partition: str) -> None:
        self._core, self._name = core, partition
        self._partition: Partition | None = core.partitions.get(partition) if core is not None else None
        self._later: dict[tuple[str, str, str], RmObject | None] = {}
        self._words: dict[SourceKey, None] = {}

    # ---- calls of requests -------------------------------------------------------------------------------------------

    def calls(self, command: Command) -> Iterator[tuple[int, bool, HandlerCall]]:
        """Yields the calls that a request means: the item's place, whether the item may be refused, and the call. The
        order is that in which the core takes the items.
        """
        match command:
            case UpdateNodes():
                for at, node in enumerate(command.nodes):
                    if self._is_here(node):
                        for is_refusable, call in self._node(node):
                            yield at, is_refusable, call
            case UpdateApplications():
                for at, app in enumerate(command.new):
                    if partition_name(app.partition) == self._name:
                        yield at, True, self._application(app)
                for at, (partition, app_id) in enumerate(command.remove, len(command.new)):
                    if partition_name(partition) == self._name and (old := self._app(app_id)) is not None:
                        self._set(old, None)
                        yield at, False, call_of(ObjectEvent.DELETE, old)
            case UpdateAllocations():
                for at, release in enumerate(command.releases):
                    if partition_name(release.partition) == self._name:
                        for allocation in self._released(release):
                            self._set(allocation, None)
                            yield at, False, call_of(ObjectEvent.DELETE, allocation)
                for at, ask in enumerate(command.asks, len(command.releases)):
                    if partition_name(ask.partition) == self._name:
                        yield at, True, self._ask(ask)

    def _is_here(self, item: NodeItem) -> bool:
        if item.partition or item.action in _CREATIONS:
            return partition_name(item.partition) == self._name
        if self._node_of(item.node_id) is not None:
            return True
        elsewhere = self._core is not None and any(
            item.node_id in partition.nodes for partition in self._core.partitions.values()
        )
        return not elsewhere and partition_name("") == self._name

    def _node(self, item: NodeItem) -> Iterator[tuple[bool, HandlerCall]]:
        old = self._node_of(item.node_id)
        if item.action in _CREATIONS:
            node = ExternalNode(
                item.node_id,
                dict(item.capacity or {}),
                dict(item.occupied or {}),
                dict(item.attributes),
                item.action is NodeAction.CREATE,
            )
            # The core refuses a node that exists already.
            yield True, self._is(node, old, may_refuse=True)
        elif old is None or item.action is NodeAction.UNKNOWN:
            return  # the core refuses this, too
        elif item.action is NodeAction.DECOMISSION:
            self._set(old, None)
            yield False, call_of(ObjectEvent.DELETE, old)
        elif item.action is NodeAction.UPDATE:
            node = replace(
                old,
                capacity=dict(item.capacity) if item.capacity is not None else old.capacity,
                occupied=dict(item.occupied) if item.occupied is not None else old.occupied,
                attributes=attributes_after(old.attributes, item.attributes),
            )
            yield True, self._is(node, old, may_refuse=True)
        else:
            node = replace(old, schedulable=item.action is NodeAction.DRAIN_TO_SCHEDULABLE)
            yield False, self._is(node, old)
        for ask in item.existing:
            yield False, self._ask(replace(ask, node_id=item.node_id))

    def _application(self, item: AppItem) -> HandlerCall:
        app = ExternalApplication(item.app_id, item.queue, item.user, tuple(item.groups), dict(item.tags))
        return self._is(app, self._app(item.app_id), may_refuse=not is_forced(item.tags))

    def _ask(self, item: AskItem) -> HandlerCall:
        allocation = ExternalAllocation(
            item.key, item.node_id, dict(item.quantities), item.app_id, item.priority, dict(item.tags)
        )
        old = self._allocation(item.app_id, item.key)
        runs = bool(item.node_id) or FOREIGN in item.tags
        return self._is(allocation, old, may_refuse=not runs and old is None)

    def _is(self, obj: RmObject, old: RmObject | None, *, may_refuse: bool = False) -> HandlerCall:
        self._set(obj, obj)
        return call_of(ObjectEvent.ADD if old is None else ObjectEvent.UPDATE, obj, old, may_refuse=may_refuse)

    def _released(self, item: ReleaseItem) -> list[ExternalAllocation]:
        """Returns the RM's allocations and asks that a release ends, as far as they are known."""
        keys: dict[tuple[str, str], None] = {}
        if item.app_id or not (item.ask_only or item.uuid):
            if item.key:
                keys[item.app_id, item.key] = None
            else:
                keys.update(dict.fromkeys(self._keys_of(item.app_id, item.uuid)))
        elif self._partition is not None:  # previous generation: names only the key or the UUID
            for app in self._partition.apps.values():
                if item.ask_only and item.key in app.asks:
                    keys[app.app_id, item.key] = None
                elif not item.ask_only:
                    keys.update(dict.fromkeys(self._keys_of(app.app_id, item.uuid)))
        allocations = [self._allocation(*key) for key in keys]
        return [allocation for allocation in allocations if allocation is not None]

    def _keys_of(self, app_id: str, uuid: str) -> list[tuple[str, str]]:
        """Returns the keys of an application's allocations and, without a UUID, of its asks."""
        app = self._partition.apps.get(app_id) if self._partition is not None else None
        keys: dict[tuple[str, str], None] = {}
        if app is not None:
            allocations = app.by_uuid.get(uuid, ()) if uuid else app.allocations.values()
            keys.update(dict.fromkeys((app_id, allocation.key) for allocation in allocations))
            if not uuid:
                keys.update(dict.fromkeys((app_id, key) for key in app.asks))
        if not uuid:
            later = [key for key, obj in self._later.items() if obj is not None]
            keys.update(
                dict.fromkeys((owner, key) for kind, owner, key in later if kind == _ALLOCATION and owner == app_id)
            )
        return list(keys)

    # ---- existing objects -------------------------------------------------------------------------------------------

    def listing(self) -> list[HandlerCall]:
        """Returns a call for every object, parents first."""
        partition = self._partition
        if partition is None:
            return []
        objects: list[RmObject] = [node for node_id in partition.nodes if (node := self._node_now(node_id)) is not None]
        apps = [app for app in partition.apps.values() if not app.source]
        objects += (_as_application(app) for app in apps if not app.independent)
        for app in apps:
            owner = "" if app.independent else app.app_id
            objects += (_as_allocation(owner, ask) for ask in app.asks.values())
            objects += (
                _as_allocation(owner, allocation)
                for allocation in app.allocations.values()
                if not allocation.ordinal and allocation.key not in app.asks
            )
        objects += (
            _as_allocation("", allocation) for allocation in partition.foreign.values() if not allocation.source
        )
        return [call_of(ObjectEvent.ADD, obj, initial=True) for obj in objects]

    def news(self, source: str, changes: Sequence[bytes]) -> tuple[ExternalChange, ...]:
        """Returns a source's changes, without removals of objects that it never reported."""
        relevant = []
        for raw in changes:
            change = change_of(raw)
            key = SourceKey(change.kind, change.object_id)
            if change.what is not None:
                self._words[key] = None
            elif self._words.pop(key, 0) == 0 and not self._is_said(source, key):
                continue
            relevant.append(change)
        return tuple(relevant)

    def _is_said(self, source: str, key: SourceKey) -> bool:
        books = self._core.external.partitions.get(self._name) if self._core is not None else None
        return books is None or books.entry(source, key.kind, key.object_id) is not None

    def _node_of(self, node_id: str) -> ExternalNode | None:
        key = (ExternalKind.NODE.value, "", node_id)
        obj = self._later[key] if key in self._later else self._node_now(node_id)
        return obj if isinstance(obj, ExternalNode) else None

    def _node_now(self, node_id: str) -> ExternalNode | None:
        """Returns the node as the RM itself reports it."""
        partition = self._partition
        node = partition.nodes.get(node_id) if partition is not None else None
        if partition is None or node is None:
            return None
        report = partition.node_lives.report_of(node)
        if report is None or report.capacity is None:
            return None
        return ExternalNode(
            node_id, dict(report.capacity), dict(report.occupied), dict(report.attributes), report.schedulable
        )

    def _app(self, app_id: str) -> ExternalApplication | None:
        key = (ExternalKind.APPLICATION.value, "", app_id)
        if key in self._later:
            obj = self._later[key]
            return obj if isinstance(obj, ExternalApplication) else None
        app = self._partition.live_application(app_id) if self._partition is not None else None
        return None if app is None or app.source else _as_application(app)

    def _allocation(self, app_id: str, key: str) -> ExternalAllocation | None:
        object_key = (_ALLOCATION, app_id, key)
        if object_key in self._later:
            obj = self._later[object_key]
            return obj if isinstance(obj, ExternalAllocation) else None
        partition = self._partition
        if partition is None:
            return None
        if not app_id:
            foreign = partition.foreign.get(key)
            if foreign is not None and not foreign.source:
                return _as_allocation("", foreign)
        app = partition.apps.get(app_id or INDEPENDENT)
        if app is None or app.source:
            return None
        if (ask := app.asks.get(key)) is not None:
            return _as_allocation(app_id, ask)
        allocations = app.allocations_of(key)
        return _as_allocation(app_id, allocations[0]) if allocations else None

    def _set(self, obj: RmObject, now: RmObject | None) -> None:
        owner = obj.app_id if isinstance(obj, ExternalAllocation) else ""
        kind, object_id = key_of(obj)
        self._later[kind.value, owner, object_id] = now


_ALLOCATION = ExternalKind.ALLOCATION.value


def _as_application(app: Application) -> ExternalApplication:
    return ExternalApplication(app.app_id, app.requested_queue, app.user, tuple(app.groups_of_user), dict(app.tags))


def _as_allocation(app_id: str, obj: Ask | Allocation) -> ExternalAllocation:
    node_id = obj.node_id if isinstance(obj, Allocation) else ""
    return ExternalAllocation(obj.key, node_id, dict(obj.shape.quantities), app_id, obj.priority, dict(obj.tags))
