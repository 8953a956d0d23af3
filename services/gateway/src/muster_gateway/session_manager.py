"""Takes the steps of RMs' lives: first in the session store, then as a note on si.requests to the scheduler.

A step is one compare-and-set. So exactly one of several gateways takes it, and that gateway writes the note. If the
gateway dies in between, or the log is unreachable, the session's ``announced`` tells the next sweep that the note is
owed. Notes are states, not changes: a repeated note does no harm. The end of a callback stream is noted in the same
way: ``callbacks_announced`` stays set until that note is durable.

Any stream keeps an RM running, also the callback stream alone: an RM that answers questions is alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import structlog
from muster_bus.clock import Clock
from muster_runtime import rm_status_text

from muster_gateway import metrics
from muster_gateway.codec import NO_GROUP, GroupMember
from muster_gateway.errors import (
    GatewayError,
    LogDown,
    NotRegistered,
    PreconditionFailed,
    RmStopped,
    SessionStoreDown,
    Superseded,
    quote,
)
from muster_gateway.rm_lifecycle import RmLifecycleEvent, RmLifecycleState, next_state
from muster_gateway.sessions.contract import NOBODY, NOWHERE, Cursor, Seat, Session, SessionStore
from muster_gateway.stream_kind import StreamKind

log = structlog.get_logger(__name__)

Announce = Callable[[str, RmLifecycleState, str], Awaitable[None]]
SendCallbacksDisconnected = Callable[[str, int], Awaitable[None]]
Change = Callable[[Session | None], Session | None]

# A failed attempt means that another writer succeeded. So many in a row mean a defect.
_MAX_ATTEMPTS = 50
_LOST = "the session store lost its content, which is read from the log: try again"
# Fewer than the connections to the store, because streams take their seats at the same time.
_SWEPT_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class SeatGrant:
    """A seat that a stream has taken, and the place where its responses continue.

    :param requests_sent: position where request events continue, from the session.
    """

    epoch: int
    registered_at: Cursor
    stored: Cursor
    requests_sent: int


class HeldSeat(NamedTuple):
    """A seat as its stream knows it.

    :param registered_at: the registration that the stream belongs to; NOWHERE: not found again yet, after a rebuild.
    """

    rm_id: str
    kind: StreamKind
    epoch: int
    registered_at: Cursor


class LocalStreams(Protocol):
    """The interface of this gateway's streams for a sweep."""

    def epoch_of(self, rm_id: str, kind: StreamKind) -> int | None:
        """Returns the epoch of this gateway's stream; None: it has none."""
        ...

    def is_acquiring_seat(self, rm_id: str, kind: StreamKind) -> bool:
        """Tells whether a stream of this gateway is taking that seat now."""
        ...

    def occupied_seats(self) -> list[HeldSeat]:
        """Returns the seats of streams that have not ended."""
        ...

    def is_seat_owner(self, rm_id: str, kind: StreamKind, epoch: int) -> bool: ...

    def end(self, rm_id: str, kind: StreamKind, error: GatewayError) -> None: ...


