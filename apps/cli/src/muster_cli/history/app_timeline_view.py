"""The timeline of an application, as rich's renderables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from statistics import median

from muster_runtime.terminal import escape_invisible
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from muster_cli.history import views
from muster_cli.history.app_timeline import ApplicationTimeline, TimelineAllocation, TimelineAsk
from muster_cli.history.output import format_duration, format_resource, format_time, time_unit
from muster_cli.history.time_axis import Axis

_KEY_CELLS = 32
_BAR_CELLS_MIN = 12
_NODES_MAX = 12
_SHAPES_MAX = 6
_EVENTS_MAX = 20
_STATE_STYLES = {
    "New": "dim", "Accepted": "yellow", "Starting": "yellow", "Running": "green", "Completing": "cyan",
    "Completed": "blue", "Failing": "red", "Failed": "red", "Resuming": "magenta", "Rejected": "red",
    views.REMOVED: "magenta",
}  # fmt: skip
_ENDED_STYLES = {
    "": "green", "released": "blue", "preempted": "red", "timed out": "yellow", "replaced": "cyan",
    "node removed": "magenta", views.DROPPED: "magenta", views.CHANGED: "green",
}  # fmt: skip
_RUNS = "runs"


def screen(life: ApplicationTimeline, width: int, rows: int, *, plain: bool) -> RenderableType:
    """Returns the whole timeline, top to bottom.

    :param width: cells of a line.
    :param rows: greatest number of single allocations; more are combined.
    :param plain: only ASCII signs.
    """
    parts: list[RenderableType] = [_head(life), "", _states(life, width, plain=plain)]
    if life.allocations:
        many = len(life.allocations) > rows
        parts += ["", (_together if many else _one_by_one)(life, width, plain=plain)]
    if life.waiting:
        parts += ["", _waiting(life, rows)]
    if happened := _events_table(life, len(life.allocations) > rows):
        parts += ["", happened]
    return Group(*parts)


def _head(life: ApplicationTimeline) -> Table:
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="bold")
    lines.add_column(overflow="fold")
    lines.add_row("application", Text(life.application, style="bold"))
    lines.add_row("of", escape_invisible(f"{life.rm}, queue {life.queue or 'unknown'}"))
    lasted = format_duration((life.until_ns - life.begin_ns) / 1e9)
    until = f"until {_at(life.until_ns)}" if life.finished else f"and on (newest event {_at(life.until_ns)})"
    since = "" if life.life else ", older than the history"
    lines.add_row("from", f"{_at(life.begin_ns)}{since} {until}: {lasted}")
    if life.lives > 1:
        lines.add_row("life", f"{life.life} of {life.lives} under this id (--life shows another)")
    lines.add_row("state", Text(life.state or "unknown", style=_STATE_STYLES.get(life.state, "")))
    counts = Counter(allocation.ended or _RUNS for allocation in life.allocations)
    changes = ", ".join(f"{count:,} {change}" for change, count in counts.most_common())
    lines.add_row("allocations", f"{len(life.allocations):,}{f': {changes}' if changes else ''}; {life.asks:,} asks")
    first = min(
        (allocation.begin_ns for allocation in life.allocations if allocation.begin_ns is not None), default=None
    )
    if first is not None and life.life:
        lines.add_row("waited", f"{format_duration((first - life.begin_ns) / 1e9)} for the first allocation")
    if used := life.resource_seconds():
        unit, size = time_unit((life.until_ns - life.begin_ns) / 1e9)
        shown = format_resource({name: value / size for name, value in used.items()})
        lines.add_row("used", escape_invisible(f"as much as {shown} for 1 {unit}"))
    return lines


def _states(life: ApplicationTimeline, width: int, *, plain: bool) -> Table:
    has_messages = any(span.message for span in life.states)
    table, axis = _with_bars(life, width, 13 + 20 + 14 + (26 if has_messages else 0), plain=plain)
    _columns(table, ("state", False), ("since", True), ("lasted", True), *([("why", False)] if has_messages else []))
    table.add_column(axis.labels(), no_wrap=True)
    for span in life.states:
        style = _STATE_STYLES.get(span.state, "")
        lasted = format_duration((span.end_ns - span.begin_ns) / 1e9) if span.end_ns is not None else "goes on"
        over = span.end_ns == span.begin_ns and span is life.states[-1]
        table.add_row(
            Text(span.state, style=style),
            _since(life, span.begin_ns),
            "" if over else lasted,
            *([escape_invisible(span.message)] if has_messages else []),
            axis.bar(span.begin_ns, span.end_ns, style),
        )
    return table


def _one_by_one(life: ApplicationTimeline, width: int, *, plain: bool) -> Table:
    keys = min(max(len(allocation.key) for allocation in life.allocations), _KEY_CELLS) + 2
    nodes = min(max(len(allocation.node) for allocation in life.allocations), _KEY_CELLS) + 2
    table, axis = _with_bars(life, width, keys + nodes + 13 + 13 + 16, plain=plain)
    _columns(table, ("allocation", False), ("node", False), ("since", True), ("lasted", True), ("ended", False))
    table.add_column(axis.labels(), no_wrap=True)
    for allocation in life.allocations:
        style = _ENDED_STYLES.get(allocation.ended, "")
        begin_ns = allocation.begin_ns if allocation.begin_ns is not None else life.begin_ns
        end_ns = allocation.end_ns if allocation.end_ns is not None else life.until_ns
        table.add_row(
            escape_invisible(allocation.key),
            escape_invisible(allocation.node),
            _since(life, allocation.begin_ns) if allocation.begin_ns is not None else "before",
            format_duration((end_ns - begin_ns) / 1e9),
            Text(allocation.ended or _RUNS, style=style),
            axis.bar(begin_ns, allocation.end_ns, style, since_ns=allocation.asked_ns, cut=allocation.begin_ns is None),
        )
    return table


def _together(life: ApplicationTimeline, width: int, *, plain: bool) -> RenderableType:
    """Groups of allocations that are too many for single lines: by end, by size and by node."""
    table, axis = _with_bars(life, width, 34 + 9 + 34, plain=plain)
    _columns(table, (f"{len(life.allocations):,} allocations", False), ("count", True), ("lasted", False))
    table.add_column(axis.labels(), no_wrap=True)

    def add(name: str, allocations: Sequence[TimelineAllocation], style: str, most: float | None = None) -> None:
        spans = [
            (allocation.begin_ns if allocation.begin_ns is not None else life.begin_ns, allocation.end_ns)
            for allocation in allocations
        ]
        table.add_row(
            escape_invisible(name),
            f"{len(allocations):,}",
            _format_run_times(life, allocations),
            axis.heights(axis.running(spans), style, most),
        )

    spans = [
        (allocation.begin_ns if allocation.begin_ns is not None else life.begin_ns, allocation.end_ns)
        for allocation in life.allocations
    ]
    top = max(axis.running(spans))
    add(f"at most {top:,} at a time", life.allocations, "bold")
    for change, allocations in _grouped((allocation.ended or _RUNS, allocation) for allocation in life.allocations):
        add(change, allocations, _ENDED_STYLES.get("" if change == _RUNS else change, ""))
    table.add_section()
    shapes = _grouped((format_resource(allocation.resource), allocation) for allocation in life.allocations)
    for name, allocations in shapes[:_SHAPES_MAX]:
        add(f"each {name}", allocations, "blue")
    _left_out(table, shapes[_SHAPES_MAX:], "sizes")
    table.add_section()
    nodes = _grouped((allocation.node, allocation) for allocation in life.allocations)
    for name, allocations in nodes[:_NODES_MAX]:
        add(f"on {name or 'an unknown node'}", allocations, "cyan")
    _left_out(table, nodes[_NODES_MAX:], "nodes")
    return table


def _left_out(table: Table, groups: Sequence[tuple[str, list[TimelineAllocation]]], label: str) -> None:
    if groups:
        table.add_row(
            f"{len(groups):,} more {label}",
            f"{sum(len(allocations) for _, allocations in groups):,}",
            "",
            "",
            style="dim",
        )


def _grouped(pairs: Iterable[tuple[str, TimelineAllocation]]) -> list[tuple[str, list[TimelineAllocation]]]:
    """Returns the groups, the largest first."""
    groups: dict[str, list[TimelineAllocation]] = {}
    for name, allocation in pairs:
        groups.setdefault(name, []).append(allocation)
    return sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))


def _format_run_times(life: ApplicationTimeline, allocations: Sequence[TimelineAllocation]) -> str:
    seconds = sorted(
        ((allocation.end_ns if allocation.end_ns is not None else life.until_ns) - allocation.begin_ns) / 1e9
        for allocation in allocations
        if allocation.begin_ns is not None
    )
    if not seconds:
        return ""
    if seconds[0] == seconds[-1]:
        return format_duration(seconds[0])
    return f"{format_duration(seconds[0])} to {format_duration(seconds[-1])}, half {format_duration(median(seconds))}"


def _waiting(life: ApplicationTimeline, rows: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    _columns(table, (f"{len(life.waiting):,} asks without an allocation", False), ("since", True), ("waited", True))
    _columns(table, ("then", False), ("for", False))

    def add(name: str, asks: Sequence[TimelineAsk]) -> None:
        waited = max((ask.end_ns if ask.end_ns is not None else life.until_ns) - ask.asked_ns for ask in asks) / 1e9
        first = asks[0]
        then = f"{first.ended or 'pending'}{f': {first.message}' if first.message else ''}"
        amount = escape_invisible(format_resource(first.resource))
        table.add_row(
            escape_invisible(name),
            _since(life, first.asked_ns),
            format_duration(waited),
            escape_invisible(then),
            amount,
        )

    if len(life.waiting) <= rows:
        for ask in life.waiting:
            add(ask.key, [ask])
        return table
    alike: dict[tuple[str, str], list[TimelineAsk]] = {}
    for ask in life.waiting:
        alike.setdefault((ask.ended, format_resource(ask.resource)), []).append(ask)
    groups = sorted(alike.values(), key=len, reverse=True)
    for asks in groups[:_SHAPES_MAX]:
        add(f"{len(asks):,} alike, {asks[0].key} the first", asks)
    if more := groups[_SHAPES_MAX:]:
        table.add_row(f"{sum(map(len, more)):,} more of {len(more):,} kinds", style="dim")
    return table


def _events_table(life: ApplicationTimeline, together: bool) -> Table | None:
    """The notable events in order: ends that the RM did not want, replacements, the scheduler's messages."""
    entries: list[tuple[int, str, str]] = [(event.at_ns, event.what, event.message) for event in life.happenings]
    for allocation in life.allocations:
        if allocation.end_ns is None:
            continue
        if allocation.ended == "replaced" and allocation.replaced_by:
            entries.append(
                (allocation.end_ns, "replaced", f"{allocation.key} was replaced by {allocation.replaced_by}")
            )
        elif allocation.ended in ("preempted", "timed out", "node removed", "replaced", views.CHANGED, views.DROPPED):
            entries.append(
                (
                    allocation.end_ns,
                    allocation.ended,
                    f"{allocation.key} on {allocation.node}{_cause_clause(allocation.message)}",
                )
            )
        elif allocation.message:
            entries.append(
                (allocation.end_ns, allocation.ended, f"{allocation.key}{_cause_clause(allocation.message)}")
            )
    if not entries:
        return None
    entries.sort()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    _columns(table, ("since", True), ("what", False), ("which", False))
    lines = _runs_of(entries) if together else [(at_ns, kind, detail) for at_ns, kind, detail in entries]
    for at_ns, kind, detail in lines[:_EVENTS_MAX]:
        table.add_row(_since(life, at_ns), Text(kind, style=_ENDED_STYLES.get(kind, "")), escape_invisible(detail))
    if len(lines) > _EVENTS_MAX:
        table.add_row("", "", f"{len(lines) - _EVENTS_MAX:,} more (--json has all)", style="dim")
    return table


