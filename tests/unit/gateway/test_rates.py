"""Rates: a message is taken at once or later, never dropped, and over time never faster than the rate."""

from __future__ import annotations

import random

import pytest
from manual_clock import ManualClock
from muster_gateway.errors import RateLimited
from muster_gateway.quota_settings import QuotaSettings
from muster_gateway.quotas import QuotaBook
from muster_gateway.rates import RateLimiter, pushback
from muster_runtime.caller import Caller
from muster_runtime.identity import LOOPBACK, Identity, Proof, Role, rights_of

TEAM = Caller(Identity("team", rights_of(Role.NONE), Proof.TOKEN))


def rates(clock: ManualClock, told: list[tuple[str, str]] | None = None, **settings: object) -> RateLimiter:
    found = told if told is not None else []
    quotas = QuotaBook(QuotaSettings.model_validate({"burst_s": 2, **settings}))
    return RateLimiter(quotas, clock, lambda rm_id, story: found.append((rm_id, story)))


def test_a_quiet_rm_may_send_a_burst_and_then_its_rate() -> None:
    clock = ManualClock()
    pace = rates(clock, rm={"requests_per_s": 10}).pacer_for(TEAM, "rm")
    assert [pace.consume(1) for _ in range(20)] == [0.0] * 20
    assert pace.consume(1) == pytest.approx(0.1)
    clock.advance(0.1)
    assert pace.consume(1) == pytest.approx(0.1)
    clock.advance(100)
    assert [pace.consume(1) for _ in range(20)] == [0.0] * 20


def test_a_message_larger_than_a_burst_is_taken_and_paid_later() -> None:
    clock = ManualClock()
    pace = rates(clock, rm={"requests_per_s": 0, "bytes_per_s": 100}).pacer_for(TEAM, "rm")
    assert pace.consume(1_000) == pytest.approx(8.0)


def test_streams_of_an_rm_share_its_rate_and_another_rm_has_its_own() -> None:
    all_rates = rates(ManualClock(), rm={"requests_per_s": 1})
    first, second = all_rates.pacer_for(TEAM, "rm"), all_rates.pacer_for(TEAM, "rm")
    assert first.consume(1) == 0
    assert second.consume(1) == 0
    assert first.consume(1) > 0
    assert second.consume(1) > 0
    assert all_rates.pacer_for(TEAM, "rm-2").consume(1) == 0


def test_an_identity_has_a_rate_for_all_its_rms_and_callers_without_credentials_have_none() -> None:
    all_rates = rates(ManualClock(), identity={"requests_per_s": 2})
    waits = [all_rates.pacer_for(TEAM, f"rm-{number}").consume(1) for number in range(5)]
    assert waits[:4] == [0.0] * 4
    assert waits[4] == pytest.approx(0.5)
    assert not any(all_rates.pacer_for(Caller(LOOPBACK), f"rm-{number}").consume(1) for number in range(50))


def test_a_call_that_cannot_wait_is_refused_with_the_time_to_wait() -> None:
    clock = ManualClock()
    all_rates = rates(clock, identity={"requests_per_s": 2, "bytes_per_s": 0})
    for _ in range(5):
        all_rates.check_call(TEAM, 100)
    with pytest.raises(RateLimited, match=r"'team' sends more than 2 requests in a second .* in 0\.5 s") as refused:
        all_rates.check_call(TEAM, 100)
    assert pushback(refused.value.wait_s) == (("grpc-retry-pushback-ms", "500"),)
    clock.advance(0.51)
    all_rates.check_call(TEAM, 100)


def test_a_slow_stream_is_told_once_until_it_was_quiet_for_a_minute() -> None:
    clock, told = ManualClock(), list[tuple[str, str]]()
    all_rates = rates(clock, told, rm={"requests_per_s": 1, "bytes_per_s": 0})
    pace = all_rates.pacer_for(TEAM, "rm")
    for _ in range(50):
        pace.consume(1)
    story = (
        "quota of requests reached: this resource manager sends more than 1 requests in a second; its streams are read "
        "more slowly"
    )
    assert told == [("rm", story)]
    assert all_rates.problems() == [f"rm rm: {story}"]
    clock.advance(61)
    assert all_rates.problems() == []
    for _ in range(10):
        pace.consume(1)
    assert told == [("rm", story)] * 2


def test_the_defaults_slow_no_rm_at_full_speed() -> None:
    clock = ManualClock()
    all_rates = RateLimiter(QuotaBook(QuotaSettings()), clock)
    pace = all_rates.pacer_for(TEAM, "rm")
    assert not any(pace.consume(300) for _ in range(50_000)), "50,000 asks at once, one in a message"
    clock.advance(10)
    for _ in range(1_000):  # 500 single asks and 13,000 in messages of 100, in each second
        clock.advance(0.01)
        assert not any(pace.consume(size) for size in (300, 300, 300, 300, 300, 30_000, 30_000))
    assert not all_rates.problems()


def test_other_settings_count_at_once() -> None:
    clock = ManualClock()
    all_rates = rates(clock, rm={"requests_per_s": 1})
    pace = all_rates.pacer_for(TEAM, "rm")
    for _ in range(50):
        pace.consume(1)
    all_rates.reload()
    assert pace.consume(1) == 0


@pytest.mark.parametrize("seed", range(5))
def test_no_rm_ever_sends_more_than_its_rate_and_burst(seed: int) -> None:
    dice, clock = random.Random(seed), ManualClock()
    pace = rates(clock, rm={"requests_per_s": 50, "bytes_per_s": 5_000}).pacer_for(TEAM, "rm")
    begun_s, requests, size = clock.monotonic(), 0, 0
    for _ in range(3_000):
        message = dice.choice([10, 100, 3_000])
        wait_s = pace.consume(message)
        requests, size = requests + 1, size + message
        spent_s = clock.monotonic() + wait_s - begun_s
        assert requests <= 50 * (2 + spent_s) + 1
        assert size <= 5_000 * (2 + spent_s) + 1
        clock.advance(wait_s + dice.choice([0, 0, 0.001, 0.5]))
