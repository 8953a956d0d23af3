"""The gateway's HTTP front in the followers' process: followers answer in process, the gateway over the pipe.

The deciding process says when to open it (``followers_handover.py``). If it cannot be opened, for example because a
certificate's file is just being replaced, it is tried again, and the deciding process accepts meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
from muster_bus.clock import Clock, day_ns
from muster_bus.errors import BusError
from muster_bus.pipe.child_log import ChildLog
from muster_gateway.errors import InvalidGatewaySettings
from muster_gateway.front_end import FrontEnd
from muster_gateway.http_bodies import HeldBodies, bounded
from muster_gateway.http_front import HttpBackend, respond_error
from muster_rest.shapes.health import SystemHealthDao
from muster_rest.system_health import unreachable
from muster_runtime.backoff import aligned_s
from muster_runtime.caller import INTERNAL, Caller, current
from muster_runtime.ending import first_of
from muster_runtime.message_channel import Channel
from muster_runtime.service_lifecycle import ServiceLifecycle
from starlette.types import Receive, Scope, Send

from muster_cli.followers import Followers
from muster_cli.followers_messages import (
    LEVEL_PATH,
    OWN_PATHS,
    Forwarded,
    ForwardedCaller,
    FromParent,
    FrontState,
    Response,
)
from muster_cli.settings import MusterSettings

log = structlog.get_logger(__name__)

# Requests that the deciding process answers at the same time. Each may have a configuration as its body.
_FORWARDED_MAX = 64
# A probe waits as long.
_HEALTH_TIMEOUT_S = 3.0
_METRICS_TIMEOUT_S = 10.0
_RETRY_S = 1.0


class GatewayBackend:
    """The gateway over the pipe; see :class:`muster_gateway.front_end.Backend`.

    :param body_bytes_max: of a request's body; the gateway refuses longer ones.
    :param bodies: of this process.
    :ivar answer: passes a request on, with the present caller, and its answer back.
    """

    def __init__(self, channel: Channel[FromParent], body_bytes_max: int, bodies: HeldBodies, clock: Clock) -> None:
        self._clock = clock
        self._channel, self._body_bytes_max = channel, body_bytes_max
        self.answer: HttpBackend = bounded(self._answer, bodies)
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Response]] = {}

    def on_response(self, response: Response) -> None:
        """Takes a message from the pipe."""
        waiting = self._waiting.get(response.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(response)

    async def live(self) -> bool:
        """Tells whether the deciding process should be kept."""
        try:
            return (await self._ask("/livez", _HEALTH_TIMEOUT_S)).status == 200
        except TimeoutError:
            return False

    async def ready(self) -> tuple[bool, list[str]]:
        """Returns whether the gateway can serve, and why not."""
        try:
            answer = await self._ask("/readyz", _HEALTH_TIMEOUT_S)
        except TimeoutError:
            return False, [_silence_reason()]
        return answer.status == 200, answer.body.decode().splitlines()[1:]

    async def health(self) -> SystemHealthDao:
        """Returns the state of the whole, as the deciding process computes it."""
        try:
            answer = await self._ask("/ws/v1/health", _HEALTH_TIMEOUT_S)
        except TimeoutError:
            remedy = "see the log of muster up; if the process hangs, restart it"
            return unreachable(_silence_reason(), remedy, day_ns(self._clock))
        return msgspec.json.decode(answer.body, type=SystemHealthDao)

    async def exposition(self) -> bytes:
        """Returns the metrics of both processes. Raises OSError."""
        try:
            answer = await self._ask("/metrics", _METRICS_TIMEOUT_S)
        except TimeoutError:
            raise OSError("The deciding process does not answer, try again") from None
        if answer.status != 200:
            raise OSError(answer.body.decode().strip() or f"The deciding process answers with status {answer.status}")
        return answer.body

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self._waiting) >= _FORWARDED_MAX:
            await respond_error(send, 503, "Too many such requests are under way, try again", [(b"retry-after", b"1")])
            return
        body = await _read_body(receive, self._body_bytes_max)
        if body is None:
            return
        caller = current()
        answer = await self._forward(caller, scope["method"], scope["path"], body, scope)
        caller.carried = answer.carried
        await send({"type": "http.response.start", "status": answer.status, "headers": list(answer.headers)})
        # (The server leaves out the body of an answer to HEAD.)
        await send({"type": "http.response.body", "body": answer.body, "more_body": False})

    async def _ask(self, path: str, timeout_s: float) -> Response:
        async with asyncio.timeout(timeout_s):
            return await self._forward(INTERNAL, "GET", path, b"", {})

    async def _forward(self, caller: Caller, method: str, path: str, body: bytes, scope: Scope) -> Response:
        self._number += 1
        number = self._number
        waiting: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        headers = tuple(scope.get("headers", ()))
        try:
            self._channel.send(
                Forwarded(
                    number,
                    ForwardedCaller(caller.identity, caller.peer, caller.method, caller.credential),
                    method,
                    path,
                    scope.get("raw_path") or path.encode(),
                    scope.get("query_string", b""),
                    headers,
                    body,
                )
            )
            return await waiting
        finally:
            self._waiting.pop(number, None)


class FollowersFront:
    """Opens the front end when the gateway serves, and closes it when the gateway stops.

    :param listener: the inherited socket.
    :param changed: called when the state changes.
    :ivar state: for the deciding process.
    :ivar problem: why the front end cannot be opened; "": it can.
    """

    def __init__(
        self,
        settings: MusterSettings,
        bus: ChildLog,
        clock: Clock,
        followers: Followers,
        channel: Channel[FromParent],
        listener: socket.socket,
        changed: Callable[[], None],
    ) -> None:
        self._settings, self._bus, self._clock = settings, bus, clock
        self._listener, self._changed = listener, changed
        bodies = HeldBodies()
        self.backend = GatewayBackend(channel, settings.gateway.limits.max_record_bytes, bodies, clock)
        self._view = bounded(_with_refresh(bus, _forward_process_requests(followers.view.asgi, self.backend)), bodies)
        self._publisher = bounded(_with_refresh(bus, followers.publisher.asgi), bodies)
        self._gateway_id = ""
        self._front: FrontEnd | None = None
        self._opening, self._closing, self._ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._lifecycle = ServiceLifecycle("front end")
        self.state = FrontState.CLOSED
        self.problem = ""

    def open(self, gateway_id: str) -> None:
        """The gateway serves."""
        self._gateway_id = gateway_id
        self._opening.set()

    def close(self) -> None:
        """The gateway stops. The state changes when the open requests have ended."""
        self._closing.set()
        self._opening.set()

    def log_notes(self) -> list[str]:
        """Returns the damaged parts of the log that the front end met, one sentence each."""
        return self._front.log_notes() if self._front is not None else []

    # ---- the service; see :class:`muster_rest.route.RoutedService`
    # -------------------------------------------------------

    async def start(self) -> None:
        """Returns at once. Start it after the followers."""
        self._lifecycle.start()
        self._lifecycle.spawn(self._run(), "front")

    async def wait(self) -> None:
        """Returns when it has stopped. Raises the error that ended it."""
        await self._lifecycle.wait()

    async def stop(self) -> None:
        """Closes the front end, as when the gateway stops."""
        if self._lifecycle.begin_stop():
            self.close()
            await self._ended.wait()
            await self._lifecycle.cancel_tasks()
            self._lifecycle.finish()

    async def healthy(self) -> bool:
        """Tells whether it works. (That it cannot be opened concerns no follower.)"""
        return self._lifecycle.alive

    async def _run(self) -> None:
        try:
            await self._opening.wait()
            while not self._closing.is_set():
                front = await self._open_front()
                if front is not None:
                    await self._serve(front)
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(aligned_s(_RETRY_S)):
                        await self._closing.wait()
        finally:
            self._listener.close()
            self._ended.set()
        await asyncio.Event().wait()  # until the process stops

    async def _open_front(self) -> FrontEnd | None:
        """Returns the front end once it accepts connections; None: it cannot be opened now."""
        settings = self._settings
        try:
            front = FrontEnd(
                settings.gateway,
                self._bus,
                settings.log.topics(),
                self._clock,
                self._gateway_id,
                self._view,
                self._publisher,
                self.backend,
                self._listener,
            )
            await front.start()
        except (InvalidGatewaySettings, BusError) as error:
            if self.problem != str(error):
                log.warning("the front end cannot be opened", error=str(error), again_after_s=_RETRY_S)
            self.problem = str(error)
            self._set_state(FrontState.FAILED)
            return None
        self.problem = ""
        self._front = front
        self._set_state(FrontState.OPEN)
        return front

    async def _serve(self, front: FrontEnd) -> None:
        """Serves until the gateway stops. Raises the error that ended the front end."""
        ended, closing = asyncio.create_task(front.wait()), asyncio.create_task(self._closing.wait())
        first: asyncio.Future[Any] | None = None
        try:
            first = await first_of(ended, closing)
        finally:
            closing.cancel()
            await front.stop()
            self._set_state(FrontState.CLOSED)
            await asyncio.gather(ended, closing, return_exceptions=True)
        if first is ended:
            ended.result()

    def _set_state(self, state: FrontState) -> None:
        if self.state is not state:
            self.state = state
            self._changed()


def _with_refresh(bus: ChildLog, app: HttpBackend) -> HttpBackend:
    """Wraps an application so that an answer includes all that is visible when its request comes."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        bus.refresh()
        await app(scope, receive, send)

    return serve


def _forward_process_requests(view: HttpBackend, backend: GatewayBackend) -> HttpBackend:
    """Wraps the view so that requests about the process go to the deciding one. A level of the log is set in both."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if not path.startswith(OWN_PATHS):
            await view(scope, receive, send)
            return
        await backend.answer(scope, receive, send)
        if scope["method"] == "PUT" and path.startswith(LEVEL_PATH):
            await view(scope, receive, _discard)

    return serve


def _silence_reason() -> str:
    return f"the deciding process has not answered for {_HEALTH_TIMEOUT_S:g} s"


async def _discard(_message: object) -> None:
    """Drops an answer."""


async def _read_body(receive: Receive, most: int) -> bytes | None:
    """Returns a request's body, up to a byte more than ``most``; None: the client has left."""
    body, more = bytearray(), True
    while more and len(body) <= most:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body[: most + 1])
