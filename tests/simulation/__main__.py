"""Many random lives, in two processes; ``make simulate``, ``make simulate-gangs`` …: see README.md."""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from simulation import stories, tally
from simulation.stories import KINDS, Kind

HASH_SEEDS = ("1", "2")
# So many failures are told with their story; the rest by seed.
TOLD_MAX = 3
PROGRESS_EVERY = 100


@dataclass
class Lived:
    """The results of one process: digests and failures by seed, and counts of situations."""

    seeds: range
    digests: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    tally: Counter[str] = field(default_factory=Counter)
    whole: bool = False


def main(arguments: list[str] | None = None) -> int:
    """Gives the exit status: 0 when every life was clean, the same under two hash seeds, and everything came up."""
    parser = argparse.ArgumentParser(prog="simulation", description="Random lives of a cluster, with an auditor.")
    parser.add_argument("--with", dest="features", default="", help=f"what is switched on: {', '.join(KINDS)[2:]}")
    parser.add_argument("--seed", type=int, help="this life only, here")
    parser.add_argument("--seeds", type=int, help="how many lives")
    parser.add_argument("--first", type=int, default=0, help="the first life's seed")
    parser.add_argument("--steps", type=int, help="of each life")
    parser.add_argument("--lines", action="store_true", help="live them here, and print a line of JSON for each")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    kind = KINDS[options.features]
    steps = options.steps or kind.steps
    if options.seed is not None:
        return _live_one(kind, options.seed, steps)
    seeds = range(options.first, options.first + (options.seeds or kind.seeds))
    if options.lines:
        _live_here(kind, seeds, steps)
        return 0
    return _live_all(kind, seeds, steps)


def _live_one(kind: Kind, seed: int, steps: int) -> int:
    total: Counter[str] = Counter()
    digest, error = stories.live(kind, seed, steps, total)
    if error is not None:
        print(stories.story(kind, seed, steps))
        return 1
    print(tally.table(total))
    print(f"{kind.name}, seed {seed}: {steps} steps, digest {digest}: nothing failed")
    return 0


def _live_here(kind: Kind, seeds: range, steps: int) -> None:
    total: Counter[str] = Counter()
    for seed in seeds:
        digest, error = stories.live(kind, seed, steps, total)
        failed = stories.in_words(error) if error is not None else ""
        print(json.dumps({"seed": seed, "digest": digest, "failed": failed}), flush=True)
    print(json.dumps({"tally": total}), flush=True)


# ---- in two processes ----------------------------------------------------------------------------------------------


def lines_of(kind: Kind, hash_seed: str, seeds: range, steps: int) -> subprocess.Popen[str]:
    """Runs the lives in a process with this hash seed. It prints one line of JSON for each life."""
    command = [sys.executable, "-m", "simulation", "--lines", "--with", kind.features, "--first", str(seeds.start)]
    return subprocess.Popen(
        [*command, "--seeds", str(len(seeds)), "--steps", str(steps)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
        text=True,
    )


def _live_all(kind: Kind, seeds: range, steps: int) -> int:
    """Each life twice, under one hash seed and the other; or half of them under each."""
    begin = time.monotonic()
    middle = seeds.start + (len(seeds) + 1) // 2
    parts = [seeds, seeds] if kind.twice else [range(seeds.start, middle), range(middle, seeds.stop)]
    lived = [Lived(part) for part in parts]
    children, readers = [], []
    for hash_seed, each in zip(HASH_SEEDS, lived, strict=True):
        children.append(child := lines_of(kind, hash_seed, each.seeds, steps))
        readers.append(threading.Thread(target=_read, args=(child, each, lived, begin), daemon=True))
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    statuses = [child.wait() for child in children]
    return _judge(kind, steps, lived, statuses, time.monotonic() - begin)


def _read(child: subprocess.Popen[str], into: Lived, lived: list[Lived], begin: float) -> None:
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
            left = seconds / len(into.digests) * (len(into.seeds) - len(into.digests))
            counts = f"{len(into.digests):,} of {len(into.seeds):,} lives in each process, {len(into.failed)} failed"
            print(f"{counts}, {seconds:.0f} s, {left:.0f} s to go", file=sys.stderr, flush=True)


def _judge(kind: Kind, steps: int, lived: Sequence[Lived], statuses: list[int], seconds: float) -> int:
    first, second = lived
    failed = first.failed if kind.twice else {**first.failed, **second.failed}
    counted = first.tally if kind.twice else first.tally + second.tally
    lives = len(first.digests.keys() | second.digests.keys())
    for number, seed in enumerate(sorted(failed)):
        short = f"{kind.name}, seed {seed} failed: {failed[seed]}"
        print(stories.story(kind, seed, steps) if number < TOLD_MAX else short)
    differing = [seed for seed in first.seeds if kind.twice and first.digests.get(seed) != second.digests.get(seed)]
    for seed in differing[:TOLD_MAX]:
        print(f"seed {seed}: decided otherwise under another PYTHONHASHSEED")
    print(tally.table(counted))
    lacking = tally.missing(kind.features, counted) if lives >= kind.seeds_for_all else []
    for what in lacking:
        print(f"never came up: {what}")
    whole = all(each.whole and len(each.digests) == len(each.seeds) for each in lived) and not any(statuses)
    print(
        f"{kind.name}: {lives:,} lives of {steps} steps{', twice,' if kind.twice else ''} in {seconds:.0f} s, "
        f"{counted['allocations']:,} allocations: {len(failed)} failed, {len(differing)} not the same"
        + (f"; {len(lacking)} kinds never came up" if lacking else "")
        + ("" if whole else "; a process ended early")
    )
    return 1 if failed or differing or lacking or not whole else 0


if __name__ == "__main__":
    sys.exit(main())