def _cause_clause(message: str) -> str:
    return f": {message}" if message else ""


def _runs_of(entries: Sequence[tuple[int, str, str]]) -> list[tuple[int, str, str]]:
    """One line for repeated events: the first time, the number, and the first and last one."""
    lines: list[tuple[int, str, str]] = []
    start = 0
    for index in range(1, len(entries) + 1):
        if index < len(entries) and entries[index][1] == entries[start][1]:
            continue
        at_ns, kind, detail = entries[start]
        again = index - start - 1
        lines.append((at_ns, kind, f"{detail}; and {again:,} more" if again else detail))
        start = index
    return lines


# ---- parts ----------------------------------------------------------------------------------------------------------


def _with_bars(life: ApplicationTimeline, width: int, beside: int, *, plain: bool) -> tuple[Table, Axis]:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    return table, Axis(life.begin_ns, life.until_ns, max(width - beside, _BAR_CELLS_MIN), plain)


def _columns(table: Table, *columns: tuple[str, bool]) -> None:
    for name, is_number in columns:
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")


def _since(life: ApplicationTimeline, at_ns: int) -> str:
    return f"+{format_duration((at_ns - life.begin_ns) / 1e9)}"


def _at(ns: int) -> str:
    return format_time(datetime.fromtimestamp(ns / 1e9, UTC).replace(tzinfo=None))
