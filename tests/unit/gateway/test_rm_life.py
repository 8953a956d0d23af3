"""The whole table of an RM's states and transitions."""

from __future__ import annotations

import itertools

import pytest
from muster_gateway.errors import IllegalTransition
from muster_gateway.rm_lifecycle import TRANSITIONS, RmLifecycleEvent, RmLifecycleState, next_state
from muster_proto.muster.bus.v1 import envelope_pb2

ILLEGAL = sorted(set(itertools.product(RmLifecycleState, RmLifecycleEvent)) - set(TRANSITIONS))


def test_the_seeds_path() -> None:
    state = RmLifecycleState.INIT
    for event, expected in [
        (RmLifecycleEvent.REGISTERED, RmLifecycleState.RUNNING),
        (RmLifecycleEvent.ALL_STREAMS_CLOSED, RmLifecycleState.DISCONNECTED),
        (RmLifecycleEvent.STREAM_OPENED, RmLifecycleState.RUNNING),
        (RmLifecycleEvent.LEASE_EXPIRED, RmLifecycleState.DISCONNECTED),
        (RmLifecycleEvent.PAUSE_TIMEOUT, RmLifecycleState.STOPPED),
        (RmLifecycleEvent.REGISTERED, RmLifecycleState.RUNNING),
        (RmLifecycleEvent.SHUTDOWN, RmLifecycleState.STOPPED),
    ]:
        state = next_state("rm", state, event)
        assert state is expected


@pytest.mark.parametrize("state", RmLifecycleState)
def test_a_registration_starts_a_life_from_everywhere(state: RmLifecycleState) -> None:
    assert next_state("rm", state, RmLifecycleEvent.REGISTERED) is RmLifecycleState.RUNNING


@pytest.mark.parametrize(("state", "event"), ILLEGAL)
def test_an_illegal_step_names_the_legal_ones(state: RmLifecycleState, event: RmLifecycleEvent) -> None:
    with pytest.raises(IllegalTransition) as caught:
        next_state("rm-7", state, event)
    assert "rm-7" in str(caught.value)
    assert state.name in str(caught.value)
    assert event.value in str(caught.value)


def test_only_a_registration_or_an_operator_leads_out_of_stopped() -> None:
    leaving = {event for (state, event), after in TRANSITIONS.items() if state is RmLifecycleState.STOPPED is not after}
    assert leaving == {RmLifecycleEvent.REGISTERED, RmLifecycleEvent.FORGOTTEN}


def test_numbers_are_the_wires() -> None:
    for state in RmLifecycleState:
        assert envelope_pb2.RmLifecycle.State.Value(state.name) == state
