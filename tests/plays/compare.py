"""Plays one play on both systems and compares, step by step, what the resource manager hears."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from plays.differences import RULES, Difference, Item, Scene
from plays.play import ALLOCATIONS, APPLICATIONS, CONFIRM, ELAPSE, ROUNDS, Play, Step, confirm
from plays.systems import Musters, Outcome, System, musters, yunikorn

STOPPED = "STOPPED_BY_RM"
# The row of what has several right answers, and how often the core may give another one.
TIES = "ties in all orders"
REPEATS = 5
MOST = 1_000  # steps


class Comparison(NamedTuple):
    """What a comparison found.

    :ivar admitted: the rules that admitted differences.
    :ivar failed: differences that no rule admits, all of one step.
    :ivar compared: the number of compared steps.
    """

    admitted: frozenset[str]
    failed: tuple[Difference, ...]
    compared: int
    registered: bool = True
    allocated: int = 0

    @property
    def differing(self) -> frozenset[tuple[str, Item]]:
        """What one system alone said, in whatever step."""
        return frozenset((each.only, each.item) for each in self.failed)


@dataclass
class Side:
    """One of the systems, and what the resource manager knows from it.

    :ivar runs: the node of each allocation, by key.
    :ivar asked: (application, termination type) of each release that is to be confirmed, by key.
    """

    system: System
    runs: dict[str, str] = field(default_factory=dict)
    asked: dict[str, tuple[str, str]] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)

    async def begin(self, play: Play) -> Outcome:
        return await self.system.begin(play)

    async def take(self, play: Play, number: int) -> Counter[Item]:
        step = play.steps[number]
        found: Counter[Item] = Counter()
        if step.kind == ELAPSE:
            for _ in range(ROUNDS):
                # (What one system preempts for in two rounds, the other may in one: rounds are not compared.)
                news = await self._items_of(play, step) + await self._items_of(play, confirm())
                # (Only Muster's clock goes as far as the end of the completing time-out.)
                news = Counter({item: count for item, count in news.items() if item.value != "Completed"})
                found += news
                if not news:
                    break
        else:
            found += await self._items_of(play, step)
        # (Once in a play: a look takes longer than a step.)
        if number == play.last_application:
            found.update(Item("queue", name, queue) for name, queue in (await self.system.queues()).items())
        return found

    async def _items_of(self, play: Play, step: Step) -> Counter[Item]:
        message = self._confirmation() if step.kind == CONFIRM else step.message
        return self._items(await self.system.take(play, step, message))

    def _confirmation(self) -> Mapping[str, Any]:
        items = []
        for key, (app, how) in sorted(self.asked.items()):
            self.runs.pop(key, None)
            item = {"partitionName": "default", "applicationID": app, "allocationKey": key, "terminationType": how}
            items.append(item)
        self.asked.clear()
        return {"releases": {"allocationsToRelease": items}}

    def _items(self, outcome: Outcome) -> Counter[Item]:
        found: Counter[Item] = Counter()
        if outcome.error:
            found[Item("error", outcome.error)] += 1
        before = dict(self.states)
        for method, (kind, item) in outcome.heard:
            if method == APPLICATIONS:
                name = item["applicationID"]
                if kind == "updated":
                    self.states[name] = item["state"]
                else:
                    self.states.pop(name, None)
                    before.pop(name, None)
                    found[Item(f"application {kind}", name)] += 1
            elif method == ALLOCATIONS:
                self._allocation(kind, item, found)
            else:
                found[Item(f"node {kind}", item["nodeID"])] += 1
        for name, state in self.states.items():
            if before.get(name) != state:
                found[Item("state", name, state)] += 1
        return found

    def _allocation(self, kind: str, item: Mapping[str, Any], found: Counter[Item]) -> None:
        key = item["allocationKey"]
        shown = name_of(key)
        if kind == "new":
            self.runs[key] = item["nodeID"]
            found[Item("allocated", shown, item["nodeID"])] += 1
        elif kind == "released":
            how = item["terminationType"]
            if how == STOPPED:
                self.runs.pop(key, None)
                self.asked.pop(key, None)
            else:
                self.asked[key] = (item["applicationID"], how)
            found[Item("released", shown, how)] += 1
        else:
            found[Item("rejected", shown)] += 1


def name_of(key: str) -> str:
    """An allocation's name for the comparison: placeholders of one task group are alike."""
    return re.sub(r"-p\d+$", "-p", key)


