"""The use of users, decayed, the slow way: in floats, step by step, for all leaves whose order it is."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from simulation.books import BookedApp, BookedQueue, seconds_ns

if TYPE_CHECKING:
    from simulation.partition_books import Books

# Two uses that differ by less may come in either order: the core counts time in steps of a millionth of a half-life.
NEARLY = 1e-3
# The core's horizon: the end of the next eighth of a half-life.
PERIODS = 8


def decays(queue: BookedQueue) -> bool:
    return queue.leaf and queue.properties.get("application.sort.policy") == "fairshare"


def half_life_ns(queue: BookedQueue) -> int:
    return seconds_ns(queue.properties.get("application.sort.halflife", f"{24 * 3600}s"))


class Decayed:
    """Amount x seconds by leaf and user, and by type, of one partition."""

    def __init__(self) -> None:
        self.uses: dict[tuple[str, str], dict[str, float]] = {}
        self._now_ns = 0

    def pass_time(self, books: Books, now_ns: int) -> None:
        """Counts what is held now for the time since the last call."""
        seconds, self._now_ns = (now_ns - self._now_ns) / 1e9, now_ns
        held = held_by_users(books)
        uses: dict[tuple[str, str], dict[str, float]] = {}
        for place in dict.fromkeys([*self.uses, *held]):
            queue = books.queues.get(place[0])
            if queue is not None and decays(queue):
                uses[place] = later(self.uses.get(place, {}), held.get(place, Counter()), half_life_ns(queue), seconds)
        self.uses = uses

    def share(self, books: Books, app: BookedApp, capacity: Counter[str]) -> float:
        """The largest share of a type that the user of the application has at the horizon."""
        queue = books.queues[app.queue]
        half_ns = half_life_ns(queue)
        period_ns = half_ns // PERIODS
        seconds = ((self._now_ns // period_ns + 2) * period_ns - self._now_ns) / 1e9
        place = (app.queue, app.user)
        held = held_by_users(books).get(place, Counter())
        most = 0.0
        for name, used in later(self.uses.get(place, {}), held, half_ns, seconds).items():
            total = (queue.guaranteed or {}).get(name) or books.fair_max(app.queue, name, capacity)
            if total > 0:
                most = max(most, used / total)
        return most


def held_by_users(books: Books) -> dict[tuple[str, str], Counter[str]]:
    held: dict[tuple[str, str], Counter[str]] = {}
    for app in books.apps.values():
        held.setdefault((app.queue, app.user), Counter()).update(app.used)
    return held


def later(used: dict[str, float], held: Counter[str], half_ns: int, seconds: float) -> dict[str, float]:
    """A use after so many seconds more."""
    rate = math.log(2) / (half_ns / 1e9)
    left = math.exp(-rate * seconds)
    return {name: used.get(name, 0.0) * left + held[name] * (1 - left) / rate for name in {*used, *held}}


def are_near(one: float, other: float) -> bool:
    """Whether the two may come in either order."""
    return one != other and abs(one - other) <= NEARLY * max(one, other)
