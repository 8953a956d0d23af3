"""Sessions: what gateways know together about RMs. The words first.

session
    What is known of one registered RM: its life state, the registration in force, who holds its streams. It changes by
    ``compare_and_set`` only: of several gateways that want the same step, exactly one takes it.

version
    Counts a session's changes. A writer names the version that it read; 0 means that there must be none yet.

seat
    Where a stream of one kind sits: the gateway that serves it and the seat's *epoch*. Each new stream of that kind
    raises the epoch; whoever holds an older epoch has been superseded, in this gateway or another. The end of a
    callback stream raises it too: the scheduler is told of that end with the new epoch, so that no note about the
    stream which comes later than it counts, and a gateway that was only taken for dead cannot sit there again.

cursor
    How far the responses of one kind were sent: every response with a number up to ``sequence`` was sent or is of
    another kind; the next one is found from ``offset`` on. Only the holder of the seat's epoch moves it. A cursor from
    before the registration in force is void.

lease
    A gateway's sign of life, with a time to live. The seats of a gateway without one are nobody's.

marker
    Set once the store was filled from the log. A store that lost its content has lost its marker, too: that is how it
    is noticed.

The store is never the truth. All of it can be made again: sessions (and the callback seat's epoch) from ``si.state``,
seats from the streams that are open, cursors from the RMs' own resume numbers or, failing these, by sending again what
the log still has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from muster_gateway.rm_life import RmState
from muster_gateway.stream_kind import StreamKind

UNKNOWN = -1


class Cursor(NamedTuple):
    """A place in an RM's order of responses, for one kind of stream. -1: not known.

    :param sequence: number of the last response, of any kind, before the place.
    :param offset: where in the log the next one is looked for.
    :param last_sent: number of the last response of this kind before the place (or a higher one, up to ``sequence``).
    """

    sequence: int
    offset: int
    last_sent: int


NOWHERE = Cursor(UNKNOWN, UNKNOWN, UNKNOWN)


class Seat(NamedTuple):
    """Who serves a stream. ``gateway_id`` "": nobody."""

    gateway_id: str
    epoch: int


NOBODY = Seat("", 0)


@dataclass(frozen=True, slots=True)
class Session:
    """One RM.

    :param version: of this content; 0: not stored yet.
    :param since_ns: when ``state`` was entered.
    :param why: what led to it, for people.
    :param announced: the state that the scheduler was last told; differs while a note is under way.
    :param registered_at: just behind the accepted registration's answer; NOWHERE after a rebuild.
    :param callbacks_told: the scheduler was told of a callback stream, or is about to be, and not yet of its end.
    """

    rm_id: str
    version: int
    state: RmState
    since_ns: int
    why: str
    announced: RmState
    registered_at: Cursor
    seats: Mapping[StreamKind, Seat] = field(default_factory=dict)
    callbacks_told: bool = False

    @property
    def callbacks_owed(self) -> bool:
        """Whether the scheduler has yet to be told that the callback stream is gone."""
        return self.callbacks_told and not self.seats.get(StreamKind.CALLBACK, NOBODY).gateway_id

    def held_by(self, living: frozenset[str]) -> bool:
        """Whether a living gateway serves one of the streams."""
        return any(seat.gateway_id in living for seat in self.seats.values())

    def with_seat(self, kind: StreamKind, seat: Seat) -> Session:
        """The same with one seat changed."""
        return replace(self, seats={**self.seats, kind: seat})

    def vacated(self, *kinds: StreamKind) -> Session:
        """The same with these seats empty. See *seat* about the epoch."""
        seats = {kind: self.seats.get(kind, NOBODY).epoch + (kind is StreamKind.CALLBACK) for kind in kinds}
        return replace(self, seats={**self.seats, **{kind: Seat("", epoch) for kind, epoch in seats.items()}})

    def without_holders(self) -> Session:
        """The same with every seat empty and its epoch raised: whoever sat there moves no cursor any more."""
        return replace(self, seats={kind: Seat("", seat.epoch + 1) for kind, seat in self.seats.items()})


class Advance(NamedTuple):
    """A cursor to move, by the holder of ``epoch``."""

    rm_id: str
    kind: StreamKind
    epoch: int
    cursor: Cursor


class SessionStore(Protocol):
    """Where sessions live. Every method raises SessionsDown when the store does not answer in time."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def healthy(self) -> bool:
        """Whether the store answers now; never raises."""
        ...

    async def get(self, rm_id: str) -> Session | None: ...

    async def all(self) -> list[Session]: ...

    async def compare_and_set(self, session: Session) -> bool:
        """Stores ``session`` with its version + 1, if the stored one still has its version. False: it has not."""
        ...

    async def cursors(self, rm_id: str) -> dict[StreamKind, Cursor]:
        """The cursors that were ever moved."""
        ...

    async def advance(self, moves: Sequence[Advance]) -> list[bool]:
        """Moves cursors, all in one go; False for each whose epoch is not the seat's any more."""
        ...

    async def renew_lease(self, gateway_id: str, ttl_s: float) -> None: ...

    async def drop_lease(self, gateway_id: str) -> None: ...

    async def living(self) -> frozenset[str]:
        """The gateways whose lease has not run out."""
        ...

    async def marked(self) -> bool: ...

    async def mark(self) -> None: ...
