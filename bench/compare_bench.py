"""Measures two revisions of Muster alternately, embedded, from socket to socket, and prints their ratios.

The revision to compare with gets a worktree under `.cache` and runs on the libraries that are installed here.

.venv/bin/python -m bench.compare_bench REVISION [--rounds 5] [--only front] [--json FILE]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from chaos.harness import embedded  # noqa: E402

from bench.results import put  # noqa: E402
from bench.scenarios_bench import machine  # noqa: E402
from bench.sockets import (  # noqa: E402
    SCENARIOS,
    System,
    build,
    console,
    measure,
    measured,
    median,
    muster,
    shown,
    spread,
)

# Figures of which more is better; of all others less is.
RATES = ("allocations_per_s", "releases_per_s")
WARNING_PERCENT = 10.0


def git(*arguments: str) -> str:
    """Run git in the project. Raise CalledProcessError."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


@contextmanager
def worktree(revision: str) -> Iterator[Path]:
    """A worktree of a revision, removed at the end."""
    place = ROOT / ".cache" / "compare"
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as directory:
        git("worktree", "add", "--quiet", "--detach", directory, revision)
        try:
            yield Path(directory)
        finally:
            git("worktree", "remove", "--force", directory)


def python_path(directory: Path) -> str:
    """Return the path of a revision's packages, which come before the installed ones."""
    return ":".join(str(each) for each in sorted(directory.glob("*/src")) + sorted(directory.glob("*/*/src")))


def system(directory: Path) -> System:
    """Embedded Muster of a revision, started as a module: the installed script is only for the present revision."""
    environment = {"PYTHONPATH": python_path(directory)}

    def started(place: Path) -> AbstractContextManager[tuple[str, dict[str, int]]]:
        deployment = embedded(place, environment)
        deployment.processes["up"].command[:1] = [sys.executable, "-m", "muster_cli"]
        return muster(deployment)

    return started


def table(result: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the figures as Markdown, and a sentence for each that is worse by more than WARNING_PERCENT."""
    lines = ["| scenario | figure | before | now | now / before |", "|---|---|---:|---:|---:|"]
    warnings = []
    for scenario, runs in result["runs"].items():
        for figure in runs["now"][0]:
            before, now = median(runs["before"], figure), median(runs["now"], figure)
            if before is None or now is None:
                continue
            ratio = now / before if before else 1.0
            cells = [
                f"{shown(value)} ({spread(runs[name], figure)})" for name, value in (("before", before), ("now", now))
            ]
            lines.append(f"| {scenario} | {figure} | {' | '.join(cells)} | {ratio:.2f} |")
            worse_percent = 100 * (1 - ratio if figure in RATES else ratio - 1)
            if worse_percent > WARNING_PERCENT:
                warnings.append(f"{scenario}: {figure} is worse by {worse_percent:.0f} %: {' -> '.join(cells)}")
    lines += ["", f"Medians of {result['rounds']} rounds, {result['revision']} before. {measured(result)}"]
    return "\n".join(lines), warnings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", help="what to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="scenarios whose names begin like this")
    parser.add_argument("--json", type=Path, help="where the result goes")
    options = parser.parse_args()
    scenarios = [each for each in SCENARIOS if each.name.startswith(options.only)]
    if not scenarios:
        parser.error(f"--only: {options.only!r}, expected the beginning of one of {[each.name for each in SCENARIOS]}")
    build("driver")
    result: dict[str, Any] = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "rounds": options.rounds,
        "revision": git("rev-parse", "--short", options.revision),
    }
    with worktree(options.revision) as before, tempfile.TemporaryDirectory(prefix="muster-compare-") as work:
        if (before / "requirements/muster.lock").read_text() != (ROOT / "requirements/muster.lock").read_text():
            console.print("the two revisions want different libraries: both run on those that are installed here")
        systems = {"before": system(before), "now": system(ROOT)}
        result["runs"] = measure(scenarios, systems, options.rounds, Path(work))
    made, warnings = table(result)
    print(made)
    for each in warnings:
        console.print(f"warning: {each}", highlight=False)
    if options.json is not None:
        put(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
