"""HTTP without sockets: requests to ASGI applications of one event loop.

A :class:`Site` is an application that serves under a name in :class:`Web`, each request in a task of its own
incarnation. If that ends, its callers get what they get from a connection that breaks off.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

Task = Callable[[Any], "asyncio.Task[Any]"]


class BrokenOff(ConnectionError):
    """The connection ended before the answer did."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Exchange:
    """One request: what the two sides want of each other."""

    def __init__(self) -> None:
        self.steps: deque[tuple[str, Any, asyncio.Future[Any] | None]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.is_cut = False

    def add(self, kind: str, what: Any = None, answer: asyncio.Future[Any] | None = None) -> None:
        self.steps.append((kind, what, answer))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> tuple[str, Any, asyncio.Future[Any] | None]:
        while not self.steps:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.steps.popleft()

    # ---- for the application ----------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        answer = asyncio.get_running_loop().create_future()
        self.add("receive", None, answer)
        found: Message = await answer
        return found

    async def send(self, message: Message) -> None:
        answer = asyncio.get_running_loop().create_future()
        self.add("send", message, answer)
        await answer


class Site:
    """An application that serves. As ``HttpServing`` of a gateway, too.

    :param task: makes its tasks; None: the running loop does.
    """

    port = 0

    def __init__(self, app: ASGIApp, task: Task | None = None) -> None:
        self._app, self._task = app, task
        self._open: dict[_Exchange, asyncio.Task[Any]] = {}
        self._ended: asyncio.Future[None] | None = None
        self.serves = True

    async def serve(self) -> None:
        """Returns when it is stopped."""
        self._ended = asyncio.get_running_loop().create_future()
        await self._ended

    async def start(self) -> None:
        """It serves from its begin."""

    async def wait_started(self) -> None:
        """It is ready."""

    async def stop(self) -> None:
        self.vanish()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def vanish(self) -> None:
        """Its process has ended: open requests break off."""
        self.serves = False
        for exchange in list(self._open):
            exchange.add("gone")
        self._open.clear()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request of another process. Raises BrokenOff."""
        if not self.serves:
            raise BrokenOff("nobody serves")
        exchange = _Exchange()
        work = self._serve(scope, exchange)
        task = self._task(work) if self._task is not None else asyncio.get_running_loop().create_task(work)
        self._open[exchange] = task
        receiving: list[asyncio.Task[None]] = []
        try:
            while True:
                kind, what, answer = await exchange.next()
                if kind == "send":
                    await send(what)
                    _give(answer, None)
                elif kind == "receive":
                    receiving.append(asyncio.get_running_loop().create_task(_received(receive, answer)))
                elif kind == "gone":
                    raise BrokenOff("the connection ended")
                elif what is not None:
                    raise BrokenOff("the application failed") from what
                else:
                    return
        finally:
            self._open.pop(exchange, None)
            for each in receiving:
                each.cancel()
            if not task.done() and self.serves:
                task.cancel()

    async def _serve(self, scope: Scope, exchange: _Exchange) -> None:
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            exchange.add("done", error)
        else:
            exchange.add("done")


async def _received(receive: Receive, answer: asyncio.Future[Any] | None) -> None:
    _give(answer, await receive())


def _give(answer: asyncio.Future[Any] | None, what: Any) -> None:
    if answer is not None and not answer.done():
        answer.set_result(what)


class Web:
    """The sites, by name."""

    def __init__(self) -> None:
        self.sites: dict[str, Site] = {}

    def target(self, name: str) -> ASGIApp:
        """Returns an application that passes requests on to a site; 503 if it does not serve."""

        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            site, began = self.sites.get(name), False

            async def noted(message: Message) -> None:
                nonlocal began
                began = True
                await send(message)

            try:
                if site is None:
                    raise BrokenOff(f"{name} is away")
                await site(scope, receive, noted)
            except BrokenOff:
                if began:
                    raise
                body = b'{"status":503,"message":"away"}'
                headers = [(b"content-type", b"application/json"), (b"retry-after", b"1")]
                await send({"type": "http.response.start", "status": 503, "headers": headers})
                await send({"type": "http.response.body", "body": body, "more_body": False})

        return call


def scope_of(path: str, method: str, headers: list[tuple[bytes, bytes]], server: tuple[str, int]) -> Scope:
    """Returns what an application is told of a request."""
    parts = urlsplit(path)
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(parts.path),
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 5555),
        "server": server,
    }


async def fetch(
    app: ASGIApp,
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    pieces: Callable[[bytes], bool] | None = None,
) -> Answer:
    """Makes a request and reads its answer.

    :param pieces: takes each piece of the body; True: the client leaves.
    """
    gone = asyncio.get_running_loop().create_future()
    given = [
        (name.lower().encode(), value.encode()) for name, value in {"host": "localhost", **(headers or {})}.items()
    ]
    if body:
        given.append((b"content-length", str(len(body)).encode()))
    scope = scope_of(path, method, given, ("localhost", 80))
    sent = False
    status, found, content = 0, dict[str, str](), list[bytes]()

    async def receive() -> Message:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        await gone
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            found.update((name.decode().lower(), value.decode()) for name, value in message.get("headers", ()))
        elif message["type"] == "http.response.body":
            piece = message.get("body", b"")
            content.append(piece)
            if piece and pieces is not None and pieces(piece) and not gone.done():
                gone.set_result(None)

    try:
        await app(scope, receive, send)
    finally:
        if not gone.done():
            gone.set_result(None)
    return Answer(status, found, b"".join(content))
