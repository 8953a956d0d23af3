"""Bars along a time axis, in character cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from muster_cli.history.output import format_duration

_LEVELS = " ▁▂▃▄▅▆▇█"
_PLAIN_LEVELS = " .:-=+*#"
_LABEL_CELLS = 14  # an axis has a label about this often


@dataclass(frozen=True, slots=True)
class Axis:
    """The time from ``begin_ns`` to ``until_ns``, divided into cells.

    :ivar plain: only ASCII signs.
    """

    begin_ns: int
    until_ns: int
    cells: int
    plain: bool = False

    def cell(self, at_ns: int) -> int:
        """Returns the cell of a time."""
        length = max(self.until_ns - self.begin_ns, 1)
        return min(max((at_ns - self.begin_ns) * self.cells // length, 0), self.cells - 1)

    def labels(self) -> Text:
        """Returns the labels above the cells: times since the beginning."""
        count = max(self.cells // _LABEL_CELLS, 1)
        line = ""
        for number in range(count):
            column = self.cells * number // count
            seconds = (self.until_ns - self.begin_ns) * number / count / 1e9
            line = f"{line:<{column}}{'|' if self.plain else '▏'}{format_duration(seconds)}"
        return Text(line[: self.cells], style="dim", no_wrap=True)

    def bar(
        self, begin_ns: int, end_ns: int | None, style: str, *, since_ns: int | None = None, cut: bool = False
    ) -> Text:
        """Returns the bar of a time span. Even a short span gets a cell.

        :param end_ns: None: it still lasts.
        :param since_ns: start of the wait before it.
        :param cut: it began earlier than the axis.
        """
        wait, full, on, before = ("." if self.plain else "·"), ("#" if self.plain else "█"), ">", "<"
        first, last = self.cell(begin_ns), self.cell(end_ns if end_ns is not None else self.until_ns)
        start = min(self.cell(since_ns), first) if since_ns is not None else first
        bar = Text(no_wrap=True)
        bar.append(" " * start)
        bar.append(wait * (first - start), "dim")
        inside = full * (last - first + 1)
        if cut:
            inside = before + inside[1:]
        bar.append(inside[:-1] + on if end_ns is None else inside, style)
        return bar

    def heights(self, values: Sequence[float], style: str, most: float | None = None) -> Text:
        """Shows one value per cell as its height; the highest value (or ``most``) is full."""
        levels = _PLAIN_LEVELS if self.plain else _LEVELS
        top = most or max(values, default=0) or 1
        steps = len(levels) - 1
        line = "".join(levels[0 if value <= 0 else max(1, min(steps, round(value / top * steps)))] for value in values)
        return Text(line, style=style, no_wrap=True)

    def running(self, spans: Sequence[tuple[int, int | None]]) -> list[int]:
        """Returns, for each cell, how many of the spans touch it."""
        change = [0] * (self.cells + 1)
        for begin_ns, end_ns in spans:
            change[self.cell(begin_ns)] += 1
            change[(self.cell(end_ns) if end_ns is not None else self.cells - 1) + 1] -= 1
        counts, count = [], 0
        for step in change[:-1]:
            count += step
            counts.append(count)
        return counts
