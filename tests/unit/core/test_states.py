"""The tables of states: each allowed transition; every other one raises an error with the state log."""

from __future__ import annotations

import itertools

import pytest
from builders import Cluster
from muster_core.applications.lifecycle import STATE_LOG_MAX
from muster_core.model.states import (
    APP_TERMINAL,
    APP_TRANSITIONS,
    AppEvent,
    AppState,
    InvalidTransition,
    next_app_state,
)

STORY = ((1, "New"), (2, "Accepted"))

# Written out a second time, so that the table is not compared with itself.
ALLOWED = """
runApplication: New Accepted, Resuming Accepted, Accepted Running, Running Running, Completing Running
rejectApplication: New Rejected
completeApplication: Accepted Completing, Running Completing, Completing Completed
failApplication: New Failing, Accepted Failing, Running Failing, Completing Failing, Resuming Failing, Failing Failed
resumeApplication: New Resuming, Accepted Resuming
expireApplication: Completed Expired, Failed Expired, Rejected Expired
"""


def _allowed() -> dict[tuple[str, str], str]:
    found = {}
    for line in ALLOWED.strip().splitlines():
        event, _, pairs = line.partition(": ")
        for pair in pairs.split(", "):
            before, after = pair.split()
            found[before, event] = after
    return found


@pytest.mark.parametrize(("state", "event"), list(itertools.product(AppState, AppEvent)))
def test_the_table(state: AppState, event: AppEvent) -> None:
    target = _allowed().get((state.value, event.value))
    if target is not None:
        assert next_app_state("application x", state, event, STORY) == target
        return
    with pytest.raises(InvalidTransition) as raised:
        next_app_state("application x", state, event, STORY)
    assert str(raised.value) == (f"application x: {event} is not possible in state {state} (so far: New → Accepted)")
    assert (raised.value.state, raised.value.event, raised.value.state_log) == (state, event, STORY)


def test_nothing_leaves_the_last_state_and_nothing_comes_back_to_the_first() -> None:
    assert not [1 for (state, _), _ in APP_TRANSITIONS.items() if state is AppState.EXPIRED]
    assert AppState.NEW not in APP_TRANSITIONS.values()
    for (state, event), target in APP_TRANSITIONS.items():
        if state in APP_TERMINAL:
            assert (event, target) == (AppEvent.EXPIRE, AppState.EXPIRED)


def test_a_story_remembers_how_it_began_and_how_it_ends() -> None:
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a}]}").having({"n": {"vcore": 1}}, {"x": "root.a"})
    for number in range(STATE_LOG_MAX):
        cluster.ask("x", f"k{number}", vcore=1)
        cluster.release("x", f"k{number}")
        cluster.wait(1)
    app = cluster.application("x")
    assert len(app.state_log) == STATE_LOG_MAX
    assert app.state_log[0] == (1_000 * 10**9, AppState.NEW)
    assert [state for _, state in app.state_log[-2:]] == [AppState.RUNNING, AppState.COMPLETING]
    assert app.state_log == sorted(app.state_log, key=lambda entry: entry[0])
