"""``si.usage`` in memory, for REST: the recorded windows, and the windows in between, which follow from the recorded
ones.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from muster_bus.log import Record
from muster_bus.topics import HEADER_EVENT_ID, HEADER_INSTANCE
from muster_core.config.queue_config import ROOT

from muster_event_publisher.derive.partition_deriver import COVERED_PERIOD_KIND
from muster_event_publisher.derive.usage_fold import S_IN_NS, Quantities, SubjectKind
from muster_event_publisher.event_decoding import decode
from muster_event_publisher.ring import EventRing, Signal

# Instances of an RM of which is known how far their events are counted.
_INSTANCES_MAX = 16
# Subjects between two pauses while old windows are dropped: well under a millisecond of work.
_SLICE = 100


class _StoredWindow(NamedTuple):
    """The values of a record of ``si.usage``; the integral covers the whole window."""

    quantity_ns: Quantities
    allocated: Quantities
    peak: Quantities
    allocations: int
    instance: bytes
    event_id: int


@dataclass(slots=True)
class _Series:
    """The records of one subject, by the start of the window in ns."""

    starts: list[int] = field(default_factory=list)
    windows: dict[int, _StoredWindow] = field(default_factory=dict)


@dataclass(slots=True)
class WindowSum:
    """Usage of a subject in a window.

    :ivar quantity_ns: quantity × ns, up to the newest event.
    """

    start_ns: int
    quantity_ns: Quantities = field(default_factory=dict)
    peak: Quantities = field(default_factory=dict)
    allocations: int = 0

    def add(self, quantities: Quantities, times: int = 1) -> None:
        for name, value in quantities.items():
            if value * times:
                self.quantity_ns[name] = self.quantity_ns.get(name, 0) + value * times

    def raise_peak(self, quantities: Quantities) -> None:
        for name, value in quantities.items():
            self.peak[name] = max(self.peak.get(name, 0), value)


@dataclass(slots=True)
class CoveredPeriod:
    """The time for which the usage of an RM is known.

    :ivar from_ns: windows before this time may be missing, because the table or the log dropped them.
    :ivar until_ns: time of the newest event that was counted.
    :ivar counted: by instance, the id of that event.
    """

    window_ns: int
    from_ns: int = 0
    until_ns: int = 0
    counted: dict[bytes, int] = field(default_factory=dict)

    def note_counted(self, headers: dict[str, bytes]) -> None:
        """Notes the newest event that was counted. (A deriver that restarted writes older ones again.)"""
        instance, event_id = headers.get(HEADER_INSTANCE, b""), int(headers.get(HEADER_EVENT_ID, b"0"))
        self.counted[instance] = max(self.counted.get(instance, 0), event_id)
        while len(self.counted) > _INSTANCES_MAX:
            del self.counted[next(iter(self.counted))]


class UsageTable:
    """Holds the records of ``si.usage`` of any number of partitions; :meth:`evict` keeps the table within its bounds.

    :param windows_max: windows that are kept per RM, back from the newest event.
    :param records_max: records that are kept in all; the oldest windows are dropped first.
    :param refresh_windows: the same setting as the deriver's.
    :param root_windows_max: windows of the root queue that are kept, if these are more than ``windows_max``.
    """

    def __init__(self, windows_max: int, records_max: int, refresh_windows: int = 0, root_windows_max: int = 0) -> None:
        self._root_windows_more = max(root_windows_max - windows_max, 0)
        self._windows_max, self._records_max, self._refresh_windows = windows_max, records_max, refresh_windows
        self._shrink_above = records_max
        self._series: dict[tuple[str, str], dict[str, _Series]] = {}  # (RM, kind) → name → its records
        self._periods: dict[str, CoveredPeriod] = {}
        self._swept_ns: dict[str, int] = {}
        self._due_ns: dict[str, int] = {}  # RM → the time before which its windows are to be dropped
        self._tidying = False
        self._count = 0
        self._since_ms = 0  # time of the first record that was read; 0: there is none before it
        self.changed = Signal()

    def __len__(self) -> int:
        return self._count

    def rm_ids(self) -> list[str]:
        """RMs with usage, sorted."""
        return sorted(self._periods)

    def covered_period(self, rm_id: str) -> CoveredPeriod | None:
        """The time for which the RM's usage is known; None for an RM without usage."""
        return self._periods.get(rm_id)

    def names(self, rm_id: str, kind: str) -> list[str]:
        """Names of the subjects, sorted."""
        return sorted(self._series.get((rm_id, kind), ()))

    def has(self, rm_id: str, kind: str, name: str) -> bool:
        """Whether anything is known of the subject."""
        return name in self._series.get((rm_id, kind), ())

    def fold(self, record: Record, missing_before: bool = False) -> None:
        """Takes a record, in the order of its partition. Raises ValueError, KeyError or TypeError for a malformed one.

        :param missing_before: the topic had older records, which were not read.
        """
        if missing_before and not self._since_ms:
            self._since_ms = record.timestamp_ms
        if record.value is None:
            return
        value: dict[str, Any] = json.loads(record.value, parse_float=Decimal)
        rm_id, window_ns = str(value["rm"]), int(value["window_s"]) * S_IN_NS
        period = self._periods.get(rm_id)
        if period is None:
            period = self._periods[rm_id] = CoveredPeriod(window_ns)
            if missing_before and value["kind"] != COVERED_PERIOD_KIND:
                # The deriver writes each subject that holds something again within so many windows.
                period.from_ns = int(value["window_start_s"]) * S_IN_NS + self._refresh_windows * window_ns
        if value["kind"] == COVERED_PERIOD_KIND:
            period.until_ns = max(period.until_ns, int(value["known_until_ns"]))
            period.note_counted(dict(record.headers))
            self._note_due(rm_id, period)
            return
        start_ns = int(value["window_start_s"]) * S_IN_NS
        headers = dict(record.headers)
        shown = _StoredWindow(
            {name: int(amount * S_IN_NS) for name, amount in value["resource_seconds"].items()},
            value["held"], value["peak"], value["allocations"],
            headers.get(HEADER_INSTANCE, b""), int(headers.get(HEADER_EVENT_ID, b"0")),
        )  # fmt: skip
        series = self._series.setdefault((rm_id, value["kind"]), {}).setdefault(value["name"], _Series())
        before = series.windows.get(start_ns)
        if before is None:
            insort(series.starts, start_ns)
            self._count += 1
        elif before.instance == shown.instance and before.event_id > shown.event_id:
            return  # a deriver that restarted has written it again
        series.windows[start_ns] = shown

    def includes(self, ring: EventRing, instance: str, event_id: int) -> bool:
        """Whether an RM's events up to an id are counted. See :class:`muster_event_publisher.shown.Derived`."""
        period = self._periods.get(ring.rm_id)
        if period is None:
            # The note on an RM that has had no events for long is before the first record that was read.
            (value,) = ring.slice(event_id, 1) or (None,)
            return bool(self._since_ms) and (value is None or decode(value).timestampNano < self._since_ms * 1_000_000)
        counted = period.counted.get(instance.encode(), -1)
        return counted >= event_id or (counted >= 0 and instance.encode() != next(reversed(period.counted)))

    def windows(self, rm_id: str, kind: str, name: str, from_ns: int, to_ns: int, step_ns: int) -> list[WindowSum]:
        """The windows of length ``step_ns`` that begin in ``[from_ns, to_ns)`` and have any usage.

        :param from_ns: a multiple of ``step_ns``, which is a multiple of the RM's own window.
        """
        period, series = self._periods.get(rm_id), self._series.get((rm_id, kind), {}).get(name)
        if period is None or series is None:
            return []
        sums: dict[int, WindowSum] = {}

        def at(time_ns: int) -> WindowSum:
            start_ns = time_ns - time_ns % step_ns
            return sums.setdefault(start_ns, WindowSum(start_ns))

        window_ns = period.window_ns
        end_ns = min(to_ns, period.until_ns)
        first = max(bisect_right(series.starts, from_ns) - 1, 0)
        for index in range(first, bisect_left(series.starts, to_ns)):
            start_ns = series.starts[index]
            shown = series.windows[start_ns]
            # 1. the window itself, without the time after the newest event
            if start_ns >= from_ns:
                into = at(start_ns)
                into.add(shown.quantity_ns)
                into.add(shown.allocated, -max(start_ns + window_ns - period.until_ns, 0))
                into.raise_peak(shown.peak)
                into.allocations += shown.allocations
            # 2. the windows until the next record
            more = index + 1 < len(series.starts)
            until_ns = min(series.starts[index + 1], end_ns) if more else end_ns
            if shown.allocated:
                for begin_ns, finish_ns in _cut(max(start_ns + window_ns, from_ns), until_ns, step_ns):
                    into = at(begin_ns)
                    into.add(shown.allocated, finish_ns - begin_ns)
                    into.raise_peak(shown.allocated)
        windows = [sums[start_ns] for start_ns in sorted(sums)]
        return [window for window in windows if any(window.quantity_ns.values()) or window.allocations]

    # ---- bounds ----------------------------------------------------------------------------------------------------

    def evict(self) -> Iterator[None]:
        """Drops windows beyond the bounds, in steps, so that the caller can let other tasks run between two steps.

        Records may be taken, and windows requested, between the steps.
        """
        if self._tidying:
            return
        self._tidying = True
        try:
            # 1. windows that are too old
            while self._due_ns:
                rm_id, horizon_ns = self._due_ns.popitem()
                more_ns = self._root_windows_more * self._periods[rm_id].window_ns
                yield from self._sweep(rm_id, horizon_ns, horizon_ns - more_ns)
            # 2. the oldest quarter, where there are too many
            if self._count > self._shrink_above:
                yield from self._shrink()
        finally:
            self._tidying = False

    def _note_due(self, rm_id: str, period: CoveredPeriod) -> None:
        horizon_ns = period.until_ns - self._windows_max * period.window_ns
        # A sweep now and then is enough: a window that is dropped late only costs a little memory.
        if horizon_ns - self._swept_ns.get(rm_id, 0) > max(self._windows_max // 16, 1) * period.window_ns:
            self._swept_ns[rm_id] = horizon_ns
            self._due_ns[rm_id] = horizon_ns - horizon_ns % period.window_ns

    def _shrink(self) -> Iterator[None]:
        starts: Counter[int] = Counter()
        for group in list(self._series.values()):
            for _, series in _slowly(group):
                if series is None:
                    yield
                else:
                    starts.update(series.starts)
        remaining = starts.total() // 4
        for start_ns in sorted(starts):
            remaining -= starts[start_ns]
            if remaining < 0:
                break
        for rm_id, period in list(self._periods.items()):
            horizon_ns = start_ns + 1 - (start_ns + 1) % period.window_ns + period.window_ns
            yield from self._sweep(rm_id, horizon_ns, horizon_ns)
        # The last window of each subject that holds something stays. If these alone exceed the bound, the table does
        # not try again with each record.
        self._shrink_above = max(self._records_max, self._count + self._count // 4)

    def _sweep(self, rm_id: str, horizon_ns: int, root_horizon_ns: int) -> Iterator[None]:
        """Drops the windows before the horizon, except the last one of each subject that still holds something.

        :param root_horizon_ns: that of the root queue.
        """
        period = self._periods[rm_id]
        for kind, group in [(kind, group) for (owner, kind), group in self._series.items() if owner == rm_id]:
            for name, series in _slowly(group):
                if series is None:
                    yield
                    continue
                is_root = kind == SubjectKind.QUEUE and name == ROOT
                cut = bisect_left(series.starts, root_horizon_ns if is_root else horizon_ns)
                if cut and series.windows[series.starts[cut - 1]].allocated:
                    cut -= 1
                if not cut:
                    continue
                for start_ns in series.starts[:cut]:
                    del series.windows[start_ns]
                del series.starts[:cut]
                self._count -= cut
                if not is_root:
                    period.from_ns = max(period.from_ns, horizon_ns)
                if not series.starts:
                    del group[name]


def _slowly(group: dict[str, _Series]) -> Iterator[tuple[str, _Series | None]]:
    """The group's subjects, except those that go during the iteration; None marks a pause."""
    for number, name in enumerate(list(group), start=1):
        series = group.get(name)
        if series is not None:
            yield name, series
        if number % _SLICE == 0:
            yield "", None


def _cut(begin_ns: int, end_ns: int, step_ns: int) -> Iterator[tuple[int, int]]:
    """``[begin_ns, end_ns)`` in pieces that do not cross a multiple of ``step_ns``."""
    while begin_ns < end_ns:
        finish_ns = min(begin_ns - begin_ns % step_ns + step_ns, end_ns)
        yield begin_ns, finish_ns
        begin_ns = finish_ns
