"""Many random lives, in two processes; ``make simulate``. See README.md."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from simulation import shrink, tally, words
from simulation.life import Life

SEEDS, STEPS, JOBS = 5_000, 60, 2
# Lives that one process takes at a time.
CHUNK = 10
# So many failures are told whole; the rest by seed.
TOLD_MAX = 3


@dataclass
class Lived:
    """What came of some lives: the tally, and the story of each that failed by its seed."""

    seeds: int
    tally: Counter[str] = field(default_factory=Counter)
    failed: dict[int, tuple[str, str]] = field(default_factory=dict)


def main(arguments: list[str] | None = None) -> int:
    """Gives the exit status: 0 when every life was clean and every feature came up."""
    parser = argparse.ArgumentParser(prog="simulation", description="Random lives of a cluster, with an auditor.")
    parser.add_argument("--seed", type=int, help="this life only")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many lives (default {SEEDS:,})")
    parser.add_argument("--first", type=int, default=0, help="the first life's seed")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of each life (default {STEPS})")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"processes (default {JOBS})")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        options.first, options.seeds, options.jobs = options.seed, 1, 1
    begin = time.monotonic()
    total = Lived(0)
    for lived in _chunks(options.first, options.seeds, options.steps, options.jobs):
        total.seeds += lived.seeds
        total.tally.update(lived.tally)
        for seed, story in sorted(lived.failed.items()):
            total.failed[seed] = story
            _tell(seed, options.steps, story, whole=len(total.failed) <= TOLD_MAX)
        _progress(total, options.seeds, begin)
    print(tally.table(total.tally))
    lacking = tally.missing(total.tally) if options.seeds >= tally.SEEDS_FOR_ALL else []
    for kind in lacking:
        print(f"never came up: {kind}")
    seconds = time.monotonic() - begin
    print(
        f"{total.seeds:,} lives of {options.steps} steps in {seconds:.0f} s, "
        f"{total.tally['allocations']:,} allocations: {len(total.failed)} failed"
        + (f"; {len(lacking)} kinds never came up" if lacking else "")
    )
    return 1 if total.failed or lacking else 0


def _chunks(first: int, seeds: int, steps: int, jobs: int) -> Iterator[Lived]:
    chunks = [range(at, min(at + CHUNK, first + seeds)) for at in range(first, first + seeds, CHUNK)]
    if jobs == 1:
        yield from (live(chunk, steps) for chunk in chunks)
        return
    with ProcessPoolExecutor(jobs) as pool:
        waiting: set[Future[Lived]] = {pool.submit(live, chunk, steps) for chunk in chunks}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def live(seeds: range, steps: int) -> Lived:
    """Lives of these seeds. A failed one is made short, and told."""
    lived = Lived(len(seeds))
    for seed in seeds:
        life = Life(seed, lived.tally)
        document = json.loads(json.dumps(life.run.document))
        try:
            life.live(steps)
        except Exception as error:
            short, found = shrink.shrunken(document, life.run.steps, error)
            lived.failed[seed] = (f"{type(error).__name__}: {error}", f"{words.told(document, short)}\n{found}")
    return lived


def _tell(seed: int, steps: int, story: tuple[str, str], *, whole: bool) -> None:
    print(f"\nseed {seed} failed: {story[0]}")
    if whole:
        print(f"the shortest life found that fails so:\n{story[1]}")
    print(f"again: make simulate SEED={seed} STEPS={steps}\n")


def _progress(total: Lived, seeds: int, begin: float) -> None:
    seconds = time.monotonic() - begin
    left = seconds / max(total.seeds, 1) * (seeds - total.seeds)
    line = f"{total.seeds:,} of {seeds:,} lives, {len(total.failed)} failed, {seconds:.0f} s, {left:.0f} s to go"
    if sys.stderr.isatty():
        print(f"\r{line}    ", end="\n" if total.seeds >= seeds else "", file=sys.stderr, flush=True)
    elif total.seeds % (10 * CHUNK) < CHUNK or total.seeds >= seeds:
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
