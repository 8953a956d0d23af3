"""The output of `muster history`: tables, CSV, JSON; times, durations and quantities for people."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from muster_runtime.plain_terminal import write
from muster_runtime.terminal import Screen, escape_invisible, styled, write_data, write_json
from muster_si.constants import CPU
from rich.console import RenderableType
from rich.table import Table

from muster_cli.history.form import OutputFormat
from muster_cli.top_screen import amount

_PIPED_WIDTH = 160  # a file has no edge
_WRAPPED_FROM = 40  # cells of a column
_EXACT_BELOW = 1_000_000  # thousandths of a core
_S_IN = (("d", 86_400), ("h", 3_600), ("min", 60))


@dataclass(frozen=True, slots=True)
class ResultTable:
    """An answer in rows.

    :ivar rows: an iterable that can be read once.
    """

    columns: Sequence[str]
    rows: Iterable[Sequence[Any]]


def console() -> Screen:
    """Returns the console for people. In a pipe it has no colours and does not cut lines to a terminal's width."""
    screen = Screen()
    return screen if screen.is_terminal else Screen(width=_PIPED_WIDTH, no_color=True)


def show(renderable: RenderableType) -> None:
    """Prints a renderable; in a pipe without blanks at the ends of lines."""
    out = console()
    if out.is_terminal:
        out.print(renderable)
        return
    with out.capture() as captured:
        out.print(renderable)
    write("\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n")


def print_note(lines: Iterable[str]) -> None:
    """Prints notes on standard error, so that a pipe gets the answer alone."""
    out = Screen(stderr=True)
    for line in lines:
        out.print(styled(line, "dim"), soft_wrap=True)


class _Output:
    """Standard output for the module csv."""

    def write(self, text: str, /) -> None:
        write_data(text)


def print_rows(result: ResultTable, form: OutputFormat) -> None:
    """Prints all rows."""
    match form:
        case OutputFormat.CSV:
            writer = csv.writer(_Output(), lineterminator="\n")
            writer.writerow(result.columns)
            writer.writerows([_csv_cell(value) for value in row] for row in result.rows)
        case OutputFormat.JSON:
            separator = "["
            for row in result.rows:
                text = json.dumps(dict(zip(result.columns, map(plain, row), strict=True)), ensure_ascii=False)
                write_json(f"{separator}\n  {text}")
                separator = ","
            write_json("[]\n" if separator == "[" else "\n]\n")
        case OutputFormat.TABLE:
            out, rows = console(), [list(row) for row in result.rows]
            fits = _width(result.columns, rows) <= out.width
            show(_table(result.columns, rows) if fits or not rows else _records(result.columns, rows))


def _width(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> int:
    """Returns the width of a table in which only long texts are wrapped."""
    widest = [max(len(name), *(len(cell(row[index])) for row in rows), 0) for index, name in enumerate(columns)]
    return sum(min(cells, _WRAPPED_FROM) + 3 for cells in widest) + 1


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    table = Table(header_style="bold")
    for index, name in enumerate(columns):
        is_number = bool(rows) and all(isinstance(row[index], int | float | Decimal | None) for row in rows)
        table.add_column(escape_invisible(name), overflow="fold", justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(escape_invisible(cell(value)) for value in row))
    return table


def _records(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Returns a table with one column below the other, for rows that are too wide."""
    table = Table(show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        for name, value in zip(columns, row, strict=True):
            if (text := cell(value)) != "":
                table.add_row(escape_invisible(name), escape_invisible(text))
        table.add_section()
    return table


def cell(value: Any) -> str:
    """Returns a value for a table's cell."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float() | Decimal():
            number = float(value)
            return f"{number:.6g}" if abs(number) < 1e6 else f"{number:,.0f}"
        case datetime():
            return format_time(value)
        case Mapping():
            return ", ".join(f"{key}={cell(item)}" for key, item in value.items())
        case list() | tuple():
            return ", ".join(map(cell, value))
        case _:
            return str(plain(value))


def plain(value: Any) -> Any:
    """Returns a value for JSON: times in ISO 8601, whole numbers without a fraction."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case datetime():
            return f"{value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value:%Y-%m-%dT%H:%M:%S.%fZ}"
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case timedelta():
            return value.total_seconds()
        case bytes():
            return value.hex()
        case date() | time() | UUID():
            return str(value)
        case _:
            return str(value)


def _csv_cell(value: Any) -> Any:
    plain_value = plain(value)
    return json.dumps(plain_value, ensure_ascii=False) if isinstance(plain_value, dict | list) else plain_value


# ---- words ----------------------------------------------------------------------------------------------------------


def format_time(time: datetime) -> str:
    """Returns a time in UTC, to the millisecond if it has a fraction."""
    text = f"{time:%Y-%m-%d %H:%M:%S}"
    return f"{text}.{time.microsecond // 1000:03d}" if time.microsecond else text


def format_duration(seconds: float) -> str:
    """Returns a duration in two units at most."""
    if seconds < 0.0005:
        return "0 s"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    parts: list[str] = []
    for unit, size in _S_IN:
        if whole >= size or parts:
            parts.append(f"{whole // size} {unit}")
            whole %= size
        if len(parts) == 2:
            return " ".join(part for part in parts if not part.startswith("0 ")) or parts[0]
    return f"{parts[0]} {whole} s" if whole else parts[0]


def time_unit(seconds: float) -> tuple[str, int]:
    """Returns the time unit for integrals over such a duration, and its seconds."""
    return ("h", 3600) if seconds >= 3600 else ("min", 60) if seconds >= 60 else ("s", 1)


def format_quantity(resource_type: str, value: float) -> str:
    """Returns a quantity of a resource type: vcore in cores, bytes with binary units, other types with decimal
    units.
    """
    if resource_type == CPU and 0 < value < 999.5:
        return f"{value:.3g}m"
    if resource_type == CPU and 0 < value < _EXACT_BELOW and value == int(value):  # the exact amount of the ask
        return f"{value / 1000:.3f}".rstrip("0").rstrip(".")
    return amount(resource_type, round(value))


def format_resource(quantities: Mapping[str, float] | None) -> str:
    """Returns all quantities of a resource."""
    return ", ".join(f"{name} {format_quantity(name, value)}" for name, value in sorted((quantities or {}).items()))
