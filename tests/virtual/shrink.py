"""Shortens a plan that fails: fewer faults, fewer RMs, less time, as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from virtual.faults import CALM
from virtual.play import Plan, Played, play


def shrink(
    failed: Played,
    tell: Callable[[str], None] = lambda _: None,
    again: Callable[[Plan], Played] = play,
    tries: int = 60,
) -> Played:
    """Returns the shortest run that was found to break the same law.

    :param tries: limit of the runs.
    """
    laws = {each.law for each in failed.findings}
    best = failed

    def fails(plan: Plan) -> bool:
        nonlocal best, tries
        if tries <= 0:
            return False
        tries -= 1
        played = again(plan)
        if laws & {each.law for each in played.findings}:
            best = played
            tell(f"still: {plan.seconds:.0f} s, {len(plan.faults)} faults, {plan.asks} asks")
            return True
        return False

    # 1. time: nothing after the first finding
    plan = best.plan
    for share in (0.1, 0.25, 0.5, 0.75):
        seconds = plan.seconds * share
        kept = tuple(each for each in plan.faults if each.at_s < seconds - 10.0)
        if fails(replace(plan, seconds=seconds, faults=kept, asks=max(1, round(plan.asks * share)))):
            break
    # 2. the faults of single calls
    fails(replace(best.plan, rates=CALM))
    # 3. the others, in pieces that get smaller
    size = max(1, len(best.plan.faults) // 2)
    while size and tries > 0:
        at = 0
        while at < len(best.plan.faults):
            faults = best.plan.faults
            if not fails(replace(best.plan, faults=faults[:at] + faults[at + size :])):
                at += size
        size //= 2
    return best
