"""The native informer: passes the RM's own objects through the same event handlers as those of sources (the event
handler framework, "Resource EventHandler Framework": one framework for native and custom informers).

The path of an RM's request: ``log → calls → filter → event handler → cache → the same transaction as the request``.

call
    One change of one of the RM's objects (a node, an application, an ask or allocation), in the form of a handler's
    method. The scheduler turns requests into calls, in the order of the log. It knows the earlier state, so this module
    stores only the handler.

taken
    The handler put the object into its cache. If it changed a node, the difference is a statement of this source: the
    statement restricts the node by the rules for all sources, and is recorded like theirs. Applications and asks are
    taken as the RM sent them.

refused
    The handler raised NotTaken or BadDocument, or did not put the object; or the node belongs to another scheduler. The
    RM gets a rejection with the reason.

failed
    The handler raised another error, or does not answer. The table's ``when_lost`` decides: *drain* refuses new objects
    and closes existing nodes; *keep* takes everything as the RM sent it.

Only new objects can be refused: a node's CREATE or UPDATE, an application, an ask. Running allocations are adopted even
if the handler refuses them, and every request that ends an object is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from typing import Any

import msgspec
import structlog
from muster_bus.clock import Clock
from muster_core.external.errors import BadDocument, InformerSettingsWrong, InvalidExternalSettings, NotTaken
from muster_core.external.model import (
    ExternalAllocation,
    ExternalApplication,
    ExternalChange,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    id_of,
    kind_of,
)
from muster_core.external.validation import quote, sanitize
from muster_runtime.secrets import masked_text
from muster_state.external_codec import change_bytes, check

from muster_informers import metrics
from muster_informers.contract import EventHandler, Options
from muster_informers.filters import owner_of_node
from muster_informers.indexer import SourceKey, key_of
from muster_informers.problems import SourceProblems
from muster_informers.settings import InformerTable

log = structlog.get_logger(__name__)

#: The kind of an informer's table that means the RM itself.
NATIVE = "native"
TIMEOUT_S = 10.0
_TIMEOUT_MAX_S = 60.0
# Problems are kept for operators: the newest are enough when a handler fails on every call.
_FAILED_MAX = 100

RmObject = ExternalNode | ExternalApplication | ExternalAllocation


class ObjectEvent(StrEnum):
    """The event of an object, and so the method to call."""

    ADD = "add"
    UPDATE = "update"
    DELETE = "delete"


class HandlerCall(msgspec.Struct, array_like=True, frozen=True):
    """One call of the handler.

    :param initial: the object existed when the handler began.
    :param may_refuse: the RM can get a rejection of it.
    """

    event: ObjectEvent
    initial: bool = False
    may_refuse: bool = False
    node: ExternalNode | None = None
    old_node: ExternalNode | None = None
    application: ExternalApplication | None = None
    old_application: ExternalApplication | None = None
    allocation: ExternalAllocation | None = None
    old_allocation: ExternalAllocation | None = None

    @property
    def obj(self) -> RmObject:
        """The object as the RM now reports it; for DELETE the last state."""
        obj = self.node or self.application or self.allocation
        assert obj is not None, "a call is about an object"
        return obj

    @property
    def old(self) -> RmObject | None:
        """The object before the change."""
        return self.old_node or self.old_application or self.old_allocation


def call_of(
    event: ObjectEvent, obj: RmObject, old: RmObject | None = None, *, initial: bool = False, may_refuse: bool = False
) -> HandlerCall:
    """Returns the call about an object."""
    match obj:
        case ExternalNode():
            return HandlerCall(event, initial, may_refuse, node=obj, old_node=old)  # type: ignore[arg-type]
        case ExternalApplication():
            return HandlerCall(event, initial, may_refuse, application=obj, old_application=old)  # type: ignore[arg-type]
        case ExternalAllocation():
            return HandlerCall(event, initial, may_refuse, allocation=obj, old_allocation=old)  # type: ignore[arg-type]


class CallResult(msgspec.Struct, array_like=True, frozen=True):
    """The result of a call.

    :param refused: the reason of the refusal; "": it is taken.
    :param changes: the changes of this source, each as the bytes of an ExternalChange.
    :param failed: the handler failed.
    """

    refused: str = ""
    changes: tuple[bytes, ...] = ()
    failed: bool = False


_ACCEPTED = CallResult()


def timeout_of(name: str, options: Options) -> float:
    """Returns the time that the RM's requests wait for the handler. Raises InformerSettingsWrong."""
    path = f"scheduler.external.informers.{name}"
    if unknown := sorted(option for option in options if option != "timeout_s"):
        raise InformerSettingsWrong(
            f"{path}.{unknown[0]}: not known, expected timeout_s (an informer of kind 'native' has no other option)"
        )
    timeout_s = options.get("timeout_s", TIMEOUT_S)
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s <= _TIMEOUT_MAX_S:
        raise InformerSettingsWrong(
            f"{path}.timeout_s: {quote(timeout_s)}, expected seconds above 0, at most {_TIMEOUT_MAX_S:g}"
        )
    return float(timeout_s)


