"""The screen of ``muster top`` for one snapshot, with rates since the previous one, as rich's renderables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from muster_client.metrics_client import (
    MetricsSnapshot,
    ProcessMetrics,
    QueueMetrics,
    RecentAllocations,
    SchedulerMetrics,
    Tally,
)
from muster_runtime.terminal import escape_invisible
from muster_si.constants import CPU, MEMORY
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_BAR_CELLS = 10
# A bar warns from the first percentage on, and alarms from the second on.
_WARM, _HOT = 75, 95
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_BINARY_TYPES = (MEMORY, "ephemeral-storage", "storage", "hugepages-")
_RUNNING = "RUNNING"
# An empty cell.
_NOTHING = "-"


@dataclass(frozen=True, slots=True)
class ScreenSize:
    """The size limits of the screen.

    :param queues: maximum number of rows, as for ``nodes``; a last row counts the rest.
    :param types: columns of resource types.
    :param plain: draw bars with ASCII characters only.
    :param narrow: percentages without bars in the tables of queues and nodes.
    """

    queues: int
    nodes: int
    types: int = 4
    plain: bool = False
    narrow: bool = False


def screen(
    now: MetricsSnapshot, before: MetricsSnapshot | None, room: ScreenSize, health: Sequence[Text] = ()
) -> RenderableType:
    """The whole screen.

    :param health: the lines of the state of the whole.
    """
    parts: list[RenderableType] = [_head(now), *health]
    if now.paused or now.state not in ("", _RUNNING):  # the figures may be old, or nothing is scheduled
        parts += [Text(now.description, "bold yellow"), ""]
    if now.HasField("scheduler"):
        parts += [_scheduler(now, before), "", _capacity(now.scheduler, room)]
        if now.scheduler.pending_by_reason:
            parts += ["", _reasons(now.scheduler)]
    if now.queues:
        parts += ["", _queues(now.queues, room)]
    if now.nodes:
        parts += ["", _nodes(now, room)]
    if now.HasField("runtime"):
        parts += ["", _processes(now, before)]
    return Group(*parts)


# ---- lines -----------------------------------------------------------------------------------------------------------


def _head(now: MetricsSnapshot) -> Text:
    at = datetime.fromtimestamp(now.taken_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    head = Text.assemble(("muster top", "bold"), f"  {now.rm_id}  {at} UTC")
    if now.state:
        state = f"{now.state}, paused" if now.paused else now.state
        head.append(f"  {state}", "green" if state == _RUNNING else "bold yellow")
    if now.runtime.view_lag_records:
        behind = f"{now.runtime.view_lag_records:,} records, {now.runtime.view_lag_seconds:.1f} s"
        head.append(f"  the figures are {behind} behind", "yellow")
    return head


def _scheduler(now: MetricsSnapshot, before: MetricsSnapshot | None) -> Table:
    metrics = now.scheduler
    tally, rates = metrics.tally, SnapshotRates(now, before)
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="bold")
    lines.add_column()
    draining = f" ({metrics.nodes_draining:,} draining)" if metrics.nodes_draining else ""
    states = ", ".join(f"{count:,} {state}" for state, count in sorted(metrics.applications.items())) or "none"
    reserved = f", {metrics.reservations:,} reservations" if metrics.reservations else ""
    lines.add_row("nodes", f"{metrics.nodes:,}{draining}")
    lines.add_row("applications", states)
    lines.add_row("allocations", f"{metrics.allocations:,}, {metrics.asks_pending:,} asks pending{reserved}")
    # Started minus ended is the number of allocations, in all partitions.
    lines.add_row("so far", rates.counts(("allocated", "allocated"), ("reported", "reported"), ("ended", "ended")))
    if tally.ended:
        ended = rates.counts(("released", "released by the RM"), ("dropped", "dropped when it registered again"))
        confirmed = tally.ended - tally.released - tally.dropped
        lines.add_row("ended", f"{ended}, {confirmed:,} released by Muster")
    labels = (("preempted", "preempted"), ("timed_out", "timed out"), ("replaced", "replaced"))
    if any(getattr(tally, name) for name, _ in labels):
        lines.add_row("releases", rates.counts(*labels))
    refused = [
        rates.count(name, words)
        for name, words in (
            ("asks_rejected", "asks"),
            ("applications_rejected", "applications"),
            ("nodes_rejected", "nodes"),
        )
        if getattr(tally, name)
    ]
    if refused:
        lines.add_row("rejected", ", ".join(refused))
    if tally.questions:
        unanswered = rates.count("questions_unanswered", "unanswered")
        no = rates.count("questions_refused", "answered no")
        lines.add_row("questions to the RM", f"{rates.count('questions', 'asked')}, {no}, {unanswered}")
    if metrics.HasField("recent"):
        lines.add_row("last minute", f"{_recent(metrics.recent)}{rates.busy()}")
    return lines


def _recent(recent: RecentAllocations) -> str:
    """Allocations a second, and how long their asks waited."""
    if not recent.allocations:
        return "no allocation"
    rate = recent.per_second
    rate_text = f"{rate:,.0f}" if rate >= 10 else f"{rate:,.2g}"
    if not recent.HasField("wait_p99_ms"):
        return f"{rate_text} allocations/s"
    waits = f"p50 {_short(recent.wait_p50_ms)}, p99 {_short(recent.wait_p99_ms)}"
    return f"{rate_text} allocations/s, ask to allocation {waits}"


def _short(milliseconds: float) -> str:
    if milliseconds < 1_000:
        return f"{milliseconds:.0f} ms" if milliseconds >= 1 else "under 1 ms"
    return f"{milliseconds / 1_000:.1f} s" if milliseconds < 60_000 else duration(milliseconds / 1_000)


class SnapshotRates:
    """The rates of the counts between two snapshots."""

    def __init__(self, now: MetricsSnapshot, before: MetricsSnapshot | None) -> None:
        self._now = now.scheduler.tally
        self._before: Tally | None = None
        self._seconds = 0.0
        if before is not None and before.HasField("scheduler") and before.taken_ns < now.taken_ns:
            self._before = before.scheduler.tally
            self._seconds = (now.taken_ns - before.taken_ns) / 1e9

    def per_second(self, name: str) -> float | None:
        """Returns the growth of a count per second; None: not known yet, or the counts restarted."""
        more = self._more(name)
        return None if more is None else more / self._seconds

    def count(self, name: str, text: str) -> str:
        """Returns a count as text, with its rate if it grows."""
        rate = self.per_second(name)
        grows = f" (+{rate:,.0f}/s)" if rate is not None and rate >= 0.5 else ""
        return f"{getattr(self._now, name):,} {text}{grows}"

    def counts(self, *labels: tuple[str, str]) -> str:
        """Returns several counts as text; a label is (name, words)."""
        return ", ".join(self.count(name, words) for name, words in labels)

    def busy(self) -> str:
        """The share of the time that the scheduler decided; "" if that is not known."""
        more_us = self._more("deciding_us")
        return "" if more_us is None else f"; deciding {more_us / 1e6 / self._seconds:.0%} of the time"

    def _more(self, name: str) -> int | None:
        if self._before is None:
            return None
        more: int = getattr(self._now, name) - getattr(self._before, name)
        return more if more >= 0 else None


# ---- tables ----------------------------------------------------------------------------------------------------------


def _table(*columns: str, numbers: Iterable[str] = ()) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    right = set(numbers)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True, overflow="ellipsis")
    return table


def _types(used: Iterable[Mapping[str, int]], limits: Iterable[Mapping[str, int]], room: ScreenSize) -> list[str]:
    """The resource types with a column, by name. Where there is no room for all, those that are used come first, the
    usual and the special ones before counters such as pods.
    """
    busy = {name for quantities in used for name, value in quantities.items() if value}
    every = busy.union(*limits)

    def rank(name: str) -> tuple[bool, bool, str]:
        return name not in busy, name not in (CPU, MEMORY) and "/" not in name, name

    return sorted(sorted(every, key=rank)[: room.types])


def short(resource_type: str) -> str:
    """A type's name without its domain."""
    return resource_type.rpartition("/")[2] or resource_type


