"""Takes the steps of RMs' lives: in the session store first, then to the scheduler as a note on si.requests.

A step is one compare-and-set, so of several gateways exactly one takes it, and that one writes the note. Should it die
between the two, or the log be away, the session's ``announced`` tells the next sweep that the note is owed. Notes are
states, not changes: one too many does no harm. A callback stream's end is noted in the same way: ``callbacks_told``
stays set until that note is durable.

Which streams keep an RM running: any of them, the callback stream too. An RM that only answers questions is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol

import structlog
from muster_bus.clock import Clock

from muster_gateway import metrics
from muster_gateway.errors import GatewayError, LogDown, NotRegistered, RmStopped, SessionsDown, Superseded, shown
from muster_gateway.rm_life import RmEvent, RmState, next_state
from muster_gateway.sessions.contract import NOBODY, NOWHERE, Cursor, Seat, Session, SessionStore
from muster_gateway.stream_kind import StreamKind

log = structlog.get_logger(__name__)

Announce = Callable[[str, RmState, str], Awaitable[None]]
CallbacksGone = Callable[[str, int], Awaitable[None]]
Change = Callable[[Session | None], Session | None]

# Each failed attempt means that another writer succeeded; so many in a row is no coincidence any more.
_MAX_ATTEMPTS = 50
# Fewer than the connections to the store: streams take their seats meanwhile.
_SWEPT_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Taken:
    """A seat that was taken, and where its responses go on."""

    epoch: int
    registered_at: Cursor
    stored: Cursor


class OpenStreams(Protocol):
    """The streams of this gateway, as a sweep sees them."""

    def epoch_of(self, rm_id: str, kind: StreamKind) -> int | None:
        """The epoch of this gateway's stream; None: it has none."""
        ...

    def is_sitting_down(self, rm_id: str, kind: StreamKind) -> bool:
        """Whether a stream of this gateway is about to take that seat, or has just taken it."""
        ...

    def held(self) -> list[tuple[str, StreamKind, int]]:
        """RM, kind and epoch of those that have a seat and have not ended."""
        ...

    def is_held(self, rm_id: str, kind: StreamKind, epoch: int) -> bool: ...

    def end(self, rm_id: str, kind: StreamKind, error: GatewayError) -> None: ...