def node_patch(reported: ExternalNode, put: ExternalNode) -> ExternalNode | None:
    """A handler's change of the RM's node; None: it changed nothing."""
    has, puts = reported.capacity or {}, put.capacity or {}
    capacity = {name: amount for name, amount in puts.items() if name not in has or amount < has[name]}
    if put.whole:
        capacity.update(dict.fromkeys(has.keys() - puts.keys(), 0))
    occupied = {
        name: amount - reported.occupied.get(name, 0)
        for name, amount in put.occupied.items()
        if amount > reported.occupied.get(name, 0)
    }
    attributes = {name: text for name, text in put.attributes.items() if name not in reported.attributes}
    schedulable = put.schedulable or not reported.schedulable
    if not capacity and not occupied and not attributes and schedulable:
        return None
    return ExternalNode(reported.node_id, capacity or None, occupied, attributes, schedulable, brings=False)


def failure(call: HandlerCall, reason: str, *, drains: bool) -> CallResult:
    """Returns the result of a call on which the handler failed."""
    if not drains or call.event is ObjectEvent.DELETE:
        return CallResult(failed=True)
    is_there = call.event is ObjectEvent.UPDATE or call.initial
    if isinstance(call.obj, ExternalNode) and is_there:
        closed = ExternalNode(call.obj.node_id, schedulable=False, brings=False)
        return CallResult(
            changes=(change_bytes(ExternalChange(ExternalKind.NODE, closed.node_id, closed)),), failed=True
        )
    return CallResult(reason if call.may_refuse else "", failed=True)


class NativeCache:
    """An :class:`~muster_informers.contract.ExternalCache` for one call: the objects count at once, together with the
    RM's request. Between two calls nothing can be put.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._about: SourceKey | None = None
        self.put_object: ExternalObject | None = None
        self.others: dict[SourceKey, ExternalChange] = {}

    @property
    def source(self) -> str:
        return self._source

    def begin(self, obj: RmObject) -> None:
        """Begins a call about this object."""
        self._about, self.put_object = key_of(obj), None
        self.others = {}

    def end(self) -> None:
        """Ends the call."""
        self._about = None

    def put(self, what: ExternalObject) -> None:
        """Sets the new state of an object, which is the whole object. Raises BadDocument: it is not valid; NotTaken: no
        call is under way.
        """
        key = key_of(what)
        if key == self._current_key():
            if isinstance(what, ExternalNode):
                check(ExternalChange(*key, what))
            self.put_object = what
        else:
            self._add_change(ExternalChange(*key, what))

    def delete(self, kind: ExternalKind, object_id: str) -> None:
        """Deletes an object."""
        if SourceKey(kind, object_id) == self._current_key():
            self.put_object = None
        else:
            self._add_change(ExternalChange(kind, object_id, None))

    def distrust(self, kind: ExternalKind, object_id: str, believed: ExternalAllocation | None = None) -> None:
        """Marks an object's last state as unreliable."""
        if SourceKey(kind, object_id) == self._current_key():
            self.put_object = None
        else:
            self._add_change(ExternalChange(kind, object_id, believed, stale=True))

    def _current_key(self) -> SourceKey:
        if self._about is None:
            raise NotTaken(
                f"source {self._source}: no call is under way, expected put, delete and distrust within a call about "
                "one of the resource manager's objects"
            )
        return self._about

    def _add_change(self, change: ExternalChange) -> None:
        check(change)
        self.others[SourceKey(change.kind, change.object_id)] = change


