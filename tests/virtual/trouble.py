"""The plan of faults of a run, a function of its seed, and what carries it out.

What is drawn is taken from a shuffled deck, as in a storm, so that each kind comes about as often as it should. Faults
of single calls of the log and of the session store are beside it (``faults.py``): they are drawn at each call.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc
from chaos.storm.plan import Fault

from virtual.calls import Line, Status, later
from virtual.world import RESEND_WINDOW_S

if TYPE_CHECKING:
    from virtual.play import RmProcess
    from virtual.world import World

# How often each kind is in the deck.
KINDS = {
    "kill": 5, "restart": 1, "snap": 6, "stop": 2, "slow": 1, "half-close": 1, "deaf": 1, "away": 2, "silence": 1,
    "sessions": 1, "flush": 1, "full": 1, "step": 1, "sink": 1, "source": 1, "again": 1, "unconfirmed": 1, "late": 1,
}  # fmt: skip
BEGIN_S = 10.0
GAP_S = (3.1, 8.2)
_DAY_NS = 86_400 * 10**9
_RM_KINDS = ("snap", "stop", "slow", "half-close", "deaf", "again", "unconfirmed", "late")


def plan_of(seed: int, seconds: float, processes: Sequence[str], rms: int) -> tuple[Fault, ...]:
    """Returns the faults of a run, in the order of their begin."""
    dice = random.Random(f"{seed}/trouble")
    faults, deck = list[Fault](), list[str]()
    at_s = BEGIN_S
    while at_s < seconds - 10.0:
        if not deck:
            deck = [kind for kind, count in KINDS.items() for _ in range(count)]
            dice.shuffle(deck)
        fault = _drawn(dice, deck.pop(), round(at_s, 3), processes, rms)
        faults.append(replace(fault, for_s=round(min(fault.for_s, seconds - 1.0 - fault.at_s), 3)))
        at_s += dice.uniform(*GAP_S)
    return tuple(faults)


def _drawn(dice: random.Random, kind: str, at_s: float, processes: Sequence[str], rms: int) -> Fault:
    gateways = [name for name in processes if name.startswith("gateway")]
    schedulers = [name for name in processes if name.startswith("scheduler")]
    for_s, amount = round(dice.uniform(0.3, 8.0), 3), 0.0
    if kind in _RM_KINDS:
        target = f"rm {dice.randrange(rms)}"
        amount = round(dice.choice((0.01, 0.1, 0.5)), 3) if kind == "slow" else 0.0
        for_s = round(dice.uniform(20.0, 60.0), 3) if kind in ("unconfirmed", "late") else for_s
        if kind == "deaf":
            amount = float(dice.randrange(2))
            share = dice.uniform(1.2, 2.5) if amount else dice.uniform(0.3, 0.9)
            for_s = round(share * RESEND_WINDOW_S, 3)
    elif kind == "sessions":
        target = dice.choice(gateways)
    elif kind == "silence":
        target = dice.choice(schedulers)
    elif kind in ("flush", "sink", "full", "source"):
        target = "stores"
    else:
        target = dice.choice(list(processes))
        for_s = round(dice.uniform(0.2, 4.0), 3) if kind == "kill" else for_s
        amount = dice.choice((-400, -1, 1, 400)) if kind == "step" else 0.0
    return Fault(at_s, kind, target, for_s, amount)


class Trouble:
    """Carries a plan out."""

    def __init__(self, world: World, rms: list[RmProcess]) -> None:
        self._world, self._rms = world, rms
        self._dice = random.Random(f"{world.seed}/carried-out")

    async def run(self, faults: Sequence[Fault]) -> None:
        """Begins each fault at its time. Returns when all are over."""
        world, open_ = self._world, list[asyncio.Task[None]]()
        began_s = world.loop.now_s
        for fault in faults:
            await asyncio.sleep(max(0.0, began_s + fault.at_s - world.loop.now_s))
            world.say(f"fault {fault}")
            world.counts[f"fault {fault.kind}"] += 1
            open_ = [task for task in open_ if not task.done()]
            open_.append(world.loop.create_task(self._one(fault)))
        if open_:
            await asyncio.wait(open_)
            for task in open_:
                task.result()

    async def _one(self, fault: Fault) -> None:
        world, for_s = self._world, fault.for_s
        process = world.processes.get(fault.target)
        rm = self._rms[int(fault.target.split()[1])] if fault.target.startswith("rm ") else None
        if fault.kind == "kill" and process is not None:
            if process.life is not None:
                world.counts["deaths"] += 1
            process.kill(for_s)
        elif fault.kind == "restart" and process is not None:
            if process.life is not None and process.is_up:
                await process.stop()
                process.is_wanted = True
                process.again(0.1)
        elif fault.kind == "away" and process is not None:
            process.faults.log_away = True
            await asyncio.sleep(for_s)
            process.faults.log_away = False
        elif fault.kind == "silence" and process is not None and process.log is not None:
            log = process.log
            log.silence()
            await asyncio.sleep(for_s)
            if not log.closed:
                log.speak()
        elif fault.kind == "step" and process is not None:
            process.host.step_ns += round(fault.amount * _DAY_NS)
            await asyncio.sleep(for_s)
            process.host.step_ns -= round(fault.amount * _DAY_NS)
        elif fault.kind == "sessions" and process is not None:
            process.faults.sessions_answer = False
            await asyncio.sleep(for_s)
            process.faults.sessions_answer = True
        elif fault.kind == "flush":
            await world.sessions.clear()
        elif fault.kind == "full":
            for each in world.processes.values():
                each.faults.is_full = True
            await asyncio.sleep(min(for_s, 4.0))
            for each in world.processes.values():
                each.faults.is_full = False
        elif fault.kind == "source":
            world.inventory.is_away = True
            world.inventory.wake()
            await asyncio.sleep(for_s)
            world.inventory.is_away = False
        elif fault.kind == "sink":
            world.is_history_down = True
            await asyncio.sleep(for_s)
            world.is_history_down = False
        elif rm is not None:
            await self._rm(fault, rm)

    async def _rm(self, fault: Fault, rm: RmProcess) -> None:
        line = rm.line()
        if fault.kind == "again":
            rm.rm.registers_again = True
        elif fault.kind == "unconfirmed":
            rm.rm.confirms = False
            await asyncio.sleep(fault.for_s)
            rm.rm.confirms = True
        elif fault.kind == "late":
            rm.rm.late_s = 6.0
            await asyncio.sleep(fault.for_s)
            rm.rm.late_s = 0.0
        elif line is None or line.is_broken:
            self._world.counts["line was away"] += 1
        elif fault.kind == "snap":
            self._count_broken(line)
            line.snap()
        elif fault.kind == "half-close":
            await self._half_close(line, fault.for_s)
        else:
            if fault.kind == "stop":
                line.stop()
            elif fault.kind == "deaf":
                line.is_deaf, line.is_clogged = True, bool(fault.amount)
            else:
                line.delay_s = fault.amount
            await asyncio.sleep(fault.for_s)
            if line.is_broken:
                return
            if fault.kind == "deaf" or self._dice.random() < 0.5:  # what is under way is lost
                self._count_broken(line)
                line.snap()
            else:
                line.go_on()

    async def _half_close(self, line: Line, for_s: float) -> None:
        """One stream says no more, and goes on to hear; then it is lost."""
        calls = [call for call in line.calls if not call.requests.is_closed]
        if not calls:
            return
        call = calls[self._dice.randrange(len(calls))]
        call.requests.close()
        await asyncio.sleep(for_s)
        self._world.counts["streams broken"] += 1
        call.lose(Status(grpc.StatusCode.UNAVAILABLE, "a half-closed stream was lost"))
        later(0.0, call.client_left)

    def _count_broken(self, line: Line) -> None:
        self._world.counts["streams broken"] += len(line.calls)
