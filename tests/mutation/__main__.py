"""``make mutate``: which mutants of the core and of the fold no test notices."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import as_source  # noqa: F401  (first)
import pytest
from mutation.equivalent import is_equivalent
from mutation.mutants import Mutant, chosen, modules_of, path_of
from mutation.outcome import LEFT, as_text, write
from mutation.running import MutationRun

PACKAGES = ("muster_core", "muster_state")
# What watches the core as a test does: nobody watches that.
LEFT_OUT = ("muster_core.invariants", "muster_core.external.external_invariants")
# Where all that decides is tested without servers; those that run none of a mutant's function are not played.
TESTS = (
    "tests/unit/core",
    "tests/unit/queue_config",
    "tests/unit/scheduler_service",
    "tests/scenario/core",
    "tests/scenario/test_core_answers.py",
    "tests/scenario/test_core_changed_allocations.py",
    "tests/scenario/test_core_previous_generation.py",
    "tests/scenario/test_core_queues.py",
    "tests/contract/test_state_topic.py",
    "tests/unit/view/test_following.py",
    "tests/simulation/test_simulation.py",
)


def changed_lines(base: str) -> dict[str, set[int]]:
    """The changed lines of each changed file since the last commit in common with ``base``, the work tree included."""
    common = _git("merge-base", base, "HEAD").strip()
    found: dict[str, set[int]] = {}
    file = ""
    for line in _git("diff", "--unified=0", "--no-color", common, "--", "libs").splitlines():
        if line.startswith("+++ "):
            file = line[4:].removeprefix("b/")
        elif line.startswith("@@"):
            begin, _, count = line.split("+")[1].split(" ")[0].partition(",")
            found.setdefault(file, set()).update(range(int(begin), int(begin) + int(count or 1)))
    return found


def drawn(mutants: Sequence[Mutant], seed: int, count: int) -> list[Mutant]:
    """A sample in the order in which it is tried: the first thousand of a larger one are those of a smaller one."""
    order = list(mutants)
    random.Random(seed).shuffle(order)
    return order[:count] if count else order


def of_changed(mutants: Sequence[Mutant], changed: dict[str, set[int]], seed: int) -> list[Mutant]:
    """Those of changed files: first those at changed lines, then the others, each in an order drawn by the seed."""
    of_files = drawn([each for each in mutants if path_of(each.module) in changed], seed, 0)
    return sorted(of_files, key=lambda each: each.line not in changed[path_of(each.module)])


def _git(*words: str) -> str:
    ran = subprocess.run(["git", *words], check=False, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"base: must be a commit that git knows, got: {ran.stderr.strip()}")
    return ran.stdout


def main(words: Sequence[str]) -> int:
    """0: every mutant was noticed; 1: some survived; 2: nothing could be said, as tests fail without a mutant."""
    parser = argparse.ArgumentParser(prog="make mutate", description=__doc__)
    parser.add_argument("--base", default="main", help="mutants of the files that changed since then (default: main)")
    parser.add_argument("--seed", type=int, help="a sample of all files' mutants instead, drawn by it")
    parser.add_argument("--count", type=int, default=0, help="how many of them (default: as many as there is time for)")
    parser.add_argument("--file", default="", help="only those of files whose path contains this")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tests-s", type=float, default=20.0, help="processor time of tests for one mutant")
    parser.add_argument("--json", type=Path, default=Path(".artefacts/mutation.json"))
    parser.add_argument(
        "--limit-s", type=float, default=5.0, help="processor time of a test beside that without a mutant"
    )
    parser.add_argument("--package", nargs="*", default=PACKAGES)
    parser.add_argument("--tests", nargs="*", default=TESTS)
    asked = parser.parse_args(words)

    until_s = time.monotonic() + 60 * asked.minutes
    modules = [name for package in asked.package for name in modules_of(package) if name not in LEFT_OUT]
    mutants = [
        each for each in chosen(name for name in modules if asked.file in path_of(name)) if not is_equivalent(each)
    ]
    sample = asked.seed is not None or asked.count or asked.file
    seed = asked.seed if asked.seed is not None else 1
    if sample:
        mutants = drawn(mutants, seed, asked.count)
    else:
        mutants = of_changed(mutants, changed_lines(asked.base), seed)[: asked.count or None]
    if not mutants:
        print(f"no file of {' or '.join(asked.package)} has changed since {asked.base}")
        return 0
    run = MutationRun(
        mutants, until_s, asked.jobs, asked.tests_s, asked.limit_s, say=lambda line: print(line, flush=True)
    )
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        # (Limits are of processor time: a busy machine kills no mutant.)
        options = ["-q", "-q", "-s", "--no-header", "--no-summary", "-p", "no:cacheprovider", "-o", "timeout=0"]
        status = pytest.main([*options, f"--basetemp={folder}/tests", *asked.tests], plugins=[run])
    if run.broken or not run.told:
        print(*(f"without a mutant: {each}" for each in run.broken), f"pytest ended with {status}", sep="\n")
        return 2
    chosen_by = {"seed": seed, "count": len(mutants)} | ({} if sample else {"base": asked.base})
    write(asked.json, run.told, **chosen_by)
    print(as_text(run.told), f"all of them: {asked.json}", sep="\n")
    return 1 if any(each.fate in LEFT for each in run.told) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
