"""Draws docs/lifecycles.md from arrows.yaml and the scenarios.

``PYTHONPATH=tests .venv/bin/python -m scenario.lifecycles.draw`` does it anew.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable
from pathlib import Path

from scenario.lifecycles.runner import SCENARIO_FILES, Arrow, Drawing, Scenario, read_drawings, read_scenarios

DOC = Path(__file__).parents[3] / "docs" / "lifecycles.md"

_INTRODUCTION = """\
# Lifecycles

The life of a resource manager, of a node and of an allocation, as the two generations of the interface draw them (seed
000 is the current one, seed 001 the previous one), and what they say of them in words. The generations draw the first
two alike; the previous one draws an ask and its allocations apart. Each arrow is played by the scenarios that stand
beside it: a resource manager on stubs of its generation, through gateway, scheduler and view, on the embedded log and
on Kafka with Redis. What Muster makes of each step, with all its timers, is in [states.md](states.md).

This page is drawn from the table of arrows and the scenarios
([tests/scenario/lifecycles](../tests/scenario/lifecycles/README.md)); a test fails when an arrow has no scenario.
"""


def page() -> str:
    """The whole page."""
    played: dict[tuple[str, str], list[tuple[Scenario, str]]] = {}
    for path in SCENARIO_FILES:
        for scenario in read_scenarios(path):
            link = f"{os.path.relpath(path, DOC.parent)}#L{_line(path, scenario)}"
            played.setdefault((scenario.drawing, scenario.arrow), []).append((scenario, link))
    parts = [_INTRODUCTION]
    for drawing in read_drawings():
        about = f"{_generations(drawing.generations)}: {drawing.seed}."
        figure = f"```mermaid\n{_figure(drawing)}```\n\n" if drawing.drawn else ""
        rows = "".join(_row(number, arrow, played) for number, arrow in enumerate(drawing.arrows, start=1))
        parts.append(
            f"## {drawing.title}\n\n{about}\n\n{figure}"
            f"| | arrow | says | generation | scenarios |\n|---|---|---|---|---|\n{rows}"
        )
    return "\n".join(parts)


def _row(number: int, arrow: Arrow, played: dict[tuple[str, str], list[tuple[Scenario, str]]]) -> str:
    scenarios = "; ".join(
        f"[{scenario.name}]({link}){' (both at once)' if scenario.rms else ''}"
        for scenario, link in played.get((arrow.drawing, arrow.name), [])
    )
    name = arrow.name.replace("->", "→")
    return f"| {number} | {name} | {arrow.says} | {_generations(arrow.generations)} | {scenarios} |\n"


def _generations(names: Iterable[str]) -> str:
    return " and ".join(names)


def _figure(drawing: Drawing) -> str:
    """A state diagram: an arrow's number and what the seed has written at it."""
    lines = ["stateDiagram-v2", "    direction LR"]
    for number, arrow in enumerate(drawing.arrows, start=1):
        before, after = arrow.name.partition(" (")[0].split(" -> ")
        says = "" if arrow.says == "(no word)" else f" {arrow.says}"
        lines.append(f"    {'[*]' if before == 'new' else before} --> {after}: {number}{says}")
    return "\n".join(lines) + "\n"


def _line(path: Path, scenario: Scenario) -> int:
    """Where the scenario begins in its file; the first of both lines is the arrow's."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return lines.index(f"  name: {scenario.name}")


if __name__ == "__main__":
    DOC.write_text(page(), encoding="utf-8")