def _capacity(metrics: SchedulerMetrics, room: ScreenSize) -> Table:
    table = _table("cluster", "", "allocated", "capacity", "pending", "", numbers=("allocated", "capacity", "pending"))
    for name in sorted({*metrics.capacity, *metrics.pending}):
        capacity, allocated = metrics.capacity.get(name, 0), metrics.allocated.get(name, 0)
        shown = (amount(name, value) for value in (allocated, capacity, metrics.pending.get(name, 0)))
        table.add_row(escape_invisible(name), bar(percent(allocated, capacity), replace(room, narrow=False)), *shown)
    return table


def _reasons(metrics: SchedulerMetrics) -> Table:
    table = _table("pending, by reason", "asks", numbers=("asks",))
    for code, count in sorted(metrics.pending_by_reason.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(escape_invisible(code), f"{count:,}")
    return table


def _queues(queues: Sequence[QueueMetrics], room: ScreenSize) -> Table:
    """The tree. For each type the allocated amount, then the pending one after a plus sign."""
    top = queues[0]
    types = _types((top.allocated, top.pending), (top.max,), room)
    heads = [short(name) for name in types]
    of_max = ("of its max",) if room.narrow else ("fullest of its max", "")
    table = _table("queue", "running", *of_max, *heads, numbers=("running", *heads))
    for queue in queues[: room.queues]:
        level = queue.path.count(".") - top.path.count(".")
        name = queue.path.rpartition(".")[2] if level else queue.path
        state = "" if queue.state == "Active" else f" ({queue.state})"
        most = f"/{queue.applications_max:,}" if queue.applications_max else ""
        full = fullest(queue.allocated, queue.max)
        table.add_row(
            escape_invisible(f"{'  ' * level}{name}{state}"),
            f"{queue.applications_running:,}{most}",
            *_of_max(queue, full, room),
            *(_allocated_and_pending(name, queue) for name in types),
        )
    if len(queues) > room.queues:
        table.add_row(f"and {len(queues) - room.queues:,} more")
    return table


def _of_max(queue: QueueMetrics, full: tuple[str, int] | None, room: ScreenSize) -> list[Text | str]:
    """The share of the fullest type; where there is room, the max of that type, too."""
    if full is None:
        return [_NOTHING] if room.narrow else [_NOTHING, ""]
    limit = escape_invisible(f"{amount(full[0], queue.max[full[0]])} {short(full[0])}")
    return [Text.assemble(bar(full[1], room), f" {short(full[0])}")] if room.narrow else [bar(full[1], room), limit]


def _allocated_and_pending(name: str, queue: QueueMetrics) -> str:
    allocated, pending = queue.allocated.get(name, 0), queue.pending.get(name, 0)
    more = f" +{amount(name, pending)}" if pending else ""
    return f"{amount(name, allocated)}{more}" if allocated or pending else _NOTHING


def _nodes(now: MetricsSnapshot, room: ScreenSize) -> Table:
    """The nodes, with the free amount of each type."""
    shown = now.nodes[: room.nodes]
    types = _types((node.allocated for node in shown), (node.capacity for node in shown), room)
    heads = [f"free {short(name)}" for name in types]
    table = _table("fullest nodes", "", "allocations", *heads, "", numbers=("allocations", *heads))
    for node in shown:
        table.add_row(
            escape_invisible(node.node_id),
            bar(node.used_percent, room),
            f"{node.allocations:,}",
            *(amount(name, node.available.get(name, 0)) if name in node.capacity else _NOTHING for name in types),
            "" if node.schedulable else "draining",
        )
    return table


def _processes(now: MetricsSnapshot, before: MetricsSnapshot | None) -> Table:
    table = _table("process", "cpu", "memory", "up", "streams", numbers=("cpu", "memory", "up", "streams"))
    previous = before.runtime.processes if before is not None else ()
    earlier = {process.name: process for process in previous}
    for process in now.runtime.processes:
        busy = _NOTHING
        old = earlier.get(process.name)
        if old is not None and before is not None and now.taken_ns > before.taken_ns:
            busy = _busy(process, old, (now.taken_ns - before.taken_ns) / 1e9)
        streams = f"{process.streams_open:,}" if process.streams_open else _NOTHING
        up = duration(process.uptime_seconds)
        table.add_row(escape_invisible(process.name), busy, amount(MEMORY, process.memory_bytes), up, streams)
    return table


def _busy(now: ProcessMetrics, before: ProcessMetrics, seconds: float) -> str:
    used = now.cpu_seconds - before.cpu_seconds
    return f"{used / seconds:.0%}" if used >= 0 else _NOTHING  # fewer than before: the process was restarted


# ---- figures ---------------------------------------------------------------------------------------------------------


def fullest(used: Mapping[str, int], limits: Mapping[str, int]) -> tuple[str, int] | None:
    """The limited type with the highest used share, and that share in percent; None: no type is limited."""
    shares = [(percent(used.get(name, 0), limit), name) for name, limit in limits.items()]
    if not shares:
        return None
    most, name = max(shares, key=lambda share: (share[0], share[1] in used, share[1]))
    return name, most


def percent(used: int, limit: int) -> int:
    """Whole percent; 100 for usage under a limit of 0."""
    if limit <= 0:
        return 100 if used > 0 else 0
    return max(0, used * 100 // limit)


def bar(value: int, room: ScreenSize) -> Text:
    """A bar and its percentage."""
    full, empty = ("#", ".") if room.plain else ("█", "░")
    # A small value still gets a cell, and only a full one fills the bar.
    cells = min(_BAR_CELLS, max(1, value * _BAR_CELLS // 100)) if value else 0
    colour = "red" if value >= _HOT else "yellow" if value >= _WARM else "green"
    if room.narrow:
        return Text(f"{value:>3}%", colour)
    return Text.assemble((full * cells, colour), (empty * (_BAR_CELLS - cells), "dim"), f" {value:>3}%")


def amount(name: str, value: int) -> str:
    """Returns a quantity in three or four digits: vcore in cores, bytes with binary units, other types with decimal
    units.
    """
    if name == CPU:
        return _digits(value / 1000, 1000, _DECIMAL)
    if name.startswith(_BINARY_TYPES):
        return _digits(value, 1024, _BINARY)
    return _digits(value, 1000, _DECIMAL)


def duration(seconds: float) -> str:
    """Returns a duration in its two largest units."""
    minutes, remaining_s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes}m"
    return f"{minutes}m{remaining_s}s" if minutes else f"{remaining_s}s"


def _digits(value: float, base: int, units: tuple[str, ...]) -> str:
    unit_index = 0
    while abs(value) >= base * 10 and unit_index < len(units) - 1:
        value, unit_index = value / base, unit_index + 1
    whole = abs(value) >= 100 or value == int(value)
    return f"{value:.0f}{units[unit_index]}" if whole else f"{value:.1f}{units[unit_index]}"
