"""Two gateways that keep the lives of RMs in one store, without streams and without a log."""

from __future__ import annotations

from manual_clock import ManualClock
from muster_gateway.session_manager import HeldSeat, SessionManager
from muster_gateway.sessions.contract import Cursor, Session
from muster_gateway.sessions.memory import MemorySessions
from muster_gateway.stream_kind import StreamKind

TTL_S = 10.0


class _NoStreams:
    def epoch_of(self, rm_id: str, kind: StreamKind) -> int | None:
        return None

    def is_acquiring_seat(self, rm_id: str, kind: StreamKind) -> bool:
        return False

    def occupied_seats(self) -> list[HeldSeat]:
        return []

    def is_seat_owner(self, rm_id: str, kind: StreamKind, epoch: int) -> bool:
        return False

    def end(self, rm_id: str, kind: StreamKind, error: Exception) -> None: ...


class TwoGateways:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sessions = MemorySessions(self.clock)
        self.first, self.second = (self._gateway(name) for name in ("first", "second"))

    def _gateway(self, name: str) -> SessionManager:
        async def said(*_of: object) -> None: ...

        return SessionManager(self.sessions, said, said, self.clock, name, TTL_S, 600.0)

    async def session(self) -> Session:
        """The session of "rm"."""
        session = await self.sessions.get("rm")
        assert session is not None
        return session

    async def asked_again(self) -> list[str]:
        """The RMs that the second gateway asks about again, a lease later."""
        self.clock.advance(TTL_S + 1)
        return await self.second.sweep(_NoStreams())


def answered(offset: int) -> Cursor:
    return Cursor(0, offset, 0)
