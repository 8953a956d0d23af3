"""Quotas of RMs: refuses RMs that are too many, and tells once that an RM has reached a quota.

The limits come with the registration, and later by a note of a gateway that found others (proto Quotas). So all that a
quota refuses follows from the log. The core counts and refuses nodes, queues, applications and the like
(``muster_core.model.quotas``).

reached
    A quota for which an item was refused. It ends when no item was refused for a minute and a tenth of the limit is
    free again. So a client that repeats a refused item does not cause an event each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog
from muster_core.config.queue_config import ClusterConfig, queue_paths
from muster_core.model.commands import SetQuotas
from muster_core.model.outcome import Outcome
from muster_core.model.quotas import QuotaKind, RmQuotaState
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_state.state_folder import RmEntry, quotas_of

from muster_scheduler import history_notices, metrics
from muster_scheduler.rm_table import RmTable

log = structlog.get_logger(__name__)

_CALM_NS = 60_000_000_000
# Health shows refused registrations for so long.
_SHOWN_S = 600.0
_SHOWN_MAX = 20

_IDENTITY, _ALL = "resource_managers", "all_resource_managers"
_KINDS: tuple[str, ...] = tuple(QuotaKind)


class ReachedQuotas:
    """The quotas that RMs of a process have reached, for health and metrics.

    :param monotonic_s: seconds since some fixed moment.
    """

    def __init__(self, monotonic_s: Callable[[], float] = lambda: 0.0) -> None:
        self._monotonic_s = monotonic_s
        self._of_rm: dict[str, RmEntry] = {}
        self._kinds: dict[str, frozenset[str]] = {}
        self._rms: dict[str, float] = {}
        for kind in QuotaKind:
            metrics.quotas_reached.labels(kind)  # 0 is shown, too

    def set(self, rm_id: str, state: RmEntry | None, kinds: Iterable[str] = ()) -> None:
        """Takes the quotas that an RM has reached. ``state`` None: the RM is no more."""
        before, now = self._kinds.pop(rm_id, frozenset()), frozenset(kinds)
        self._of_rm.pop(rm_id, None)
        if state is not None and now:
            self._of_rm[rm_id], self._kinds[rm_id] = state, now
        for kind in before ^ now:
            metrics.quotas_reached.labels(kind).inc(1 if kind in now else -1)

    def drop(self, is_gone: Callable[[str], bool]) -> None:
        """Forgets the RMs of which another process takes care now."""
        for rm_id in [rm_id for rm_id in self._of_rm if is_gone(rm_id)]:
            self.set(rm_id, None)

    def refuse_rm(self, kind: str, message: str) -> None:
        """Counts a refused registration. Logs the same story once in ten minutes."""
        metrics.rms_refused.labels(kind).inc()
        now_s = self._monotonic_s()
        if now_s - self._rms.get(message, float("-inf")) > _SHOWN_S:
            log.warning("registration over a quota", quota=kind, story=message)
        self._rms[message] = now_s
        if len(self._rms) > _SHOWN_MAX:
            self._rms = {story: at_s for story, at_s in self._rms.items() if now_s - at_s < _SHOWN_S}

    def problems(self) -> list[str]:
        """Returns a bounded number of sentences."""
        now_s = self._monotonic_s()
        sentences = [message for message, at_s in self._rms.items() if now_s - at_s < _SHOWN_S]
        sentences += [
            f"rm {rm_id}: {_message_of(state.core.quotas, kind)}"
            for rm_id, state in self._of_rm.items()
            for kind in state.info.quotas_reached
            if not _has_room(state.core.quotas, kind)
        ]
        return (
            sentences
            if len(sentences) <= _SHOWN_MAX
            else [*sentences[:_SHOWN_MAX], f"{len(sentences) - _SHOWN_MAX} more"]
        )


class RmQuotas:
    """The quotas of the RMs of one partition of the log."""

    def __init__(self, roster: RmTable, reached: ReachedQuotas) -> None:
        self._roster, self._reached = roster, reached

    def on_folded(self, now_ns: int) -> None:
        """Takes the limits in force before a restart."""
        for rm_id, state in self._roster.folder.rms.items():
            state.core.apply(SetQuotas(state.info.quotas), now_ns)
            self._reached.set(rm_id, state, state.info.quotas_reached)

    def problems(
        self, envelope: pb.RequestEnvelope, existing: RmEntry | None, config: ClusterConfig
    ) -> list[pb.ConfigProblem]:
        """Returns why an RM is one too many, or its configuration has too many queues; empty: neither. O(RMs) for a
        new one.
        """
        limits, rms = envelope.quotas, self._roster.folder.rms
        if existing is None and limits.all_resource_managers:
            count = len(rms) + limits.all_elsewhere + 1
            if count > limits.all_resource_managers:
                return [self._too_many(_ALL, count, limits.all_resource_managers, "of all identities")]
        if (existing is None or existing.info.identity != envelope.identity) and limits.resource_managers:
            own = sum(state.info.identity == envelope.identity for state in rms.values())
            count = own + limits.elsewhere + 1
            if count > limits.resource_managers:
                whose = f"of identity {envelope.identity}"
                return [self._too_many(_IDENTITY, count, limits.resource_managers, whose)]
        queues = sum(len(queue_paths(partition)) for partition in config.partitions) if limits.queues else 0
        if queues > limits.queues:
            metrics.quota_refused.labels(envelope.rm_id, QuotaKind.QUEUES).inc()
            message = f"quota queues: {queues} with this configuration, expected at most {limits.queues}"
            return [pb.ConfigProblem(severity=pb.ConfigProblem.ERROR, path="config", message=message)]
        return []

    def _too_many(self, kind: str, count: int, limit: int, whose: str) -> pb.ConfigProblem:
        message = f"quota {kind}: {count} resource managers {whose} with this one, expected at most {limit}"
        self._reached.refuse_rm(kind, f"a registration was refused: quota {kind}: {limit} resource managers {whose}")
        advice = "an operator can forget those that are gone (muster admin forget), or raise the limit"
        return pb.ConfigProblem(severity=pb.ConfigProblem.ERROR, path="rmID", message=f"{message}: {advice}")

    def on_registered(self, state: RmEntry) -> None:
        """Takes the place of the RM's former registration."""
        self._reached.set(state.info.rm_id, state, state.info.quotas_reached)

    def change(self, state: RmEntry, limits: pb.Quotas, now_ns: int) -> None:
        """Takes other limits for an RM. What the RM has already stays."""
        new = quotas_of(limits)
        if new == state.info.quotas:
            return
        state.info.quotas = new
        state.core.apply(SetQuotas(new), now_ns)
        self._roster.unwritten[state.info.rm_id] = None  # the registration's record has them
        log.info("quotas changed", rm=state.info.rm_id)

    def notify_reached(self, state: RmEntry, now_ns: int, out: Outcome) -> None:
        """Tells once, by an event, a metric, a log entry and health, that a quota is reached. Notes when it is not any
        more. (It runs for each batch of each RM.)
        """
        info, quotas = state.info, state.core.quotas
        if not quotas.refused and not info.quotas_reached:
            return
        before = info.quotas_reached
        now = {
            kind: at_ns for kind, at_ns in before.items() if now_ns - at_ns < _CALM_NS or not _has_room(quotas, kind)
        }
        for kind, count in quotas.take_refused().items():
            metrics.quota_refused.labels(info.rm_id, kind).inc(count)
            now[kind] = now_ns
            if kind not in before:
                message = _message_of(quotas, kind)
                history_notices.add_event(message, now_ns, out)
                log.warning("quota reached", rm=info.rm_id, quota=kind, story=message)
        info.quotas_reached = now
        if now.keys() != before.keys():
            self._reached.set(info.rm_id, state, now)

    def forget(self, rm_id: str) -> None:
        """Drops what is shown of an RM that is no more."""
        self._reached.set(rm_id, None)
        for kind in QuotaKind:
            metrics.forget(metrics.quota_refused, rm_id, kind)


def _has_room(quotas: RmQuotaState, kind: str) -> bool:
    """Whether a tenth of a quota is free, or the quota is one of another version."""
    if kind not in _KINDS:
        return True
    limit = quotas.limit(QuotaKind(kind))
    return not limit or 10 * quotas.used(QuotaKind(kind)) <= 9 * limit


def _message_of(quotas: RmQuotaState, kind: str) -> str:
    quota_kind = QuotaKind(kind)
    return (
        f"quota {kind} reached: {quotas.used(quota_kind)} of {quotas.limit(quota_kind)}; what would be over it is "
        "rejected until there is room"
    )
