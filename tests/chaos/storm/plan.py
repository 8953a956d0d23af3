"""The plan of faults: a function of the seed and of the length of the run, and of nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

PROCESSES = ("scheduler-1", "scheduler-2", "gateway-1", "gateway-2", "view", "event-publisher")
# (Under libfaketime, Python's time.sleep fails; the view and the publisher use it.)
CLOCKS = ("scheduler-1", "scheduler-2", "gateway-1", "gateway-2")
LINKS = (
    "gateways-brokers",
    "schedulers-brokers",
    "followers-brokers",
    "gateways-redis",
    "publisher-postgres",
    "rms-gateway-1",
    "rms-gateway-2",
)
BROKERS = ("broker-1", "broker-2", "broker-3")
# How often each kind is drawn. What is drawn is taken from a shuffled deck, so that a short run has all kinds, too.
KINDS = {
    "kill": 6, "pause": 5, "restart": 3, "cut": 5, "stall": 4, "delay": 4, "flush": 2, "kill-redis": 1,
    "kill-postgres": 1, "step": 3, "kill-broker": 2, "pause-broker": 1,
}  # fmt: skip
BEGIN_S = 8.0  # the workload has begun by then
GAP_S = (1.5, 5.5)  # from one fault's begin to the next
# A pause of a process is at most a minute, and at most this share of the run.
PAUSE_SHARE, PAUSE_MAX_S = 0.08, 60.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    :param at_s: when it begins, from the begin of the run.
    :param for_s: how long it lasts; 0: it has no length.
    :param amount: seconds of a delay, days of a step.
    """

    at_s: float
    kind: str
    target: str
    for_s: float = 0.0
    amount: float = 0.0

    @property
    def until_s(self) -> float:
        return self.at_s + self.for_s

    def __str__(self) -> str:
        what = {"delay": f" by {self.amount:.2f} s", "step": f" by {self.amount:+.0f} days"}.get(self.kind, "")
        length = f" for {self.for_s:.1f} s" if self.for_s else ""
        return f"{self.at_s:7.1f} s  {self.kind} {self.target}{what}{length}"


def plan(seed: int, seconds: float) -> tuple[Fault, ...]:
    """Returns the faults of a run in the order of their begin. All end within ``seconds``.

    At one moment, a target has one fault, and at most one broker is away.
    """
    dice = random.Random(f"{seed}/faults")
    faults: list[Fault] = []
    deck: list[str] = []
    at_s = BEGIN_S
    while at_s < seconds:
        if not deck:
            deck = [kind for kind, count in KINDS.items() for _ in range(count)]
            dice.shuffle(deck)
        fault = _drawn(dice, deck.pop(), round(at_s, 1), seconds)
        if fault.until_s <= seconds and not any(_clash(fault, other) for other in faults):
            faults.append(fault)
        at_s += dice.uniform(*GAP_S)
    return tuple(faults)


def under_way(faults: Iterable[Fault], at_s: float, within_s: float = 5.0) -> list[Fault]:
    """The faults at a moment, and those that had begun or ended shortly before."""
    return [each for each in faults if each.at_s <= at_s <= each.until_s + within_s]


def _drawn(dice: random.Random, kind: str, at_s: float, seconds: float) -> Fault:
    if kind in ("kill", "restart"):
        return Fault(at_s, kind, dice.choice(PROCESSES), _tenths(dice.uniform(0.3, 4.0)) if kind == "kill" else 0.0)
    if kind == "pause":
        longest_s = min(PAUSE_MAX_S, seconds * PAUSE_SHARE)
        return Fault(at_s, kind, dice.choice(PROCESSES), _tenths(dice.uniform(1.0, max(2.0, longest_s))))
    if kind in ("cut", "stall"):
        return Fault(at_s, kind, dice.choice(LINKS), _tenths(dice.uniform(0.2, 8.0)))
    if kind == "delay":
        return Fault(at_s, kind, dice.choice(LINKS), _tenths(dice.uniform(2.0, 10.0)), dice.choice((0.01, 0.05, 0.3)))
    if kind == "step":
        return Fault(at_s, kind, dice.choice(CLOCKS), _tenths(dice.uniform(3.0, 15.0)), dice.choice((-400, -1, 1, 400)))
    if kind in ("kill-broker", "pause-broker"):
        return Fault(at_s, kind, dice.choice(BROKERS), _tenths(dice.uniform(2.0, 9.0)))
    if kind == "flush":
        return Fault(at_s, kind, "redis")
    return Fault(at_s, kind, kind.removeprefix("kill-"), _tenths(dice.uniform(0.5, 5.0)))


def _tenths(value: float) -> float:
    return round(value, 1)


# How long a target needs afterwards: a broker until its copies are in sync again, a process until it serves.
_REST_S = {"kill-broker": 12.0, "pause-broker": 12.0, "kill": 4.0, "restart": 6.0}


def _clash(one: Fault, other: Fault) -> bool:
    both_brokers = one.kind.endswith("-broker") and other.kind.endswith("-broker")
    if one.target != other.target and not both_brokers:
        return False
    first, second = sorted((one, other), key=lambda each: each.at_s)
    return second.at_s <= first.until_s + _REST_S.get(first.kind, 1.0)
