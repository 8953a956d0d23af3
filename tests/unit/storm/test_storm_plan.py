"""Plans of faults: a function of the seed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from chaos.storm.plan import KINDS, Fault, plan, under_way


def test_a_plan_is_a_function_of_seed_and_length() -> None:
    assert plan(17, 180) == plan(17, 180)
    assert plan(17, 180) != plan(18, 180)


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_keeps_its_terms(seed: int) -> None:
    faults = plan(seed, 180)
    assert len(faults) > 25
    assert all(0 <= each.at_s <= each.until_s <= 180 for each in faults)
    assert list(faults) == sorted(faults, key=lambda each: each.at_s)
    away = [each for each in faults if each.kind.endswith("-broker")]
    assert all(one.until_s < other.at_s for one, other in pairwise(away)), "two brokers at a time"
    for place, one in enumerate(faults):
        same = [each for each in faults[:place] if each.target == one.target]
        assert all(each.until_s < one.at_s for each in same), "two faults of one target at a time"


def test_ten_minutes_have_all_kinds() -> None:
    assert {each.kind for each in plan(1, 600)} == KINDS.keys()


def test_faults_at_a_moment() -> None:
    one, other = Fault(10, "kill", "view", 2), Fault(20, "flush", "redis")
    assert under_way([one, other], 9) == []
    assert under_way([one, other], 11) == [one]
    assert under_way([one, other], 16) == [one]
    assert under_way([one, other], 21) == [other]
