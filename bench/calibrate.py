"""How often the ranges of "When will it run?" hold the truth, over the openb replay: a table, and a plot with --write.

The trace's applications are dealt out to 16 samples. Each is played on 0.5 % of the machines, 300 times as dense, so
that tasks wait. A hash decides which application comes when: in the trace itself those that come last run shortest,
because its end cuts them off. At several moments every pending ask gets a forecast, from what had ended by then. The
play's own starts are the truth. The first four samples are for looking at the estimate (--samples 0 1 2 3); the others
measure it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from statistics import mean, median

from muster_whatif.forecast.calibration import LEVELS, CalibrationCase, calibrate, coverage
from muster_whatif.forecast.forecast import RUNS
from muster_whatif.scenario import Scenario
from muster_whatif.stats import percentile
from muster_whatif.workload import Workload
from muster_whatif.workload_source import WorkloadSource

SPEED, PART, SAMPLES, TICK_S = 300.0, 0.005, 16, 10.0
# Parts of the time in which 98 % of the tasks arrive.
MOMENTS = (0.9, 1.0)
WIDTH, HEIGHT, LEFT, TOP, SIDE = 760, 380, 60, 44, 280
BARS_LEFT, BARS_SHOWN = 420, 60
FONT = 'font-family="system-ui, sans-serif" font-size="13" fill="#333"'


def sample_of(number: int) -> Workload:
    """Returns one of the samples."""
    workload = WorkloadSource("examples/openb", speed=SPEED, part=PART).read()
    began_s: dict[str, float] = {}
    for task in workload.tasks:
        began_s.setdefault(task.application_id, task.arrives_s)
    chosen = list(began_s)[number::SAMPLES]
    mixed = sorted(chosen, key=lambda name: sha256(name.encode()).digest())
    moved_s = {name: began_s[place] - began_s[name] for name, place in zip(mixed, chosen, strict=True)}
    tasks = [
        replace(task, arrives_s=task.arrives_s + moved_s[task.application_id])
        for task in workload.tasks
        if task.application_id in moved_s
    ]
    return replace(workload, tasks=sorted(tasks, key=lambda task: task.arrives_s))


def cases_of(sample: int, moments: Sequence[float], runs: int) -> list[CalibrationCase]:
    """Returns the forecasts of all moments, and says each moment's on standard error."""
    workload = sample_of(sample)
    last_s = percentile([task.arrives_s for task in workload.tasks], 98) or 0.0

    def told(cases: Sequence[CalibrationCase]) -> None:
        held = sum(each.is_within for each in cases)
        print(f"sample {sample}: {held:,} of {len(cases):,} held, {time.process_time():,.0f} s of cpu", file=sys.stderr)

    scenario = Scenario("as it is", workload.config)
    return calibrate(workload, scenario, [last_s * part for part in moments], tick_s=TICK_S, runs=runs, on_cases=told)


def by_moment(cases: Sequence[CalibrationCase]) -> list[list[CalibrationCase]]:
    """Returns the cases of a sample apart by moment."""
    return [list(found) for _, found in groupby(cases, key=lambda each: each.at_s)]


def plot(cases: Sequence[CalibrationCase]) -> str:
    """Returns both plots as SVG: how much each range holds, and ranges of single asks with their true start."""
    found = coverage(cases)

    def across(percent: float) -> float:
        return LEFT + SIDE * percent / 100

    def down(percent: float) -> float:
        return TOP + SIDE * (100 - percent) / 100

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" {FONT}>',
        "<title>How much the ranges of forecasts hold, and single forecasts with the truth</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="15">Held by the range, % of {len(cases):,} forecasts</text>',
    ]
    for percent in range(0, 101, 20):
        parts.append(f'<path d="M{LEFT} {down(percent):.1f}H{LEFT + SIDE}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{down(percent) + 4:.1f}" text-anchor="end">{percent}</text>')
        parts.append(f'<text x="{across(percent):.1f}" y="{TOP + SIDE + 20}" text-anchor="middle">{percent}</text>')
    parts.append(f'<text x="{LEFT + SIDE / 2}" y="{TOP + SIDE + 42}" text-anchor="middle">promised, %</text>')
    parts.append(f'<path d="M{across(0)} {down(0)}L{across(100)} {down(100)}" stroke="#999" stroke-dasharray="4 4"/>')
    points = [(0.0, 0.0), *((float(level), found[level]) for level in LEVELS)]
    line = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#2a6f97" stroke-width="2"/>')
    parts += [f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="4" fill="#2a6f97"/>' for x, y in points[1:]]
    parts += _bars(cases)
    return "\n".join([*parts, "</svg>\n"])


def _bars(cases: Sequence[CalibrationCase]) -> list[str]:
    shown = sorted((each for each in cases if each.is_known), key=lambda each: each.true_s or 0.0)
    shown = shown[:: max(len(shown) // BARS_SHOWN, 1)][:BARS_SHOWN]
    longest_s = max((max(each.latest_s or 0.0, each.true_s or 0.0) for each in shown), default=1.0) or 1.0
    step = (WIDTH - BARS_LEFT - 20) / max(len(shown), 1)

    def down(seconds: float) -> float:
        return TOP + SIDE * (1 - seconds / longest_s)

    parts = [f'<text x="{BARS_LEFT}" y="24" font-size="15">Ranges, and the true start (dots), minutes</text>']
    for part in (0.0, 0.5, 1.0):
        y = down(part * longest_s)
        parts.append(f'<path d="M{BARS_LEFT} {y:.1f}H{WIDTH - 20}" stroke="#ddd"/>')
        parts.append(f'<text x="{BARS_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{part * longest_s / 60:.0f}</text>')
    for index, each in enumerate(shown):
        x = BARS_LEFT + (index + 0.5) * step
        top, bottom = down(each.latest_s or 0.0), down(each.earliest_s or 0.0)
        parts.append(f'<path d="M{x:.1f} {top:.1f}V{bottom:.1f}" stroke="#9bb8cc" stroke-width="3"/>')
        if each.true_s is not None:
            colour = "#1b7837" if each.is_within else "#b3541e"
            parts.append(f'<circle cx="{x:.1f}" cy="{down(each.true_s):.1f}" r="2.5" fill="{colour}"/>')
    return parts


def main() -> int:
    """Prints a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, choices=RUNS, default=RUNS[-1], help="simulations for each forecast")
    parser.add_argument("--moments", type=float, nargs="*", default=list(MOMENTS))
    parser.add_argument("--samples", type=int, nargs="*", choices=range(SAMPLES), default=list(range(4, SAMPLES)))
    parser.add_argument("--write", type=Path, help="directory for what-if-when.svg")
    arguments = parser.parse_args()
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        made = pool.map(partial(cases_of, moments=arguments.moments, runs=arguments.runs), arguments.samples)
        moments = [of_moment for of_sample in made for of_moment in by_moment(of_sample)]
    cases = [each for of_moment in moments for each in of_moment]
    found = coverage(cases)
    known = sum(each.is_known for each in cases)
    told = {
        "samples": len(arguments.samples),
        "forecasts": len(cases),
        "whole_ranges": known,
        **{f"in_{level}": round(found[level], 1) for level in LEVELS},
        "moments": len(moments),
        # (One crowd has many forecasts, and they are right or wrong together.)
        "in_80_moments_alike": round(mean(coverage(each)[80] for each in moments), 1),
        "median_range_s": round(median(each.latest_s - (each.earliest_s or 0.0) for each in cases if each.latest_s)),
    }
    print(json.dumps(told), flush=True)
    if arguments.write is not None:
        (arguments.write / "what-if-when.svg").write_text(plot(cases), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
