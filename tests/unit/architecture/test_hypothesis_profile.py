"""Properties have no deadline, so none fails because the machine is busy."""

from __future__ import annotations

import re
import time
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TESTS = Path(__file__).parents[2]


def test_one_profile_holds_for_every_property() -> None:
    profile = settings()
    assert profile.deadline is None
    assert HealthCheck.too_slow in profile.suppress_health_check
    assert profile.print_blob  # a failure can be reproduced


@settings(max_examples=2)
@given(st.just(0.25))
def test_an_example_may_take_longer_than_hypothesis_would_let_it(duration_s: float) -> None:
    time.sleep(duration_s)


def test_no_test_says_a_deadline_of_its_own() -> None:
    own = re.compile(r"\bdeadline=(None|\d)|HealthCheck\.too_slow")
    # (`make fuzz` runs without pytest, and so without conftest.py.)
    here = {Path(__file__), TESTS / "conftest.py", TESTS / "fuzz" / "__main__.py"}
    found = [str(each.relative_to(TESTS)) for each in sorted(TESTS.rglob("*.py")) if own.search(each.read_text())]
    assert [each for each in found if TESTS / each not in here] == []
