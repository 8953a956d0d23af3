"""Which gRPC connections have to end: those that flood, and idle ones where there are too many. Pure.

What a client sends before any call, and between calls, no limit of calls counts: frames of HTTP/2 such as CONTINUATION,
SETTINGS or PING, and header blocks that gRPC's core refuses by itself. So each connection has an account. The kernel
counts the bytes that it sent (muster_runtime.tcp_sockets). Calls explain them: each call its headers and a window of
data, each message its size. An eighth of what the peer acknowledged explains its frames of flow control; before its
first call that counts eightfold instead, against floods of pings. What nothing explains adds up, and runs off
slowly. A connection over its bound ends:

- without an open call, over ``quiet_bytes``: it is paused at once, and ends after a second in which no call began.
  While a gateway starts, first calls may wait for so long; when the first one is served, the connection goes on.
- with open calls, over a message of the largest size for each, four at most, and one more for each stream of an RM: a
  message that is not whole yet explains nothing.

Too many connections, of a host or in all: idle ones end, of the host with most. Those that never had a call end first,
then those without one for longest. So a client that calls soon is served beside any number of others that never do.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import unquote

from muster_runtime.addresses import host_of_peer
from muster_runtime.tcp_sockets import Counters, TcpSocket

# The headers of a call, and what its stream may have under way when it ends (the window that service.py sets).
HEADER_BYTES = 1 << 15
_WINDOW_BYTES = 1 << 17
# Frames of HTTP/2 and TLS around a message.
_FRAMING_BYTES = 64
# What runs off in a second: without calls a ping a second is some 20 bytes, with calls there are pings and windows.
_QUIET_BYTES_PER_S, _CALLING_BYTES_PER_S = 512.0, 16_384.0
# Before the first call gRPC sends little but answers to pings and settings, each of which costs it 30 µs or more.
_ANSWER_WEIGHT = 8
_ANSWERED_EXPLAIN = 8
_PATIENCE_S = 1.0
_MESSAGES_UNDER_WAY = 4
# Calls that explain bytes which come after their end.
_CALLS_AHEAD = 8

_Key = tuple[str, int]


class Ending(StrEnum):
    """Why a connection ends."""

    FLOOD = "flood"
    TOO_MANY_OF_HOST = "too_many_of_host"
    TOO_MANY = "too_many"


class Statement(NamedTuple):
    """An account at one moment; see there."""

    open_calls: int = 0
    streams: int = 0
    calls: int = 0
    explained: int = 0


_NO_CALLS = Statement()
_NOTHING = Counters(0, 0)


@dataclass(slots=True)
class Account:
    """What the calls of one connection explain.

    :ivar open_calls: calls under way, refused ones too.
    :ivar streams: those of them that are streams of an RM.
    :ivar calls: all calls so far.
    :ivar explained: bytes that calls and their messages may have had.
    """

    key: _Key
    open_calls: int = 0
    streams: int = 0
    calls: int = 0
    explained: int = 0

    def statement(self) -> Statement:
        """Returns the present numbers."""
        return Statement(self.open_calls, self.streams, self.calls, self.explained)

    def message(self, size: int) -> None:
        """A message of so many bytes was read."""
        self.explained += size + _FRAMING_BYTES


class Accounts:
    """The accounts of connections that have calls, or had some. Its methods are for the event loop; other threads read.

    :param message_bytes: the largest message.
    :ivar guarded: somebody drops the accounts of connections that are no more. Else they end with the last call.
    """

    def __init__(self, message_bytes: int) -> None:
        self.message_bytes = message_bytes
        self.guarded = False
        self._accounts: dict[str, Account] = {}

    @contextlib.contextmanager
    def call(self, peer: str) -> Iterator[Account]:
        """Counts a call during its life.

        :param peer: gRPC's name of the peer.
        """
        account = self._accounts.get(peer)
        if account is None:
            account = self._accounts[peer] = Account(_key_of(peer))
        account.open_calls += 1
        account.calls += 1
        account.explained += HEADER_BYTES
        try:
            yield account
        finally:
            account.explained += _WINDOW_BYTES  # of data that nobody will read
            account.open_calls -= 1
            if not self.guarded and not account.open_calls:
                self._accounts.pop(peer, None)

    def message(self, peer: str, size: int) -> None:
        """A message of so many bytes was read."""
        if (account := self._accounts.get(peer)) is not None:
            account.message(size)

    @contextlib.contextmanager
    def stream(self, peer: str) -> Iterator[Account]:
        """The call under way is a stream of an RM, from now to its end."""
        account = self._accounts.get(peer) or Account(_key_of(peer))
        account.streams += 1
        try:
            yield account
        finally:
            account.streams -= 1
            account.explained += self.message_bytes  # likewise

    def statements(self) -> dict[_Key, Statement]:
        """Returns the present state of all accounts, by host and port of the peer."""
        return {account.key: account.statement() for account in list(self._accounts.values())}

    def drop(self, keys: set[_Key]) -> None:
        """Drops the accounts of connections that are no more."""
        for peer in [
            peer for peer, account in self._accounts.items() if account.key in keys and not account.open_calls
        ]:
            del self._accounts[peer]


def _key_of(peer: str) -> _Key:
    host = host_of_peer(peer).partition("%")[0]  # without the interface of a link-local address
    port = unquote(peer).rpartition(":")[2]
    return host, int(port) if port.isdigit() else 0


class Bounds(NamedTuple):
    """:ivar connections: in all; :ivar of_host: of one host; :ivar quiet_bytes: see the module."""

    connections: int
    of_host: int
    quiet_bytes: int
    message_bytes: int


@dataclass(slots=True)
class _State:
    """A connection at the former review.

    :ivar active_s: when it was first listed, or last had a call.
    :ivar unexplained: bytes; below zero: calls explained more than came.
    :ivar over_since_s: since when it is over the bound of quiet connections; None: it is not.
    """

    active_s: float
    unexplained: float = 0.0
    counters: Counters = _NOTHING
    statement: Statement = _NO_CALLS
    over_since_s: float | None = None
    paused: bool = False

    def add(self, counters: Counters, statement: Statement, message_bytes: int, elapsed_s: float, now_s: float) -> None:
        """Adds what happened since then."""
        before, was = self.counters, self.statement
        self.counters, self.statement = counters, statement
        answered = counters.acknowledged - before.acknowledged
        new = float(counters.received - before.received)
        new += answered * _ANSWER_WEIGHT if not statement.calls else -answered / _ANSWERED_EXPLAIN
        new -= statement.explained - was.explained
        runs_off = _CALLING_BYTES_PER_S if statement.open_calls else _QUIET_BYTES_PER_S
        new -= min(runs_off * elapsed_s, max(0.0, self.unexplained))
        ahead = message_bytes + _CALLS_AHEAD * (HEADER_BYTES + _WINDOW_BYTES)
        self.unexplained = max(self.unexplained + new, -ahead)
        if statement.calls != was.calls:
            self.over_since_s = None
        if statement.open_calls or was.open_calls or statement.calls != was.calls:
            self.active_s = now_s


@dataclass(slots=True)
class Review:
    """The result of one review.

    :ivar ending: connections to end.
    :ivar pausing: connections not to be read for now.
    :ivar resuming: those to be read again.
    :ivar open: connections that stay.
    :ivar alarmed: the next review should be soon.
    :ivar quiet: connections without an open call.
    :ivar closed: accounts of connections that are no more.
    """

    ending: list[tuple[TcpSocket, Ending]] = field(default_factory=list)
    pausing: list[TcpSocket] = field(default_factory=list)
    resuming: list[TcpSocket] = field(default_factory=list)
    open: int = 0
    alarmed: bool = False
    quiet: list[TcpSocket] = field(default_factory=list)
    closed: set[_Key] = field(default_factory=set)


class ConnectionPolicy:
    """Compares the present connections with those of the former review."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._states: dict[TcpSocket, _State] = {}
        self._ended: set[TcpSocket] = set()
        # Accounts without a connection at the former review.
        self._lone: set[_Key] = set()
        self._reviewed_s = float("-inf")

    def review(
        self, connections: Mapping[TcpSocket, Counters], statements: Mapping[_Key, Statement], now_s: float
    ) -> Review:
        """Returns which connections have to end. They count no longer.

        :param statements: of a moment before the counters, so that no message explains bytes that are not counted yet.
        """
        elapsed_s, self._reviewed_s = max(0.0, now_s - self._reviewed_s), now_s
        self._ended.intersection_update(connections)
        review = Review()
        states: dict[TcpSocket, _State] = {}
        for connection, counters in connections.items():
            if connection in self._ended:
                continue
            state = self._states.get(connection) or _State(now_s)
            statement = statements.get((connection.host, connection.port), _NO_CALLS)
            state.add(counters, statement, self._bounds.message_bytes, elapsed_s, now_s)
            states[connection] = state
            if self._floods(connection, state, review):
                review.ending.append((connection, Ending.FLOOD))
            review.alarmed |= state.unexplained > self._allowed(statement) / 4
        for connection, _ in review.ending:
            del states[connection]
        self._end_idle(states, review)
        for connection, _ in review.ending:
            states.pop(connection, None)
            self._ended.add(connection)
        self._states, review.open = states, len(states)
        review.quiet = [connection for connection, state in states.items() if not state.statement.open_calls]
        review.alarmed |= bool(review.ending)
        lone = statements.keys() - {(connection.host, connection.port) for connection in connections}
        review.closed, self._lone = lone & self._lone, lone
        return review

    def _allowed(self, statement: Statement) -> int:
        if not statement.open_calls:
            return self._bounds.quiet_bytes
        return self._bounds.message_bytes * (min(statement.open_calls, _MESSAGES_UNDER_WAY) + statement.streams)

    def _floods(self, connection: TcpSocket, state: _State, review: Review) -> bool:
        """Pauses a connection over its bound, and lets it go on when it is not. Returns whether it has to end."""
        over = state.unexplained > self._allowed(state.statement)
        if over and state.statement.open_calls:
            return True
        if over and state.over_since_s is not None:
            return self._reviewed_s - state.over_since_s >= _PATIENCE_S
        if over:
            state.over_since_s = self._reviewed_s
            if not state.paused:
                review.pausing.append(connection)
        else:
            state.over_since_s = None
            if state.paused:
                review.resuming.append(connection)
        state.paused = over
        return False

    def _end_idle(self, states: Mapping[TcpSocket, _State], review: Review) -> None:
        of_host = Counter(connection.host for connection in states)
        total, most, most_of_host = len(states), self._bounds.connections, self._bounds.of_host
        if total <= most and max(of_host.values(), default=0) <= most_of_host:
            return
        # Host → its idle connections, the next one to end at the end.
        idle: defaultdict[str, list[TcpSocket]] = defaultdict(list)
        order = sorted(
            states, key=lambda connection: (states[connection].statement.calls > 0, states[connection].active_s)
        )
        for connection in reversed(order):
            if not states[connection].statement.open_calls:
                idle[connection.host].append(connection)
        # The host with most of them, as long as it or all have too many.
        hosts = [(-of_host[host], host) for host in idle]
        heapq.heapify(hosts)
        while hosts:
            number, host = heapq.heappop(hosts)
            if -number <= most_of_host and total <= most:
                break
            reason = Ending.TOO_MANY_OF_HOST if -number > most_of_host else Ending.TOO_MANY
            review.ending.append((idle[host].pop(), reason))
            total -= 1
            if idle[host]:
                heapq.heappush(hosts, (number + 1, host))
