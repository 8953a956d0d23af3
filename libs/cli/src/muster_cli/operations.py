"""What an operator asks a process: is it alive, is it ready, how is it doing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog
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
