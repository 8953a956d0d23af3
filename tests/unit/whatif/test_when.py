"""When will it run? Lengths from history, runs of the present state forward, and ranges that hold what they promise."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import pstdev

import pytest
from muster_core.model.commands import (
    AppItem,
    AskItem,
    NodeAction,
    NodeItem,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
)
from muster_core.model.commands import UpdateNodes as Nodes
from muster_core.scheduler import SchedulerCore
from muster_queue_config.queue_yaml import load_queue_config
from muster_state import snapshot, state_codec
from muster_state.state_folder import RmEntry, RmInfo
from muster_whatif.errors import ForecastUnavailable
from muster_whatif.forecast.calibration import calibrate, coverage
from muster_whatif.forecast.forecast import Forecast, fold_entries, forecast
from muster_whatif.forecast.run_time_model import (
    ENOUGH,
    KEPT_OF_KEY,
    PastAsk,
    RunTimeHistory,
    RunTimeKey,
    RunTimeSample,
    RunTimeSampler,
    RunTimeSamples,
    SurvivalCurve,
)
from muster_whatif.scenario import Scenario
from muster_whatif.workloads.generator import Generator, generate

SECOND_NS = 1_000_000_000
BEGIN_NS = 1_000_000_000 * SECOND_NS
CONFIG = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - {name: a, resources: {guaranteed: {vcore: 4}}}
          - {name: b}
          - {name: c, properties: {application.sort.policy: fairshare}}
          - {name: d, resources: {max: {vcore: 4}}}
"""
A = RunTimeKey("root.a", "ann", "")


def apart(lengths_s: Sequence[float]) -> RunTimeSamples:
    """What is known of allocations of as many applications."""
    return RunTimeSamples(
        len(lengths_s), [RunTimeSample(each, f"past {number}") for number, each in enumerate(lengths_s)]
    )


class World:
    """A core with one node of four cores, and what a view would take of it."""

    def __init__(self, cores: int = 4) -> None:
        config, _ = load_queue_config(CONFIG)
        assert config is not None
        self.core, self.now_ns = SchedulerCore(config), BEGIN_NS
        self.core.start(self.now_ns)
        self.core.apply(Nodes((NodeItem("n", NodeAction.CREATE, capacity={"vcore": 1_000 * cores}),)), self.now_ns)

    def app(self, app_id: str, queue: str = "root.a", **more: object) -> None:
        item = AppItem(app_id, queue, "default", "ann", ("ann",), **more)  # type: ignore[arg-type]
        self.core.apply(UpdateApplications((item,)), self.now_ns)

    def ask(self, app_id: str, *keys: str, cores: int = 4, runs_s: float = 0, **more: object) -> None:
        chosen: dict[str, object] = {"execution_timeout_ms": round(1_000 * runs_s), **more}
        asks = [AskItem(key, app_id, "default", {"vcore": 1_000 * cores}, **chosen) for key in keys]  # type: ignore[arg-type]
        self.core.apply(UpdateAllocations(asks), self.now_ns)

    def later(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND_NS)
        while True:
            self.core.cycle(self.now_ns, 100)
            if self.core.exhausted:
                return

    def entries(self) -> list[snapshot.Entry]:
        info = RmInfo("rm", config=CONFIG, life="RUNNING", registered_ns=BEGIN_NS, registrations=1)
        info.last_decided_ns = self.now_ns
        return list(snapshot.entries(RmEntry(info, self.core)))

    def forecast(self, learnt: Sequence[float] = (), runs: int = 9, **more: object) -> Forecast:
        known = {A: apart(learnt)} if learnt else {}
        return forecast(self.entries(), known, self.now_ns, runs=runs, **more)  # type: ignore[arg-type]

    def seconds(self, found: Forecast, app_id: str, key: str) -> tuple[float, float, float]:
        of = found.estimates["default", app_id, key]
        times = [
            (each - self.now_ns) / SECOND_NS if each else -1 for each in (of.earliest_ns, of.likely_ns, of.latest_ns)
        ]
        return times[0], times[1], times[2]


# ---- lengths ---------------------------------------------------------------------------------------------------------


def test_without_running_ones_a_curve_repeats_what_ended() -> None:
    dice = random.Random(1)
    curve = SurvivalCurve([(each, 1.0) for each in (1.0, 2.0, 3.0, 4.0)], [])
    drawn = [curve.length_s(0.0, dice) for _ in range(4_000)]
    for value in (1.0, 2.0, 3.0, 4.0):
        assert 900 < drawn.count(value) < 1_100


def test_what_runs_already_is_drawn_longer_than_it_has_run() -> None:
    dice = random.Random(2)
    curve = SurvivalCurve([(each, 1.0) for each in (1.0, 2.0, 30.0, 40.0)], [])
    assert {curve.length_s(5.0, dice) for _ in range(200)} == {30.0, 40.0}
    assert all(curve.length_s(100.0, dice) >= 100.0 for _ in range(200)), "longer than anything known"