class NativeHandler:
    """The handler of one RM's own objects.

    :param make: makes a handler for the cache, once for each life of the RM's objects.
    :param instance: this scheduler among ``instances``; without those it is responsible for all nodes.
    """

    def __init__(
        self,
        name: str,
        table: InformerTable,
        handler: str,
        make: Callable[[NativeCache], EventHandler],
        clock: Clock,
        instance: str = "",
        instances: Collection[str] = (),
    ) -> None:
        self.name, self.table = name, table
        self.timeout_s = timeout_of(name, table.options())
        self._handler_name = handler
        self._make = make
        self._instance, self._instances = instance, tuple(instances)
        self._log = log.bind(source=name, rm=table.rm, partition=table.partition_name)
        self._problems = SourceProblems(clock, self._log)
        self._failed: dict[SourceKey, str] = {}
        self._broken = ""  # why there is no handler; "": there is one
        self._cache = NativeCache(name)
        self._handler = make(self._cache)

    @property
    def drains(self) -> bool:
        return self.table.when_lost == "drain"

    @property
    def handler_name(self) -> str:
        """The handler's name in the settings."""
        return self._handler_name

    def restart(self) -> None:
        """Starts a new handler, which gets all objects again.

        A handler that cannot start (its file may have changed) fails on every call.
        """
        self._failed.clear()
        self._cache, self._broken = NativeCache(self.name), ""
        try:
            self._handler = self._make(self._cache)
        except Exception as error:
            text = str(error) if isinstance(error, InvalidExternalSettings) else type(error).__name__
            self._broken = sanitize(f"event handler {self._handler_name} cannot begin: {masked_text(text)}")
            self._log.error("event handler cannot begin", why=self._broken)

    def call(self, calls: Sequence[HandlerCall]) -> list[CallResult]:
        """Calls the handler in this order."""
        return [self._evaluate(call) for call in calls]

    def problem(self) -> str:
        """Returns the handler's present failures, for people; "": none."""
        then = "refused or closed" if self.drains else "taken as the resource manager said it"
        if self._broken:
            return f"informer {self.name} ({NATIVE}): {self._broken}; whatever is new is {then}"
        if not self._failed:
            return ""
        (kind, object_id), reason = next(reversed(self._failed.items()))
        more = f" (and on {len(self._failed) - 1} more)" if len(self._failed) > 1 else ""
        return f"informer {self.name} ({NATIVE}): {reason} on {kind} {object_id}{more}, which is {then}"

    def _evaluate(self, call: HandlerCall) -> CallResult:
        obj = call.obj
        key = key_of(obj)
        # 1. the filter
        if self._instances and isinstance(obj, ExternalNode) and call.event is not ObjectEvent.DELETE:
            owner = owner_of_node(obj.node_id, self._instances)
            if owner != self._instance:
                self._failed.pop(key, None)
                all_names = ", ".join(sorted(self._instances))
                return self._refused(
                    call, f"node {obj.node_id} is scheduler {owner}'s, not {self._instance}'s (of {all_names})"
                )
        # 2. the handler
        if self._broken:
            return failure(call, self._broken, drains=self.drains)
        self._cache.begin(obj)
        try:
            self._invoke(call)
        except (NotTaken, BadDocument) as error:
            self._failed.pop(key, None)
            return self._refusal(call, sanitize(masked_text(str(error))))
        except Exception as error:
            return self._failure(call, key, error)
        finally:
            self._cache.end()
        self._failed.pop(key, None)
        # 3. the objects that it put
        others = [change_bytes(change) for change in self._cache.others.values()]
        if call.event is ObjectEvent.DELETE:
            if isinstance(obj, ExternalNode):
                others.append(_no_node_patch(obj))
            return CallResult(changes=tuple(others)) if others else _ACCEPTED
        put = self._cache.put_object
        if put is None:
            return self._refusal(call, f"it did not put {key.kind} {key.object_id} into its cache")
        if isinstance(obj, ExternalNode):
            assert isinstance(put, ExternalNode)
            word = node_patch(obj, put)
            node_change = (
                _no_node_patch(obj) if word is None else change_bytes(ExternalChange(key.kind, key.object_id, word))
            )
            return CallResult(changes=(*others, node_change))
        if put != obj:
            self._problems.add(
                key.kind, key.object_id, "the handler changed it, which only nodes can be: taken as it was said"
            )
        return CallResult(changes=tuple(others)) if others else _ACCEPTED

    def _invoke(self, call: HandlerCall) -> None:
        obj, old = call.obj, call.old
        method: Any = getattr(self._handler, f"{call.event}_{kind_of(obj)}")
        if call.event is ObjectEvent.ADD:
            method(obj, initial=call.initial)
        elif call.event is ObjectEvent.UPDATE:
            method(old, obj)
        else:
            method(obj)

    def _refusal(self, call: HandlerCall, reason: str) -> CallResult:
        return self._refused(call, sanitize(f"event handler {self._handler_name} does not take it: {reason}"))

    def _refused(self, call: HandlerCall, reason: str) -> CallResult:
        if call.may_refuse:
            return CallResult(reason)
        if isinstance(call.obj, ExternalNode) and call.event is not ObjectEvent.DELETE:
            # The node cannot be refused any more, so it takes no new allocations.
            return failure(call, "", drains=True)
        return _ACCEPTED

    def _failure(self, call: HandlerCall, key: SourceKey, error: Exception) -> CallResult:
        reason = sanitize(
            f"event handler {self._handler_name} failed: {type(error).__name__}: {masked_text(str(error))}"
        )
        metrics.problems.labels(self.name).inc()
        self._problems.add(key.kind, key.object_id, reason)
        if call.event is not ObjectEvent.DELETE:
            self._failed[key] = reason
            if len(self._failed) > _FAILED_MAX:
                del self._failed[next(iter(self._failed))]
        return failure(call, reason, drains=self.drains)


def _no_node_patch(node: ExternalNode) -> bytes:
    return change_bytes(ExternalChange(ExternalKind.NODE, id_of(node), None))
