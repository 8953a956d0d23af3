"""Several plays side by side: rows of figures, with intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from muster_whatif.stats import SimulationStats, WaitStats

_WAIT_95 = "wait, 95 %"
_WAITS = (
    ("wait, half of the tasks", "s", "p50_s"),
    (_WAIT_95, "s", "p95_s"),
    ("wait, longest", "s", "max_s"),
    ("never started", "", "never"),
    ("refused", "", "refused"),
    ("preemptions", "", "preemptions"),
)
_NORMAL_95 = 1.96  # of a normal distribution: 95 % lie within so many deviations


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure over the seeds of a scenario.

    :ivar mean: None: there is no value.
    :ivar half: half the width of the 95 % interval of the mean; None: one seed.
    """

    mean: float | None
    half: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of every scenario.

    :ivar unit: "s", "%" (of values from 0 to 1), or "" for a count or an index.
    """

    group: str
    name: str
    unit: str
    cells: Sequence[Cell]


def rows(plays: Sequence[Sequence[SimulationStats]]) -> list[Row]:
    """Returns the figures of all scenarios. ``plays``: for each scenario, its play with each seed."""
    all_rows: list[Row] = []

    def add(group: str, name: str, unit: str, value: Callable[[SimulationStats], float | None]) -> None:
        all_rows.append(Row(group, name, unit, [_cell([value(stats) for stats in seeds]) for seeds in plays]))

    def add_waits(group: str, of: Callable[[SimulationStats], WaitStats | None]) -> None:
        for name, unit, field in _WAITS:
            add(group, name, unit, partial(_of_waits, of, field))

    every = [figures for seeds in plays for figures in seeds]
    add("", "tasks", "", lambda stats: stats.all.tasks)
    add_waits("", lambda stats: stats.all)
    for name in sorted({name for figures in every for name in figures.use}):
        add("", f"{name} in use", "%", partial(_share, name))
    add("", "fairness of users (Jain)", "", lambda stats: stats.fairness)
    add("", "makespan", "s", lambda stats: stats.makespan_s)
    for kind, field in (("queue", "queues"), ("user", "users"), ("priority", "priorities")):
        names = sorted({name for figures in every for name in getattr(figures, field)})
        for name in names if len(names) > 1 else ():
            add_waits(f"{kind} {name}", partial(_in_group, field, name))
    return [row for row in all_rows if any(cell.mean not in (None, 0) for cell in row.cells) or not row.group]


def _of_waits(of: Callable[[SimulationStats], WaitStats | None], field: str, figures: SimulationStats) -> float | None:
    waits = of(figures)
    value: float | None = getattr(waits, field) if waits is not None else None
    return value


def _share(resource: str, figures: SimulationStats) -> float | None:
    return figures.use[resource].share if resource in figures.use else None


def _in_group(field: str, name: str, figures: SimulationStats) -> WaitStats | None:
    groups: Mapping[str, WaitStats] = getattr(figures, field)
    return groups.get(name)


def brief(compared: Sequence[Row]) -> list[Row]:
    """Returns the rows for a terminal: of a queue, a user or a priority only the wait of 95 %."""
    rows = []
    for row in compared:
        if not row.group:
            rows.append(row)
        elif row.name == _WAIT_95:
            rows.append(replace(row, group=f"{row.name} of the tasks", name=row.group))
    return rows


def _cell(values: Sequence[float | None]) -> Cell:
    present = [value for value in values if value is not None]
    if not present:
        return Cell(None, None)
    mean = sum(present) / len(present)
    if len(present) < 2:
        return Cell(mean, None)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in present) / (len(present) - 1))
    return Cell(mean, _NORMAL_95 * deviation / math.sqrt(len(present)))


def shown(cell: Cell, unit: str) -> str:
    """Returns a cell's text."""
    if cell.mean is None:
        return "-"
    text = _number(cell.mean, unit)
    return text if not cell.half else f"{text} ± {_number(cell.half, unit)}"


def _number(value: float, unit: str) -> str:
    if unit == "%":
        return f"{100 * value:.1f} %"
    if unit == "s":
        return duration(value)
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.3f}"


def duration(seconds: float) -> str:
    """Returns a time in its two largest units."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    for size, unit, part, below in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} {int(seconds % size // part)} {below}"
    raise AssertionError(seconds)
