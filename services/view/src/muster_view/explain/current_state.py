"""The current figures of a reason, which the scheduler may have recorded long ago."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

from muster_core.model.application import Application
from muster_core.model.cordons import Cordon, CordonCount, CordonKind, closed_counts
from muster_core.model.node import Node
from muster_core.model.queue import Ledger
from muster_core.model.reasons import Reason, ReasonCode
from muster_core.model.resources import UNLIMITED, saturated
from muster_core.model.text_format import format_amounts, format_bare, format_duration, pluralize
from muster_core.partition import Partition
from muster_rest.shapes.explain import NowDao

from muster_view.explain.gang import promised_at

_NODES = frozenset({ReasonCode.NO_NODE_HAS_ROOM, ReasonCode.LARGER_THAN_ANY_NODE})
# The explanation of these reasons also counts closed nodes.
OF_NODES = _NODES | {ReasonCode.NO_NODES, ReasonCode.FREE_RESOURCES_SCATTERED, ReasonCode.RESERVED_FOR_OTHERS}
_LIMITS = frozenset({ReasonCode.QUEUE_MAX, ReasonCode.USER_LIMIT, ReasonCode.GROUP_LIMIT, ReasonCode.GANG_ROOM})
_MAXIMA = frozenset(
    {ReasonCode.QUEUE_MAX_APPLICATIONS, ReasonCode.USER_MAX_APPLICATIONS, ReasonCode.GROUP_MAX_APPLICATIONS}
)


class CurrentState:
    """The current figures, each computed once for one answer: those of nodes cost O(nodes)."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._nodes: dict[int, NowDao] = {}
        self._known: dict[int, NowDao | None] = {}
        self._large: dict[tuple[int, int], tuple[CordonCount, ...]] = {}

    @cached_property
    def closed(self) -> tuple[CordonCount, ...]:
        """The number of closed nodes, by closer: O(nodes)."""
        return self._told(closer for closer, _ in self._closers)

    def closed_for(self, reason: Reason) -> tuple[CordonCount, ...]:
        """The same for nodes that would help if they were open: if no node is large enough, only larger ones.

        A node with a revoked offer may become larger again.
        """
        number = self._partition.types.numbers.get(reason.resource_type)
        if reason.code is not ReasonCode.LARGER_THAN_ANY_NODE or number is None:
            return self.closed
        key = number, reason.asked  # (shared by many reasons)
        if key not in self._large:
            self._large[key] = self._told(
                closer
                for closer, node in self._closers
                if closer.by is CordonKind.WANTED_BACK or node.capacity[number] >= reason.asked
            )
        return self._large[key]

    @cached_property
    def _closers(self) -> list[tuple[Cordon, Node]]:
        external = self._partition.external
        cordons = ((external.cordon_of(node), node) for node in self._partition.nodes.values())
        return [(closer, node) for closer, node in cordons if closer is not None]

    @cached_property
    def _taken_back(self) -> Counter[Cordon]:
        return Counter(self._partition.external.withdrawn_offers())

    def _told(self, closers: Iterable[Cordon]) -> tuple[CordonCount, ...]:
        counts = self._taken_back.copy()
        counts.update(closers)
        return closed_counts(counts)

    def of(self, app: Application, reason: Reason) -> NowDao | None:
        """Returns None if the reason has no figures, or its object does not exist any more.

        :param reason: the caller must keep it, because it is cached by its id().
        """
        key = id(reason)
        if key not in self._known:
            self._known[key] = self._find(app, reason)
        return self._known[key]

    def _find(self, app: Application, reason: Reason) -> NowDao | None:
        if reason.code in _MAXIMA:
            ledger = self._ledger(app, reason)
            return None if ledger is None else _now(used=ledger.running_applications, limit=ledger.max_applications)
        number = self._partition.types.numbers.get(reason.resource_type)
        if number is None:
            return None
        if reason.code in _LIMITS:
            ledger = self._ledger(app, reason)
            return None if ledger is None else self._of_ledger(ledger, number, reason)
        if reason.code in _NODES:
            if number not in self._nodes:
                usable = [node for node in self._partition.nodes.values() if node.usable]
                free = max((node.available[number] for node in usable), default=0)
                self._nodes[number] = _now(free=free, limit=max((node.capacity[number] for node in usable), default=0))
            return self._nodes[number]
        if reason.code is ReasonCode.REQUIRED_NODE_FULL:
            node = self._partition.nodes.get(reason.node)
            return None if node is None else _now(free=node.available[number], limit=node.capacity[number])
        return None

    def _ledger(self, app: Application, reason: Reason) -> Ledger | None:
        if not reason.who:
            return self._partition.queues.get(reason.queue)
        ledgers = (ledger for ledger in app.trackers if ledger.path == reason.queue and ledger.who == reason.who)
        return next(ledgers, None)

    def _of_ledger(self, ledger: Ledger, number: int, reason: Reason) -> NowDao:
        limit = ledger.limit[number]
        promised = promised_at(self._partition, ledger, number) if reason.code is ReasonCode.GANG_ROOM else 0
        return _now(used=ledger.allocated[number], limit=0 if limit >= UNLIMITED else limit, promised=promised)


def _now(*, used: int = 0, limit: int = 0, free: int = 0, promised: int = 0) -> NowDao:
    return NowDao(
        used=saturated(used), limit=saturated(limit), free=saturated(max(free, 0)), promised=saturated(promised)
    )


def with_current_values(reason: Reason, now: NowDao | None) -> Reason | None:
    """The reason with the current figures; None: it no longer holds with them, or it has no figures."""
    if now is None:
        return None
    code = reason.code
    if code in _NODES or code is ReasonCode.REQUIRED_NODE_FULL:
        holds = reason.asked > (now.limit if code is ReasonCode.LARGER_THAN_ANY_NODE else now.free)
    elif code in _MAXIMA:
        holds = 0 < now.limit <= now.used
    else:
        holds = 0 < now.limit < now.used + now.promised + reason.asked
    same = (now.used, now.limit, now.free, now.promised) == (reason.used, reason.limit, reason.free, reason.promised)
    if not holds:
        return None
    if same:
        return reason
    return replace(reason, used=now.used, limit=now.limit, free=now.free, promised=now.promised)


def changed_text(reason: Reason, now: NowDao | None, now_ns: int) -> str:
    """The text for a reason that no longer holds with the current figures; "": they have not changed."""
    if now is None or (now.used, now.limit, now.free) == (reason.used, reason.limit, reason.free):
        return ""
    ago = f"That was {format_duration(now_ns - (reason.as_of_ns or reason.since_ns))} ago; now"
    if reason.code in _MAXIMA:
        return (
            f"{ago} {pluralize(now.used, 'application')} of {now.limit:,} {'runs' if now.used == 1 else 'run'} there."
        )
    kind = reason.resource_type
    used, limit, free = format_amounts(kind, now.used, now.limit, now.free)
    if reason.code is ReasonCode.REQUIRED_NODE_FULL:
        return f"{ago} {free} of {limit} are free there."
    if reason.code in _NODES:
        return f"{ago} one node has {free} free, and the largest has {limit} in all."
    if not now.limit:  # no limit, or still a limit of 0
        return f"{ago} the limit is gone." if reason.limit else ""
    return f"{ago} {format_bare(kind, now.used)} of {limit} are used." if used else ""
