"""``muster history usage``: prints usage over time."""

from __future__ import annotations

from datetime import UTC, datetime

from muster_runtime.terminal import escape_invisible
from rich.table import Table

from muster_cli.history import output
from muster_cli.history.form import OutputFormat
from muster_cli.history.output import ResultTable, format_duration, format_quantity, format_resource, format_time
from muster_cli.history.usage import UsageSeries, UsageWindow

_LONG = ("begin", "end", "resource_type", "average", "peak", "resource_seconds")


def show(usage: UsageSeries, form: OutputFormat) -> None:
    """Prints one row per window in a table; one row per window and resource type as CSV or JSON."""
    windows = usage.windows()
    if form is not OutputFormat.TABLE:
        rows = [
            (
                _at(window.begin_ns), _at(window.end_ns), window.resource_type, round(window.average, 3), window.peak,
                round(window.resource_seconds, 3),
            )
            for window in windows
        ]  # fmt: skip
        output.print_rows(ResultTable(_LONG, rows), form)
        return
    types = sorted(usage.breakdown)
    table = Table(title=escape_invisible(title(usage)), title_justify="left", title_style="bold", header_style="bold")
    table.add_column("window (UTC)")
    for name in types:
        table.add_column(escape_invisible(name), justify="right")
        table.add_column("peak", justify="right")
    by_begin: dict[int, dict[str, UsageWindow]] = {}
    for window in windows:
        by_begin.setdefault(window.begin_ns, {})[window.resource_type] = window
    for begin_ns, by_type in by_begin.items():
        cells = [format_time(_at(begin_ns))]
        for name in types:
            cells += [format_quantity(name, by_type[name].average), format_quantity(name, by_type[name].peak)]
        table.add_row(*cells)
    output.show(table)
    output.show(_sums(usage, windows))


def title(usage: UsageSeries) -> str:
    """Returns the subject's title."""
    by = f" by {usage.subject.by}" if usage.subject.queue and usage.subject.by != "queue" else ""
    return f"{usage.subject.kind} {usage.subject.name}{by}, RM {usage.rm}"


def _sums(usage: UsageSeries, windows: list[UsageWindow]) -> str:
    sums: dict[str, float] = {}
    for window in windows:
        sums[window.resource_type] = sums.get(window.resource_type, 0.0) + window.resource_seconds
    length_s = (usage.end_ns - usage.begin_ns) / 1e9
    averages = {name: value / length_s for name, value in sums.items()}
    if not sums:
        return f"nothing was allocated in {format_duration(length_s)}"
    unit, size = output.time_unit(length_s)
    whole = format_resource({name: value / size for name, value in sums.items()})
    return escape_invisible(
        f"in {format_duration(length_s)} as much as {whole} for 1 {unit}; on average {format_resource(averages)}"
    )


def _at(ns: int) -> datetime:
    return datetime.fromtimestamp(ns / 1e9, UTC).replace(tzinfo=None)
