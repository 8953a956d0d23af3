"""An HTTP server within a running event loop: it takes no signals, and its port is bound before it is started."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from muster_scheduler.view.settings import parse_address


class HttpServer:
    """Serves an ASGI application on one address.

    :param address: host:port, checked by the settings; port 0: any free one.
    :param stop_timeout_s: time that open requests have when it stops.
    :ivar port: the port that it listens on.

    Raises OSError when the address cannot be bound.
    """

    def __init__(self, app: ASGIApp, address: str, stop_timeout_s: float) -> None:
        parsed = parse_address(address)
        assert parsed is not None, "checked by the settings"
        host, port = parsed
        # The protocol is named: only then asyncio sends at once; else a small answer waits 40 ms to be acknowledged.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            raise OSError(error.errno, f"http_address {address}: {error.strerror}") from error
        self.port: int = self._socket.getsockname()[1]
        self._stop_timeout_s = stop_timeout_s
        self._ended = asyncio.Event()
        self._server = _NoSignals(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=max(1, round(stop_timeout_s)),
                h11_max_incomplete_event_size=64 * 1024,
            )
        )

    async def serve(self) -> None:
        """Serves until :meth:`stop`."""
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._socket.close()
            self._ended.set()
            self._server.up.set()

    async def ready(self) -> None:
        """Returns when requests are answered."""
        await self._server.up.wait()

    async def stop(self) -> None:
        """Lets open requests end, within the time-out."""
        self._server.should_exit = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._stop_timeout_s + 1.0):
                await self._ended.wait()


class _NoSignals(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