class SessionManager:
    """See the module's docstring.

    :param announce: writes a note to si.requests and returns when it is durable. Raises LogDown.
    :param send_callbacks_disconnected: the same for the end of an RM's callback stream, with the seat's present epoch.
    """

    def __init__(
        self,
        sessions: SessionStore,
        announce: Announce,
        send_callbacks_disconnected: SendCallbacksDisconnected,
        clock: Clock,
        gateway_id: str,
        lease_ttl_s: float,
        pause_timeout_s: float,
    ) -> None:
        self._sessions, self._announce, self._clock, self._gateway_id = sessions, announce, clock, gateway_id
        self._send_callbacks_disconnected = send_callbacks_disconnected
        self._lease_ttl_s, self._pause_timeout_s = lease_ttl_s, pause_timeout_s
        self._began_ns = clock.now_ns()
        self._since_ns: dict[str, tuple[int, int]] = {}  # by RM: when its state began, as stored and as counted here

    # ---- steps of streams and registrations -------------------------------------------------------------------------

    async def on_registered(self, rm_id: str, at: Cursor, member: GroupMember = NO_GROUP, identity: str = "") -> None:
        """Records an accepted registration; ``at`` is just behind its answer. The latest one in the log's order
        counts.
        """

        def change(session: Session | None) -> Session | None:
            if session is None:
                session = Session(rm_id, 0, RmLifecycleState.INIT, 0, "", RmLifecycleState.INIT, NOWHERE)
            if session.registered_at.offset >= at.offset:
                return None
            # ``forgetting_ns`` stays: only the scheduler knows whether the RM was forgotten before or after this.
            fresh = replace(session.without_holders(), registered_at=at, identity=identity)
            return self._step(_compared_by(fresh, at, member), RmLifecycleEvent.REGISTERED)

        await self._send_owed_disconnect(await self._change(rm_id, change))

    async def on_configured(self, rm_id: str, at: Cursor, member: GroupMember) -> None:
        """Records an accepted configuration update of an RM in a policy group. The latest one counts."""
        if not member.group:  # an update does not change the group
            return

        def change(session: Session | None) -> Session | None:
            if session is None or max(session.config_at, session.registered_at.offset) >= at.offset:
                return None
            return _compared_by(session, at, member)

        await self._change(rm_id, change)

    async def acquire_seat(self, rm_id: str, kind: StreamKind) -> SeatGrant:
        """Takes the seat of a new stream. Raises NotRegistered, RmStopped, SessionStoreDown, LogDown."""

        def change(session: Session | None) -> Session:
            if session is None or session.state is RmLifecycleState.INIT:
                raise NotRegistered(rm_id)
            if session.state is RmLifecycleState.STOPPED:
                raise RmStopped(rm_id, session.state_reason)
            epoch = session.seats[kind].epoch + 1 if kind in session.seats else 1
            seated = session.with_seat(kind, Seat(self._gateway_id, epoch))
            if kind is StreamKind.CALLBACK:
                seated = replace(seated, callbacks_announced=True)
            return self._step(seated, RmLifecycleEvent.STREAM_OPENED)

        session = await self._change_registered(rm_id, change)
        assert session is not None
        cursors = await self._sessions.cursors(rm_id)
        stored = cursors.get(kind, NOWHERE)
        return SeatGrant(session.seats[kind].epoch, session.registered_at, stored, session.requests_sent)

    async def store_registration_position(self, rm_id: str, at: Cursor) -> None:
        """Stores the place of the registration in force, which was found again after a rebuild."""

        def change(session: Session | None) -> Session | None:
            if session is None or session.registered_at != NOWHERE:
                return None
            return replace(session, registered_at=at)

        await self._change(rm_id, change)

    async def store_request_position(self, seat: HeldSeat, position: int, stored: int) -> GatewayError | None:
        """Stores the position of the last request event that a callback stream sent. Returns why the stream no longer
        has its seat; None: it has.

        A stream may write until it notices that it lost its seat. Its position counts too, unless a newer stream has
        stored one. The newer stream reads it before its first push, and does not lower it.

        :param stored: the session's position, as the stream knows it.

        Raises SessionStoreDown.
        """
        own = Seat(self._gateway_id, seat.epoch)

        def change(session: Session | None) -> Session | None:
            if session is None:
                return None
            if session.requests_sent == stored:
                return replace(session, requests_sent=position)
            if session.seats.get(seat.kind) != own:
                return None
            return replace(session, requests_sent=max(position, session.requests_sent))

        session = await self._change(seat.rm_id, change)
        return seat_loss_error(session, seat) if session is not None else None

    async def release_seat(self, rm_id: str, kind: StreamKind, epoch: int) -> None:
        """Empties the seat of a stream that ended. Changes nothing if another stream has taken the seat meanwhile."""

        def change(session: Session | None) -> Session | None:
            if session is None or session.seats.get(kind) != Seat(self._gateway_id, epoch):
                return None
            vacated = session.vacated(kind)
            if any(seat.gateway_id for seat in vacated.seats.values()):
                return vacated
            return self._step(vacated, RmLifecycleEvent.ALL_STREAMS_CLOSED)

        after = await self._change(rm_id, change)
        if kind is StreamKind.CALLBACK:
            await self._send_owed_disconnect(after)

    async def check_active(self, rm_id: str) -> None:
        """Checks that the RM may send requests beside streams. Raises NotRegistered, RmStopped, SessionStoreDown."""

        def require_active(session: Session | None) -> None:
            if session is None or session.state is RmLifecycleState.INIT:
                raise NotRegistered(rm_id)
            if session.state is RmLifecycleState.STOPPED:
                raise RmStopped(rm_id, session.state_reason)

        await self._change_registered(rm_id, require_active)

    async def session(self, rm_id: str) -> Session:
        """Returns the session of a registered RM, whatever its state. Raises NotRegistered, SessionStoreDown."""

        def check_registered(session: Session | None) -> None:
            if session is None or session.state is RmLifecycleState.INIT:
                raise NotRegistered(rm_id)

        session = await self._change_registered(rm_id, check_registered)
        assert session is not None, "looked at"
        return session

    async def all_sessions(self) -> list[Session]:
        """Returns the sessions of all RMs that have registered, by id. Raises SessionStoreDown, also while the store
        lacks its content.
        """
        fill = await self._sessions.filled()
        sessions = await self._sessions.all()
        if not fill or await self._sessions.filled() != fill:
            raise SessionStoreDown(_LOST)
        return sorted(
            (session for session in sessions if session.state is not RmLifecycleState.INIT),
            key=lambda session: session.rm_id,
        )

    async def shut_down(self, rm_id: str) -> None:
        """Stops an RM that announced its shutdown. Raises NotRegistered, SessionStoreDown, LogDown."""

        def change(session: Session | None) -> Session:
            if session is None or session.state is RmLifecycleState.INIT:
                raise NotRegistered(rm_id)
            return self._step(session.without_holders(), RmLifecycleEvent.SHUTDOWN)

        await self._send_owed_disconnect(await self._change_registered(rm_id, change))

    # ---- forgetting an RM -------------------------------------------------------------------------------------------

    async def begin_forget(self, rm_id: str, *, force: bool) -> None:
        """Records that the scheduler will be asked to forget the RM. If this gateway dies meanwhile, a sweep asks
        again.

        Raises SessionStoreDown. Raises PreconditionFailed for an RM that is not stopped, unless ``force`` is set:
        otherwise, if the scheduler did not answer, a later question could find the RM stopped and forget it against the
        operator's will.
        """

        def change(session: Session | None) -> Session | None:
            if session is None or session.state is RmLifecycleState.INIT:
                return None
            if not force and session.state is not RmLifecycleState.STOPPED:
                now_ns = self._clock.now_ns()
                raise PreconditionFailed(
                    f"rm_id {quote(rm_id)} is "
                    f"{session.state.name}{rm_status_text.format_ago(session.since_ns, now_ns)}, "
                    f"expected {rm_status_text.STOPPED}: stop it first, or say that it is to be forgotten all the same "
                    "(force)"
                )
            return replace(session, forgetting_ns=self._clock.now_ns())

        await self._change(rm_id, change)

    async def complete_forget(self, rm_id: str, at: Cursor) -> None:
        """Records that the scheduler has forgotten the RM, by its answer at ``at``. A later registration counts more.

        Raises SessionStoreDown.
        """

        def change(session: Session | None) -> Session | None:
            if session is None or session.state is RmLifecycleState.INIT or session.registered_at.offset >= at.offset:
                return None
            # The seats' epochs continue, so that late notes about its streams are recognised as late.
            vacated = replace(session.without_holders(), registered_at=at, forgetting_ns=0, callbacks_announced=False)
            step = self._step(vacated, RmLifecycleEvent.FORGOTTEN)
            return replace(step, announced=step.state)

        await self._change(rm_id, change)

    async def abort_forget(self, rm_id: str) -> None:
        """Records that the scheduler did not forget the RM. Raises SessionStoreDown."""

        def change(session: Session | None) -> Session | None:
            return replace(session, forgetting_ns=0) if session is not None and session.forgetting_ns else None

        await self._change(rm_id, change)

    # ---- steps of time ----------------------------------------------------------------------------------------------

    async def sweep(self, streams: LocalStreams) -> list[str]:
        """Does one round: renews this gateway's lease, then takes the due steps of all RMs. Raises SessionStoreDown.

        Returns the RMs whose forgetting has an unknown outcome: the caller must ask the scheduler again.
        """
        # 1. renew the lease
        await self._sessions.renew_lease(self._gateway_id, self._lease_ttl_s)
        sessions = {session.rm_id: session for session in await self._sessions.all()}
        # Read the living gateways after the sessions: a gateway renews its lease before it takes a seat.
        living = await self._sessions.live_gateways() | {self._gateway_id}
        # 2. own streams: end those that lost their seat; seat those again whose seat the store lost
        for seat in streams.occupied_seats():
            await self._check_seat(streams, sessions.get(seat.rm_id), seat)
        # 3. RMs, several at a time: after a gateway's death each of its RMs waits for the store and the log, and this
        # gateway renews its lease only after the last one
        unswept = iter(sessions.values())

        async def sweep_rest() -> None:
            for session in unswept:
                try:
                    await self._sweep_one(session, living, streams)
                except LogDown as error:
                    log.warning("note to the scheduler is owed", rm_id=session.rm_id, error=str(error))

        ends = await asyncio.gather(*(sweep_rest() for _ in range(_SWEPT_AT_ONCE)), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end
        # 4. RMs that another gateway began to forget without getting the answer
        before_ns = self._clock.now_ns() - round(self._lease_ttl_s * 1e9)
        now_ns = self._clock.now_ns()
        return [
            session.rm_id
            for session in sessions.values()
            if session.forgetting_ns and (session.forgetting_ns <= before_ns or session.forgetting_ns > now_ns)
        ]

    async def _check_seat(self, streams: LocalStreams, session: Session | None, seat: HeldSeat) -> None:
        rm_id, kind, epoch, _ = seat
        if session is None:
            if await self._is_unknown(rm_id):
                streams.end(rm_id, kind, NotRegistered(rm_id))
            return  # the store lost its content: the next sweep looks again
        lost = seat_loss_error(session, seat)
        if lost is not None:
            streams.end(rm_id, kind, lost)
        elif session.seats.get(kind, NOBODY) != Seat(self._gateway_id, epoch):
            await self._restore_seat(streams, rm_id, kind, epoch)

    async def _restore_seat(self, streams: LocalStreams, rm_id: str, kind: StreamKind, epoch: int) -> None:
        """Restores the seat of a living stream after the store was rebuilt, or counted this gateway as dead."""

        def change(session: Session | None) -> Session | None:
            if session is None or session.state in (RmLifecycleState.INIT, RmLifecycleState.STOPPED):
                return None
            # the stream has ended since the sweep began; it leaves its seat by itself
            if not streams.is_seat_owner(rm_id, kind, epoch):
                return None
            if session.seats.get(kind, NOBODY).epoch > epoch:
                return None
            seated = session.with_seat(kind, Seat(self._gateway_id, epoch))
            if kind is StreamKind.CALLBACK:  # the log may not have had this yet when the store was filled from it
                seated = replace(seated, callbacks_announced=True)
            return self._step(seated, RmLifecycleEvent.STREAM_OPENED)

        await self._change(rm_id, change)

    def _age_s(self, session: Session) -> float:
        """Returns for how long the RM is in its state, as far as this gateway has seen it.

        Only this gateway's own elapsed time counts: recorded times of another gateway, or before a restart, may come
        from a clock that was wrong.
        """
        now_ns = self._clock.now_ns()
        stored_ns, since_ns = self._since_ns.get(session.rm_id, (-1, 0))
        if stored_ns != session.since_ns:
            since_ns = min(max(session.since_ns, self._began_ns), now_ns)
            self._since_ns[session.rm_id] = (session.since_ns, since_ns)
        return (now_ns - since_ns) / 1e9

    async def _sweep_one(self, session: Session, living: frozenset[str], streams: LocalStreams) -> None:
        age_s = self._age_s(session)
        for kind, seat in session.seats.items():
            if seat.gateway_id != self._gateway_id or streams.is_acquiring_seat(session.rm_id, kind):
                continue
            if streams.epoch_of(session.rm_id, kind) is None:
                await self.release_seat(session.rm_id, kind, seat.epoch)
        if (
            session.state is RmLifecycleState.RUNNING
            and not session.has_live_seat(living)
            and age_s >= self._lease_ttl_s
        ):
            await self._expire(session, living)
        elif session.state is RmLifecycleState.DISCONNECTED and age_s >= self._pause_timeout_s:
            await self._change(session.rm_id, self._only_if(session, RmLifecycleEvent.PAUSE_TIMEOUT))
        elif session.announced is not session.state and age_s >= self._lease_ttl_s:
            await self._announce_state(session)
        if age_s >= self._lease_ttl_s:
            await self._end_callbacks(session, living)

    async def _expire(self, observed: Session, living: frozenset[str]) -> None:
        def change(session: Session | None) -> Session | None:
            if session is None or session.version != observed.version or session.has_live_seat(living):
                return None
            return self._step(session.vacated(*session.seats), RmLifecycleEvent.LEASE_EXPIRED)

        await self._send_owed_disconnect(await self._change(observed.rm_id, change))

    async def _end_callbacks(self, observed: Session, living: frozenset[str]) -> None:
        """Ends a callback stream whose gateway died, and notes ends of which the scheduler does not know yet.

        (Seats of other streams stay until the RM's last one is gone, because the scheduler does not use them.)
        """
        seat = observed.seats.get(StreamKind.CALLBACK, NOBODY)
        if not observed.callbacks_owed and (not seat.gateway_id or seat.gateway_id in living):
            return

        def change(session: Session | None) -> Session | None:
            if session is None or session.seats.get(StreamKind.CALLBACK, NOBODY) != seat:
                return None
            return session.vacated(StreamKind.CALLBACK)

        after = await self._change(observed.rm_id, change)
        if after is not None and after.seats.get(StreamKind.CALLBACK) == Seat("", seat.epoch + 1):
            await self._send_owed_disconnect(after)

    def _only_if(self, observed: Session, event: RmLifecycleEvent) -> Change:
        def change(session: Session | None) -> Session | None:
            if session is None or session.version != observed.version:
                return None
            return self._step(session, event)

        return change

    # ---- the two halves of a step ---------------------------------------------------------------------------------

    def _step(self, session: Session, event: RmLifecycleEvent) -> Session:
        state = next_state(session.rm_id, session.state, event)
        if state is session.state and event is not RmLifecycleEvent.REGISTERED:
            return session
        return replace(session, state=state, since_ns=self._clock.now_ns(), state_reason=event.value)

    async def _change(self, rm_id: str, change: Change) -> Session | None:
        """Applies ``change`` to the present session; None from ``change`` leaves it unchanged. Returns the stored
        session.
        """
        for _ in range(_MAX_ATTEMPTS):
            before = await self._sessions.get(rm_id)
            after = change(before)
            if after is None or after == before:
                return before
            if await self._sessions.compare_and_set(after):
                stored = replace(after, version=after.version + 1)
                if before is None or before.state is not stored.state:
                    metrics.transitions.labels(stored.state.name.lower()).inc()
                    log.info("rm life", rm_id=rm_id, state=stored.state.name, why=stored.state_reason)
                if stored.state is not stored.announced:
                    await self._announce_state(stored)
                return stored
        raise SessionStoreDown(f"the session of rmID {quote(rm_id)} changed too often to take a step: try again")

    async def _change_registered(self, rm_id: str, change: Change) -> Session | None:
        """Does the same as ``_change``, but raises SessionStoreDown instead of NotRegistered if the store has lost its
        content.

        Otherwise the RM would register again, and lose everything it has, without need.
        """
        try:
            return await self._change(rm_id, change)
        except NotRegistered as error:
            if await self._is_unknown(rm_id):
                raise
            raise SessionStoreDown(_LOST) from error

    async def _is_unknown(self, rm_id: str) -> bool:
        """Tells whether the RM has not registered. False: it has, or the store lost its content meanwhile. (Another
        gateway may have filled it again by now, so one look is not enough.)
        """
        fill = await self._sessions.filled()
        session = await self._sessions.get(rm_id)
        has_registered = session is not None and session.state is not RmLifecycleState.INIT
        return bool(fill) and not has_registered and await self._sessions.filled() == fill

    async def _announce_state(self, session: Session) -> None:
        """Sends the state to the scheduler until the note and the session agree."""
        for _ in range(_MAX_ATTEMPTS):
            await self._announce(session.rm_id, session.state, session.state_reason)
            current = await self._sessions.get(session.rm_id)
            if current is None:
                return
            announced = replace(current, announced=current.state)
            if current.state is session.state and await self._sessions.compare_and_set(announced):
                return
            # Another step was taken. Its note may precede this one, so it is written again.
            session = current

    async def _send_owed_disconnect(self, session: Session | None) -> None:
        """Sends an owed note that the callback stream is gone. If the log is unreachable, the note stays owed."""
        if session is None or not session.callbacks_owed:
            return
        epoch = session.seats.get(StreamKind.CALLBACK, NOBODY).epoch
        try:
            await self._send_callbacks_disconnected(session.rm_id, epoch)
        except LogDown as error:
            log.warning("end of a callback stream is owed", rm_id=session.rm_id, error=str(error))
            return

        def clear_owed(current: Session | None) -> Session | None:
            if current is None or current.seats.get(StreamKind.CALLBACK, NOBODY) != Seat("", epoch):
                return None
            return replace(current, callbacks_announced=False)

        await self._change(session.rm_id, clear_owed)


def seat_loss_error(session: Session, seat: HeldSeat) -> GatewayError | None:
    """Returns why a stream no longer has its seat; None: no other stream has it, and the RM may have streams.

    Whoever notices it first tells the RM the same reason: a sweep, a stored position, the response feed.
    """
    rm_id, kind, epoch, registered_at = seat
    if session.state is RmLifecycleState.STOPPED:
        return RmStopped(rm_id, session.state_reason)
    if session.state is RmLifecycleState.INIT:
        return NotRegistered(rm_id)
    if session.seats.get(kind, NOBODY).epoch <= epoch:
        return None
    if registered_at != NOWHERE and session.registered_at.offset > registered_at.offset:
        return Superseded.by_registration(rm_id)
    return Superseded.by_stream(rm_id, kind)


def _compared_by(session: Session, at: Cursor, member: GroupMember) -> Session:
    return replace(session, policy_group=member.group, config_checksum=member.config_checksum, config_at=at.offset)
