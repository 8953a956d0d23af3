"""Sessions: the state of RMs that all gateways share. The terms:

session
    The shared state of one registered RM: its life state, the registration in force, the holders of its streams. It
    changes by ``compare_and_set`` only: of several gateways that want the same step, exactly one takes it.
version
    Counts a session's changes. A writer names the version that it read; 0 means that there must be none yet.
seat
    The place of a stream of one kind: the gateway that serves the stream, and the seat's *epoch*. Each new stream of
    that kind raises the epoch. A holder of an older epoch has been superseded, by this gateway or another. The end of a
    callback stream raises the epoch, too: the note to the scheduler about the end carries the new epoch. So later notes
    about the ended stream do not count, and a gateway that was wrongly counted as dead cannot take the seat again.
cursor
    The delivery position of one kind: every response with a number up to ``sequence`` was sent or is of another kind;
    the next one is found from ``offset`` on. Only the holder of the seat's epoch moves it. A cursor that is older than
    the registration in force is void.
lease
    A gateway's sign of life, with a time to live. Seats of a gateway without a lease are empty.
fill
    A gateway fills an empty store from the log; the fill's name stays as long as the content does. Whoever finds no
    session looks at the name before and after: the RM is unknown only if the same fill was there both times.
log mark
    Up to where the log was durable when a gateway looked last. A log that has less has lost records, or is another one.

The store is never the truth. All of it can be rebuilt: sessions (and the callback seat's epoch) from ``si.state``,
seats from the open streams, and cursors from the RMs' own resume numbers, or else by sending again what the log has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from muster_gateway.rm_lifecycle import RmLifecycleState
from muster_gateway.stream_kind import StreamKind

UNKNOWN = -1


class Cursor(NamedTuple):
    """A place in an RM's order of responses, for one kind of stream. -1: not known.

    :param sequence: number of the last response, of any kind, before the place.
    :param offset: offset in the log from which the next one is searched.
    :param last_sent: number of the last response of this kind before the place (or a higher one, up to ``sequence``).
    """

    sequence: int
    offset: int
    last_sent: int


NOWHERE = Cursor(UNKNOWN, UNKNOWN, UNKNOWN)


class Seat(NamedTuple):
    """The gateway that serves a stream. ``gateway_id`` "": none."""

    gateway_id: str
    epoch: int


NOBODY = Seat("", 0)


@dataclass(frozen=True, slots=True)
class Session:
    """One RM.

    :param version: of this content; 0: not stored yet.
    :param since_ns: start of ``state``.
    :param state_reason: the reason for the state, for people.
    :param announced: the last state sent to the scheduler; differs from ``state`` while a note is under way.
    :param registered_at: just behind the accepted registration's answer; NOWHERE after a rebuild.
    :param policy_group: the RM's group; "": none. ``config_checksum``: the value compared within the group; "": not
        known.
    :param config_at: offset of the scheduler's answer with that checksum; UNKNOWN after a rebuild.
    :param callbacks_announced: the scheduler knows of a callback stream (or the note is under way), and not yet of its
        end.
    :param forgetting_ns: time of the last request to forget the RM, until the scheduler's answer is known here; 0:
        none.
    :param identity: the name of the identity that registered it; "": not known.
    :param requests_sent: position of the last request event sent on callback streams; UNKNOWN: not known.
    """

    rm_id: str
    version: int
    state: RmLifecycleState
    since_ns: int
    state_reason: str
    announced: RmLifecycleState
    registered_at: Cursor
    seats: Mapping[StreamKind, Seat] = field(default_factory=dict)
    callbacks_announced: bool = False
    requests_sent: int = UNKNOWN
    policy_group: str = ""
    config_checksum: str = ""
    config_at: int = UNKNOWN
    forgetting_ns: int = 0
    identity: str = ""

    @property
    def callbacks_owed(self) -> bool:
        """Whether the scheduler still needs the note that the callback stream has ended."""
        return self.callbacks_announced and not self.seats.get(StreamKind.CALLBACK, NOBODY).gateway_id

    def has_live_seat(self, living: frozenset[str]) -> bool:
        """Tells whether a living gateway serves one of the streams."""
        return any(seat.gateway_id in living for seat in self.seats.values())

    def with_seat(self, kind: StreamKind, seat: Seat) -> Session:
        """Returns a copy with one seat changed."""
        return replace(self, seats={**self.seats, kind: seat})

    def vacated(self, *kinds: StreamKind) -> Session:
        """Returns a copy with these seats empty. See *seat* about the epoch."""
        seats = {kind: self.seats.get(kind, NOBODY).epoch + (kind is StreamKind.CALLBACK) for kind in kinds}
        return replace(self, seats={**self.seats, **{kind: Seat("", epoch) for kind, epoch in seats.items()}})

    def without_holders(self) -> Session:
        """Returns a copy with every seat empty and its epoch raised, so that earlier holders cannot move cursors."""
        return replace(self, seats={kind: Seat("", seat.epoch + 1) for kind, seat in self.seats.items()})


class Advance(NamedTuple):
    """A cursor's new value, from the holder of ``epoch``."""

    rm_id: str
    kind: StreamKind
    epoch: int
    cursor: Cursor


class SessionStore(Protocol):
    """A store of sessions. Every method raises SessionStoreDown if the store does not answer in time."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def healthy(self) -> bool:
        """Tells whether the store answers now. Never raises."""
        ...

    async def get(self, rm_id: str) -> Session | None: ...

    async def all(self) -> list[Session]: ...

    async def compare_and_set(self, session: Session) -> bool:
        """Stores ``session`` with its version + 1, if the stored one still has its version. Returns whether it did."""
        ...

    async def cursors(self, rm_id: str) -> dict[StreamKind, Cursor]:
        """Returns the cursors that were ever moved."""
        ...

    async def advance(self, moves: Sequence[Advance]) -> list[bool]:
        """Moves cursors together. Returns False for each whose epoch is no longer the seat's."""
        ...

    async def renew_lease(self, gateway_id: str, ttl_s: float) -> None: ...

    async def drop_lease(self, gateway_id: str) -> None: ...

    async def live_gateways(self) -> frozenset[str]:
        """Returns the gateways whose lease has not expired."""
        ...

    async def filled(self) -> str:
        """Returns the name of the fill that the content comes from; "": the store lacks its content."""
        ...

    async def begin_fill(self, name: str) -> None: ...

    async def end_fill(self, name: str) -> bool:
        """Names the content, unless another fill has. Returns False, and changes nothing, if the store lost its content
        since this fill began.
        """
        ...

    async def log_mark(self) -> str:
        """Returns the log's mark (``muster_bus.log_mark``) that was kept last, as text; "": none."""
        ...

    async def store_log_mark(self, mark: str) -> None: ...

    async def clear(self) -> None:
        """Removes everything but leases: sessions, cursors, fills, the log mark. Their log is lost."""
        ...
