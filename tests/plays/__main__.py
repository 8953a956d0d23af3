"""Plays random plays on YuniKorn's core and on Muster, and says where they differ.

PYTHONPATH=tests .venv/bin/python -m plays [--seeds 1000] [--first 1] [--seed 17] [--kind gangs]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from plays.compare import Comparison, Stage, stage
from plays.kinds import KINDS, play_of
from plays.play import Play
from plays.systems import player


async def told(at: Stage, play: Play, found: Comparison, command: str, *, shorten: bool) -> str:
    """A failed play for a reader, in its shortest form."""
    shortest = await at.shortest(play) if shorten else play
    failed = (await at.compare(shortest)).failed or found.failed
    lines = [shortest.words(), *(f"  {each}" for each in failed)]
    return "\n".join([*lines, f"repeat: {command}"])


def repeat(seed: int, kind: str = "") -> str:
    return f"make compare-plays SEED={seed}" + (f" KIND={kind}" if kind else "")


async def run(seeds: range, kind: str, directory: Path, *, shorten: bool) -> int:
    rows: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    failed: list[int] = []
    began_s = time.monotonic()
    async with stage(directory) as at:
        for seed in seeds:
            play = play_of(seed, kind)
            found = await at.compare(play)
            rows.update(found.admitted)
            counts[play.kind] += 1
            counts["refused configurations"] += not found.registered
            counts["steps"] += found.compared
            counts["allocations at the end"] += found.allocated
            if found.failed:
                failed.append(seed)
                sys.stdout.write(await told(at, play, found, repeat(seed, kind), shorten=shorten) + "\n\n")
                sys.stdout.flush()
    sys.stdout.write(f"{len(seeds)} plays in {time.monotonic() - began_s:.0f} s: {dict(counts)}\n")
    for row, number in sorted(rows.items()):
        sys.stdout.write(f"admitted in {number} plays: {row}\n")
    sys.stdout.write(f"{len(failed)} plays differ: {' '.join(map(str, failed))}\n")
    return bool(failed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="plays", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100, help="how many plays")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seed", type=int, help="only this play")
    parser.add_argument("--kind", choices=tuple(KINDS), default="", help="only this kind; they take turns otherwise")
    parser.add_argument("--whole", action="store_true", help="failed plays are not shortened")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    player()
    with tempfile.TemporaryDirectory(prefix="muster-plays-") as directory:
        return asyncio.run(run(seeds, options.kind, Path(directory), shorten=not options.whole))


if __name__ == "__main__":
    sys.exit(main())