def test_running_ones_lengthen_the_curve() -> None:
    """Ten have ended after a second, thirty still run after ten: three of four run longer than ten seconds."""
    dice = random.Random(3)
    curve = SurvivalCurve([(1.0, 1.0)] * 10, [(10.0, 1.0)] * 30)
    drawn = [curve.length_s(0.0, dice) for _ in range(4_000)]
    assert 900 < sum(1 for each in drawn if each == 1.0) < 1_100
    assert all(each == 1.0 or each >= 10.0 for each in drawn)


def test_the_narrowest_group_with_enough_is_taken() -> None:
    few, many = [1.0] * (ENOUGH - 1), [9.0] * ENOUGH
    other = RunTimeKey("root.a", "ann", "workers")
    lengths = RunTimeSampler({A: apart(few), other: apart(many)}, {}, random.Random(1))
    assert lengths.group_of(other) == tuple(other)
    assert lengths.group_of(A) == ("root.a", "ann")
    assert lengths.group_of(RunTimeKey("root.a", "bob", "")) == ("root.a",)
    assert lengths.group_of(RunTimeKey("root.b", "bob", "")) == ()
    assert RunTimeSampler({A: apart([1.0] * 4)}, {}, random.Random(1)).draw_s(A) is None


def spread(known: RunTimeSamples) -> float:
    """By how much the share of lengths of 10 s differs between simulations."""
    shares = []
    for seed in range(100):
        lengths = RunTimeSampler({A: known}, {}, random.Random(seed))
        shares.append(sum(lengths.draw_s(A) == 10.0 for _ in range(200)) / 200)
    return pstdev(shares)


def test_few_applications_make_wider_ranges_than_many_with_as_many_tasks() -> None:
    lengths_s = [10.0] * 20 + [1_000.0] * 20
    eight, one = ([RunTimeSample(each, f"{number // of}") for number, each in enumerate(lengths_s)] for of in (5, 40))
    assert spread(RunTimeSamples(40, eight)) > 1.5 * spread(apart(lengths_s))
    assert spread(RunTimeSamples(40, one)) < 1.5 * spread(apart(lengths_s)), "one says nothing of how they differ"
    lengths = RunTimeSampler({A: RunTimeSamples(40, one)}, {}, random.Random(1))
    assert {lengths.draw_s(A) for _ in range(500)} == {10.0, 1_000.0}


def of_each_three(applications: int) -> RunTimeSamples:
    return RunTimeSamples(
        3 * applications, [RunTimeSample(10.0, f"past {number % applications}") for number in range(3 * applications)]
    )


def test_one_more_application_may_run_longer_than_any_has() -> None:
    """Of nine applications and one more, about one in ten is longer; with ninety, about one in ninety-one."""
    for number, low, high in ((9, 0.07, 0.14), (90, 0.005, 0.02)):
        longer = 0
        for seed in range(400):
            lengths = RunTimeSampler({A: of_each_three(number)}, {}, random.Random(seed))
            longer += sum((lengths.draw_s(A) or 0.0) > 10.0 for _ in range(20))
        assert low < longer / 8_000 < high


def test_what_is_learnt_is_bounded_and_counts_all() -> None:
    learnt = RunTimeHistory(BEGIN_NS)
    for number in range(KEPT_OF_KEY + 50):
        learnt.record(PastAsk(BEGIN_NS, A, "x", {}, 0, False, False), float(number + 1))
    (known,) = learnt.snapshot().values()
    assert known.ended == KEPT_OF_KEY + 50
    assert (known.lengths[0], len(known.lengths)) == (RunTimeSample(51.0, "x"), KEPT_OF_KEY)


# ---- forward ---------------------------------------------------------------------------------------------------------


def test_declared_lengths_give_the_moment() -> None:
    world = World()
    world.app("x")
    world.ask("x", "k1", runs_s=100)
    world.later(0)
    world.ask("x", "k2", runs_s=50)
    world.later(1)
    world.ask("x", "k3")
    world.later(29)
    found = world.forecast()
    assert (found.runs, found.declared["default"], found.unknown["default"]) == (9, 1, 0)
    assert world.seconds(found, "x", "k2") == (70, 70, 70)
    assert world.seconds(found, "x", "k3") == (120, 120, 120)


def test_lengths_that_nobody_knows_hold_their_room() -> None:
    world = World()
    world.app("x")
    world.ask("x", "k1")
    world.later(0)
    world.ask("x", "k2")
    world.later(1)
    found = world.forecast()
    assert (found.unknown["default"], found.estimates["default", "x", "k2"].started) == (1, 0)
    assert world.seconds(found, "x", "k2") == (-1, -1, -1)


def test_learnt_lengths_give_a_range() -> None:
    world = World()
    world.app("x")
    world.ask("x", "k1")
    world.later(0)
    world.ask("x", "k2")
    world.later(15)
    found = world.forecast([10.0, 20.0, 30.0, 40.0, 50.0], runs=39)
    earliest_s, likely_s, latest_s = world.seconds(found, "x", "k2")
    assert found.learnt["default"] == 1
    assert 5 <= earliest_s <= likely_s <= latest_s
    assert earliest_s < latest_s


