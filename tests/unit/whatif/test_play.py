"""A workload is played as it would run: in virtual time, on the core, with every figure as a naive recount has it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from muster_whatif.errors import InvalidScenario
from muster_whatif.scenario import Scenario
from muster_whatif.simulation import play
from muster_whatif.stats import figures
from muster_whatif.workload import Workload, WorkloadNode, WorkloadTask
from muster_whatif.workloads.generator import Generator, generate
from unit.whatif.recount import over_nodes, used_at, wait_reached_by

TWO_QUEUES = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - name: a
            resources: {guaranteed: {vcore: "4"}}
          - name: b
"""


def task(
    name: str, arrives_s: float, runs_s: float, cores: int = 1, queue: str = "root.a", priority: int = 0
) -> WorkloadTask:
    vcore = {"vcore": 1_000 * cores}
    return WorkloadTask(name, f"app-{queue}", queue, "ann", vcore, arrives_s, runs_s, priority)


def workload(*tasks: WorkloadTask, cores: int = 4, nodes: int = 1) -> Workload:
    machines = [WorkloadNode(f"n{number}", {"vcore": 1_000 * cores}, "small") for number in range(nodes)]
    return Workload("test", machines, tasks, TWO_QUEUES)


def test_a_task_starts_when_another_one_ends() -> None:
    played = play(workload(task("t1", 0, 10, 4), task("t2", 3, 5, 4)), Scenario("s", TWO_QUEUES))
    first, second = played.lives["t1"], played.lives["t2"]
    assert (first.started_s, first.ended_s) == (0, 10)
    assert (second.started_s, second.ended_s) == (10, 15)
    assert (played.until_s, played.decisions) == (15, 2)


def test_the_end_of_the_play_may_come_first() -> None:
    played = play(workload(task("t1", 0, 10, 4), task("t2", 3, 5, 4)), Scenario("s", TWO_QUEUES), until_s=7)
    assert played.lives["t1"].ended_s is None
    assert played.lives["t2"].first_started_s is None
    assert figures(played).all.never == 1


def test_a_task_that_fits_no_machine_never_starts_and_does_not_hold_the_play_up() -> None:
    played = play(workload(task("large", 0, 10, 5), task("small", 1, 2)), Scenario("s", TWO_QUEUES))
    assert played.lives["small"].ended_s == 3
    assert figures(played).all.never == 1


def test_a_task_for_a_queue_that_does_not_exist_is_refused_with_the_reason() -> None:
    played = play(workload(task("t", 0, 10, queue="root.c"), task("u", 0, 1)), Scenario("s", TWO_QUEUES))
    assert "root.c" in played.lives["t"].rejected
    assert (figures(played).all.refused, figures(played).all.never) == (1, 0)


def test_a_guarantee_preempts_and_the_victim_runs_again_from_its_beginning() -> None:
    of_b = [task(f"b{number}", 0, 1_000, queue="root.b") for number in range(4)]
    played = play(workload(*of_b, task("a", 10, 100)), Scenario("s", TWO_QUEUES))
    (victim,) = [life for life in played.lives.values() if life.preempted]
    wanted = played.lives["a"]
    assert wanted.started_s is not None
    assert 10 < wanted.started_s < 100, "the preemption has a delay"
    assert victim.started_s == wanted.ended_s
    assert victim.ended_s == victim.started_s + 1_000
    assert figures(played).queues["root.b"].preemptions == 1


def test_an_application_that_completed_is_added_again() -> None:
    played = play(workload(task("t1", 0, 1), task("t2", 1_000, 1)), Scenario("s", TWO_QUEUES))
    assert played.lives["t2"].ended_s == 1_001


def test_more_machines_shorten_the_wait() -> None:
    loaded = generate(Generator(tasks=300, nodes=4, cores=8, load=1.5, seed=3))
    waits = [figures(play(loaded, Scenario("s", loaded.config, changes))).all.p95_s for changes in ((), ("+4:node",))]
    assert waits[0] is not None
    assert waits[1] is not None
    assert waits[0] > waits[1]