class LifeKeeper:
    """See the module's words.

    :param announce: writes a note to si.requests and returns when it is durable. Raises LogDown.
    :param callbacks_gone: the same for the end of an RM's callback stream, with the epoch that its seat has now.
    """

    def __init__(
        self,
        sessions: SessionStore,
        announce: Announce,
        callbacks_gone: CallbacksGone,
        clock: Clock,
        gateway_id: str,
        lease_ttl_s: float,
        pause_timeout_s: float,
    ) -> None:
        self._sessions, self._announce, self._clock, self._gateway_id = sessions, announce, clock, gateway_id
        self._callbacks_gone = callbacks_gone
        self._lease_ttl_s, self._pause_timeout_s = lease_ttl_s, pause_timeout_s

    # ---- what streams and registrations do ------------------------------------------------------------------------

    async def registered(self, rm_id: str, at: Cursor) -> None:
        """A registration was accepted, and answered just before ``at``. The latest one in the log's order counts."""

        def change(session: Session | None) -> Session | None:
            if session is None:
                session = Session(rm_id, 0, RmState.INIT, 0, "", RmState.INIT, NOWHERE)
            if session.registered_at.offset >= at.offset:
                return None
            fresh = replace(session.without_holders(), registered_at=at)
            return self._step(fresh, RmEvent.REGISTERED)

        await self._tell_gone(await self._change(rm_id, change))

    async def take_seat(self, rm_id: str, kind: StreamKind) -> Taken:
        """Opens a stream. Raises NotRegistered, RmStopped, SessionsDown, LogDown."""

        def change(session: Session | None) -> Session:
            if session is None or session.state is RmState.INIT:
                raise NotRegistered(rm_id)
            if session.state is RmState.STOPPED:
                raise RmStopped(rm_id, session.why)
            epoch = session.seats[kind].epoch + 1 if kind in session.seats else 1
            seated = session.with_seat(kind, Seat(self._gateway_id, epoch))
            if kind is StreamKind.CALLBACK:
                seated = replace(seated, callbacks_told=True)
            return self._step(seated, RmEvent.STREAM_OPENED)

        session = await self._known(rm_id, change)
        assert session is not None
        cursors = await self._sessions.cursors(rm_id)
        return Taken(session.seats[kind].epoch, session.registered_at, cursors.get(kind, NOWHERE))

    async def located(self, rm_id: str, at: Cursor) -> None:
        """The place of the registration in force was found again after a rebuild."""

        def change(session: Session | None) -> Session | None:
            if session is None or session.registered_at != NOWHERE:
                return None
            return replace(session, registered_at=at)

        await self._change(rm_id, change)

    async def leave_seat(self, rm_id: str, kind: StreamKind, epoch: int) -> None:
        """A stream ended. Of a seat that somebody else took meanwhile nothing changes."""

        def change(session: Session | None) -> Session | None:
            if session is None or session.seats.get(kind) != Seat(self._gateway_id, epoch):
                return None
            left = session.vacated(kind)
            if any(seat.gateway_id for seat in left.seats.values()):
                return left
            return self._step(left, RmEvent.ALL_STREAMS_CLOSED)

        after = await self._change(rm_id, change)
        if kind is StreamKind.CALLBACK:
            await self._tell_gone(after)

    async def must_live(self, rm_id: str) -> None:
        """For a request beside the streams. Raises NotRegistered, RmStopped, SessionsDown."""

        def look(session: Session | None) -> None:
            if session is None or session.state is RmState.INIT:
                raise NotRegistered(rm_id)
            if session.state is RmState.STOPPED:
                raise RmStopped(rm_id, session.why)

        await self._known(rm_id, look)

    async def session(self, rm_id: str) -> Session:
        """What is known of an RM that registered once, whatever its state. Raises NotRegistered, SessionsDown."""

        def look(session: Session | None) -> None:
            if session is None or session.state is RmState.INIT:
                raise NotRegistered(rm_id)

        session = await self._known(rm_id, look)
        assert session is not None, "looked at"
        return session

    async def all_sessions(self) -> list[Session]:
        """All RMs that registered once, by id. Raises SessionsDown, also while the store's content is lost."""
        sessions = await self._sessions.all()
        if not await self._sessions.marked():
            raise SessionsDown("the session store lost its content, which is read from the log: try again")
        return sorted((each for each in sessions if each.state is not RmState.INIT), key=lambda each: each.rm_id)

    async def shut_down(self, rm_id: str) -> None:
        """The RM says that it leaves. Raises NotRegistered, SessionsDown, LogDown."""

        def change(session: Session | None) -> Session:
            if session is None or session.state is RmState.INIT:
                raise NotRegistered(rm_id)
            return self._step(session.without_holders(), RmEvent.SHUTDOWN)

        await self._tell_gone(await self._known(rm_id, change))

    # ---- what time does -------------------------------------------------------------------------------------------

    async def sweep(self, streams: OpenStreams) -> None:
        """One round: sign of life, then every RM whose time has come. Raises SessionsDown."""
        # 1. this gateway lives
        await self._sessions.renew_lease(self._gateway_id, self._lease_ttl_s)
        sessions = {session.rm_id: session for session in await self._sessions.all()}
        # (Asked after the sessions: whoever has taken a seat in them had its lease before.)
        living = await self._sessions.living() | {self._gateway_id}
        # 2. its streams: those that lost their seat end, those whose seat was lost are seated again
        for rm_id, kind, epoch in streams.held():
            await self._check_seat(streams, sessions.get(rm_id), rm_id, kind, epoch)
        # 3. RMs, several at a time: when a gateway died each of its RMs waits for the store and the log, and the next
        #    sign of life comes behind the last one
        rest = iter(sessions.values())

        async def sweep_rest() -> None:
            for session in rest:
                try:
                    await self._sweep_one(session, living, streams)
                except LogDown as error:
                    log.warning("note to the scheduler is owed", rm_id=session.rm_id, error=str(error))

        ends = await asyncio.gather(*(sweep_rest() for _ in range(_SWEPT_AT_ONCE)), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end

    async def _check_seat(
        self, streams: OpenStreams, session: Session | None, rm_id: str, kind: StreamKind, epoch: int
    ) -> None:
        if session is None:
            if await self._sessions.marked():
                streams.end(rm_id, kind, NotRegistered(rm_id))
            return  # forgotten since this sweep began: the next one fills the store first
        seat = session.seats.get(kind, NOBODY)
        if session.state is RmState.STOPPED:
            streams.end(rm_id, kind, RmStopped(rm_id, session.why))
        elif seat.epoch > epoch:
            streams.end(rm_id, kind, superseded(rm_id, kind))
        elif seat != Seat(self._gateway_id, epoch):
            await self._sit_again(streams, rm_id, kind, epoch)

    async def _sit_again(self, streams: OpenStreams, rm_id: str, kind: StreamKind, epoch: int) -> None:
        """The store was rebuilt, or took this gateway for dead, while the stream lived on."""

        def change(session: Session | None) -> Session | None:
            if session is None or session.state in (RmState.INIT, RmState.STOPPED):
                return None
            if not streams.is_held(rm_id, kind, epoch):  # it ended since the sweep began: it has left, or is leaving
                return None
            if session.seats.get(kind, NOBODY).epoch > epoch:
                return None
            seated = session.with_seat(kind, Seat(self._gateway_id, epoch))
            if kind is StreamKind.CALLBACK:  # what the log did not know yet when the store was filled from it
                seated = replace(seated, callbacks_told=True)
            return self._step(seated, RmEvent.STREAM_OPENED)

        await self._change(rm_id, change)

    async def _sweep_one(self, session: Session, living: frozenset[str], streams: OpenStreams) -> None:
        age_s = (self._clock.now_ns() - session.since_ns) / 1e9
        for kind, seat in session.seats.items():
            if seat.gateway_id != self._gateway_id or streams.is_sitting_down(session.rm_id, kind):
                continue
            if streams.epoch_of(session.rm_id, kind) is None:
                await self.leave_seat(session.rm_id, kind, seat.epoch)
        if session.state is RmState.RUNNING and not session.held_by(living) and age_s >= self._lease_ttl_s:
            await self._expire(session, living)
        elif session.state is RmState.PAUSED and age_s >= self._pause_timeout_s:
            await self._change(session.rm_id, self._only_if(session, RmEvent.PAUSE_TIMEOUT))
        elif session.announced is not session.state and age_s >= self._lease_ttl_s:
            await self._tell(session)
        if age_s >= self._lease_ttl_s:
            await self._end_callbacks(session, living)

    async def _expire(self, seen: Session, living: frozenset[str]) -> None:
        def change(session: Session | None) -> Session | None:
            if session is None or session.version != seen.version or session.held_by(living):
                return None
            return self._step(session.vacated(*session.seats), RmEvent.LEASE_EXPIRED)

        await self._tell_gone(await self._change(seen.rm_id, change))

    async def _end_callbacks(self, seen: Session, living: frozenset[str]) -> None:
        """Of a callback stream whose gateway died, or of which the scheduler is still to hear that it is gone.

        (The seats of the other streams stay until the RM's last one is gone: nobody waits for them.)
        """
        seat = seen.seats.get(StreamKind.CALLBACK, NOBODY)
        if not seen.callbacks_owed and (not seat.gateway_id or seat.gateway_id in living):
            return

        def change(session: Session | None) -> Session | None:
            if session is None or session.seats.get(StreamKind.CALLBACK, NOBODY) != seat:
                return None
            return session.vacated(StreamKind.CALLBACK)

        after = await self._change(seen.rm_id, change)
        if after is not None and after.seats.get(StreamKind.CALLBACK) == Seat("", seat.epoch + 1):
            await self._tell_gone(after)

    def _only_if(self, seen: Session, event: RmEvent) -> Change:
        def change(session: Session | None) -> Session | None:
            if session is None or session.version != seen.version:
                return None
            return self._step(session, event)

        return change

    # ---- the two halves of a step ---------------------------------------------------------------------------------

    def _step(self, session: Session, event: RmEvent) -> Session:
        state = next_state(session.rm_id, session.state, event)
        if state is session.state and event is not RmEvent.REGISTERED:
            return session
        return replace(session, state=state, since_ns=self._clock.now_ns(), why=event.value)

    async def _change(self, rm_id: str, change: Change) -> Session | None:
        """Applies ``change`` to the session as it is; None from it means: leave it. Returns what is stored."""
        for _ in range(_MAX_ATTEMPTS):
            before = await self._sessions.get(rm_id)
            after = change(before)
            if after is None or after == before:
                return before
            if await self._sessions.compare_and_set(after):
                stored = replace(after, version=after.version + 1)
                if before is None or before.state is not stored.state:
                    metrics.transitions.labels(stored.state.name.lower()).inc()
                    log.info("rm life", rm_id=rm_id, state=stored.state.name, why=stored.why)
                if stored.state is not stored.announced:
                    await self._tell(stored)
                return stored
        raise SessionsDown(f"the session of rmID {shown(rm_id)} changed too often to take a step: try again")

    async def _known(self, rm_id: str, change: Change) -> Session | None:
        """As ``_change``; but a store that lost its content must not make an RM believe that it is not registered:
        it would register again, and lose all it has, for nothing."""
        try:
            return await self._change(rm_id, change)
        except NotRegistered as error:
            if await self._sessions.marked():
                raise
            raise SessionsDown("the session store lost its content, which is read from the log: try again") from error

    async def _tell(self, session: Session) -> None:
        """Notes the state to the scheduler until the note and the session agree."""
        for _ in range(_MAX_ATTEMPTS):
            await self._announce(session.rm_id, session.state, session.why)
            current = await self._sessions.get(session.rm_id)
            if current is None:
                return
            told = replace(current, announced=current.state)
            if current.state is session.state and await self._sessions.compare_and_set(told):
                return
            # Somebody took another step; its note may have been written before ours, so it is written again.
            session = current

    async def _tell_gone(self, session: Session | None) -> None:
        """Notes to the scheduler that the callback stream is gone, if that is owed. Without the log it stays owed."""
        if session is None or not session.callbacks_owed:
            return
        epoch = session.seats.get(StreamKind.CALLBACK, NOBODY).epoch
        try:
            await self._callbacks_gone(session.rm_id, epoch)
        except LogDown as error:
            log.warning("end of a callback stream is owed", rm_id=session.rm_id, error=str(error))
            return

        def told(current: Session | None) -> Session | None:
            if current is None or current.seats.get(StreamKind.CALLBACK, NOBODY) != Seat("", epoch):
                return None
            return replace(current, callbacks_told=False)

        await self._change(session.rm_id, told)


def superseded(rm_id: str, kind: StreamKind) -> Superseded:
    """What the older of two streams is told."""
    return Superseded(f"superseded: a newer {kind.name.lower()} stream of rmID {shown(rm_id)} was opened")
