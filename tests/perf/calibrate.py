"""How often the ranges of "When will it run?" hold the truth, over the openb replay: a table, and a plot with --write.

The trace is played with its tasks 1,000 times as dense, on a part of its machines, so that tasks wait. At several
moments every pending ask gets a forecast, from what had ended by then. The play's own starts are the truth.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from muster_whatif.scenario import Scenario
from muster_whatif.sources import Source
from muster_whatif.when.calibration import LEVELS, Case, calibrate, coverage
from muster_whatif.when.forecast import RUNS

SPEED, SHARE = 1_000.0, 0.3
# Parts of the time in which tasks arrive: nobody waits before.
MOMENTS = (0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 1.0)
WIDTH, HEIGHT, LEFT, TOP, SIDE = 760, 380, 60, 44, 280
BARS_LEFT, BARS_SHOWN = 420, 60
FONT = 'font-family="system-ui, sans-serif" font-size="13" fill="#333"'


def cases_of(moments: Sequence[float], runs: int) -> list[Case]:
    """Returns the forecasts of all moments."""
    workload = Source("examples/openb", speed=SPEED).read()
    changes = tuple(f"-{round(count * (1 - SHARE))}:{kind}" for kind, count in workload.kinds().items())
    last_s = workload.tasks[-1].arrives_s
    scenario = Scenario("as it is", workload.config, tuple(each for each in changes if not each.startswith("-0:")))
    return calibrate(workload, scenario, [last_s * part for part in moments], runs=runs)


def plot(cases: Sequence[Case]) -> str:
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


def _bars(cases: Sequence[Case]) -> list[str]:
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
    parser.add_argument("--write", type=Path, help="directory for what-if-when.svg")
    arguments = parser.parse_args()
    cases = cases_of(arguments.moments, arguments.runs)
    found = coverage(cases)
    known = sum(each.is_known for each in cases)
    told = {
        "forecasts": len(cases),
        "whole_ranges": known,
        **{f"in_{level}": round(found[level], 1) for level in LEVELS},
    }
    print(json.dumps(told), flush=True)
    if arguments.write is not None:
        (arguments.write / "what-if-when.svg").write_text(plot(cases), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
