"""The whole table of an RM's states and transitions."""

from __future__ import annotations

import itertools

import pytest
from muster_gateway.errors import IllegalTransition
from muster_gateway.rm_lifecycle import TRANSITIONS, RmEvent, RmState, next_state
from muster_proto.muster.bus.v1 import envelope_pb2

ILLEGAL = sorted(set(itertools.product(RmState, RmEvent)) - set(TRANSITIONS))


def test_the_seeds_path() -> None:
    state = RmState.INIT
    for event, expected in [
        (RmEvent.REGISTERED, RmState.RUNNING),
        (RmEvent.ALL_STREAMS_CLOSED, RmState.DISCONNECTED),
        (RmEvent.STREAM_OPENED, RmState.RUNNING),
        (RmEvent.LEASE_EXPIRED, RmState.DISCONNECTED),
        (RmEvent.PAUSE_TIMEOUT, RmState.STOPPED),
        (RmEvent.REGISTERED, RmState.RUNNING),
        (RmEvent.SHUTDOWN, RmState.STOPPED),
    ]:
        state = next_state("rm", state, event)
        assert state is expected


@pytest.mark.parametrize("state", RmState)
def test_a_registration_starts_a_life_from_everywhere(state: RmState) -> None:
    assert next_state("rm", state, RmEvent.REGISTERED) is RmState.RUNNING


@pytest.mark.parametrize(("state", "event"), ILLEGAL)
def test_an_illegal_step_names_the_legal_ones(state: RmState, event: RmEvent) -> None:
    with pytest.raises(IllegalTransition) as caught:
        next_state("rm-7", state, event)
    assert "rm-7" in str(caught.value)
    assert state.name in str(caught.value)
    assert event.value in str(caught.value)


def test_only_a_registration_or_an_operator_leads_out_of_stopped() -> None:
    leaving = {event for (state, event), after in TRANSITIONS.items() if state is RmState.STOPPED is not after}
    assert leaving == {RmEvent.REGISTERED, RmEvent.FORGOTTEN}


def test_numbers_are_the_wires() -> None:
    for state in RmState:
        assert envelope_pb2.RmLifecycle.State.Value(state.name) == state
