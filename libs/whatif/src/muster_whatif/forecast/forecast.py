"""When pending asks start: many runs of the present state forward, each with other lengths.

One forecast covers all pending asks of an RM. Its range holds 80 %: of n runs and the truth, all alike, the truth lies
between the k-th earliest and the k-th latest run in (n + 1 - 2k) of n + 1 cases.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from muster_bus.log import Record
from muster_core.model.application import Allocation
from muster_core.model.commands import SetSchedulingEnabled
from muster_core.partition import Partition
from muster_core.scheduler import SchedulerCore
from muster_state.snapshot import Entry
from muster_state.state_folder import RmEntry, StateFolder

from muster_whatif.errors import ForecastUnavailable
from muster_whatif.forecast.forward_simulation import AskName, Draw, ForwardSimulation, key_of, pending
from muster_whatif.forecast.run_time_model import (
    CAME_MAX,
    PastAsk,
    RunTimeKey,
    RunTimeSample,
    RunTimeSampler,
    RunTimeSamples,
    came_of,
)
from muster_whatif.workload import NS_PER_S

# Numbers of runs of which the k-th earliest and latest hold 80 %; the most that the time allows are used.
RUNS = (39, 29, 19, 9)
HORIZON_S = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """When an ask starts. Nanoseconds since the epoch; 0: not within the horizon, as far as is known.

    :ivar earliest_ns: 10 % of the runs start it before; ``latest_ns``: 10 % after.
    :ivar started: in so many of the runs it started.
    :ivar times_ns: the start in each of these, sorted.
    """

    earliest_ns: int
    likely_ns: int
    latest_ns: int
    started: int
    times_ns: Sequence[int]


@dataclass(frozen=True, slots=True)
class Forecast:
    """The estimates of all pending asks.

    :ivar unknown: by partition, running allocations whose length nobody knows: they hold their room in every run.
    :ivar declared: those whose length is their declared execution time-out; ``learnt``: those with one from history.
    """

    estimates: Mapping[AskName, Estimate]
    runs: int
    unknown: Mapping[str, int]
    declared: Mapping[str, int]
    learnt: Mapping[str, int]


def fold_entries(entries: Iterable[Entry], now_ns: int) -> RmEntry:
    """Returns the one RM of a snapshot, ready to decide. Raises CodecError."""
    folder = StateFolder()
    for offset, (key, value) in enumerate(entries):
        folder.fold(Record("", 0, offset, 0, key, value))
    folder.finish()
    (state,) = folder.rms.values()
    state.core.apply(SetSchedulingEnabled(state.info.decides), state.info.last_decided_ns)
    state.core.activate(now_ns, state.info.last_decided_ns)
    return state


def forecast(
    entries: Sequence[Entry],
    learnt: Mapping[RunTimeKey, RunTimeSamples],
    now_ns: int,
    *,
    seed: int = 1,
    runs: int = RUNS[0],
    came: Sequence[PastAsk] = (),
    since_ns: int = 0,
    cpu_s: float = float("inf"),
    spent_s: Callable[[], float] = lambda: 0.0,
) -> Forecast:
    """Returns when each pending ask starts.

    :param entries: of :func:`muster_state.snapshot.entries`.
    :param came: asks of the past whose allocations have ended, since ``since_ns``; with those that are pending or run
        they make the asks to come: as many, and in the same groups, from another moment on in each run.
    :param cpu_s: processor time; with less than the runs need, fewer runs.
    :param spent_s: reads it; by default nothing is spent.

    Raises ForecastUnavailable if the time is not enough for any range. Raises CodecError.
    """
    began_s = spent_s()
    starts: dict[AskName, list[tuple[int, int]]] = {}  # (run, start)
    done = 0
    counts: tuple[Counter[str], Counter[str], Counter[str]] = (Counter(), Counter(), Counter())
    longest_s = 0.0
    while done < runs and (spent_s() - began_s + longest_s <= cpu_s):
        run_began_s = spent_s()
        state = fold_entries(entries, now_ns)
        core = state.core
        ask_names = pending(core)
        running = running_of(core, now_ns)
        if not done:
            past = past_asks(core, came, since_ns)
            starts = {name: [] for name in ask_names}
            counts = sources_of(core, RunTimeSampler(learnt, running, random.Random(seed)))  # noqa: S311 - a simulation
        dice = random.Random(f"{seed}/{done}")  # noqa: S311 - a simulation
        draw = run_time_source(RunTimeSampler(learnt, running, dice))
        comers = future_asks(past, since_ns, now_ns, dice) if since_ns else iter(())
        run_until_s = run_began_s + cpu_s / RUNS[-1]
        forward = ForwardSimulation(core, draw, now_ns, comers, lambda until_s=run_until_s: spent_s() <= until_s)  # type: ignore[misc]
        started = forward.run(ask_names, now_ns + round(HORIZON_S * NS_PER_S))
        for name, started_ns in started.items():
            starts[name].append((done, started_ns))
        done += 1
        longest_s = max(longest_s, spent_s() - run_began_s)
    used = next((run_count for run_count in RUNS if run_count <= done), 0)
    if not used:
        raise ForecastUnavailable(f"one run takes {longest_s:.1f} s of processor time; {RUNS[-1]} are needed")
    return Forecast({name: _estimate(times, used) for name, times in starts.items()}, used, *counts)


def _estimate(starts: Sequence[tuple[int, int]], runs: int) -> Estimate:
    """Returns the range of the first so many runs; a run that did not start the ask counts as the latest."""
    times = sorted(started_ns for run, started_ns in starts if run < runs)
    outside = (runs + 1) // 10

    def at(number: int) -> int:
        return times[number - 1] if number <= len(times) else 0

    return Estimate(at(outside), at((runs + 1) // 2), at(runs + 1 - outside), len(times), times)


def run_time_source(lengths: RunTimeSampler) -> Draw:
    """Returns what gives an allocation its length: what it declares, else one at random."""

    def draw(key: RunTimeKey, declared_ms: int, elapsed_s: float, application_id: str) -> float | None:
        return declared_ms / 1_000 if declared_ms else lengths.draw_s(key, elapsed_s, application_id)

    return draw


def past_asks(core: SchedulerCore, came: Sequence[PastAsk], since_ns: int) -> list[PastAsk]:
    """Returns all asks that came since then, the oldest first.

    :param came: those that have ended.
    """
    asks = [*(ask for ask in came if ask.came_ns >= since_ns), *_present(core, since_ns)]
    return sorted(asks, key=lambda ask: ask.came_ns)


def _present(core: SchedulerCore, since_ns: int) -> Iterator[PastAsk]:
    """Returns the asks that came since then, and are pending or run."""
    for partition in core.partitions.values():
        for app in partition.apps.values():
            for obj in (*app.asks.values(), *app.allocations.values()):
                demand = obj.demand
                if demand.created_ns >= since_ns and not demand.placeholder:
                    yield came_of(app, demand)


def future_asks(past: Sequence[PastAsk], since_ns: int, now_ns: int, dice: random.Random) -> Iterator[PastAsk]:
    """Repeats the past once, from a moment at random on. Applications keep together, under new names."""
    past = past[-CAME_MAX:]
    if not past:
        return
    begin_ns = max(since_ns, past[0].came_ns)
    window_ns = max(now_ns - begin_ns, NS_PER_S)
    turned_ns = dice.randrange(window_ns)
    offsets = sorted(((ask.came_ns - begin_ns - turned_ns) % window_ns, index) for index, ask in enumerate(past))
    for offset_ns, index in offsets:
        ask = past[index]
        yield ask._replace(came_ns=now_ns + max(offset_ns, 1), application_id=f"{ask.application_id}~")


def running_of(core: SchedulerCore, now_ns: int) -> dict[RunTimeKey, list[RunTimeSample]]:
    """Returns for how long the allocations run that the RM has made no promise about."""
    running: dict[RunTimeKey, list[RunTimeSample]] = {}
    for partition in core.partitions.values():
        for allocation in _held(partition):
            if not allocation.end_ns and not allocation.demand.placeholder:
                ran = RunTimeSample((now_ns - allocation.allocated_ns) / NS_PER_S, allocation.app_id)
                running.setdefault(key_of(allocation, allocation.demand), []).append(ran)
    return running


def sources_of(core: SchedulerCore, lengths: RunTimeSampler) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Returns by partition how many running allocations have an unknown, a declared, and a learnt length."""
    unknown, declared, learnt = Counter[str](), Counter[str](), Counter[str]()
    for partition in core.partitions.values():
        for allocation in _held(partition):
            if allocation.end_ns:
                declared[partition.name] += 1
            elif lengths.group_of(key_of(allocation, allocation.demand)) is not None:
                learnt[partition.name] += 1
            else:
                unknown[partition.name] += 1
    return unknown, declared, learnt


def _held(partition: Partition) -> Iterable[Allocation]:
    for app in partition.apps.values():
        for allocation in app.allocations.values():
            if not allocation.source:
                yield allocation
