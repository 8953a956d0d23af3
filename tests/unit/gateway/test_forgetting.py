"""The session of an RM that an operator has forgotten, also if a gateway dies in between."""

from __future__ import annotations

import pytest
from manual_clock import ManualClock
from muster_gateway.errors import NotPossible
from muster_gateway.life_keeper import LifeKeeper
from muster_gateway.rm_life import RmState
from muster_gateway.sessions.contract import Cursor
from muster_gateway.sessions.memory import MemorySessions
from muster_gateway.stream_kind import StreamKind

TTL_S = 10.0


class _NoStreams:
    def epoch_of(self, rm_id: str, kind: StreamKind) -> int | None:
        return None

    def is_sitting_down(self, rm_id: str, kind: StreamKind) -> bool:
        return False

    def held(self) -> list[tuple[str, StreamKind, int]]:
        return []

    def is_held(self, rm_id: str, kind: StreamKind, epoch: int) -> bool:
        return False

    def end(self, rm_id: str, kind: StreamKind, error: Exception) -> None: ...


class World:
    """Two gateways on one store."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sessions = MemorySessions(self.clock)
        self.first, self.second = (self._gateway(name) for name in ("first", "second"))

    def _gateway(self, name: str) -> LifeKeeper:
        async def said(*_of: object) -> None: ...

        return LifeKeeper(self.sessions, said, said, self.clock, name, TTL_S, 600.0)

    async def state(self) -> RmState:
        session = await self.sessions.get("rm")
        assert session is not None
        return session.state

    async def asked_again(self) -> list[str]:
        """The second gateway asks again, a lease later."""
        self.clock.advance(TTL_S + 1)
        return await self.second.sweep(_NoStreams())


async def test_an_rm_that_is_not_stopped_is_not_forgotten_when_it_stops_later() -> None:
    """A silent scheduler gives no refusal, so a sweep asks until it answers."""
    world = World()
    await world.first.registered("rm", answered(5))
    with pytest.raises(NotPossible, match=r"rm_id 'rm' is RUNNING.*, expected STOPPED: .*force"):
        await world.first.forgetting("rm", force=False)
    await world.first.shut_down("rm")
    assert await world.asked_again() == []
    await world.first.forgetting("rm", force=False)
    assert await world.asked_again() == ["rm"]


def answered(offset: int) -> Cursor:
    return Cursor(0, offset, 0)


async def test_an_earlier_registration_on_the_log_does_not_hide_a_missing_answer() -> None:
    world = World()
    await world.first.registered("rm", answered(5))
    # on the log: the registration (answered at 10), then the operator's command (at 11)
    await world.first.forgetting("rm", force=True)
    await world.second.registered("rm", answered(10))
    # the first gateway dies before it gets the second answer; the scheduler has forgotten the RM
    assert await world.state() is RmState.RUNNING
    assert await world.asked_again() == ["rm"]
    await world.second.forgotten("rm", answered(12))
    assert await world.state() is RmState.INIT
    assert await world.asked_again() == []


async def test_a_registration_behind_it_on_the_log_stands_and_the_question_ends() -> None:
    world = World()
    await world.first.registered("rm", answered(5))
    # on the log: the operator's command (answered at 10), then the registration (at 11)
    await world.first.forgetting("rm", force=True)
    await world.second.registered("rm", answered(11))
    await world.first.forgotten("rm", answered(10))
    assert await world.state() is RmState.RUNNING
    # the sweep asks once more, and the RM is not stopped
    assert await world.asked_again() == ["rm"]
    await world.second.not_forgotten("rm")
    assert await world.asked_again() == []
    assert await world.state() is not RmState.INIT
