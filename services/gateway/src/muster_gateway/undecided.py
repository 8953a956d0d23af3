"""How much of a stream is on the log and not decided, and how much may be.

Another RM's request waits behind what is on its log partition. So beside active RMs a stream has little undecided work
there: by items, and by the processor time that the scheduler reports for such requests.
"""

from __future__ import annotations

from collections import deque

from muster_gateway.codec import DecidedReport
from muster_gateway.settings import AdmissionLimits, GatewaySettings

# Of an undecided request, this much counts as one item.
_ITEM_BYTES = 512
# Processor time (µs) for a byte of requests before the first report.
_FIRST_COST = 2.5
# Of each report, this part of the difference counts.
_ADOPTED = 0.25
# A transaction of fewer bytes costs more than its requests, and one of which the stream has a smaller part says little.
_MIN_BYTES, _MIN_SHARE = 1024, 0.25
# So many records of a stream hold its work: the scheduler has the next one when it reports one.
_RECORDS = 2
# A commit that takes longer is not waited for with more work ready.
_COMMIT_US_MAX = 50_000
# A record has a cost of its own.
_RECORD_BYTES_MIN = 512


class UndecidedRequests:
    """One stream's requests that the scheduler has not decided, by the work that they are, in the log's order.

    :ivar cost: the scheduler's processor time for a byte of them (µs).
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._limits = self._cut = settings.limits
        self.cost = _FIRST_COST
        self._items = 0.0
        self._bytes = 0
        self._without_offset: deque[tuple[float, int]] = deque()  # without an offset yet
        self._with_offset: deque[tuple[int, float, int]] = deque()  # by offset

    def add(self, items: float, size: int) -> None:
        """Adds a request that goes to the log, with the size of its record."""
        items += size / _ITEM_BYTES
        self._without_offset.append((items, size))
        self._items += items
        self._bytes += size

    def appended(self, offset: int, report: DecidedReport) -> None:
        """The log has the first request without an offset."""
        if self._without_offset:
            self._with_offset.append((offset, *self._without_offset.popleft()))
        if report.decided:
            self.after(report)
        else:
            self.forget()

    def after(self, report: DecidedReport) -> float:
        """Returns the items that are not decided. Learns from the report what requests cost."""
        placed, own = self._with_offset, 0
        if not placed:
            return self._items
        while placed and placed[0][0] < report.decided:
            _, items, size = placed.popleft()
            self._items -= items
            self._bytes -= size
            own += size
        if not placed and not self._without_offset:
            self._items = 0.0  # (sums of fractions leave a rest)
        if own >= _MIN_SHARE * report.work_bytes and report.work_bytes >= _MIN_BYTES:
            self.cost += _ADOPTED * (report.work_us / report.work_bytes - self.cost)
        return self._items

    def is_full(self, report: DecidedReport, others: int, held_back: int) -> bool:
        """Tells whether the stream must wait for a report before it appends more.

        :param others: active RMs beside this one.
        :param held_back: RMs that have had to wait lately, with this one. They share what is possible.
        """
        items, settings = self.after(report), self._settings
        if not others:
            return items >= settings.undecided_items
        if not self._with_offset and not self._without_offset:
            return False
        if items >= settings.undecided_items_shared / held_back:
            return True
        return self._bytes * self.cost >= self._work_us(report) / held_back

    def record_limits(self, report: DecidedReport, others: int, held_back: int) -> AdmissionLimits:
        """Returns the limits of a message, with the size of its records: a record is decided as a whole, so beside
        others it is a part of the work that the stream may have on the log.
        """
        if not others:
            return self._limits
        size = self._work_us(report) / held_back / _RECORDS / max(self.cost, 0.001)
        power = 1 << max(int(size), 1).bit_length() - 1
        record_bytes = min(max(power, _RECORD_BYTES_MIN), self._limits.record_bytes)
        if record_bytes != self._cut.record_bytes:
            self._cut = self._limits.model_copy(update={"record_bytes": record_bytes})
        return self._cut

    def forget(self) -> None:
        """Forgets the requests that the log has: the gateway does not learn when they are decided."""
        for _, items, size in self._with_offset:
            self._items -= items
            self._bytes -= size
        self._with_offset.clear()

    def _work_us(self, report: DecidedReport) -> float:
        """Returns the limit of all RMs that are held back. What is decided during a commit is ready beside it."""
        return self._settings.undecided_work_shared_ms * 1000 + min(report.commit_us, _COMMIT_US_MAX)
