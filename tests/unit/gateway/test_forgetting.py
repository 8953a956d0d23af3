"""The session of an RM that an operator has forgotten, also if a gateway dies in between."""

from __future__ import annotations

import pytest
from muster_gateway.errors import PreconditionFailed
from muster_gateway.rm_lifecycle import RmLifecycleState
from unit.gateway.two_gateways import TwoGateways, answered


async def test_an_rm_that_is_not_stopped_is_not_forgotten_when_it_stops_later() -> None:
    """A silent scheduler gives no refusal, so a sweep asks until it answers."""
    world = TwoGateways()
    await world.first.on_registered("rm", answered(5))
    with pytest.raises(PreconditionFailed, match=r"rm_id 'rm' is RUNNING.*, expected STOPPED: .*force"):
        await world.first.begin_forget("rm", force=False)
    await world.first.shut_down("rm")
    assert await world.asked_again() == []
    await world.first.begin_forget("rm", force=False)
    assert await world.asked_again() == ["rm"]


async def test_an_earlier_registration_on_the_log_does_not_hide_a_missing_answer() -> None:
    world = TwoGateways()
    await world.first.on_registered("rm", answered(5))
    # on the log: the registration (answered at 10), then the operator's command (at 11)
    await world.first.begin_forget("rm", force=True)
    await world.second.on_registered("rm", answered(10))
    # the first gateway dies before it gets the second answer; the scheduler has forgotten the RM
    assert (await world.session()).state is RmLifecycleState.RUNNING
    assert await world.asked_again() == ["rm"]
    await world.second.complete_forget("rm", answered(12))
    assert (await world.session()).state is RmLifecycleState.INIT
    assert await world.asked_again() == []


async def test_a_registration_behind_it_on_the_log_stands_and_the_question_ends() -> None:
    world = TwoGateways()
    await world.first.on_registered("rm", answered(5))
    # on the log: the operator's command (answered at 10), then the registration (at 11)
    await world.first.begin_forget("rm", force=True)
    await world.second.on_registered("rm", answered(11))
    await world.first.complete_forget("rm", answered(10))
    assert (await world.session()).state is RmLifecycleState.RUNNING
    # the sweep asks once more, and the RM is not stopped
    assert await world.asked_again() == ["rm"]
    await world.second.abort_forget("rm")
    assert await world.asked_again() == []
    assert (await world.session()).state is not RmLifecycleState.INIT
