"""An HTTP server within a running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from muster_service.addresses import listen

# Beyond the time that open requests have: uvicorn looks ten times a second whether it should end.
_STOP_MARGIN_S = 1.0
# A request's line and headers. h11's own limit, 16 KiB, is little for what proxies and sign-on systems add.
_HEAD_BYTES_MAX = 64 * 1024
# An extension of the scope, for :func:`cut`.
_CUT = "muster.cut"


class HttpServer:
    """Serves an ASGI application on one address. The address is bound when this is made, and served by :meth:`serve`.

    It takes no signals: these are the process's business. It believes no header about who the peer is: any client can
    send one.

    :param address: host:port; port 0: any free one. Or a socket that listens already; it is closed with the server.
    :param stop_timeout_s: time that open requests have when it stops, in seconds; less than one counts as one.
    :param field: the setting that holds the address, for errors.
    :ivar port: the port that it listens on; 0: it is a Unix socket.

    Raises ValueError for what is no address, and OSError when it cannot be listened on; both name the field.
    """

    def __init__(
        self, app: ASGIApp, address: str | socket.socket, stop_timeout_s: float, *, field: str = "http_address"
    ) -> None:
        self._socket = listen(field, address) if isinstance(address, str) else address
        self._name = f"{field} {address!r}"
        self.port: int = self._socket.getsockname()[1] if self._socket.family != socket.AF_UNIX else 0
        graceful_s = max(1, round(stop_timeout_s))
        self._stop_wait_s = graceful_s + _STOP_MARGIN_S
        self._serving = False
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._server = _Server(
            uvicorn.Config(
                _with_cut(app),
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=graceful_s,
                h11_max_incomplete_event_size=_HEAD_BYTES_MAX,
            )
        )

    async def serve(self) -> None:
        """Serves until :meth:`stop`; for a task of its own, whose end the service watches."""
        self._serving = True
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._socket.close()
            self._ended.set()
            self._server.up.set()

    async def start(self) -> None:
        """:meth:`serve` in a task of its own, for who does not watch it. Returns when requests are answered."""
        self._task = asyncio.create_task(self.serve(), name=f"http {self.port}")
        try:
            await self.ready()
        except OSError:
            await self._task  # it says why
            raise

    async def ready(self) -> None:
        """Returns when requests are answered. Raises OSError when :meth:`serve` ended before that."""
        await self._server.up.wait()
        if self._ended.is_set():
            raise OSError(f"{self._name}: the HTTP server ended before it served")

    async def stop(self) -> None:
        """Lets open requests end, within their time; then cuts them. Also for a server that never served."""
        if not self._serving:
            self._socket.close()
            return
        self._server.should_exit = True
        if not await self._wait_ended(self._stop_wait_s):
            self.kill()
            await self._wait_ended(_STOP_MARGIN_S)

    def kill(self) -> None:
        """Makes :meth:`serve` end without waiting for open requests."""
        self._server.force_exit = self._server.should_exit = True
        if not self._serving:
            self._socket.close()

    async def _wait_ended(self, wait_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._ended.wait()
        return self._ended.is_set()


async def cut(scope: Scope) -> None:
    """Ends the connection of an answer that nobody takes to its end, at once. Without an :class:`HttpServer`: nothing.

    (An application that just returns leaves uvicorn to complain, and to wait for the client to take what is under way.)
    """
    end = scope.get("extensions", {}).get(_CUT)
    if end is not None:
        end()
        await asyncio.sleep(0)  # then uvicorn knows


def _with_cut(app: ASGIApp) -> ASGIApp:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        # What uvicorn gives to send with is a method of the request; ASGI has no word for its connection.
        connection = getattr(getattr(send, "__self__", None), "transport", None)
        if connection is not None:
            scope["extensions"] = {**scope.get("extensions", {}), _CUT: connection.abort}
        await app(scope, receive, send)

    return serve


class _Server(uvicorn.Server):
    """uvicorn that leaves signals alone, and says when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
