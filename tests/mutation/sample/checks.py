"""The tests of the samples. (No name that pytest looks for: test_mutation.py names this file.)"""

from __future__ import annotations

import os

from mutation.sample.fitting import fits, steps_to
from mutation.sample.naming import Named


def test_what_is_as_large_fits() -> None:
    assert fits(2, 2)
    assert not fits(3, 2)


def test_it_goes_to_the_end() -> None:
    assert [steps_to(end) for end in (0, 1, 2)] == [0, 1, 2]


def test_a_name_is_not_empty() -> None:
    assert Named("").empty
    assert not Named("node").empty


def test_only_far_from_the_boundary() -> None:
    assert Named.larger(7, 2)
    assert not Named.larger(2, 7)


def test_the_environment_may_break_it() -> None:
    assert "BROKEN_SAMPLE" not in os.environ
