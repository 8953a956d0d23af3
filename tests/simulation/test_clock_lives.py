"""Random lives of the wall clock: steps, rates, restarts, boots and other hosts, while allocations have time-outs.

The rules: recorded time never goes back; a time-out fires after what has elapsed, to 0.1 %, as long as the boot lasts;
an event has the time of day of its moment.
"""

from __future__ import annotations

import random

import pytest
from muster_bus.clock import STEP_NS
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.machine import SchedulerMachine
from muster_scheduler.recorded_time import RecordedTime
from unit.bus.test_clock import DAY, SECOND, Machine
from unit.scheduler_service import rig as make
from unit.scheduler_service.rig import Rig

TIMEOUT_S = 20
# The worker looks once in so long.
LOOKS_NS = SECOND // 4

CHANCES = {"set": 2, "little": 8, "rate": 2, "restart": 2, "standby": 1, "boot": 0.4, "sleep": 0.3}


class ClockLife:
    """A scheduler's machine whose wall clock somebody sets.

    :ivar began: by key of a waiting allocation: the elapsed time at its beginning; None: another boot since then.
    """

    def __init__(self, seed: int) -> None:
        self.dice, self.world, self.rig = random.Random(seed), Machine(), Rig()
        self.clock = self.world.clock()
        self.rig._factory = lambda: SchedulerMachine(
            self.rig.topics, lambda: "uuid", times=RecordedTime(self.clock), holds=False
        )
        self.rig.now_ns = self.clock.now_ns()
        self.rig.rebuild()
        self.rig.register()
        self.rig.send(make.node("n", vcore=10**6), make.application("app", "root.a"))
        self.began: dict[str, int | None] = {}
        self.fired, self.boots, self.number, self.last_ns = 0, 0, 0, 0
        self.rate = 1.0

    def step(self) -> None:
        dice, world = self.dice, self.world
        match dice.choices(("set", "little", "rate", "restart", "standby", "boot", "sleep"), (2, 8, 2, 2, 1, 0.4, 0.3))[
            0
        ]:
            case "set":
                world.wall_ns += dice.choice((-1, 1)) * dice.randrange(400 * DAY)
            case "little":
                world.wall_ns += dice.choice((-1, 1)) * dice.randrange(STEP_NS)
            case "rate":
                self.rate = dice.choice((1.0, 1.0, 0.999, 3.0, 0.0, -1.0))
            case "restart":
                anchor = self.clock.anchor()
                self._pass(dice.randrange(5 * SECOND), looks=False)
                self.clock = world.clock()
                if dice.random() < 0.5:  # the embedded log knows the clock of before
                    self.clock.resume(anchor)
                self._rebuilt()
            case "standby":
                self.rig.follow()
                self._rebuilt()
                self.rig.standby = None
            case "boot":  # or another host
                self.boots += 1
                world.boot, world.elapsed_ns = f"boot {self.boots}", dice.randrange(DAY)
                world.wall_ns += dice.randrange(-DAY, DAY)
                self.began = dict.fromkeys(self.began)
                self.clock = world.clock()
                self._rebuilt()
                assert self.clock.offset_ns == 0
                assert self.recorded() in (self.last_ns, world.wall_ns), "it is the wall clock, but never goes back"
            case "sleep":  # of the machine; nothing runs meanwhile
                began = self.began
                self.began = dict.fromkeys(began)
                self._pass(dice.randrange(3600 * SECOND), looks=False)
        if len(self.began) < 3:
            self._ask()
        self._pass(dice.randrange(SECOND, 8 * SECOND))

    def recorded(self) -> int:
        (state,) = self.rig.machine.rms.values()
        return state.info.clock.booted_ns + self.world.elapsed_ns

    def _rebuilt(self) -> None:
        self.rig.now_ns = self.clock.now_ns()
        self.rig.rebuild()
        self._look()

    def _ask(self) -> None:
        self.number += 1
        ask = make.old_ask("app", f"k{self.number}", vcore=1)
        ask.asks[0].executionTimeoutMilliSeconds = TIMEOUT_S * 1000
        self.rig.now_ns = self.clock.now_ns()
        self.rig.send(ask)
        self.rig.settle()
        self.began[f"k{self.number}"] = self.world.elapsed_ns

    def _pass(self, ns: int, *, looks: bool = True) -> None:
        while ns > 0:
            part = min(ns, LOOKS_NS) if looks else ns
            self.world.sleep(part, self.rate)
            ns -= part
            if looks:
                self._look()

    def _look(self) -> None:
        rig, world = self.rig, self.world
        rig.now_ns = self.clock.now_ns()
        before = len(rig.events)
        rig.settle()
        for _, event in rig.events[before:]:
            assert abs(event.timestampNano - world.wall_ns) <= STEP_NS + 1_000_000
        now_ns = self.recorded()
        (state,) = rig.machine.rms.values()
        assert state.info.last_decided_ns >= self.last_ns, "recorded time never goes back"
        self.last_ns = max(self.last_ns, state.info.last_decided_ns)
        assert now_ns >= self.last_ns
        timed_out = [each for each in rig.of("released") if each.terminationType == si.TIMEOUT]  # type: ignore[attr-defined]
        rig.responses.clear()
        for release in timed_out:
            began_ns = self.began.pop(release.allocationKey, None)  # type: ignore[attr-defined]
            if began_ns is not None:
                self.fired += 1
                took_ns = world.elapsed_ns - began_ns
                assert took_ns >= TIMEOUT_S * SECOND * 0.999 - 1_000_000
                assert took_ns <= TIMEOUT_S * SECOND * 1.001 + 6 * SECOND, "a restart's pause at most"
            rig.send(make.release("app", release.allocationKey, si.TIMEOUT))  # type: ignore[attr-defined]
        for key, began_ns in self.began.items():
            if began_ns is not None:
                assert world.elapsed_ns - began_ns <= TIMEOUT_S * SECOND * 1.001 + LOOKS_NS, f"{key} never timed out"


@pytest.mark.parametrize("seed", range(8), ids=lambda seed: f"seed-{seed}")
def test_time_outs_count_what_elapses_in_random_lives_of_the_clock(seed: int) -> None:
    life = ClockLife(seed)
    for _ in range(60):
        life.step()
    assert life.fired > 5
