"""What an operator asks a process: is it alive, is it ready, how is it doing. And the HTTP server that answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping

import structlog
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

log = structlog.get_logger(__name__)

HEALTH_TIMEOUT_S = 3.0  # probes wait five seconds as a rule; a service that needs longer is not ready
STOP_TIMEOUT_S = 3.0  # for open HTTP answers to end; streams never do

HealthCheck = Callable[[], Awaitable[bool]]


def operations_app(checks: Mapping[str, HealthCheck], mounted: ASGIApp | None = None) -> Starlette:
    """``/health/live``, ``/health/ready`` and ``/metrics``, and everything else to ``mounted``.

    Live: the process's event loop turns. Ready: every check says so, in time; 503 and which one did not otherwise.
    """

    async def live(request: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def ready(request: Request) -> Response:
        names = list(checks)
        answers = await asyncio.gather(*(_ask(checks[name]) for name in names))
        status = "ready" if all(answers) else "not ready"
        services = {name: "ready" if answer else "not ready" for name, answer in zip(names, answers, strict=True)}
        return JSONResponse({"status": status, "services": services}, 200 if all(answers) else 503)

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    routes: list[Route | Mount] = [
        Route("/health/live", live),
        Route("/health/ready", ready),
        Route("/health", ready),
        Route("/metrics", metrics),
    ]
    if mounted is not None:
        routes.append(Mount("/", app=mounted))
    return Starlette(routes=routes)


async def _ask(check: HealthCheck) -> bool:
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            return await check()
    except Exception as error:  # a check that fails is an answer
        log.warning("health check failed", error=repr(error))
        return False


class HttpServer:
    """Serves an application on a socket, within the life of the process: it takes no signals of its own."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=int(STOP_TIMEOUT_S)
        )
        self._server = _Server(config)
        self._listener = listener
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when requests are answered."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]), name="http")
        while not self._server.started and not self._task.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Returns when no request is under way any more, or their time is over."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task
        self._listener.close()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
