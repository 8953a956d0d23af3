"""Two futures of the present state: the asks that wait start earlier or later under another configuration."""

from __future__ import annotations

import pytest
from muster_whatif.errors import ForecastUnavailable, InvalidScenario
from muster_whatif.forecast.config_comparison import MOMENTS, ConfigComparison, compare
from unit.whatif.test_when import CONFIG, World

SMALLER = CONFIG.replace("{name: b}", "{name: b, resources: {max: {vcore: 2}}}")
LARGER = CONFIG.replace("{name: d, resources: {max: {vcore: 4}}}", "{name: d}")


def crowded() -> World:
    """Eight cores: d has four of four, for 100 s; two more asks of it wait for its max."""
    world = World(cores=8)
    world.app("x", "root.d")
    world.ask("x", "k1", runs_s=100)
    world.later(0)
    world.ask("x", "k2", "k3", runs_s=100)
    world.later(10)
    return world


def futures(world: World, config: str, **more: object) -> ConfigComparison:
    return compare(world.entries(), config, {}, world.now_ns, runs=2, **more)  # type: ignore[arg-type]


def test_without_its_max_the_queue_starts_one_ask_at_once_and_the_other_earlier() -> None:
    found = futures(crowded(), LARGER)
    ((place, (asks, present, other)),) = found.queues.items()
    assert (place, asks, found.runs) == (("default", "root.d"), 2, 2)
    assert (present.started, present.half_s, present.most_s) == (1.0, 90.0, 190.0)
    assert (other.started, other.half_s, other.most_s) == (1.0, 0.0, 90.0)
    rise = found.rises["default"]
    assert len(rise.moments_s) == len(rise.present) == len(rise.other) == MOMENTS + 1
    assert (rise.present[0], rise.other[0]) == (0.0, 0.5)
    assert (rise.present[-1], rise.other[-1]) == (1.0, 1.0)
    assert all(before <= after for before, after in zip(rise.present, rise.present[1:], strict=False))


def test_the_configuration_in_force_changes_nothing() -> None:
    found = futures(crowded(), CONFIG)
    assert all(present == other for _, present, other in found.queues.values())


def test_asks_that_would_never_start_are_told() -> None:
    world = World()
    world.app("x", "root.b")
    world.ask("x", "k1", runs_s=100)
    world.later(0)
    world.ask("x", "k2")
    world.later(10)
    ((_, present, other),) = futures(world, SMALLER).queues.values()
    assert (present.started, present.half_s) == (1.0, 90.0)
    assert (other.started, other.half_s, other.most_s) == (0.0, None, None)


def test_without_waiting_asks_there_is_nothing_to_compare() -> None:
    found = futures(World(), CONFIG)
    assert (dict(found.queues), dict(found.rises)) == ({}, {})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("partitions: [{name: default, queues: [{name: root, fast: 1}]}]", "fast", id="unknown key"),
        pytest.param("partitions: [{name: other, queues: [{name: root}]}]", "default", id="another partition"),
    ],
)
def test_a_configuration_that_would_be_refused_is(text: str, problem: str) -> None:
    with pytest.raises(InvalidScenario, match=problem):
        futures(crowded(), text)


def test_too_little_time_is_said() -> None:
    clock = iter(range(10_000))
    with pytest.raises(ForecastUnavailable, match="pair of runs"):
        futures(crowded(), LARGER, cpu_s=1.0, spent_s=lambda: float(next(clock)))
