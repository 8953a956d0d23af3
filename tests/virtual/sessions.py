"""The session store as one process reaches it: it answers after a while, fails, and is cut at the process's death."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from muster_gateway.errors import SessionStoreDown
from muster_gateway.sessions.contract import Advance, Cursor, Session, SessionStore
from muster_gateway.stream_kind import StreamKind


class StoreFaults(Protocol):
    """What goes wrong between a process and the store.

    :ivar sessions_answer: whether it reaches the store.
    """

    sessions_answer: bool

    async def sessions_turn(self, *, writes: bool) -> None:
        """Takes as long as a call takes. Raises SessionStoreDown, SessionStoreFull."""
        ...


class SessionsOfProcess:
    """See ``muster_gateway.sessions.contract.SessionStore``.

    :param store: what all processes have in common.
    """

    def __init__(self, store: SessionStore, faults: StoreFaults) -> None:
        self._store, self._faults = store, faults
        self._is_cut = False

    def cut(self) -> None:
        """From now on nothing reaches the store."""
        self._is_cut = True

    async def start(self) -> None:
        await self._turn()

    async def close(self) -> None:
        """The store goes on."""

    async def healthy(self) -> bool:
        return not self._is_cut and self._faults.sessions_answer

    async def get(self, rm_id: str) -> Session | None:
        await self._turn()
        return await self._store.get(rm_id)

    async def all(self) -> list[Session]:
        await self._turn()
        return await self._store.all()

    async def compare_and_set(self, session: Session) -> bool:
        await self._turn(writes=True)
        return await self._store.compare_and_set(session)

    async def cursors(self, rm_id: str) -> dict[StreamKind, Cursor]:
        await self._turn()
        return await self._store.cursors(rm_id)

    async def advance(self, moves: Sequence[Advance]) -> list[bool]:
        await self._turn(writes=True)
        return await self._store.advance(moves)

    async def renew_lease(self, gateway_id: str, ttl_s: float) -> None:
        await self._turn(writes=True)
        await self._store.renew_lease(gateway_id, ttl_s)

    async def drop_lease(self, gateway_id: str) -> None:
        await self._turn(writes=True)
        await self._store.drop_lease(gateway_id)

    async def live_gateways(self) -> frozenset[str]:
        await self._turn()
        return await self._store.live_gateways()

    async def filled(self) -> str:
        await self._turn()
        return await self._store.filled()

    async def begin_fill(self, name: str) -> None:
        await self._turn(writes=True)
        await self._store.begin_fill(name)

    async def end_fill(self, name: str) -> bool:
        await self._turn(writes=True)
        return await self._store.end_fill(name)

    async def log_mark(self) -> str:
        await self._turn()
        return await self._store.log_mark()

    async def store_log_mark(self, mark: str) -> None:
        await self._turn(writes=True)
        await self._store.store_log_mark(mark)

    async def clear(self) -> None:
        await self._turn(writes=True)
        await self._store.clear()

    async def _turn(self, *, writes: bool = False) -> None:
        await self._faults.sessions_turn(writes=writes)
        if self._is_cut:
            raise SessionStoreDown("the process has ended")
