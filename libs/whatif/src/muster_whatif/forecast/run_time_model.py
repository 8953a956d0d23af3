"""How long allocations run, and which asks come: learnt from those that ended, and from
how long the others run already.

Lengths are kept by queue, user and task group. A forecast takes the narrowest group of which enough have ended:
queue, user and task group; queue and user; queue; all. What runs still counts too: if only short ones have ended so
far, the lengths of the ended ones alone would be too short (Kaplan and Meier's estimate).
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

from muster_core.model.application import Application
from muster_core.model.demand import Demand

# Of one key; the newest ones. And of keys; those that were used last.
KEPT_OF_KEY, KEYS_MAX = 256, 4_096
# Past asks, of which those that are to come are made.
CAME_MAX = 1_000
# So many must have ended in a group, before the next wider one is taken; and in the widest, before nothing is known.
ENOUGH, ENOUGH_OF_ALL = 20, 5
_SHORTEST_S = 1e-3
# Fewer applications do not show how applications differ: each of their tasks counts by itself.
_APPLICATIONS = 5
# So large a part of the difference between lengths is between applications: the tasks of one are alike.
_ALIKE = 0.5
_NORMAL = NormalDist()
# So large a part of a group must have been seen to run on, or what has not ended says nothing about when it will.
_SUPPORT = 0.05


class RunTimeKey(NamedTuple):
    """Allocations with equal keys are expected to run alike."""

    queue: str
    user: str
    task_group: str


Wider = tuple[str, ...]


class RunTimeSample(NamedTuple):
    """For how long an allocation ran, or runs already."""

    seconds: float
    application_id: str


class RunTimeSamples(NamedTuple):
    """The lengths known of a key.

    :ivar ended: so many have ended.
    :ivar lengths: of the newest ones.
    """

    ended: int
    lengths: Sequence[RunTimeSample]


def widening(key: RunTimeKey) -> tuple[Wider, ...]:
    """Returns the groups of a key, the narrowest first."""
    return (tuple(key), (key.queue, key.user), (key.queue,), ())


class PastAsk(NamedTuple):
    """An ask that came in the past.

    :ivar came_ns: when; nanoseconds since the epoch.
    """

    came_ns: int
    key: RunTimeKey
    application_id: str
    quantities: Mapping[str, int]
    priority: int
    preempts: bool
    may_be_preempted: bool


def came_of(app: Application, demand: Demand) -> PastAsk:
    """Returns an ask as one that came."""
    return PastAsk(
        demand.created_ns,
        RunTimeKey(app.queue.path, app.user, demand.task_group),
        app.app_id,
        demand.shape.quantities,
        demand.priority,
        demand.allow_preempt_other,
        demand.allow_preempt_self,
    )


class RunTimeHistory:
    """The lengths of ended allocations, in seconds, and when they were asked for. Bounded: the newest ones.

    :ivar since_ns: since when this learns.
    :ivar came: the newest asks whose allocations have ended.
    """

    def __init__(self, since_ns: int) -> None:
        self.since_ns = since_ns
        self.came: deque[PastAsk] = deque(maxlen=CAME_MAX)
        self._of: OrderedDict[RunTimeKey, deque[RunTimeSample]] = OrderedDict()
        self._ended: dict[RunTimeKey, int] = {}

    def record(self, came: PastAsk, seconds: float) -> None:
        """Takes an allocation that ended by itself after so long."""
        key = came.key
        self.came.append(came)
        samples = self._of.get(key)
        if samples is None:
            self._of[key] = samples = deque(maxlen=KEPT_OF_KEY)
            if len(self._of) > KEYS_MAX:
                oldest, _ = self._of.popitem(last=False)
                del self._ended[oldest]
        self._of.move_to_end(key)
        self._ended[key] = self._ended.get(key, 0) + 1
        samples.append(RunTimeSample(max(seconds, _SHORTEST_S), came.application_id))

    def snapshot(self) -> dict[RunTimeKey, RunTimeSamples]:
        """Returns a copy."""
        return {key: RunTimeSamples(self._ended[key], list(samples)) for key, samples in self._of.items()}


class SurvivalCurve:
    """The share of allocations that run longer than a time, from ended and running ones. Seconds.

    Beyond the last known time the share halves whenever the time doubles: what has run long goes on for long. That time
    is the longest of those that ended, or the longest that a twentieth of all have run for: a few that have run for
    days do not say that nothing ends within days.
    """

    def __init__(self, ended: Iterable[tuple[float, float]], running: Iterable[tuple[float, float]]) -> None:
        """Makes a curve of (seconds, weight)."""
        moments = sorted(
            [(time_s, 0, weight) for time_s, weight in ended] + [(time_s, 1, weight) for time_s, weight in running]
        )
        at_risk = total = sum(weight for _, _, weight in moments)
        self._last_s = _SHORTEST_S
        self._times: list[float] = []
        self._shares: list[float] = []
        share = 1.0
        for seconds, censored, weight in moments:
            if not censored and at_risk > 0:
                share *= max(1.0 - weight / at_risk, 0.0)
                self._times.append(seconds)
                self._shares.append(share)
            if not censored or at_risk >= _SUPPORT * total:
                self._last_s = max(seconds, _SHORTEST_S)
            at_risk -= weight
        self._rising = [-share for share in self._shares]

    def length_s(self, elapsed_s: float, dice: random.Random) -> float:
        """Returns a length at random of an allocation that has run for so long already."""
        return self.longer_s(elapsed_s, 1.0 - dice.random())

    def longer_s(self, elapsed_s: float, share: float) -> float:
        """Returns the length that this share of those exceeds that have run for so long already; 0 < share <= 1."""
        elapsed_index = bisect_right(self._times, elapsed_s)
        now = self._shares[elapsed_index - 1] if elapsed_index else 1.0
        if now <= 0.0 or elapsed_s >= self._last_s:
            return max(elapsed_s, _SHORTEST_S) / share
        target_share = now * share
        index = bisect_right(self._rising, -target_share, lo=elapsed_index)
        if index < len(self._times):
            return self._times[index]
        return self._last_s * (self._shares[-1] if self._shares else 1.0) / target_share


class RunTimeSampler:
    """Draws the lengths of one simulation.

    Each simulation gives each application another weight (the Bayesian bootstrap), so that few observations make wide
    ranges. It weighs applications, because the tasks of one are alike: a hundred of them tell less than a hundred
    applications. One more application, of the mean weight, runs longer than all that ended: the next one may do what
    none has done yet. The tasks of one application are drawn alike: all rather long, or all rather short.

    :param learnt: of ended allocations; ``running``: the others, so far.
    """

    def __init__(
        self,
        learnt: Mapping[RunTimeKey, RunTimeSamples],
        running: Mapping[RunTimeKey, Sequence[RunTimeSample]],
        dice: random.Random,
    ) -> None:
        self._dice = dice
        # (length, so many ended allocations that it stands for)
        self._ended: dict[Wider, list[tuple[RunTimeSample, float]]] = {}
        for key, (ended, lengths) in learnt.items():
            for group in widening(key):
                self._ended.setdefault(group, []).extend((sample, ended / len(lengths)) for sample in lengths)
        self._running: dict[Wider, list[RunTimeSample]] = {}
        for key, so_far in running.items():
            for group in widening(key):
                self._running.setdefault(group, []).extend(so_far)
        self._curves: dict[Wider, SurvivalCurve] = {}
        self._weights: dict[str, float] = {}
        self._of_application: dict[str, float] = {}

    def draw_s(self, key: RunTimeKey, elapsed_s: float = 0.0, application_id: str = "") -> float | None:
        """Returns a length of an allocation that has run for so long; None: nothing is known."""
        group = self.group_of(key)
        if group is None:
            return None
        curve = self._curves.get(group)
        if curve is None:
            self._curves[group] = curve = self._curve(group)
        return curve.longer_s(elapsed_s, self._share(application_id))

    def _curve(self, group: Wider) -> SurvivalCurve:
        observed, still = self._ended[group], self._running.get(group, ())
        applications = {sample.application_id for sample, _ in observed} | {sample.application_id for sample in still}
        if len(applications) < _APPLICATIONS:
            draw = self._dice.expovariate
            return SurvivalCurve(
                [(sample.seconds, stands_for * draw(1.0)) for sample, stands_for in observed],
                [(sample.seconds, draw(1.0)) for sample in still],
            )
        ended = [(sample.seconds, stands_for * self._weight(sample.application_id)) for sample, stands_for in observed]
        running = [(sample.seconds, self._weight(sample.application_id)) for sample in still]
        total = sum(weight for _, weight in ended) + sum(weight for _, weight in running)
        longest_s = max(seconds for seconds, _ in ended)
        return SurvivalCurve(ended, [*running, (longest_s, self._dice.expovariate(1.0) * total / len(applications))])

    def _weight(self, application_id: str) -> float:
        weight = self._weights.get(application_id)
        if weight is None:
            self._weights[application_id] = weight = self._dice.expovariate(1.0)
        return weight

    def _share(self, application_id: str) -> float:
        """Returns a share in (0, 1], evenly spread; those of one application are near each other."""
        if not application_id:
            return 1.0 - self._dice.random()
        common = self._of_application.get(application_id)
        if common is None:
            self._of_application[application_id] = common = self._dice.gauss()
        own = self._dice.gauss()
        return max(_NORMAL.cdf(math.sqrt(_ALIKE) * common + math.sqrt(1.0 - _ALIKE) * own), 1e-12)

    def group_of(self, key: RunTimeKey) -> Wider | None:
        """Returns the narrowest group of which enough have ended; None: there is none."""
        for group in widening(key):
            if len(self._ended.get(group, ())) >= (ENOUGH if group else ENOUGH_OF_ALL):
                return group
        return None
