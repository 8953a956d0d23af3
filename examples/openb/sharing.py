#!/usr/bin/env python3
"""Backfill and fair share by past use on the openb trace, in virtual time: tables and plots.

python examples/openb/sharing.py [--only backfill] [--keep FOLDER] [--write docs]     (or: make openb-sharing)

The trace's tasks arrive 1,500 times as fast on 8 % of its machines, so that they wait. Each declares its run time,
rounded up to a round time, for backfill; 20 users share the tasks, the user of rank k a part like 1 / k. The queues are
those of queues.yaml. Both questions are played under three configurations each. Time is virtual, so the figures are the
same on every machine.
With --write the tables go into backfill.md and fairshare.md there, and the plots beside them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import drawing
from muster_replay.trace import GPU
from muster_si.constants import CPU
from muster_whatif.comparison import duration
from muster_whatif.matrix import ExperimentPoint, run
from muster_whatif.scenario import Scenario
from muster_whatif.stats import SimulationStats, percentile
from muster_whatif.workload import WorkloadTask
from muster_whatif.workload_source import WorkloadSource

HERE = Path(__file__).parent
SPEED, PART, USERS, TICK_S = 1_500.0, 0.08, 20, 60.0
SHORT_S = 600.0
HALF_LIFE = "1h"
GPUS = 2_000  # thousandths
PARTITION, LEAVES = "  - name: default\n", "          - name: openb\n"
BEGIN = "<!-- figures: begin (make openb-sharing) -->"


@dataclass(frozen=True, slots=True)
class Question:
    """What is compared.

    :ivar page: the document, whose plot has the same name.
    :ivar configs: configurations by name.
    """

    page: str
    configs: dict[str, str]


def questions(text: str) -> dict[str, Question]:
    """The comparisons, from the text of queues.yaml."""

    def backfill(mode: str) -> str:
        return text.replace(PARTITION, f"{PARTITION}    backfill: {mode}\n", 1)

    def order(policy: str) -> str:
        half_life = f", application.sort.halflife: {HALF_LIFE}" if policy == "fairshare" else ""
        # (Properties of a parent hold for its leaves.)
        properties = f"            properties: {{application.sort.policy: {policy}{half_life}}}\n"
        return text.replace(LEAVES, LEAVES + properties, 1)

    return {
        "backfill": Question("backfill", {mode: backfill(mode) for mode in ("off", "conservative", "easy")}),
        "fairshare": Question("fairshare", {policy: order(policy) for policy in ("fifo", "fair", "fairshare")}),
    }


def source() -> WorkloadSource:
    """The workload."""
    return WorkloadSource(str(HERE), speed=SPEED, declare=1.0, users=USERS, part=PART)


def wait_s(found: SimulationStats, tasks: Sequence[WorkloadTask], percent: float) -> float:
    """The wait that so many percent of these tasks did not exceed; all of them start."""
    waits = sorted(max(found.starts[task.name] - task.arrives_s, 0.0) for task in tasks if task.name in found.starts)
    return percentile(waits, percent) or 0.0


def users_by_work(tasks: Sequence[WorkloadTask]) -> list[str]:
    """The users, the one with most tasks first."""
    counts: dict[str, int] = {}
    for task in tasks:
        counts[task.user] = counts.get(task.user, 0) + 1
    return sorted(counts, key=lambda user: (-counts[user], user))


def rows(name: str, tasks: Sequence[WorkloadTask]) -> list[tuple[str, Callable[[SimulationStats], str]]]:
    """The rows of a table: a name, and a figure's text."""

    def waits(chosen: Sequence[WorkloadTask], percent: float) -> Callable[[SimulationStats], str]:
        return lambda found: duration(wait_s(found, chosen, percent))

    common: list[tuple[str, Callable[[SimulationStats], str]]] = [
        ("GPUs in use, in the busy hours", lambda found: f"{_busy(found, tasks, GPU):.1f} %"),
        ("cores in use, in the busy hours", lambda found: f"{_busy(found, tasks, CPU):.1f} %"),
        ("wait, half of the tasks", waits(tasks, 50)),
        ("wait, 95 %", waits(tasks, 95)),
        ("wait, longest", waits(tasks, 100)),
    ]
    if name == "backfill":
        short = [task for task in tasks if task.runs_s <= SHORT_S]
        large = [task for task in tasks if task.quantities.get(GPU, 0) >= GPUS]
        return [
            *common,
            (f"wait, 95 % of the {len(short):,} tasks of at most {SHORT_S / 60:.0f} minutes", waits(short, 95)),
            (f"wait, 95 % of the {len(large):,} tasks of {GPUS // 1_000} GPUs or more", waits(large, 95)),
            ("preemptions", lambda found: f"{found.all.preemptions:,}"),
        ]
    users = users_by_work(tasks)
    first, rest = set(users[:1]), set(users[len(users) // 2 :])
    of_first = [task for task in tasks if task.user in first]
    of_rest = [task for task in tasks if task.user in rest]
    return [
        *common,
        (f"wait, half of the {len(of_first):,} tasks of the user with most", waits(of_first, 50)),
        (f"wait, half of the {len(of_rest):,} tasks of the {len(rest)} users with least", waits(of_rest, 50)),
        ("preemptions", lambda found: f"{found.all.preemptions:,}"),
    ]


def table(name: str, tasks: Sequence[WorkloadTask], found: dict[str, SimulationStats]) -> list[list[str]]:
    """Headings, then the rows."""
    return [
        ["", *found],
        *([title, *(text(each) for each in found.values())] for title, text in rows(name, tasks)),
    ]


# ---- plots -----------------------------------------------------------------------------------------------------------

HEIGHT = 360  # pixels
# Told apart without colour too: by dashes, and by the name at each line's end.
STYLES = (("#b3541e", "7 4"), ("#2a6f97", "2 3"), ("#1b7837", ""))


def plot(name: str, tasks: Sequence[WorkloadTask], found: dict[str, SimulationStats]) -> str:
    """The plot of a question, as SVG."""
    if name == "backfill":
        begin_s = min(task.arrives_s for task in tasks)
        until_s = 2 * (max(task.arrives_s for task in tasks) - begin_s)
        lines = {each: _use(figures, tasks, begin_s, until_s) for each, figures in found.items()}
        return _drawn(
            "GPUs in use, % of the cluster's, by backfill",
            "hours since the first arrival",
            lines,
            100.0,
            until_s / 3600,
        )
    users = users_by_work(tasks)
    lines = {}
    for each, figures in found.items():
        of_user = ((user, [task for task in tasks if task.user == user]) for user in users)
        lines[each] = [(float(rank), wait_s(figures, own, 50) / 60) for rank, (_, own) in enumerate(of_user, start=1)]
    highest = max(y for line in lines.values() for _, y in line)
    return _drawn(
        "Wait of half of a user's tasks, minutes, by order",
        "users, the one with most tasks first",
        lines,
        highest,
        float(len(users)),
        from_=1.0,
    )


POINTS = 120
# Few tasks arrive in the first three quarters of the time. The busy hours: from then on to twice the time.
BUSY_FROM, BUSY_UNTIL = 0.75, 2.0


def _busy(figures: SimulationStats, tasks: Sequence[WorkloadTask], resource: str) -> float:
    """Percent of a resource in use in the busy hours."""
    last_s = max(task.arrives_s for task in tasks)
    ((_, percent),) = _use(figures, tasks, BUSY_FROM * last_s, BUSY_UNTIL * last_s, resource, points=1)
    return percent


def _use(
    figures: SimulationStats,
    tasks: Sequence[WorkloadTask],
    begin_s: float,
    until_s: float,
    resource: str = GPU,
    points: int = POINTS,
) -> list[tuple[float, float]]:
    """(hours, percent in use). A task counts from its first start, for its run time: none is preempted here."""
    assert not figures.all.preemptions, "a preempted task runs again"
    width_s = (until_s - begin_s) / points
    sums = [0.0] * points
    for task in tasks:
        start_s = figures.starts.get(task.name)
        gpus = task.quantities.get(resource, 0)
        if start_s is None or not gpus:
            continue
        low, high = max(start_s - begin_s, 0.0), min(start_s + task.runs_s, until_s) - begin_s
        for piece in range(int(low // width_s), min(int(high // width_s) + 1, points)):
            sums[piece] += gpus * (min(high, (piece + 1) * width_s) - max(low, piece * width_s))
    most = figures.use[resource].capacity * width_s
    return [((piece + 0.5) * width_s / 3600, 100 * each / most) for piece, each in enumerate(sums)]


def _drawn(
    title: str,
    below: str,
    lines: dict[str, list[tuple[float, float]]],
    highest: float,
    last: float,
    *,
    from_: float = 0.0,
) -> str:
    step = next(each for each in (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1_000) if highest / each <= 8)
    highest = step * -(-highest // step)
    drawn = drawing.Plot(title, title, (from_, last), (0.0, highest), HEIGHT)
    for mark in range(0, int(highest) + 1, step):
        drawn.mark_y(mark, f"{mark:,}")
    for mark in range(int(from_), int(last) + 1):
        drawn.mark_x(mark, str(mark))
    drawn.axis(below)
    for (name, line), style in zip(lines.items(), STYLES, strict=True):
        drawn.line(name, line, *style)
    return drawn.text()


# ---- writing ---------------------------------------------------------------------------------------------------------


def markdown(lines: list[list[str]]) -> str:
    """The table for the document."""
    texts = [" | ".join(row) for row in lines]
    texts.insert(1, " | ".join(["---"] + ["---:"] * (len(lines[0]) - 1)))
    return "\n".join(f"| {text} |" for text in texts)


def write(
    directory: Path, name: str, page: str, tasks: Sequence[WorkloadTask], found: dict[str, SimulationStats]
) -> None:
    """Puts the table into its document, and the plot beside it."""
    drawing.put(directory / f"{page}.md", BEGIN, f"{markdown(table(name, tasks, found))}\n")
    (directory / f"{page}.svg").write_text(plot(name, tasks, found), encoding="utf-8")


def main() -> int:
    """See the module's docstring."""
    asked = questions((HERE / "queues.yaml").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description="Backfill and fair share on the openb trace.")
    parser.add_argument("--only", choices=list(asked), help="one question")
    parser.add_argument("--keep", type=Path, help="folder for finished plays: the same command goes on there")
    parser.add_argument("--processes", type=int, default=0, help="at the same time [one for each core]")
    parser.add_argument("--write", type=Path, metavar="DIRECTORY", help="where backfill.md and fairshare.md are")
    options = parser.parse_args()
    chosen = {name: question for name, question in asked.items() if options.only in (None, name)}
    points = [
        ExperimentPoint(source(), Scenario(name, config), TICK_S)
        for question in chosen.values()
        for name, config in question.configs.items()
    ]
    found = iter(run(points, processes=options.processes, keep=options.keep))
    tasks = source().read().tasks
    for name, question in chosen.items():
        figures = {config: next(found) for config in question.configs}
        lines = table(name, tasks, figures)
        json.dump({name: [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]}, sys.stdout)
        print()
        if options.write is not None:
            write(options.write, name, question.page, tasks, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
