"""Who accepts the HTTP connections of ``muster up``: the followers' process, or else the deciding one.

The deciding process owns the listening socket, so the port stays bound when the followers' process ends. The socket is
handed down to each child. Both serve it with the same front, but only one of them at a time:

============================================  =====================  =========================================
state of the child                            accepts                an answer that needs followers
============================================  =====================  =========================================
it begins, or is gone, or hangs               the deciding process   503 and Retry-After
it runs, and its front end cannot be opened   the deciding process   from the child, over its Unix sockets
its front end is open                         the child              from the child itself
============================================  =====================  =========================================

The deciding process answers everything else in all states: the page, health, metrics, operators' actions, the audit
trail. Connections that it accepted end with their next answer once the child accepts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog
from muster_gateway.front_end import Admitted
from muster_runtime.caller import Caller
from muster_runtime.http_server import HttpServer
from muster_runtime.message_channel import Channel
from starlette.types import Message, Scope

from muster_cli.followers_messages import CloseFront, Forwarded, FromFollowers, FrontState, OpenFront, Response

log = structlog.get_logger(__name__)

# Beyond ``gateway.stop_grace_s``, for what the child has to do when the time is up.
_CLOSE_MARGIN_S = 2.0


class FrontHandover:
    """Pauses the deciding process's own server while the child accepts. See the module's docstring.

    :param is_responsive: tells whether the child reported recently.
    :param close_s: time for the child's open requests when the gateway stops, in seconds.
    """

    def __init__(self, is_responsive: Callable[[], bool], close_s: float) -> None:
        self._is_responsive, self._close_s = is_responsive, close_s
        self._channel: Channel[FromFollowers] | None = None
        self._state = FrontState.CLOSED
        self._changed = asyncio.Event()
        self._server: HttpServer | None = None
        self._answer: Admitted | None = None
        self._gateway_id = ""
        self._paused = False
        self._answering: set[asyncio.Task[None]] = set()

    # ---- the gateway -------------------------------------------------------------------------------------------------

    def open(self, gateway_id: str, answer: Admitted, server: HttpServer) -> None:
        """The gateway serves. See :class:`muster_gateway.front_end.OtherFront`."""
        self._gateway_id, self._answer, self._server = gateway_id, answer, server
        self._send_open()

    async def close(self) -> None:
        """The gateway stops. See :class:`muster_gateway.front_end.OtherFront`."""
        self._server = None
        if self._channel is None or self._state is not FrontState.OPEN:
            return
        self._channel.send(CloseFront())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._close_s + _CLOSE_MARGIN_S):
                while self._state is FrontState.OPEN:
                    self._changed.clear()
                    await self._changed.wait()

    async def is_decided(self) -> bool:
        """Tells whether it is clear who accepts: the child's front end was opened, or cannot be."""
        return self._server is None or self._state is not FrontState.CLOSED

    # ---- the child ---------------------------------------------------------------------------------------------------

    def on_child_started(self, channel: Channel[FromFollowers]) -> None:
        """A child runs."""
        self._channel = channel
        self._send_open()

    def on_child_ended(self) -> None:
        """No child runs."""
        self._channel = None
        self._set_child_state(FrontState.CLOSED)

    def on_child_reported(self, state: FrontState) -> None:
        """The child reported."""
        self._set_child_state(state)

    def check(self) -> None:
        """Decides again who accepts. Call this when the child may be silent for too long."""
        server, child_accepts = self._server, self._state is FrontState.OPEN and self._is_responsive()
        if server is None or child_accepts is self._paused:
            return
        self._paused = child_accepts
        if child_accepts:
            server.pause()
        else:
            server.resume()
        log.info("http connections are accepted", by="the followers' process" if child_accepts else "this process")

    def forward(self, request: Forwarded) -> None:
        """Answers a request of the child's front end."""
        if self._channel is None:
            return
        task = asyncio.create_task(self._respond(self._channel, request), name="front end's request")
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def _send_open(self) -> None:
        if self._channel is not None and self._server is not None:
            self._channel.send(OpenFront(self._gateway_id))

    def _set_child_state(self, state: FrontState) -> None:
        self._state = state
        self._changed.set()
        self.check()

    async def _respond(self, channel: Channel[FromFollowers], request: Forwarded) -> None:
        caller = Caller(
            request.caller.identity, request.caller.peer, "http", request.caller.method, request.caller.credential
        )
        answer = _Answer(request.body)
        try:
            assert self._answer is not None, "the front end was opened"
            await self._answer(caller, _scope(request), answer.receive, answer.send)
        except Exception:
            log.exception("a front end's request failed", path=request.path)
            answer.status, answer.headers, answer.body = 500, (), bytearray(b"Internal Server Error")
        channel.send(Response(request.number, answer.status, answer.headers, bytes(answer.body), caller.carried))


class _Answer:
    """The answer of an ASGI application to a request that is there as a whole."""

    def __init__(self, body: bytes) -> None:
        self._unread_body: bytes | None = body
        self.status = 500
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        self.body = bytearray()

    async def receive(self) -> Message:
        if self._unread_body is None:
            await asyncio.Event().wait()  # the client stays until it has its answer
        body, self._unread_body = self._unread_body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], tuple((name, value) for name, value in message["headers"])
        else:
            self.body += message.get("body", b"")


def _scope(request: Forwarded) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.raw_path,
        "query_string": request.query,
        "root_path": "",
        "headers": list(request.headers),
        "client": (request.caller.peer, 0) if request.caller.peer else None,
        "server": None,
        "extensions": {},
    }
