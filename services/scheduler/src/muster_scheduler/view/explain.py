"""Why is it pending? The answers are read where the scheduler recorded them; nothing is found out anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from muster_service.go_json import go_json

from muster_scheduler.core.objects import Ask
from muster_scheduler.core.partition import Partition
from muster_scheduler.core.reasons import Reason, ReasonCode
from muster_scheduler.core.resources import saturated
from muster_scheduler.follower import RmState
from muster_scheduler.view import dao
from muster_scheduler.view.render import Pieces, small


def reason_of(wanted: Ask, *, stopped: bool) -> Reason:
    """An ask's recorded reason; without one the scheduler has not come to it, or (stopped) will not."""
    recorded = wanted.group.reason if wanted.group is not None else None
    if recorded is not None:
        return recorded
    return Reason(ReasonCode.RM_STOPPED if stopped else ReasonCode.WAITING_FOR_TURN, since_ns=wanted.created_ns)


def pending(state: RmState) -> Pieces:
    """Every pending ask with its reason, and how often each reason is given.

    ``{"rm": …, "pending": [PendingDao …], "counts": {code: pending allocations}}``
    """
    stopped = state.info.life == "STOPPED"
    counts: Counter[str] = Counter()
    sentences: dict[int, str] = {}  # many asks share one reason; by identity, so they are kept
    kept: list[Reason] = []
    asks = [(each, wanted) for each in state.core.partitions.values() for wanted in _asks(each)]

    def shown(of: tuple[Partition, Ask]) -> dao.PendingDao:
        partition, wanted = of
        reason = reason_of(wanted, stopped=stopped)
        counts[reason.code.value] += wanted.pending
        message = sentences.get(id(reason))
        if message is None:
            kept.append(reason)
            message = sentences[id(reason)] = reason.sentence()
        return dao.PendingDao(
            partition=partition.name,
            application_id=wanted.app.app_id,
            allocation_key=wanted.key,
            queue=wanted.app.queue.path,
            count=wanted.pending,
            reason=reason.code.value,
            resource_type=reason.resource_type,
            asked=saturated(reason.asked),
            used=saturated(reason.used),
            limit=saturated(reason.limit),
            free=saturated(reason.free),
            limit_queue=reason.queue,
            message=message,
            since=reason.since_ns,
        )

    yield b'{"rm":%b,"pending":[' % go_json(state.info.rm_id)
    yield from small((of for of in asks if not of[1].gone), shown)
    yield b'],"counts":%b}\n' % go_json(dict(counts))


def summary(state: RmState) -> dao.SummaryDao:
    """How many are allocated, and how many wait for what: O(pending asks), made for polling."""
    stopped = state.info.life == "STOPPED"
    counts: Counter[str] = Counter()
    for partition in state.core.partitions.values():
        for wanted in _asks(partition):
            counts[reason_of(wanted, stopped=stopped).code.value] += wanted.pending
    return dao.SummaryDao(
        rm=state.info.rm_id,
        life=state.info.life,
        allocated=dao.total_containers(state.core.partitions.values()),
        pending=counts.total(),
        counts=dict(counts),
    )


def _asks(partition: Partition) -> Iterator[Ask]:
    for app in partition.apps.values():
        if app.asks:
            yield from app.asks.values()
