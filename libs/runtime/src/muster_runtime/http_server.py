"""An HTTP server within a running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import h11
import structlog
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from muster_runtime.acceptor import Acceptor
from muster_runtime.addresses import is_loopback, listen
from muster_runtime.backoff import aligned_s
from muster_runtime.cross_site import for_programs
from muster_runtime.elapsed import elapsed_s
from muster_runtime.http_framing import StrictConnection
from muster_runtime.process_stats import open_files_max
from muster_runtime.transports import release

# Extra time beyond that of open requests.
_STOP_MARGIN_S = 1.0
# Limit of a request's line and headers. h11's own limit, 16 KiB, is too small for what proxies and sign-on systems add.
_HEAD_BYTES_MAX = 64 * 1024
# What metrics count instead of an answer's status, as nginx does: the client has left, or was cut, or its request was
# cancelled.
CLIENT_LEFT = 499
# The key of an extension of the scope, for :func:`cut`.
_CUT = "muster.cut"
# The key of another one, for :func:`peer_certificate`.
_PEER_CERTIFICATE = "muster.peer_certificate"
# The server cuts clients that take longer to send a request's head or its body. Otherwise open connections would cost
# clients nothing and use up the files that this process may open.
_REQUEST_S = 60.0
_LOOKS_PER_REQUEST_S = 10
# How often the server looks after itself. (uvicorn does it ten times a second, which costs an idle process 0.2 % of a
# core.)
_TICK_S = 1.0
# More connections are of no use. The process also needs open files for its log and its clients.
_CONNECTIONS_MAX = 20_000
# Connections that the kernel holds until they are accepted.
_WAITING_MAX = 2048
# Limits uvicorn's warnings about input that is not HTTP. A client that keeps trying would fill the log.
_TOLD_S = 1.0

log = structlog.get_logger(__name__)


class HttpServer:
    """Serves an ASGI application on one address. The constructor binds the address; :meth:`serve` serves it.

    The server handles no signals; the process does. It trusts no header about the peer's address, because any client
    can send one.

    :param address: host:port; port 0: any free one. Or a listening socket, which the server closes at its end.
    :param stop_timeout_s: time for open requests when the server stops, in seconds; at least one.
    :param field: name of the setting with the address, for errors.
    :param request_s: limit of the time (seconds) to send a request's head, or its body. The server cuts the connection
        up to 10 % later.
    :param programs_only: the application does not authenticate, so the server refuses pages of other hosts
        (``pages.for_programs``).
    :param connections_max: the server cuts further connections; 0: 20,000, or a quarter of the files that the process
        may open.
    :param tls: the server's certificates; None: plain text.
    :ivar port: the port that it listens on; 0: it is a Unix socket.

    The constructor raises ValueError for an invalid address and OSError if listening fails. Both name the field.
    """

    def __init__(
        self,
        app: ASGIApp,
        address: str | socket.socket,
        stop_timeout_s: float,
        *,
        field: str = "http_address",
        programs_only: bool = False,
        request_s: float = _REQUEST_S,
        connections_max: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._socket = listen(field, address) if isinstance(address, str) else address
        self._name = f"{field} {address!r}"
        self.port: int = 0
        if self._socket.family != socket.AF_UNIX:
            host, self.port, *_ = self._socket.getsockname()
            app = for_programs(app, private=is_loopback(host)) if programs_only else app
        graceful_s = max(1, round(stop_timeout_s))
        self._stop_wait_s = graceful_s + _STOP_MARGIN_S
        self._serving = False
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        most = connections_max or _connections_max()
        config = uvicorn.Config(
            _with_cut(app),
            # Names the class: otherwise uvicorn may choose another parser, without a limit of the head's size.
            http=_Connection,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=graceful_s,
        )
        config.load()
        config.ssl = tls
        self._server = _Server(config, request_s, most)

    async def serve(self) -> None:
        """Serves until :meth:`stop`. Run it in a task and watch the task's end."""
        self._serving = True
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._socket.close()
            self._ended.set()
            self._server.up.set()

    async def start(self) -> None:
        """Runs :meth:`serve` in a task, for a caller that does not watch it. Returns when the server answers
        requests.
        """
        self._task = asyncio.create_task(self.serve(), name=f"http {self.port}")
        try:
            await self.wait_started()
        except OSError:
            await self._task  # raises the real error
            raise

    async def wait_started(self) -> None:
        """Returns when the server answers requests. Raises OSError if :meth:`serve` ended before that."""
        await self._server.up.wait()
        if self._ended.is_set():
            raise OSError(f"{self._name}: the HTTP server ended before it served")

    async def stop(self) -> None:
        """Lets open requests finish within the time-out, then cuts them. Works also for a server that never served."""
        if not self._serving:
            self._socket.close()
            return
        self._server.leave()
        if not await self._wait_ended(self._stop_wait_s):
            self.kill()
            await self._wait_ended(_STOP_MARGIN_S)

    @property
    def accepted(self) -> int:
        """Connections that this server accepted so far."""
        return sum(acceptor.accepted for acceptor in self._server.acceptors)

    def pause(self) -> None:
        """Accepts no more connections, because another process accepts them at the same socket.

        Those that are open end with their next answer.
        """
        self._server.server_state.paused = True
        for acceptor in self._server.acceptors:
            acceptor.pause()

    def resume(self) -> None:
        """Accepts connections again. Does nothing if the server does not serve."""
        self._server.server_state.paused = False
        if not self._server.should_exit:
            for acceptor in self._server.acceptors:
                acceptor.start()

    def kill(self) -> None:
        """Makes :meth:`serve` end without waiting for open requests."""
        self._server.force_exit = True
        self._server.leave()
        if not self._serving:
            self._socket.close()

    async def _wait_ended(self, wait_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._ended.wait()
        return self._ended.is_set()


async def cut(scope: Scope) -> None:
    """Cuts the connection of an answer that its client does not read. Does nothing without an :class:`HttpServer`.

    (If the application just returned, uvicorn would complain and wait for the client to read the buffered data.)
    """
    end = scope.get("extensions", {}).get(_CUT)
    if end is not None:
        end()
        await asyncio.sleep(0)  # lets uvicorn notice


def cutter(scope: Scope) -> Callable[[], None]:
    """Returns a function that cuts the connection of a request. It does nothing without an :class:`HttpServer`."""
    end: Callable[[], None] = scope.get("extensions", {}).get(_CUT, lambda: None)
    return end


def peer_certificate(scope: Scope) -> bytes:
    """Returns the certificate of a request's client as DER; b"": it has none. TLS has verified it."""
    certificate: bytes = scope.get("extensions", {}).get(_PEER_CERTIFICATE, b"")
    return certificate


def _with_cut(app: ASGIApp) -> ASGIApp:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        # uvicorn's ``send`` is a method of the request. ASGI has no name for the connection.
        connection = getattr(getattr(send, "__self__", None), "transport", None)
        if connection is not None:
            scope["extensions"] = {**scope.get("extensions", {}), _CUT: connection.abort}
            tls = connection.get_extra_info("ssl_object")
            if tls is not None and (certificate := tls.getpeercert(binary_form=True)):
                scope["extensions"][_PEER_CERTIFICATE] = certificate
        await app(scope, receive, send)

    return serve


def _connections_max() -> int:
    # A forwarded request uses a second file.
    return max(1, min(_CONNECTIONS_MAX, open_files_max() // 4))


class _ServerState(ServerState):
    """State that a server's connections share.

    :ivar refused: connections above the limit since the last report.
    :ivar paused: another process serves: each connection ends with its next answer.
    """

    def __init__(self, connections_max: int) -> None:
        super().__init__()
        self.connections_max = connections_max
        self.refused = 0
        self.paused = False


class _Connection(H11Protocol):
    """uvicorn's connection, with the state of waiting for the client."""

    server_state: _ServerState

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = StrictConnection(_HEAD_BYTES_MAX)
        # What the connection waited for at the last check, and since when.
        self.waits_for: object = None
        self.since_s = 0.0

    def send_400_response(self, msg: str) -> None:
        """Refuses what cannot be read. If an answer is under way, or done, the connection just ends."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def handle_events(self) -> None:
        super().handle_events()
        cycle = self.cycle
        if self.server_state.paused and cycle is not None and not cycle.response_started:
            # The header tells the client, so that it sends nothing more on this connection.
            cycle.default_headers = [*self.server_state.default_headers, CLOSE_HEADER]

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        release(self.transport)

    def waits(self) -> object:
        """Returns a value that stays the same while the client owes the same thing; None: the client owes nothing.

        A client owes a request's head or body, or the reading of an answer. If some of the answer was read, the value
        changes.
        """
        cycle = self.cycle
        if self.transport.is_closing() or (cycle is not None and cycle.response_complete):
            unsent = self.transport.get_write_buffer_size()
            if unsent:
                return (cycle, "answer", unsent)
        if cycle is None or cycle.response_complete:
            return (cycle, "head")
        return (cycle, "body") if cycle.more_body and not cycle.response_started else None


class _Server(uvicorn.Server):
    """A uvicorn server that ignores signals, reports when it is up, and cuts clients that send nothing."""

    server_state: _ServerState

    def __init__(self, config: uvicorn.Config, request_s: float, connections_max: int) -> None:
        super().__init__(config)
        self.server_state = _ServerState(connections_max)
        self.up = asyncio.Event()
        self.acceptors: list[Acceptor] = []
        self._request_s = request_s
        self._looks_every_s = request_s / _LOOKS_PER_REQUEST_S
        self._looked_s = float("-inf")
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        """Makes the server end."""
        self.should_exit = True
        self._leaving.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to accept, in place of uvicorn's startup, which accepts all that wait in one turn of the loop."""
        await self.lifespan.startup()
        for listener in sockets or ():
            listener.listen(_WAITING_MAX)
            self.acceptors.append(Acceptor(listener, self._connection, self.config.ssl, self._request_s, self._is_full))
            self.acceptors[-1].start()
        self.servers = self.acceptors  # type: ignore[assignment]
        self.started = True
        self.up.set()

    def _connection(self) -> _Connection:
        return _Connection(self.config, self.server_state, self.lifespan.state)

    def _is_full(self, opening: int) -> bool:
        """Tells whether one more connection is too many. (uvicorn's own limit answers 503 and keeps the connection.)

        :param opening: those whose handshake is under way.
        """
        state = self.server_state
        if len(state.connections) + opening < state.connections_max:
            return False
        state.refused += 1
        return True

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(aligned_s(min(_TICK_S, self._looks_every_s))):
                    await self._leaving.wait()

    async def on_tick(self, counter: int) -> bool:
        now_s = elapsed_s()
        if now_s - self._looked_s >= self._looks_every_s:
            self._looked_s = now_s
            self._cut_the_late(now_s)
        return await super().on_tick(counter)

    def _cut_the_late(self, now_s: float) -> None:
        late = 0
        for connection in list(self.server_state.connections):
            assert isinstance(connection, _Connection)
            owed = connection.waits()
            if owed is None or owed != connection.waits_for:
                connection.waits_for, connection.since_s = owed, now_s
            elif now_s - connection.since_s >= self._request_s:
                connection.transport.abort()
                late += 1
        refused, self.server_state.refused = self.server_state.refused, 0
        if late or refused:
            # Browsers open spare connections.
            tell = log.warning if refused else log.info
            tell("http connections cut", late=late, too_many=refused, after_s=self._request_s)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _WarningThrottle(logging.Filter):
    """Passes one warning a second, and every more severe message."""

    def __init__(self) -> None:
        super().__init__()
        self._next_s = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        now_s = elapsed_s()
        due = now_s >= self._next_s
        self._next_s = now_s + _TOLD_S if due else self._next_s
        return due


logging.getLogger("uvicorn.error").addFilter(_WarningThrottle())