def test_changes_of_the_machines_are_checked() -> None:
    two = workload(nodes=2)
    assert [each.name for each in Scenario("s", "", ("-1:small",)).machines(two)] == ["n0"]
    for change, message in {
        "+1:large": "there is no machine of kind 'large', expected one of small",
        "-3:small": "there are only 2",
        "more": "must be [+]COUNT:KIND or -COUNT:KIND with a whole number from 1 to .*, got 'more'",
        "-2:small": "no machine is left",
    }.items():
        with pytest.raises(InvalidScenario, match=message):
            Scenario("s", "", (change,)).machines(two)
    with pytest.raises(InvalidScenario, match="s: "):
        play(two, Scenario("s", "partitions: 3"))


@pytest.mark.parametrize("seed", range(1, 6))
def test_every_figure_is_what_a_naive_recount_finds(seed: int) -> None:
    loaded = generate(Generator(tasks=250, nodes=5, cores=8, load=1.3, seed=seed))
    played = play(loaded, Scenario("s", loaded.config))
    found, lives = figures(played), list(played.lives.values())
    assert not over_nodes(played, {each.name: each.quantities for each in loaded.machines})
    assert all(life.ended_s is not None for life in lives)
    for life in lives:
        assert life.started_s is not None
        assert life.ended_s == pytest.approx(life.started_s + life.task.runs_s)
    # 1. waits, in all and by group
    for percent, value in ((50, found.all.p50_s), (95, found.all.p95_s), (100, found.all.max_s)):
        assert value == pytest.approx(wait_reached_by(lives, percent), abs=1e-6)
    for queue, waits in found.queues.items():
        assert waits.p95_s == pytest.approx(
            wait_reached_by([life for life in lives if life.task.queue == queue], 95), abs=1e-6
        )
    assert sum(waits.tasks for waits in found.users.values()) == found.all.tasks == 250
    # 2. use: in resource-seconds, at each change, and as a share over the time
    used = sum(life.task.quantities["vcore"] * life.task.runs_s for life in lives)
    assert found.use["vcore"].used_seconds == pytest.approx(used)
    assert sum(each["vcore"] for each in found.queue_seconds.values()) == pytest.approx(used)
    for (moment_s, quantities), (until_s, _) in pairwise(played.used):
        assert quantities["vcore"] == used_at(played, "vcore", (moment_s + until_s) / 2)
    whole = found.use["vcore"].capacity * found.makespan_s
    assert sum(found.use["vcore"].series) / len(found.use["vcore"].series) == pytest.approx(used / whole)
    # 3. fairness, and the length
    by_user = dict.fromkeys(found.users, 0.0)
    for life in lives:
        by_user[life.task.user] += life.task.quantities["vcore"] * life.task.runs_s
    assert found.fairness == pytest.approx(
        sum(by_user.values()) ** 2 / (len(by_user) * sum(each**2 for each in by_user.values()))
    )
    assert found.makespan_s == max(life.ended_s or 0 for life in lives) - min(life.task.arrives_s for life in lives)


def test_the_same_workload_is_played_the_same_way_again() -> None:
    loaded = generate(Generator(tasks=200, nodes=4, cores=8, load=1.4, seed=9))
    assert play(loaded, Scenario("s", loaded.config)) == play(loaded, Scenario("s", loaded.config))


def test_a_tick_moves_each_start_by_less_than_its_wait_and_the_tick() -> None:
    loaded = generate(Generator(tasks=100, nodes=50, cores=8, load=0.1, seed=2))
    played = play(loaded, Scenario("s", loaded.config), tick_s=5.0)
    for life in played.lives.values():
        assert life.started_s is not None
        assert -1e-6 < life.started_s - life.task.arrives_s < 5.0
        assert life.started_s % 5.0 == 0
