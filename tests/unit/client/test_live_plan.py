"""The plan of `muster demo --live`: what a spectator is shown, and when."""

from __future__ import annotations

from itertools import islice, takewhile

from muster_queue_config.queue_yaml import load_queue_config
from muster_replay.live_plan import NODES, PRODUCTION, QUEUES, ROUND_S, Drain, Job, Undrain, plan
from muster_replay.trace import total


def test_the_first_half_minute_has_all_of_it() -> None:
    first = [step.what for step in takewhile(lambda step: step.at_s < ROUND_S, plan())]
    jobs = [what for what in first if isinstance(what, Job)]
    assert len({job.user for job in jobs}) >= 5
    assert len({job.queue for job in jobs}) == 4
    assert any(job.gang for job in jobs)
    assert any(job.may_preempt for job in jobs)
    [drained], [back] = ([what.node for what in first if isinstance(what, kind)] for kind in (Drain, Undrain))
    assert drained == back
    assert drained in NODES


def test_times_go_on_and_a_seed_gives_the_same() -> None:
    many = list(islice(plan(7), 500))
    assert [step.at_s for step in many] == sorted(step.at_s for step in many)
    assert many == list(islice(plan(7), 500))
    assert many != list(islice(plan(8), 500))
    names = [step.what.name for step in many if isinstance(step.what, Job)]
    assert len(set(names)) == len(names)


def test_a_node_is_back_before_another_one_is_drained() -> None:
    drains = [step.what for step in islice(plan(3), 2000) if isinstance(step.what, Drain | Undrain)]
    assert all(isinstance(what, Drain) for what in drains[::2])
    assert all(isinstance(what, Undrain) for what in drains[1::2])
    assert [what.node for what in drains[::2]][: len(drains) // 2] == [what.node for what in drains[1::2]]


def test_urgent_work_is_within_its_guarantee_but_not_free() -> None:
    """So that it preempts: batch has asked for all that is left before."""
    first = list(takewhile(lambda step: step.at_s < ROUND_S, plan()))
    production = [step.what for step in first if isinstance(step.what, Job) and step.what.queue == PRODUCTION]
    wanted = sum(job.tasks * job.resources["vcore"] for job in production)
    assert wanted <= 360_000
    surge_s = max(step.at_s for step in first if step.what in production)
    before = sum(
        step.what.tasks * step.what.resources["vcore"]
        for step in first
        if isinstance(step.what, Job) and step.at_s <= surge_s
    )
    assert before > total(list(NODES.values()))["vcore"]


def test_the_queues_are_a_configuration_without_a_warning() -> None:
    config, problems = load_queue_config(QUEUES)
    assert config is not None
    assert problems == []
