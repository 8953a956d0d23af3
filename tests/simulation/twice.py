"""Many lives from seeds, each lived twice under another PYTHONHASHSEED: the command line of a kind of lives."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from simulation import tally

HASH_SEEDS = ("1", "2")
# So many failures are told with their story; the rest by seed.
TOLD_MAX = 3
PROGRESS_EVERY = 100


@dataclass(frozen=True)
class Kind:
    """A kind of lives.

    :param name: of them; ``target``: of make.
    :param module: that lives them, with ``--lines``.
    :param live: lives one (seed, steps, tally); gives the digest of all that came out, and how it failed, or None.
    :param story: how a life (seed, steps) fails, as short as it can be told.
    :param missing: what never came up, of a tally; asked from ``seeds_for_all`` lives on.
    """

    name: str
    target: str
    module: str
    seeds: int
    steps: int
    live: Callable[[int, int, Counter[str]], tuple[str, Exception | None]]
    story: Callable[[int, int], str]
    missing: Callable[[Counter[str]], list[str]]
    seeds_for_all: int


@dataclass
class Lived:
    """What came of the lives under one hash seed: digests and failures by seed, and how often what came up."""

    digests: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    tally: Counter[str] = field(default_factory=Counter)
    whole: bool = False


def main(kind: Kind, arguments: list[str] | None = None) -> int:
    """Gives the exit status: 0 when every life was clean, twice the same, and everything came up."""
    parser = argparse.ArgumentParser(prog=kind.module, description=f"Random lives of {kind.name}, with an auditor.")
    parser.add_argument("--seed", type=int, help="this life only, once")
    parser.add_argument("--seeds", type=int, default=kind.seeds, help=f"how many lives (default {kind.seeds:,})")
    parser.add_argument("--first", type=int, default=0, help="the first life's seed")
    parser.add_argument("--steps", type=int, default=kind.steps, help=f"of each life (default {kind.steps})")
    parser.add_argument("--lines", action="store_true", help="live them here, and print a line of JSON for each")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _live_one(kind, options.seed, options.steps)
    seeds = range(options.first, options.first + options.seeds)
    if options.lines:
        _live_here(kind, seeds, options.steps)
        return 0
    return _live_twice(kind, seeds, options.steps)


class Life(Protocol):
    """One of them: it ends, or raises how it failed."""

    def live(self, steps: int) -> None: ...


def failure(life: Life, steps: int) -> Exception | None:
    """Lives it; gives how it failed."""
    try:
        life.live(steps)
    except Exception as error:
        return error
    return None


def lines_of(module: str, hash_seed: str, seeds: int, steps: int) -> subprocess.Popen[str]:
    """Lives the first ``seeds`` lives of a module under a hash seed; its output is a line of JSON for each."""
    return subprocess.Popen(
        [sys.executable, "-m", module, "--lines", "--seeds", str(seeds), "--steps", str(steps)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
        text=True,
    )


def in_words(error: Exception) -> str:
    """The failure, and where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.name}, {Path(where.filename).name})"


# ---- here ----------------------------------------------------------------------------------------------------------


def _live_one(kind: Kind, seed: int, steps: int) -> int:
    total: Counter[str] = Counter()
    digest, error = kind.live(seed, steps, total)
    if error is not None:
        print(kind.story(seed, steps))
        return 1
    print(tally.table(total))
    print(f"{kind.name}, seed {seed}: {steps} steps, digest {digest}: nothing failed")
    return 0


def _live_here(kind: Kind, seeds: range, steps: int) -> None:
    total: Counter[str] = Counter()
    for seed in seeds:
        digest, error = kind.live(seed, steps, total)
        failed = in_words(error) if error is not None else ""
        print(json.dumps({"seed": seed, "digest": digest, "failed": failed}), flush=True)
    print(json.dumps({"tally": total}), flush=True)


# ---- in two processes ----------------------------------------------------------------------------------------------


def _live_twice(kind: Kind, seeds: range, steps: int) -> int:
    begin = time.monotonic()
    lived = [Lived() for _ in HASH_SEEDS]
    command = [sys.executable, "-m", kind.module, "--lines", "--first", str(seeds.start)]
    command += ["--seeds", str(len(seeds)), "--steps", str(steps)]
    children, readers = [], []
    for hash_seed, each in zip(HASH_SEEDS, lived, strict=True):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        children.append(child)
        readers.append(threading.Thread(target=_read, args=(child, each, lived, len(seeds), begin), daemon=True))
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    statuses = [child.wait() for child in children]
    return _judge(kind, seeds, steps, lived, statuses, time.monotonic() - begin)


def _read(child: subprocess.Popen[str], into: Lived, lived: list[Lived], seeds: int, begin: float) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        said = json.loads(line)
        if "tally" in said:
            into.tally, into.whole = Counter(said["tally"]), True
            continue
        into.digests[said["seed"]] = said["digest"]
        if said["failed"]:
            into.failed[said["seed"]] = said["failed"]
        if len(into.digests) % PROGRESS_EVERY == 0 and into is min(lived, key=lambda each: len(each.digests)):
            seconds = time.monotonic() - begin
            left = seconds / len(into.digests) * (seeds - len(into.digests))
            counts = f"{len(into.digests):,} of {seeds:,} lives twice, {len(into.failed)} failed"
            print(f"{counts}, {seconds:.0f} s, {left:.0f} s to go", file=sys.stderr, flush=True)


def _judge(kind: Kind, seeds: range, steps: int, lived: list[Lived], statuses: list[int], seconds: float) -> int:
    first, *others = lived
    for number, seed in enumerate(sorted(first.failed)):
        print(
            kind.story(seed, steps) if number < TOLD_MAX else f"{kind.name}, seed {seed} failed: {first.failed[seed]}"
        )
    differing = [seed for seed in seeds if any(each.digests.get(seed) != first.digests.get(seed) for each in others)]
    for seed in differing[:TOLD_MAX]:
        print(f"seed {seed}: decided otherwise under another PYTHONHASHSEED")
    print(tally.table(first.tally))
    lacking = kind.missing(first.tally) if len(seeds) >= kind.seeds_for_all else []
    for what in lacking:
        print(f"never came up: {what}")
    whole = all(each.whole and len(each.digests) == len(seeds) for each in lived) and not any(statuses)
    print(
        f"{kind.name}: {len(first.digests):,} lives of {steps} steps, twice, in {seconds:.0f} s, "
        f"{first.tally['allocations']:,} allocations: {len(first.failed)} failed, {len(differing)} not the same"
        + (f"; {len(lacking)} kinds never came up" if lacking else "")
        + ("" if whole else "; a process ended early")
    )
    return 1 if first.failed or differing or lacking or not whole else 0
