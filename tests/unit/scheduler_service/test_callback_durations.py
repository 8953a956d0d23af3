"""The registration's keys for how long the scheduler waits for the RM's answers."""

from __future__ import annotations

import pytest
from muster_core.model.resources import INT64_MAX
from muster_core.model.scopes import SECOND_NS, CallbackPolicy
from muster_proto.muster.bus.v1 import envelope_pb2 as bus
from muster_proto.muster.v1 import callbacks_pb2 as pb
from muster_scheduler import generation
from muster_scheduler.callback_ingest import (
    GRACE_KEY,
    RETRY_KEY,
    TIMEOUT_KEY,
    policy_of,
    problems_of,
)
from muster_state.state_folder import CALLBACKS_ABSENT_KEY, RmInfo
from unit.scheduler_service.rig import RM, Rig, allocation, application, asks, node, registration

DEFAULT = CallbackPolicy()
LONGEST = f"{INT64_MAX}ns"


def _figure(key: str, text: str) -> int:
    policy = policy_of(RmInfo(RM, extra_config={key: text}))
    return {TIMEOUT_KEY: policy.timeout_ns, RETRY_KEY: policy.retry_ns, GRACE_KEY: policy.grace_ns}[key]


@pytest.mark.parametrize(
    ("key", "text", "expected_ns"),
    [
        (TIMEOUT_KEY, "100ms", SECOND_NS // 10),
        (TIMEOUT_KEY, "1h", 3600 * SECOND_NS),
        (RETRY_KEY, "1s", SECOND_NS),
        (GRACE_KEY, "0s", 0),
        (GRACE_KEY, "24h", 24 * 3600 * SECOND_NS),
    ],
)
def test_a_duration_within_its_bounds_counts(key: str, text: str, expected_ns: int) -> None:
    assert _figure(key, text) == expected_ns
    assert not problems_of({key: text})


@pytest.mark.parametrize(
    ("key", "text", "default_ns", "bounds"),
    [
        (TIMEOUT_KEY, "1ns", DEFAULT.timeout_ns, "from 100ms to 1h"),
        (TIMEOUT_KEY, LONGEST, DEFAULT.timeout_ns, "from 100ms to 1h"),
        (RETRY_KEY, "999ms", DEFAULT.retry_ns, "from 1s to 1h"),
        (RETRY_KEY, LONGEST, DEFAULT.retry_ns, "from 1s to 1h"),
        (GRACE_KEY, "-1s", DEFAULT.grace_ns, "from 0s to 24h"),
        (GRACE_KEY, "soon", DEFAULT.grace_ns, "from 0s to 24h"),
    ],
)
def test_any_other_is_a_warning_and_the_default_holds(key: str, text: str, default_ns: int, bounds: str) -> None:
    assert _figure(key, text) == default_ns
    (problem,) = problems_of({key: text})
    assert (problem.severity, problem.path) == (bus.ConfigProblem.WARNING, f"extraConfig[{key}]")
    assert problem.message == f"{text!r}, expected a duration such as 10s, {bounds}: the default holds"


def test_the_longest_valid_durations_stop_nothing() -> None:
    rig = Rig()
    rig.now_ns = 1_800_000_000 * SECOND_NS  # the latest possible time: the sum with a duration must stay an int64
    request = registration()
    request.extraConfig.update({TIMEOUT_KEY: LONGEST, RETRY_KEY: LONGEST, GRACE_KEY: LONGEST})
    rig.send(request)
    rig.send(bus.CallbackStream(connected=True, epoch=1, predicates=True))
    rig.send(node("n1", vcore=4), application("x", "root.a"), asks(allocation("x", "k", vcore=1)))
    (question,) = rig.of("predicates")
    refusal = pb.PredicatesAnswer(id=question.id, fits=False, reason="no")
    rig.send(pb.FromResourceManager(predicates=[refusal]))
    rig.wait(DEFAULT.retry_ns / SECOND_NS)
    assert len(rig.of("predicates")) == 2


@pytest.mark.parametrize("key", [TIMEOUT_KEY, CALLBACKS_ABSENT_KEY, generation.KEY])
def test_a_warning_shows_the_beginning_of_a_value(key: str) -> None:
    rig = Rig()
    request = registration()
    request.extraConfig[key] = "\U000e0001" * 200_000
    rig.send(request)
    (problem,) = rig.registrations[-1].problems
    assert problem.path == f"extraConfig[{key}]"
    assert len(problem.message) < 4_000
