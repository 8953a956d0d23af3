"""What the schedulers report over the log about the partitions that they own, as a gateway reads it.

Each scheduler writes a heartbeat about once a second (``SchedulerHeartbeat`` in envelope.proto), also while nothing is
asked of it. A report of decided requests is a sign of life of the partition's owner, too, and ends the requests' wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import NamedTuple

from muster_bus.clock import Clock
from muster_bus.log import LogWriter, OutRecord
from muster_rest.system_health import TAKE_OVER_S, OwnerFacts, OwnerState, SchedulerFacts

from muster_gateway.codec import DecidedReport, Heartbeat

# Until the first heartbeat: the default of scheduler.session_timeout_s.
_SESSION_S = 3.0
# Requests of a partition that are followed until they are decided: one in this time, so that the others pay nothing.
_APART_S = 0.25
# Followed requests of a partition. When there are more, every second one is dropped.
_FOLLOWED_MAX = 1024
# Schedulers whose problems are shown.
_SCHEDULERS_MAX = 64


class _Owner(NamedTuple):
    """:ivar instance: "": not known.
    :ivar since_s: since when the state is this one.
    :ivar reported_s: of the last report.
    """

    state: OwnerState
    since_s: float
    reported_s: float
    instance: str = ""
    problem: str = ""


class _Scheduler(NamedTuple):
    reported_s: float
    problems: tuple[str, ...]
    external: tuple[str, ...]


class _Followed(NamedTuple):
    offset: int
    appended_s: float


class SchedulerReports:
    """The newest report about each partition, and the requests of this gateway that wait."""

    def __init__(self, partitions: int, clock: Clock) -> None:
        self._clock = clock
        self._session_s = _SESSION_S
        now_s = clock.monotonic()
        self._owners = [_Owner(OwnerState.NONE, now_s, now_s) for _ in range(partitions)]
        self._schedulers: dict[str, _Scheduler] = {}
        self._decided = [0] * partitions
        self._followed: list[deque[_Followed]] = [deque() for _ in range(partitions)]
        self._followed_s = [float("-inf")] * partitions

    # ---- in ----------------------------------------------------------------------------------------------------------

    def on_report(self, partition: int, report: DecidedReport | Heartbeat) -> None:
        """A record of a partition has a report."""
        if isinstance(report, DecidedReport):
            self.on_decided(partition, report.decided)
        else:
            self.on_heartbeat(report)

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """A scheduler has written a heartbeat."""
        now_s, instance = self._clock.monotonic(), heartbeat.instance
        self._session_s = heartbeat.session_s or self._session_s
        owned = {partition: report for partition, report in heartbeat.owned.items() if partition < len(self._owners)}
        for partition, report in owned.items():
            self._owners[partition] = _Owner(report.state, now_s - report.for_s, now_s, instance, report.problem)
        for partition, owner in enumerate(self._owners):
            if owner.instance == instance and partition not in owned:  # released
                self._owners[partition] = _Owner(OwnerState.NONE, now_s, now_s)
        self._schedulers.pop(instance, None)
        if owned:
            self._schedulers[instance] = _Scheduler(now_s, heartbeat.problems, heartbeat.external)
        while len(self._schedulers) > _SCHEDULERS_MAX:
            del self._schedulers[next(iter(self._schedulers))]

    def on_decided(self, partition: int, position: int) -> None:
        """The owner of a partition has decided all requests before a position."""
        now_s = self._clock.monotonic()
        self._owners[partition] = self._owners[partition]._replace(
            state=OwnerState.SERVING, since_s=now_s, reported_s=now_s, problem=""
        )
        self._decided[partition] = position
        followed = self._followed[partition]
        while followed and followed[0].offset < position:
            followed.popleft()

    def is_followed(self, partition: int, now_s: float) -> bool:
        """Tells whether the next request to a partition should be followed."""
        return now_s - self._followed_s[partition] >= _APART_S

    def on_append(self, partition: int, now_s: float, appended: asyncio.Future[int]) -> None:
        """A request that should be followed is on its way to the log."""
        self._followed_s[partition] = now_s
        appended.add_done_callback(lambda done: self._appended(partition, now_s, done))

    def _appended(self, partition: int, appended_s: float, done: asyncio.Future[int]) -> None:
        if done.cancelled() or done.exception() is not None or done.result() < self._decided[partition]:
            return
        followed = self._followed[partition]
        followed.append(_Followed(done.result(), appended_s))
        if len(followed) > _FOLLOWED_MAX:
            self._followed[partition] = deque(append for number, append in enumerate(followed) if number % 2 == 0)

    # ---- out ---------------------------------------------------------------------------------------------------------

    def facts(self) -> SchedulerFacts:
        """Returns what is reported now."""
        now_s = self._clock.monotonic()
        limit_s = self._session_s + TAKE_OVER_S
        lately = [scheduler for scheduler in self._schedulers.values() if now_s - scheduler.reported_s <= limit_s]
        return SchedulerFacts(
            [_facts(partition, owner, now_s, limit_s) for partition, owner in enumerate(self._owners)],
            problems=[problem for scheduler in lately for problem in scheduler.problems],
            external=[problem for scheduler in lately for problem in scheduler.external],
        )

    def waiting_s(self) -> dict[int, float]:
        """Returns by partition how long its oldest undecided request has waited, to a quarter of a second."""
        now_s = self._clock.monotonic()
        return {
            partition: now_s - followed[0].appended_s for partition, followed in enumerate(self._followed) if followed
        }


class RequestWriter:
    """See :class:`muster_bus.log.LogWriter`: a writer whose requests are followed until they are decided."""

    def __init__(self, writer: LogWriter, topic: str, reports: SchedulerReports, clock: Clock) -> None:
        self._writer, self._topic, self._reports, self._clock = writer, topic, reports, clock
        self.wait_writable = writer.wait_writable

    def append(self, record: OutRecord) -> Awaitable[int]:
        """See LogWriter."""
        appended = self._writer.append(record)
        if record.topic == self._topic:
            now_s = self._clock.monotonic()
            if self._reports.is_followed(record.partition, now_s):
                appended = asyncio.ensure_future(appended)
                self._reports.on_append(record.partition, now_s, appended)
        return appended

    async def close(self) -> None:
        """See LogWriter."""
        await self._writer.close()


def _facts(partition: int, owner: _Owner, now_s: float, limit_s: float) -> OwnerFacts:
    silent_s, state = now_s - owner.reported_s, owner.state
    if state is not OwnerState.SERVING and state is not OwnerState.NONE and silent_s > limit_s:
        state = OwnerState.NONE  # what it said last is too old
    for_s = silent_s if state in (OwnerState.SERVING, OwnerState.NONE) else now_s - owner.since_s
    return OwnerFacts(partition, state, for_s, limit_s, owner.problem)
