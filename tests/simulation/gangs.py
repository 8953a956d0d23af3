"""Many lives with gangs, each lived twice under another PYTHONHASHSEED; ``make simulate-gangs``. See README.md."""

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
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from simulation import gangs_tally, shrink, tally, words
from simulation.gangs_life import BEGIN_NS, GangLife, play

SEEDS, STEPS = 2_000, 300
HASH_SEEDS = ("1", "2")
# So many failures are told with their story, of which the last lines; the rest by seed.
TOLD_MAX, LINES_MAX = 3, 40
SHRINKING_S = 60.0
PROGRESS_EVERY = 100


@dataclass
class Lived:
    """What came of the lives under one hash seed: digests and failures by seed, and how often what came up."""

    digests: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    tally: Counter[str] = field(default_factory=Counter)
    whole: bool = False


def main(arguments: list[str] | None = None) -> int:
    """Gives the exit status: 0 when every life was clean, twice the same, and everything came up."""
    parser = argparse.ArgumentParser(prog="simulation.gangs", description="Random lives of gangs, with an auditor.")
    parser.add_argument("--seed", type=int, help="this life only, once")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many lives (default {SEEDS:,})")
    parser.add_argument("--first", type=int, default=0, help="the first life's seed")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of each life (default {STEPS})")
    parser.add_argument("--lines", action="store_true", help="live them here, and print a line of JSON for each")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _live_one(options.seed, options.steps)
    seeds = range(options.first, options.first + options.seeds)
    if options.lines:
        _live_here(seeds, options.steps)
        return 0
    return _live_twice(seeds, options.steps)


# ---- here ----------------------------------------------------------------------------------------------------------


def _live_one(seed: int, steps: int) -> int:
    life = GangLife(seed)
    error = failure(life, steps)
    if error is not None:
        print(story(seed, steps))
        return 1
    print(tally.table(life.run.tally))
    print(f"gangs, seed {seed}: {steps} steps, digest {life.run.digest.hexdigest()}: nothing failed")
    return 0


def failure(life: GangLife, steps: int) -> Exception | None:
    """Lives it; gives how it failed."""
    try:
        life.live(steps)
    except Exception as error:
        return error
    return None


def story(seed: int, steps: int, shrinking_s: float = SHRINKING_S) -> str:
    """How a life fails, as short as it can be told; and what it heard and said last."""
    life = GangLife(seed)
    life.run.story = []
    error = failure(life, steps)
    if error is None:
        return f"gangs, seed {seed}: nothing failed"
    lines = [f"gangs, seed {seed} failed in step {len(life.run.steps)}: {in_words(error)}", "the end of its story:"]
    lines += life.run.story[-LINES_MAX:]
    if shrink.what_failed(error) != "end":  # else whatever is left out is left undone
        # (Looked at after each step it fails earlier; now and then it fails otherwise.)
        failed = play(life.run.document, life.run.steps, often=True)[1]
        alike = failed is not None and shrink.what_failed(failed) == shrink.what_failed(error)
        again = partial(play, often=alike)
        short, found = shrink.shrunken(life.run.document, life.run.steps, error, shrinking_s, again)
        lines += ["the shortest life found that fails so:", words.told(life.run.document, short, BEGIN_NS), str(found)]
    lines.append(f"again: make simulate-gangs SEED={seed} STEPS={steps}\n")
    return "\n".join(lines)


def in_words(error: Exception) -> str:
    """The failure, and where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.name}, {Path(where.filename).name})"


def _live_here(seeds: range, steps: int) -> None:
    total: Counter[str] = Counter()
    for seed in seeds:
        life = GangLife(seed, total)
        error = failure(life, steps)
        failed = in_words(error) if error is not None else ""
        print(json.dumps({"seed": seed, "digest": life.run.digest.hexdigest(), "failed": failed}), flush=True)
    print(json.dumps({"tally": total}), flush=True)


# ---- in two processes ----------------------------------------------------------------------------------------------


def _live_twice(seeds: range, steps: int) -> int:
    begin = time.monotonic()
    lived = [Lived() for _ in HASH_SEEDS]
    command = [sys.executable, "-m", "simulation.gangs", "--lines", "--first", str(seeds.start)]
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
    return _judge(seeds, steps, lived, statuses, time.monotonic() - begin)


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


def _judge(seeds: range, steps: int, lived: list[Lived], statuses: list[int], seconds: float) -> int:
    first, *others = lived
    for number, seed in enumerate(sorted(first.failed)):
        print(story(seed, steps) if number < TOLD_MAX else f"gangs, seed {seed} failed: {first.failed[seed]}")
    differing = [seed for seed in seeds if any(each.digests.get(seed) != first.digests.get(seed) for each in others)]
    for seed in differing[:TOLD_MAX]:
        print(f"seed {seed}: decided otherwise under another PYTHONHASHSEED")
    print(tally.table(first.tally))
    lacking = gangs_tally.missing(first.tally) if len(seeds) >= gangs_tally.SEEDS_FOR_ALL else []
    for kind in lacking:
        print(f"never came up: {kind}")
    whole = all(each.whole and len(each.digests) == len(seeds) for each in lived) and not any(statuses)
    print(
        f"gangs: {len(first.digests):,} lives of {steps} steps, twice, in {seconds:.0f} s, "
        f"{first.tally['allocations']:,} allocations: {len(first.failed)} failed, {len(differing)} not the same"
        + (f"; {len(lacking)} kinds never came up" if lacking else "")
        + ("" if whole else "; a process ended early")
    )
    return 1 if first.failed or differing or lacking or not whole else 0


if __name__ == "__main__":
    sys.exit(main())
