"""What goes wrong, drawn from the seed: at the log, at the sessions, for one process at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster_bus.backends.memory_faults import Outcome
from muster_bus.errors import LogFull, LogUnavailable
from muster_gateway.errors import SessionStoreDown, SessionStoreFull

from virtual.calls import later

if TYPE_CHECKING:
    from virtual.world import World


@dataclass(frozen=True, slots=True)
class Rates:
    """How likely faults of single calls are, and how long things take without a fault (seconds).

    :param lagging: the share of readings that come late.
    """

    append_s: tuple[float, float] = (0.0002, 0.002)
    commit_s: tuple[float, float] = (0.0005, 0.003)
    session_s: tuple[float, float] = (0.0001, 0.001)
    append_lost: float = 0.0
    append_written: float = 0.0
    commit_lost: float = 0.0
    commit_written: float = 0.0
    commit_late: float = 0.0
    lagging: float = 0.0
    lag_s: tuple[float, float] = (0.01, 3.0)
    sessions_down: float = 0.0


CALM = Rates()
STORMY = Rates(
    append_lost=0.002,
    append_written=0.002,
    commit_lost=0.001,
    commit_written=0.001,
    commit_late=0.001,
    lagging=0.02,
    sessions_down=0.001,
)


class ProcessFaults:
    """The faults of one process's handles. See ``muster_bus.backends.memory_faults.Faults``.

    :ivar log_away: it does not reach the log.
    :ivar is_full: the disk is full: the log and the sessions take nothing.
    :ivar sessions_answer: False: it does not reach the session store.
    """

    def __init__(self, world: World, name: str) -> None:
        self._world, self._rates = world, world.rates
        self._dice = random.Random(f"{world.seed}/{name}/faults")
        self.log_away = self.is_full = False
        self.sessions_answer = True

    @property
    def rates(self) -> Rates:
        return self._world.rates

    def check(self) -> None:
        if self.log_away:
            self._world.counts["log away"] += 1
            raise LogUnavailable("the log does not answer")

    def append(self, topic: str, partition: int) -> tuple[float, Outcome]:
        rates, dice = self._world.rates, self._dice
        if self.is_full:
            self._world.counts["log full"] += 1
            raise LogFull("the disk is full")
        drawn = dice.random()
        if drawn < rates.append_lost:
            return self._failed("append lost", Outcome.LOST)
        if drawn < rates.append_lost + rates.append_written:
            return self._failed("append written", Outcome.WRITTEN)
        return dice.uniform(*rates.append_s), Outcome.DONE

    def commit(self, group: str, partition: int) -> tuple[float, Outcome]:
        rates, dice = self._world.rates, self._dice
        if self.is_full:
            self._world.counts["log full"] += 1
            raise LogFull("the disk is full")
        drawn = dice.random()
        for share, name, outcome in (
            (rates.commit_lost, "commit lost", Outcome.LOST),
            (rates.commit_written, "commit written", Outcome.WRITTEN),
            (rates.commit_late, "commit late", Outcome.LATE),
        ):
            if drawn < share:
                return self._failed(name, outcome)
            drawn -= share
        return dice.uniform(*rates.commit_s), Outcome.DONE

    def lag_s(self, topic: str, partition: int) -> float:
        rates = self._world.rates
        if self._dice.random() < rates.lagging:
            self._world.counts["record seen late"] += 1
            return self._dice.uniform(*rates.lag_s)
        return 0.0

    def share_s(self) -> float:
        return self._dice.uniform(0.0, 0.3)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        later(delay_s, call)

    async def sessions_turn(self, *, writes: bool) -> None:
        """A call of the session store: takes a while, or raises SessionStoreDown or SessionStoreFull."""
        rates = self._world.rates
        await asyncio.sleep(self._dice.uniform(*rates.session_s))
        if not self.sessions_answer or self._dice.random() < rates.sessions_down:
            self._world.counts["sessions down"] += 1
            raise SessionStoreDown("the session store does not answer")
        if writes and self.is_full:
            self._world.counts["sessions full"] += 1
            raise SessionStoreFull

    def _failed(self, name: str, outcome: Outcome) -> tuple[float, Outcome]:
        self._world.counts[name] += 1
        return self._dice.uniform(0.01, 8.0), outcome
