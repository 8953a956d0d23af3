"""Sessions in memory: for tests, and for a single process, which refills the store from the log after a restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from muster_bus.clock import Clock

from muster_gateway.sessions.contract import Advance, Cursor, Session
from muster_gateway.stream_kind import StreamKind


class MemorySessions:
    """See :class:`muster_gateway.sessions.contract.SessionStore`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._cursors: dict[str, dict[StreamKind, Cursor]] = {}
        self._leases: dict[str, int] = {}
        self._filled = ""
        self._filling: set[str] = set()
        self._log_mark = ""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def healthy(self) -> bool:
        return True

    async def get(self, rm_id: str) -> Session | None:
        return self._sessions.get(rm_id)

    async def all(self) -> list[Session]:
        return list(self._sessions.values())

    async def compare_and_set(self, session: Session) -> bool:
        stored = self._sessions.get(session.rm_id)
        if (stored.version if stored else 0) != session.version:
            return False
        self._sessions[session.rm_id] = replace(session, version=session.version + 1)
        return True

    async def cursors(self, rm_id: str) -> dict[StreamKind, Cursor]:
        return dict(self._cursors.get(rm_id, {}))

    async def advance(self, moves: Sequence[Advance]) -> list[bool]:
        return [self._move(move) for move in moves]

    def _move(self, move: Advance) -> bool:
        session = self._sessions.get(move.rm_id)
        seat = session.seats.get(move.kind) if session else None
        if seat is None or seat.epoch != move.epoch:
            return False
        self._cursors.setdefault(move.rm_id, {})[move.kind] = move.cursor
        return True

    async def renew_lease(self, gateway_id: str, ttl_s: float) -> None:
        self._leases[gateway_id] = self._clock.now_ns() + round(ttl_s * 1e9)

    async def drop_lease(self, gateway_id: str) -> None:
        self._leases.pop(gateway_id, None)

    async def live_gateways(self) -> frozenset[str]:
        now_ns = self._clock.now_ns()
        return frozenset(gateway for gateway, until_ns in self._leases.items() if until_ns > now_ns)

    async def filled(self) -> str:
        return self._filled

    async def begin_fill(self, name: str) -> None:
        self._filling.add(name)

    async def end_fill(self, name: str) -> bool:
        if name not in self._filling:
            return False
        self._filling.remove(name)
        self._filled = self._filled or name
        return True

    async def log_mark(self) -> str:
        return self._log_mark

    async def store_log_mark(self, mark: str) -> None:
        self._log_mark = mark

    async def clear(self) -> None:
        self._sessions.clear()
        self._cursors.clear()
        self._filling.clear()
        self._filled, self._log_mark = "", ""
