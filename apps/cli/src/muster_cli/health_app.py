"""A process's answers to operators: whether it lives, whether it is ready, and its metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog
from muster_runtime.exposition import ExpositionBusy, SharedExposition
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

log = structlog.get_logger(__name__)

HEALTH_TIMEOUT_S = 3.0  # probes usually wait five seconds; a service that needs longer is not ready
STOP_TIMEOUT_S = 3.0  # for open HTTP answers; streams never end by themselves

HealthCheck = Callable[[], Awaitable[bool]]
ProblemCheck = Callable[[], Awaitable[list[str]]]
Facts = Callable[[], Mapping[str, object]]


def operations_app(
    problems: Mapping[str, ProblemCheck],
    mounted: ASGIApp | None = None,
    healthy: Mapping[str, HealthCheck] | None = None,
    facts: Mapping[str, Facts] | None = None,
) -> Starlette:
    """Serves ``/livez``, ``/readyz`` and ``/metrics``, and passes everything else to ``mounted``.

    Live: the process's event loop works. Ready: every service is ready and answers in time; otherwise 503. Both answers
    list the problems.

    :param problems: by service: returns its present problems, one sentence each.
    :param healthy: by service: whether it is ready in spite of problems (an external source is away, for example);
        default: it has no problem.
    :param facts: by service: what else the answer about readiness says, such as the partitions that it owns.
    """
    ready_when = healthy or {}

    async def live(request: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def ready(request: Request) -> Response:
        names = list(problems)
        answers = await asyncio.gather(*(_ask(problems[name]) for name in names))
        services = {name: "not ready" if answer else "ready" for name, answer in zip(names, answers, strict=True)}
        for name in names:
            if name in ready_when and await _is_so(ready_when[name]):
                services[name] = "ready"
        good = all(state == "ready" for state in services.values())
        body: dict[str, object] = {
            "status": "ready" if good else "not ready",
            "services": services,
            "problems": [
                f"{name}: {problem}" for name, answer in zip(names, answers, strict=True) for problem in answer
            ],
        }
        for name, service_facts in (facts or {}).items():
            body[name] = dict(service_facts())
        return JSONResponse(body, 200 if good else 503)

    exposition = SharedExposition()

    async def metrics(request: Request) -> Response:
        try:
            async with exposition as text:
                return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)
        except ExpositionBusy as error:
            return Response(f"{error}\n", 503, {"retry-after": "1"}, media_type="text/plain")

    routes: list[Route | Mount] = [
        *(Route(path, live) for path in ("/livez", "/health/live")),
        *(Route(path, ready) for path in ("/readyz", "/health/ready", "/health")),
        Route("/metrics", metrics),
    ]
    if mounted is not None:
        routes.append(Mount("/", app=mounted))
    return Starlette(routes=routes)


async def _is_so(check: HealthCheck) -> bool:
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            return await check()
    except Exception as error:  # a failed check is an answer, too
        log.warning("health check failed", error=error)
        return False


async def _ask(check: ProblemCheck) -> list[str]:
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            return await check()
    except TimeoutError:
        return [f"no answer in {HEALTH_TIMEOUT_S:g} s"]
    except Exception as error:  # a failed check is an answer
        log.warning("health check failed", error=error)
        return [f"it cannot say how it is: {type(error).__name__}"]
