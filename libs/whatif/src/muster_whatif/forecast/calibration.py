"""How far forecasts can be trusted: forecasts at moments of a play, held against what the play then did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from muster_core.scheduler import SchedulerCore
from muster_state import snapshot
from muster_state.state_folder import RmEntry, RmInfo

from muster_whatif.forecast.forecast import RUNS, Forecast, forecast
from muster_whatif.forecast.run_time_model import PastAsk, RunTimeHistory, RunTimeKey
from muster_whatif.scenario import Scenario
from muster_whatif.simulation import BEGIN_NS, TaskOutcome, play
from muster_whatif.workload import NS_PER_S, Workload, WorkloadTask


@dataclass(frozen=True, slots=True)
class CalibrationCase:
    """A forecast of an ask, and the truth. Seconds from the moment of the forecast; None: later than the horizon.

    :ivar true_s: None: it never started in the play.
    :ivar times_s: its start in each of the ``runs`` that started it, sorted.
    """

    task: WorkloadTask
    at_s: float
    earliest_s: float | None
    likely_s: float | None
    latest_s: float | None
    true_s: float | None
    times_s: Sequence[float]
    runs: int

    @property
    def is_known(self) -> bool:
        """Whether the forecast gave a whole range."""
        return self.latest_s is not None

    @property
    def is_within(self) -> bool:
        """Whether the truth lies in the range that should hold 80 %."""
        return self.lies_within((self.runs + 1) // 10)

    def lies_within(self, outside: int) -> bool:
        """Whether the truth lies between the so-many-th earliest and the so-many-th latest run."""
        if self.true_s is None:
            return len(self.times_s) <= self.runs - outside
        low, high = outside - 1, self.runs - outside
        if low < len(self.times_s) and self.true_s < self.times_s[low]:
            return False
        return low < len(self.times_s) and (high >= len(self.times_s) or self.true_s <= self.times_s[high])


# Shares that a range should hold, of which the runs of ``RUNS`` have one exactly.
LEVELS = (20, 40, 60, 80)


def coverage(cases: Sequence[CalibrationCase]) -> dict[int, float]:
    """Returns for each of LEVELS the share of cases whose truth lies in that range, in percent."""
    return {
        level: 100 * sum(case.lies_within((case.runs + 1) * (100 - level) // 200) for case in cases) / len(cases)
        for level in LEVELS
    }


def calibrate(
    workload: Workload,
    scenario: Scenario,
    moments_s: Sequence[float],
    *,
    tick_s: float = 0.0,
    runs: int = RUNS[0],
    on_cases: Callable[[Sequence[CalibrationCase]], None] = lambda _: None,
) -> list[CalibrationCase]:
    """Plays a workload, and makes a forecast for every pending ask at each moment. Durations are those of tasks that
    had ended by then.

    :param on_cases: called with the cases of each moment.
    """
    looked: list[tuple[int, list[snapshot.Entry]]] = []

    def look(core: SchedulerCore, now_ns: int) -> None:
        info = RmInfo("play", config=scenario.config, life="RUNNING", registered_ns=BEGIN_NS, registrations=1)
        info.last_decided_ns = now_ns
        looked.append((now_ns, list(snapshot.entries(RmEntry(info, core)))))

    played = play(workload, scenario, tick_s=tick_s, look_at_s=moments_s, look=look)
    cases: list[CalibrationCase] = []
    for number, (now_ns, entries) in enumerate(looked):
        at_s = (now_ns - BEGIN_NS) / NS_PER_S
        learnt = _ended_by(played.lives.values(), at_s)
        prediction = forecast(
            entries, learnt.snapshot(), now_ns, seed=number, runs=runs, came=learnt.came, since_ns=learnt.since_ns
        )
        of_moment = _cases(prediction, played.lives, at_s)
        on_cases(of_moment)
        cases += of_moment
    return cases


def _ended_by(lives: Iterable[TaskOutcome], at_s: float) -> RunTimeHistory:
    learnt = RunTimeHistory(BEGIN_NS)
    for life in sorted(lives, key=lambda outcome: outcome.ended_s or 0.0):
        if life.started_s is None or life.ended_s is None or life.ended_s > at_s:
            continue
        task = life.task
        came_ns = BEGIN_NS + round(task.arrives_s * NS_PER_S)
        key = RunTimeKey(task.queue, task.user, "")
        came = PastAsk(came_ns, key, task.application_id, task.quantities, task.priority, True, True)
        learnt.record(came, life.ended_s - life.started_s)
    return learnt


def _cases(prediction: Forecast, lives: dict[str, TaskOutcome], at_s: float) -> list[CalibrationCase]:
    cases = []
    for (_, _, key), estimate in prediction.estimates.items():
        name, separator, _ = key.partition("#")
        if separator:
            continue  # a task that runs again: the play keeps its first start
        life = lives[name]

        def at(moment_ns: int) -> float:
            return (moment_ns - BEGIN_NS) / NS_PER_S - at_s

        def seconds(moment_ns: int) -> float | None:
            return at(moment_ns) if moment_ns else None

        true_s = None if life.first_started_s is None else life.first_started_s - at_s
        times = (estimate.earliest_ns, estimate.likely_ns, estimate.latest_ns)
        earliest_s, likely_s, latest_s = map(seconds, times)
        cases.append(
            CalibrationCase(
                life.task,
                at_s,
                earliest_s,
                likely_s,
                latest_s,
                true_s,
                [at(time_ns) for time_ns in estimate.times_ns],
                prediction.runs,
            )
        )
    return cases