class Recorded:
    """A side whose answers to the first steps are known: to steps that it knows, it gives them again."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self.found: list[Counter[Item]] = []

    async def begin(self, play: Play) -> Outcome:
        return Outcome() if self.found else await self._side.begin(play)

    async def take(self, play: Play, number: int) -> Counter[Item]:
        if number == len(self.found):
            self.found.append(await self._side.take(play, number))
        return self.found[number]


class Stage:
    """Both systems, for many plays."""

    def __init__(self, own: Musters) -> None:
        self._own = own

    async def compare(self, play: Play) -> Comparison:
        """Plays it on both, until a step differs in a way that no rule admits, or that makes the rest incomparable.

        What YuniKorn decides in several ways, by the order of Go's maps, is no difference if one of them is Muster's.
        """
        async with self._own.manager() as manager:
            own = Recorded(Side(manager))
            with yunikorn() as core:
                found = await _compare(play, Side(core), own)
            for _ in range(REPEATS if found.failed and found.registered else 0):
                with yunikorn() as core:
                    again = await _compare(play, Side(core), own, len(own.found))
                if not again.failed:
                    return again._replace(admitted=again.admitted | {TIES})
        return found

    async def shortest(self, play: Play) -> Play:
        """The play without the steps and items that its differences do not need."""
        wanted = (await self.compare(play)).differing

        async def fails(tried: Play) -> bool:
            return (await self.compare(tried)).differing == wanted

        return await shortened(play, fails)


async def _compare(play: Play, core: Side, own: Recorded, most: int = MOST) -> Comparison:
    refusals = [bool((await side.begin(play)).error) for side in (core, own)]
    if any(refusals):
        who = "YuniKorn" if refusals[0] else "Muster"
        failed = () if all(refusals) else (Difference(-1, who, Item("configuration refused", "")),)
        return Comparison(frozenset(), failed, 0, registered=False)
    admitted: set[str] = set()
    for number, step in enumerate(play.steps[:most]):
        runs = {name_of(key): where for key, where in core.runs.items()}
        replacing = frozenset(app for app, how in core.asked.values() if how == "PLACEHOLDER_REPLACED")
        scene = Scene(play, number, step, runs, replacing)
        theirs, ours = await core.take(play, number), await own.take(play, number)
        differences = [Difference(number, "YuniKorn", item) for item in sorted((theirs - ours).elements())]
        differences += [Difference(number, "Muster", item) for item in sorted((ours - theirs).elements())]
        ends, failed = False, []
        for each in differences:
            rule = next((rule for rule in RULES if rule.admits(scene, each, differences)), None)
            if rule is None:
                failed.append(each)
            else:
                admitted.add(rule.row)
                ends = ends or rule.ends
        if ends or failed:
            return Comparison(frozenset(admitted), tuple(failed), number + 1, allocated=len(core.runs))
    return Comparison(frozenset(admitted), (), len(play.steps), allocated=len(core.runs))


async def shortened(play: Play, fails: Callable[[Play], Awaitable[bool]]) -> Play:
    """Leaves out steps, then items, as long as the play still fails."""
    best = play
    for size in (8, 4, 2, 1):
        at = len(best.steps) - size
        while at >= 0:
            tried = best.with_steps(best.steps[:at] + best.steps[at + size :])
            if await fails(tried):
                best = tried
            at -= size
    for at in range(len(best.steps) - 1, -1, -1):
        place = 0
        while (smaller := _without_item(best.steps[at], place)) is not None:
            tried = best.with_steps((*best.steps[:at], smaller, *best.steps[at + 1 :]))
            if await fails(tried):
                best = tried
            else:
                place += 1
    return best


def _without_item(step: Step, place: int) -> Step | None:
    """The step without one of its items; None: it has not so many, or no other."""
    for name in ("nodes", "new", "remove", "allocations"):
        items = step.message.get(name, [])
        if items:
            if place >= len(items) or len(items) == 1:
                return None
            return Step(step.kind, {name: items[:place] + items[place + 1 :]})
    return None


@asynccontextmanager
async def stage(directory: Path) -> AsyncIterator[Stage]:
    async with musters(directory) as own:
        yield Stage(own)