def test_a_preemption_that_is_due_is_foreseen() -> None:
    world = World()
    world.app("of b", "root.b")
    world.ask("of b", *(f"k{number}" for number in range(4)), cores=1, runs_s=10_000, allow_preempt_self=True)
    world.later(0)
    world.app("x")
    world.ask("x", "k", cores=1, allow_preempt_other=True, has_preemption_policy=True)
    world.later(1)
    earliest_s, _, latest_s = world.seconds(world.forecast(), "x", "k")
    assert 1 < earliest_s == latest_s < 100, "the preemption has a delay"


def test_a_gang_waits_for_room_for_all_of_it() -> None:
    world = World()
    world.app("x")
    world.ask("x", "k1", cores=1, runs_s=40)
    world.ask("x", "k2", cores=1, runs_s=80)
    world.later(0)
    world.app("gang", placeholder_ask={"vcore": 4_000}, gang_style="Soft")
    world.ask("gang", *(f"p{number}" for number in range(4)), cores=1, task_group="w", placeholder=True)
    world.ask("gang", *(f"r{number}" for number in range(4)), cores=1, task_group="w", runs_s=5)
    world.later(10)
    found = world.forecast()
    starts = {world.seconds(found, "gang", f"r{number}")[1] for number in range(4)}
    assert starts == {70.0}


def test_a_snapshot_folds_to_the_same_records() -> None:
    world = World(cores=5)
    world.app("x")
    world.ask("x", "k1", runs_s=100)
    world.later(0)
    world.ask("x", "k2", "k3", cores=3)
    world.app("y", "root.c")
    world.ask("y", "k4", cores=1)
    world.later(60)
    first = world.entries()
    state = fold_entries(first, world.now_ns)
    own = (state_codec.RM, state_codec.REGISTRATION)
    kept = {key: value for key, value in first if key.split(b"/")[1].decode() not in own}
    again = {key: value for key, value in snapshot.entries(state) if key in kept}
    assert again == kept
    assert any(b"/why/" in key for key in kept)
    assert any(b"/use/" in key for key in kept)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_list_that_moves_after_a_restart_gets_its_turn_as_without_one(restarts: bool) -> None:
    """At first its queue's max stops the ask, later the node. It reserves 15 s after it first might have."""
    world = World()
    world.app("filler", "root.b")
    world.ask("filler", "k", cores=2)
    world.app("x", "root.d")
    world.ask("x", "small", cores=2)
    world.later(0)
    world.ask("x", "all")
    world.later(1)
    if restarts:
        world.core = fold_entries(world.entries(), world.now_ns).core
        world.later(0)
    world.later(2)
    release = ReleaseItem("default", "x", "small", Termination.STOPPED_BY_RM)
    world.core.apply(UpdateAllocations((), [release]), world.now_ns)
    reserved = []
    for _ in range(20):
        world.later(1)
        reserved.append(bool(world.core.partitions["default"].nodes["n"].reservations))
    assert reserved.index(True) == 13, reserved


def test_too_little_time_is_said() -> None:
    world = World()
    clock = iter(range(1_000))
    with pytest.raises(ForecastUnavailable, match="9 are needed"):
        world.forecast(cpu_s=3.0, spent_s=lambda: float(next(clock)))


# ---- calibration -----------------------------------------------------------------------------------------------------


def test_ranges_hold_the_truth_in_eight_of_ten_cases() -> None:
    """Forty worlds apart: an ask waits for two others, one after the other. The seeds fix every draw."""
    dice = random.Random(7)
    held = 0
    for number in range(40):
        learnt = [dice.lognormvariate(4, 1) for _ in range(100)]
        elapsed_s = dice.uniform(0, 60)
        while (length_s := dice.lognormvariate(4, 1)) <= elapsed_s:
            pass
        true_s = length_s - elapsed_s + dice.lognormvariate(4, 1)
        world = World()
        world.app("x")
        world.ask("x", "k1")
        world.later(0)
        world.ask("x", "k2", "k3")
        world.later(elapsed_s)
        earliest_s, _, latest_s = world.seconds(world.forecast(learnt, seed=number), "x", "k3")
        held += earliest_s <= true_s <= latest_s
    assert 26 <= held <= 38, "32 are expected"


def test_a_play_is_the_truth_for_forecasts_made_within_it() -> None:
    loaded = generate(Generator(tasks=60, nodes=2, cores=8, load=1.5, median_run_s=300, seed=5))
    cases = calibrate(loaded, Scenario("s", loaded.config), [loaded.tasks[-1].arrives_s * 0.8], runs=9)
    assert cases
    assert all(each.true_s is not None and each.true_s >= 0 and len(each.times_s) <= each.runs for each in cases)
    shares = coverage(cases)
    assert list(shares) == [20, 40, 60, 80]
    assert shares[80] == 100 * sum(each.is_within for each in cases) / len(cases)
    assert sorted(shares.values()) == list(shares.values()), "a wider range holds more"
