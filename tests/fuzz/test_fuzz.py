"""Every decoder takes a few mutated inputs, and each earlier finding of ``make fuzz``."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.__main__ import FOUND, fuzz, once
from fuzz.targets import TARGETS, Target

BY_NAME = {each.name: each for each in TARGETS}
FILES = sorted(path for path in FOUND.glob("*/*") if path.is_file())


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_valid_input_is_taken(target: Target) -> None:
    for data in target.seeds():
        target.call(data)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_mutated_inputs_are_taken_or_refused(target: Target) -> None:
    assert fuzz(target, seed=1, examples=40) is None


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_was_found_once(path: Path) -> None:
    once(BY_NAME[path.parent.name], path.read_bytes())


def test_a_finding_is_one() -> None:
    def fails(data: bytes) -> None:
        if len(data) > 5:
            raise KeyError(data)

    found = fuzz(Target("toy", fails, lambda: [b"abcd"], (ValueError,)), seed=1, examples=200)
    assert found is not None
    assert len(found) > 5
