"""Ports without sockets: what a test or a service opens at host:port, and what connects to it, in one event loop.

:class:`Ports` stands in for gRPC's servers and channels, for Muster's HTTP server, and for httpx. So a rig that was
written for sockets runs in virtual time as it is (``plugin.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Any

import grpc.aio
import httpx
from muster_runtime.cross_site import for_programs
from starlette.types import ASGIApp, Message

from virtual.calls import Channel, Network, Server
from virtual.http import BrokenOff, Site, scope_of

HOST = "127.0.0.1"
_ALL = ("0.0.0.0", "[::]", "localhost")
FIRST_PORT = 20_000
# One side notices after so long what happened to the other.
_DELAY_S = (0.0002, 0.002)


class Ports:
    """See the module's docstring.

    :param dice: draws how long things take.
    """

    def __init__(self, dice: Random) -> None:
        self.network = Network(lambda: dice.uniform(*_DELAY_S))
        self.sites: dict[str, Site] = {}
        self._next = FIRST_PORT
        self._clients = 0

    def free(self, count: int = 1) -> list[int]:
        """Returns ports that nobody has."""
        first = self._next
        self._next += count
        return list(range(first, self._next))

    def bind(self, address: str) -> tuple[str, int]:
        """Returns host:port of an address, and the port; port 0: a free one. Raises OSError: it is taken."""
        host, _, port = address.rpartition(":")
        number = int(port) or self.free()[0]
        name = f"{HOST if host in _ALL else host}:{number}"
        site, server = self.sites.get(name), self.network.servers.get(name)
        if (site is not None and site.serves) or (server is not None and server.serves):
            raise OSError(f"{address} is taken")
        return name, number

    def channel(self, target: str, options: Any = None, **_: Any) -> Channel:
        """As grpc.aio.insecure_channel. Each channel has a connection of its own."""
        addresses = target.removeprefix("ipv4:").removeprefix("dns:").strip("/").split(",")
        names = [address.replace("localhost", HOST) for address in addresses]
        self._clients += 1
        return Channel(self.network, names, f"ipv4:{HOST}", first_port=40_000 + 100 * self._clients)

    def server(self, *_: Any, interceptors: Sequence[Any] = (), **more: Any) -> GrpcServer:
        """As grpc.aio.server."""
        return GrpcServer(self, interceptors)

    def http_server(self, app: ASGIApp, address: str, *_: Any, programs_only: bool = False, **more: Any) -> Site:
        """As HttpServer of muster_runtime."""
        name, port = self.bind(address)
        site = self.sites[name] = Site(for_programs(app, private=True) if programs_only else app)
        site.port = port
        return site

    def transport(self, *_: Any, **more: Any) -> HttpTransport:
        """As httpx.AsyncHTTPTransport."""
        return HttpTransport(self)


class GrpcServer:
    """The used part of ``grpc.aio.Server``."""

    def __init__(self, ports: Ports, interceptors: Sequence[Any]) -> None:
        self._ports, self._interceptors = ports, interceptors
        self._server = Server(ports.network)
        self._handlers: list[Any] = []
        self._names: list[str] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """They are among the generic ones, too."""

    def add_insecure_port(self, address: str) -> int:
        try:
            name, port = self._ports.bind(address)
        except OSError as error:
            raise RuntimeError(str(error)) from error
        self._names.append(name)
        return port

    async def start(self) -> None:
        self._server.start(self._interceptors, self._handlers)
        for name in self._names:
            self._ports.network.servers[name] = self._server

    async def stop(self, grace: float | None) -> None:
        await self._server.stop(grace or 0.0)


grpc.aio.Server.register(GrpcServer)  # (reflection asks for the type)


class HttpTransport(httpx.AsyncBaseTransport):
    """Requests of httpx to sites. Raises httpx's errors."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        site = self._ports.sites.get(f"{request.url.host}:{request.url.port or 80}")
        if site is None or not site.serves:
            raise httpx.ConnectError("All connection attempts failed", request=request)
        body = await request.aread()
        exchange = _Request(site, request, body)
        async with asyncio.timeout(request.extensions.get("timeout", {}).get("read")) as limit:
            try:
                head = await exchange.head()
            except asyncio.CancelledError:
                await exchange.aclose()
                if limit.expired():
                    raise httpx.ReadTimeout("no answer", request=request) from None
                raise
        return httpx.Response(head["status"], headers=head.get("headers", ()), stream=exchange, request=request)


class _Request(httpx.AsyncByteStream):
    """A request that is under way, and the body of its answer."""

    def __init__(self, site: Site, request: httpx.Request, body: bytes) -> None:
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        path = request.url.raw_path.decode()
        self._body, self._is_sent = body, False
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue(1)
        self._gone = asyncio.Event()
        scope = scope_of(path, request.method, headers, (HOST, request.url.port or 80))
        self._task = asyncio.create_task(site(scope, self._receive, self._send))
        self._task.add_done_callback(self._over)

    async def head(self) -> Message:
        """Returns the begin of the answer."""
        return await self._next()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self._next()
            more = message.get("more_body", False)
            if piece := message.get("body", b""):
                yield piece

    async def aclose(self) -> None:
        """The client leaves. The application hears of it, and what it still sends reaches nobody."""
        self._gone.set()
        while not self._messages.empty():
            self._messages.get_nowait()

    async def _next(self) -> Message:
        waiting = asyncio.ensure_future(self._messages.get())
        try:
            await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done() and self._messages.empty():
                raise httpx.RemoteProtocolError("the connection ended before the answer did")
            message = await waiting
        finally:
            waiting.cancel()
        assert message is not None
        return message

    async def _send(self, message: Message) -> None:
        if not self._gone.is_set():
            await self._messages.put(message)

    async def _receive(self) -> Message:
        if not self._is_sent:
            self._is_sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    def _over(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, BrokenOff):
            asyncio.get_running_loop().call_exception_handler({"message": "a request failed", "exception": error})
