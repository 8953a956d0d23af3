"""The callers that have a stream or a Watch open: counts for the limits, and how far behind each caller may be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from muster_bus.clock import Clock
from prometheus_client import Gauge


class SubscriberKey(Protocol):
    """The RM and the host of a caller, as of its arrival."""

    rm_id: str
    host: str


C = TypeVar("C", bound=SubscriberKey)


class SubscriberCounts(Generic[C]):
    """The open callers, counted by RM and by host.

    :param gauge: the metric of their number.
    """

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._open: dict[C, None] = {}  # in the order of their coming
        self._of_rm: Counter[str] = Counter()
        self._of_host: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[C]:
        """A copy: callers may be added and removed during the iteration."""
        return iter(list(self._open))

    def of_rm(self, rm_id: str) -> int:
        """How many callers read the RM's events."""
        return self._of_rm[rm_id]

    def of_host(self, rm_id: str, host: str) -> int:
        """How many callers on the host read the RM's events."""
        return self._of_host[rm_id, host]

    def enter(self, caller: C) -> None:
        self._open[caller] = None
        self._count(caller, 1)

    def leave(self, caller: C) -> None:
        """Takes the caller out; a second call does nothing."""
        if caller in self._open:
            del self._open[caller]
            self._count(caller, -1)

    def _count(self, caller: C, change: int) -> None:
        self._of_rm.update({caller.rm_id: change})
        self._of_host.update({(caller.rm_id, caller.host): change})
        if change < 0:  # drops the counts that are 0 now
            self._of_rm, self._of_host = +self._of_rm, +self._of_host
        self._gauge.set(len(self._open))


class LagLimits:
    """The limits of one caller: how far behind it may be, and how long it may read nothing.

    :param behind: how many past events the caller asked for. They may be more than the allowed lag, and raise it until
        the caller has caught up once.
    """

    def __init__(self, lag_records: int, stall_s: float, clock: Clock, behind: int = 0) -> None:
        self._lag_records, self._stall_s, self._clock = lag_records, stall_s, clock
        self._allowed_lag = lag_records + behind
        self._sending_since: float | None = None

    def caught_up(self) -> None:
        """Notes that the caller has taken all present events."""
        self._allowed_lag = self._lag_records

    def sending(self, now: bool) -> None:
        """Notes whether a write to the caller is under way."""
        self._sending_since = self._clock.monotonic() if now else None

    @property
    def stalled_s(self) -> float | None:
        """How long the current write has waited for the caller to read; None: no write is under way."""
        return None if self._sending_since is None else self._clock.monotonic() - self._sending_since

    def exceeded_limit(self, lag: int) -> tuple[str, str] | None:
        """The limit that the caller exceeds, ``lag`` or ``stall``, with a sentence; None: no limit is exceeded.

        :param lag: how many events the caller has not taken.
        """
        stalled_s = self.stalled_s
        if stalled_s is None:
            return None
        if lag > self._allowed_lag:
            return "lag", f"is {lag} events behind, allowed are {self._lag_records}"
        if stalled_s > self._stall_s:
            return "stall", f"has read nothing for {stalled_s:.0f} s, allowed are {self._stall_s:.0f} s"
        return None
