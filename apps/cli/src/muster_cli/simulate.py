"""``muster simulate``: a workload under several configurations, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType

from muster_runtime.terminal import Screen, print_lines, standard_error, write_json
from muster_whatif.capacity_search import MACHINES_MAX, CapacityGoal
from muster_whatif.capacity_search import search as find
from muster_whatif.comparison import Row, brief, duration, rows, shown
from muster_whatif.errors import WhatIfError
from muster_whatif.html_report import page
from muster_whatif.matrix import ExperimentPoint, run
from muster_whatif.scenario import Scenario
from muster_whatif.stats import SimulationStats
from muster_whatif.workload import Workload
from muster_whatif.workload_source import WorkloadSource
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from muster_cli import config_check
from muster_cli.errors import UsageError

AS_IS = "as it is"
_NEAR_S = 1.0


def simulate(
    source: WorkloadSource,
    configs: Sequence[Path],
    changes: Sequence[str],
    *,
    seeds: int,
    tick_s: float,
    until_s: float | None,
    processes: int,
    keep: Path | None,
    json_file: Path | None,
    html_file: Path | None,
    started_s: Mapping[str, float] = MappingProxyType({}),
) -> int:
    """Plays the matrix of configurations and changes of the nodes. Prints the comparison.

    :param started_s: when tasks really started. The first scenario is then what was in force, and is held against it.

    Raises UsageError.
    """
    if seeds > 1 and not source.is_generated:
        raise UsageError("--seeds: a trace is always the same; seeds are for generate:…")
    try:
        workload = source.read()
        scenarios = _scenarios(workload, configs, changes)
        for scenario in scenarios:  # what is wrong is said before anything is played
            scenario.cluster()
            scenario.machines(workload)
        sources = (
            [replace(source, seed=source.first_seed() + number) for number in range(seeds)] if seeds > 1 else [source]
        )
        points = [ExperimentPoint(seeded, scenario, tick_s, until_s) for scenario in scenarios for seeded in sources]
        stats = _run_experiments(points, len(workload.tasks), processes, keep)
    except WhatIfError as error:
        raise UsageError(str(error)) from error
    plays = [stats[first : first + len(sources)] for first in range(0, len(stats), len(sources))]
    compared, names = rows(plays), [scenario.name for scenario in scenarios]
    facts = [
        *workload.facts,
        *_fidelity_lines(started_s, plays[0][0] if started_s else None),
        *([f"{seeds} seeds; ± is the 95 % interval of the mean"] if seeds > 1 else []),
    ]
    if html_file is not None:
        html_file.write_text(page(f"Simulation: {workload.name}", facts, names, plays, compared), encoding="utf-8")
    if json_file is not None:
        text = json.dumps({"workload": workload.name, "facts": facts, "plays": _as_json(names, plays)}, indent=2)
        if json_file == Path("-"):
            write_json(text + "\n")
            return 0
        json_file.write_text(text + "\n", encoding="utf-8")
    _show(workload, facts, names, compared)
    return 0


def search(
    source: WorkloadSource,
    config: Path | None,
    kind: str,
    goal_text: str,
    *,
    tick_s: float,
    until_s: float | None,
    keep: Path | None,
    json_file: Path | None,
) -> int:
    """Finds the smallest number of further machines of a kind that reaches a goal. Exit code 1: none does.

    Raises UsageError.
    """
    screen = Screen(file=standard_error())
    try:
        workload = source.read()
        (scenario, *_) = _scenarios(workload, [config] if config is not None else [], [])[-1:]
        goal = CapacityGoal.parse(goal_text)
        replace(scenario, changes=(f"+1:{kind}",)).machines(workload)
        with screen.status("searching"):
            more_machines, steps = find(
                ExperimentPoint(source, scenario, tick_s, until_s),
                kind,
                goal,
                lambda point: run([point], processes=1, keep=keep)[0],
            )
    except WhatIfError as error:
        raise UsageError(str(error)) from error
    report = {
        "facts": list(workload.facts),
        "goal": goal.text,
        "kind": kind,
        "more": more_machines,
        "steps": [asdict(step) for step in steps],
    }
    if json_file is not None:
        text = json.dumps(report, indent=2) + "\n"
        if json_file == Path("-"):
            write_json(text)
            return 0 if more_machines is not None else 1
        json_file.write_text(text, encoding="utf-8")
    print_lines(_render_facts(workload, workload.facts))
    table = Table("more machines", f"{goal.percentile} wait", "goal")
    for step in sorted(steps, key=lambda step: step.more):
        wait = "some never start" if step.value_s is None else duration(step.value_s)
        table.add_row(f"+{step.more}:{kind}", wait, "reached" if step.is_reached else "-")
    Screen().print(table)
    if more_machines is None:
        print_lines(f"{goal.text}: not even {MACHINES_MAX:,} more machines of kind {kind} are enough")
        return 1
    print_lines(
        f"{goal.text}: {more_machines:,} more machines of kind {kind}"
        if more_machines
        else f"{goal.text}: reached as it is"
    )
    return 0


def _scenarios(workload: Workload, configs: Sequence[Path], changes: Sequence[str]) -> list[Scenario]:
    """The workload's own configuration and the given ones, each with the machines as they are and with each change."""
    texts = [(AS_IS, workload.config)] if workload.config else []
    texts += [(file.stem if file != Path("-") else "stdin", config_check.read(file)) for file in configs]
    if not texts:
        raise UsageError("--config: the trace comes without a queue configuration, so at least one is needed")
    named: list[Scenario] = []
    for name, text in texts:
        named.append(Scenario(name, text))
        named += [Scenario(change if name == AS_IS else f"{name}, {change}", text, (change,)) for change in changes]
    return named


def _fidelity_lines(started_s: Mapping[str, float], stats: SimulationStats | None) -> list[str]:
    """How well the play of what was in force repeats what happened."""
    if stats is None:
        return []
    differences = [
        abs(stats.starts[name] - real_s) if name in stats.starts else None for name, real_s in started_s.items()
    ]
    near = sum(1 for difference in differences if difference is not None and difference <= _NEAR_S)
    never = sum(1 for difference in differences if difference is None)
    sentence = f"played as it was, {near:,} of {len(differences):,} tasks start within {_NEAR_S:g} s of when they did"
    return [sentence + (f", {never:,} do not start" if never else "")]


def _run_experiments(
    points: Sequence[ExperimentPoint], tasks: int, processes: int, keep: Path | None
) -> list[SimulationStats]:
    console = Screen(file=standard_error())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        shown_bar = bar.add_task("tasks played", total=tasks * len(points))
        return run(points, processes=processes, keep=keep, progress=lambda over: bar.update(shown_bar, completed=over))


def _render_facts(workload: Workload, facts: Sequence[str]) -> str:
    return "\n  ".join([f"{workload.name}:", *facts])


def _show(workload: Workload, facts: Sequence[str], names: Sequence[str], compared: Sequence[Row]) -> None:
    screen = Screen()
    print_lines(_render_facts(workload, facts))
    table = Table()
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    group = ""
    for row in brief(compared):
        if row.group != group:
            group = row.group
            table.add_section()
            table.add_row(group)
        table.add_row(("  " if group else "") + row.name, *(shown(cell, row.unit) for cell in row.cells))
    screen.print(table)


def _as_json(names: Sequence[str], plays: Sequence[Sequence[SimulationStats]]) -> list[dict[str, object]]:
    return [
        {"scenario": name, "seeds": [asdict(stats) for stats in seeds]}
        for name, seeds in zip(names, plays, strict=True)
    ]
