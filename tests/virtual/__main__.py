"""``make simulate-whole SEED=17 HOURS=1``: plays a seed in virtual time. Ends with 1 if the auditor finds something."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from virtual.faults import CALM
from virtual.play import Played, play, stormy
from virtual.rare import missing
from virtual.shrink import shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate-whole", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first one (%(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after the other (%(default)s)")
    parser.add_argument("--hours", type=float, default=1.0, help="of virtual time, each (%(default)s)")
    parser.add_argument("--calm", action="store_true", help="no faults at all")
    parser.add_argument("--steady", action="store_true", help="no faults of single calls")
    parser.add_argument("--only", default="", help="these kinds of faults only, with commas")
    parser.add_argument("--log", type=Path, help="a file for the log of the run")
    parser.add_argument("--no-shrink", action="store_true", help="do not shorten a seed that fails")
    parser.add_argument("--all", action="store_true", help="fail if something that should happen never did")
    options = parser.parse_args()
    gc.disable()  # (What a run leaves is most of the process, and behind the last one the process ends.)
    counts, failed = Counter[str](), 0
    for seed in range(options.seed, options.seed + options.seeds):
        plan = stormy(seed, options.hours * 3600)
        if options.calm:
            plan = plan.without_faults()
        if options.steady:
            plan = replace(plan, rates=CALM)
        if options.only:
            plan = replace(plan, faults=tuple(each for each in plan.faults if each.kind in options.only.split(",")))
        began_s = time.process_time()
        played = play(plan)
        counts.update(played.counts)
        if options.log is not None:
            options.log.write_text("".join(f"{line}\n" for line in played.lines))
        took_s = time.process_time() - began_s
        end = f"{len(played.findings)} findings" if played.findings else "nothing is wrong"
        print(
            f"seed {seed}: {end}; {options.hours:g} h, {played.asks} asks, {played.events} events, "
            f"{played.turns} turns of the loop, {took_s:.1f} s of a core; digest {played.digest}",
            flush=True,
        )
        if played.findings:
            failed += 1
            _tell(played, options)
        del played
        if seed + 1 < options.seed + options.seeds:
            gc.collect()
    gc.freeze()
    for name, count in sorted(counts.items()):
        print(f"{count:>8}  {name}")
    never = missing(counts, options.hours * options.seeds) if options.all else []
    print("".join(f"{line}\n" for line in never), end="")
    return 1 if failed or never else 0


def _tell(played: Played, options: argparse.Namespace) -> None:
    print("\n".join(played.story()))
    if options.no_shrink:
        return
    shortest = shrink(played, lambda line: print(line, flush=True))
    if shortest is not played:
        print(f"\nshortest: {shortest.plan.seconds:.0f} s, {shortest.plan.asks} asks, with these faults:")
        print("\n".join(f"    {fault}" for fault in shortest.plan.faults))
        print("\n".join(shortest.story()))


if __name__ == "__main__":
    sys.exit(main())
