"""The meaning of a queue's properties."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from muster_core.config.properties import (
    APP_SORTS,
    INT32_MAX,
    INT32_MIN,
    KEYS,
    SECOND_NS,
    PreemptionPolicy,
    QueuePolicy,
    inherited,
    parse_duration_ns,
    policy_of,
    read,
)

MINUTE_NS = 60 * SECOND_NS


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("application.sort.policy", "fair", "app_sort", APP_SORTS["fair"]),
        ("application.sort.policy", "fifo", "app_sort", APP_SORTS["fifo"]),
        ("application.sort.policy", "stateaware", "app_sort", APP_SORTS["stateaware"]),
        ("application.sort.priority", "disabled", "priority_first", False),
        ("application.sort.priority", "enabled", "priority_first", True),
        ("priority.policy", "fence", "priority_fence", True),
        ("priority.policy", "FENCE", "priority_fence", True),
        ("priority.policy", "default", "priority_fence", False),
        ("priority.offset", "-7", "priority_offset", -7),
        ("priority.offset", str(INT32_MAX), "priority_offset", INT32_MAX),
        ("priority.offset", str(INT32_MIN), "priority_offset", INT32_MIN),
        ("preemption.policy", "Disabled", "preemption", PreemptionPolicy.DISABLED),
        ("application.sort.priority", "DISABLED", "priority_first", False),
        ("application.sort.priority", "Enabled", "priority_first", True),
        ("preemption.policy", "fence", "preemption", PreemptionPolicy.FENCE),
        ("preemption.delay", "1m30s", "preemption_delay_ns", 90 * SECOND_NS),
        ("preemption.priority", "disabled", "preempts_by_priority", False),
        ("gang.start", "Incremental", "whole_gangs", False),
        ("gang.start", "whole", "whole_gangs", True),
        ("gang.preemption", "WHOLE", "gangs_preempted_whole", True),
        ("gang.preemption", "members", "gangs_preempted_whole", False),
        ("quota.preemption.delay", "5m", "quota_preemption_delay_ns", 5 * MINUTE_NS),
        ("quota.preemption.delay", "0", "quota_preemption_delay_ns", 0),
    ],
)
def test_the_meaning_of_a_value(name: str, text: str, field: str, value: object) -> None:
    policy, wrong = read({name: text})
    assert (getattr(policy, field), wrong) == (value, {})
    others = [each.name for each in fields(QueuePolicy) if each.name != field]
    assert all(getattr(policy, each) == getattr(QueuePolicy(), each) for each in others)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("application.sort.policy", "Fair"),
        ("application.sort.policy", ""),
        ("application.sort.priority", "DISABLED "),
        ("application.unschedasks.backoff", "-1"),
        ("application.unschedasks.backoff", str(1 << 64)),
        ("application.unschedasks.backoff.delay", "0s"),
        ("priority.policy", "fenced"),
        ("priority.offset", "1.5"),
        ("priority.offset", str(INT32_MAX + 1)),
        ("priority.offset", "٣"),
        ("preemption.policy", "off"),
        ("preemption.delay", "0s"),
        ("preemption.delay", "-5s"),
        ("preemption.delay", "30"),
        ("preemption.priority", "no"),
        ("gang.start", "partial"),
        ("gang.preemption", "all"),
        ("quota.preemption.delay", "-1s"),
        ("quota.preemption.delay", "soon"),
    ],
)
def test_a_value_that_is_none_means_the_default_and_is_named(name: str, text: str) -> None:
    policy, wrong = read({name: text})
    assert policy == QueuePolicy()
    assert list(wrong) == [name]
    assert wrong[name] == KEYS[name].expected


def test_the_defaults_written_out_are_the_defaults() -> None:
    assert read({name: key.default for name, key in KEYS.items()}) == (QueuePolicy(), {})


def test_unknown_names_have_no_effect() -> None:
    assert read({"cost.centre": "4711"}) == (QueuePolicy(), {})
    assert policy_of({"cost.centre": "4711", "priority.offset": "3"}).priority_offset == 3


def test_properties_that_a_configured_child_inherits() -> None:
    everything = {name: key.default for name, key in KEYS.items()} | {"cost.centre": "4711"}
    taken = inherited({**everything, "preemption.policy": "DISABLED"})
    assert set(everything) - set(taken) == {"priority.offset", "priority.policy"}
    assert "preemption.policy" not in inherited({"preemption.policy": "fence"})


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("-0", 0),
        ("1ns", 1),
        ("2us", 2_000),
        ("2µs", 2_000),
        ("2μs", 2_000),
        ("3ms", 3_000_000),
        ("1.5s", 1_500_000_000),
        (".5s", 500_000_000),
        ("1.s", SECOND_NS),
        ("+2m", 2 * MINUTE_NS),
        ("-2m", -2 * MINUTE_NS),
        ("1h2m3s", 3723 * SECOND_NS),
        ("2562047h", 2562047 * 60 * MINUTE_NS),
    ],
)
def test_durations_are_gos(text: str, ns: int) -> None:
    assert parse_duration_ns(text) == ns


@pytest.mark.parametrize(
    "text", ["", "-", "s", "5", "1d", "1 s", "1,5s", "1s ", "--1s", "1sm", "2562048h", "1e3s", "٣s", "1" * 70 + "s"]
)
def test_invalid_durations(text: str) -> None:
    with pytest.raises(ValueError, match="invalid duration"):
        parse_duration_ns(text)


@given(st.integers(0, 10**6), st.sampled_from(["ns", "us", "ms", "s", "m"]), st.integers(0, 59))
def test_parts_of_a_duration_add_up(amount: int, unit: str, seconds: int) -> None:
    assert parse_duration_ns(f"{amount}{unit}{seconds}s") == parse_duration_ns(f"{amount}{unit}") + seconds * SECOND_NS


@given(st.dictionaries(st.sampled_from(list(KEYS)), st.text(max_size=12), max_size=4))
def test_any_properties_mean_something(properties: dict[str, str]) -> None:
    policy, wrong = read(properties)
    assert policy == policy_of(properties)
    assert policy == policy_of({name: text for name, text in properties.items() if name not in wrong})
