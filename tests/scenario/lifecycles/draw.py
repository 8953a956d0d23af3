"""Draws docs/lifecycles.md from arrows.yaml and the scenarios.

``PYTHONPATH=tests .venv/bin/python -m scenario.lifecycles.draw`` draws it again.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable
from pathlib import Path

from scenario.lifecycles.runner import SCENARIO_FILES, Arrow, Drawing, Scenario, read_drawings, read_scenarios

DOC = Path(__file__).parents[3] / "docs" / "lifecycles.md"

_INTRODUCTION = """\
# Lifecycles

This page has the lifecycles of resource managers, nodes and allocations as the scheduler interface draws them, in its
current and its previous generation. It also has the transitions that the interface describes only in its text. Both
generations draw resource managers and nodes alike; the previous one draws an ask and its allocations as two lifecycles.
The scenarios beside an arrow test it: a resource manager with stubs of its generation uses gateway, scheduler and view,
on the embedded log, and some on Kafka with Redis. [states.md](states.md) has Muster's own states and all timers.

The page is generated from the table of arrows and the scenarios
([tests/scenario/lifecycles](../tests/scenario/lifecycles/README.md)). A test fails if an arrow has no scenario.
"""


def page() -> str:
    played: dict[tuple[str, str], list[tuple[Scenario, str]]] = {}
    for path in SCENARIO_FILES:
        for scenario in read_scenarios(path):
            link = f"{os.path.relpath(path, DOC.parent)}#L{_line(path, scenario)}"
            played.setdefault((scenario.drawing, scenario.arrow), []).append((scenario, link))
    parts = [_INTRODUCTION]
    for drawing in read_drawings():
        about = f"Generation: {_generations(drawing.generations)}. Source in the scheduler interface: {drawing.seed}."
        figure = f"```mermaid\n{_figure(drawing)}```\n\n" if drawing.drawn else ""
        rows = "".join(_row(number, arrow, played) for number, arrow in enumerate(drawing.arrows, start=1))
        parts.append(
            f"## {drawing.title}\n\n{about}\n\n{figure}"
            f"| | arrow | label or text | generation | scenarios |\n|---|---|---|---|---|\n{rows}"
        )
    return "\n".join(parts)


def _row(number: int, arrow: Arrow, played: dict[tuple[str, str], list[tuple[Scenario, str]]]) -> str:
    scenarios = "; ".join(
        f"[{scenario.name}]({link}){' (both generations at once)' if scenario.rms else ''}"
        for scenario, link in played.get((arrow.drawing, arrow.name), [])
    )
    name = arrow.name.replace("->", "→")
    return f"| {number} | {name} | {arrow.says} | {_generations(arrow.generations)} | {scenarios} |\n"


def _generations(names: Iterable[str]) -> str:
    return " and ".join(names)


def _figure(drawing: Drawing) -> str:
    """A state diagram: an arrow's number and its label in the interface."""
    lines = ["stateDiagram-v2", "    direction LR"]
    for number, arrow in enumerate(drawing.arrows, start=1):
        before, after = arrow.name.partition(" (")[0].split(" -> ")
        says = "" if arrow.says == "(no word)" else f" {arrow.says}"
        lines.append(f"    {'[*]' if before == 'new' else before} --> {after}: {number}{says}")
    return "\n".join(lines) + "\n"


def _line(path: Path, scenario: Scenario) -> int:
    """The line of the scenario in its file: its arrow's, right above its name."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return lines.index(f"  name: {scenario.name}")


if __name__ == "__main__":
    DOC.write_text(page(), encoding="utf-8")
