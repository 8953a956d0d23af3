"""The time after the start in which the rings are filled with the log's recent events, beside the service.

A ring that lacks recent events would say that they do not exist, and a stream would begin behind them. So questions
for events wait until the rings are filled, or are refused: the caller may ask again. Everything else is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType

from muster_runtime.go_json import error_body
from muster_runtime.positions import PositionWaits
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from muster_event_publisher.errors import Unavailable

# The rings of an RM with 100,000 allocations take a second. A log on a busy disk takes longer: the caller may go on.
_WAIT_S = 10.0


class StartupFill:
    """Whether the rings are filled.

    :param over: there is nothing to fill: the service fills them before it answers.
    """

    def __init__(self, *, over: bool, wait_s: float = _WAIT_S) -> None:
        self.over = over
        self._stopping = False
        self._wait_s = wait_s
        self._changed = asyncio.Event()

    def end(self) -> None:
        """The rings are filled: questions go on."""
        self.over = True
        self._changed.set()

    def stop(self) -> None:
        """The service stops: refuses the questions that wait."""
        self._stopping = True
        self._changed.set()

    async def wait(self) -> None:
        """Returns when the rings are filled. Raises Unavailable if that takes long, or when the service stops."""
        if self.over:
            return
        try:
            async with asyncio.timeout(self._wait_s):
                await self._changed.wait()
        except TimeoutError:
            raise Unavailable("the recent events are still being read from the log, try again") from None
        if self._stopping and not self.over:
            raise Unavailable("the event publisher is stopping")


class StartupGate:
    """An application whose requests wait for the rings, and for the position that they name.

    :param headers: of a refusal.
    :param passing: paths that do not wait.
    :param waits: of requests that name a position; None: positions are passed over. ``waits_at``: of a path's requests,
        where they are others.
    :ivar routes: of the application.
    """

    def __init__(
        self,
        app: Starlette,
        filling: StartupFill,
        headers: dict[str, str],
        passing: frozenset[str],
        waits: PositionWaits | None = None,
        waits_at: Mapping[str, PositionWaits] = MappingProxyType({}),
    ) -> None:
        self._app, self._filling, self._passing = app, filling, passing
        self._waits, self._waits_at = waits, waits_at
        self.routes = app.routes
        self._headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._filling.over and scope["type"] == "http" and scope["path"] not in self._passing:
            try:
                await self._filling.wait()
            except Unavailable as refused:
                await send({"type": "http.response.start", "status": 503, "headers": self._headers})
                await send({"type": "http.response.body", "body": error_body(503, str(refused))})
                return
        if scope["type"] == "http" and scope["path"] not in self._passing:
            waits = self._waits_at.get(scope["path"], self._waits)
            if waits is not None and not await waits.admit_http(scope, receive, send):
                return
        await self._app(scope, receive, send)
