"""Every endpoint of the routes, called without a token, with a reader's token, and with an admin's."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
import structlog
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.topics import Topics
from muster_event_publisher.derive.settings import DeriveSettings
from muster_event_publisher.derive.usage_rest import UsageRest
from muster_event_publisher.service import PublisherService
from muster_event_publisher.settings import PublisherSettings
from muster_gateway.page import Page
from muster_gateway.route_rights import needed
from muster_gateway.service import Gateway
from muster_gateway.sessions import make_sessions
from muster_gateway.settings import GatewaySettings
from muster_rest.route_table import BELOW, through_the_gateway
from muster_rest.system_health import SchedulerFacts
from muster_runtime.identity import Role
from muster_view import ViewService
from muster_view.settings import ViewSettings
from starlette.routing import Route

ADMIN, READER = "admin-token-0123456789", "reader-token-9876543210"
TOKENS = {"ops": {"role": "admin", "token": ADMIN}, "dashboard": {"role": "read", "token": READER}}
AS_ADMIN, AS_READER = {"Authorization": f"Bearer {ADMIN}"}, {"Authorization": f"Bearer {READER}"}
NOT_LET_IN = (401, 403)
METHODS = ("GET", "POST", "PUT")
OTHER_METHODS = ("HEAD", "DELETE", "PATCH", "TRACE")
# Endpoints without a role. A new one is a decision, which must be visible here.
FOR_ALL = {"/", "/favicon.ico", "/health", "/livez", "/readyz", "/health/live", "/health/ready"}
FOR_ALL |= {"/ws/v1/health", "/ws/v1/whoami"}
FOR_READERS_THAT_POST = {"/ws/v1/validate-conf", "/ws/v1/object-states"}
FOR_ADMINS_THAT_GET = {"/ws/v1/audit", "/ws/v1/stack", "/ws/v1/fullstatedump", "/ws/v1/events/streams"}
SAMPLES = {"profile": "cmdline", "level": "warning"}


class Front:
    """A gateway with its view and its publisher in one process, with data for every route."""

    def __init__(self) -> None:
        topics, clock = Topics(partitions=1), SystemClock()
        self.log = MemoryLog(topics.specs(), clock)
        self.view = ViewService(ViewSettings(http_address=""), self.log, topics, clock)
        usage = UsageRest(DeriveSettings(), self.log, topics)
        settings = PublisherSettings(http_address="")
        self.publisher = PublisherService(settings, self.log, topics, clock, usage=usage)
        chosen = GatewaySettings.model_validate(
            {"grpc_address": "127.0.0.1:0", "http_address": "127.0.0.1:0", "tokens": TOKENS, "stop_grace_s": 0.5}
        )
        self.gateway = Gateway(
            chosen,
            self.log,
            topics,
            make_sessions(chosen, clock),
            clock,
            view=self.view.asgi,
            publisher=self.publisher.asgi,
            services={},
            scheduler=lambda: SchedulerFacts([]),
        )

    def paths(self) -> list[str]:
        """Return the paths of all routes and files, and paths without a route."""
        patterns = {route.path for route in (*self.view.asgi.routes, *through_the_gateway())}
        patterns |= {route.path for route in self.publisher.asgi.routes if isinstance(route, Route)}
        patterns |= {*Page().paths, *(f"{folder}x" for folder in BELOW)}
        return sorted(re.sub(r"\{(\w+)[^}]*\}", lambda name: SAMPLES.get(name[1], "x"), each) for each in patterns)


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Front, aiohttp.ClientSession]]:
    front = Front()
    await front.log.start()
    await front.view.start()
    await front.gateway.start()
    try:
        url = f"http://127.0.0.1:{front.gateway.http_port}"
        async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(60)) as client:
            yield front, client
    finally:
        await front.gateway.stop()
        await front.view.stop()
        await front.log.close()


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    before, configured = logging.getLogger().level, structlog.get_config()
    yield
    logging.getLogger().setLevel(before)
    structlog.configure(**configured)


async def _status(client: aiohttp.ClientSession, method: str, path: str, headers: dict[str, str]) -> int:
    sent = {**headers, "X-Muster-Operate": "test"}  # (Without it, actions refuse operators, too.)
    async with client.request(method, path, headers=sent, allow_redirects=False) as answer:
        return answer.status


def _role(method: str, path: str) -> Role:
    """Return the role that the path needs, stated independently of the table of routes."""
    if method in ("GET", "HEAD"):
        if path in FOR_ALL or path.startswith("/page/"):
            return Role.NONE
        return Role.ADMIN if path in FOR_ADMINS_THAT_GET or path.startswith("/debug/") else Role.READ
    return Role.READ if method == "POST" and path in FOR_READERS_THAT_POST else Role.ADMIN


async def test_each_route_admits_exactly_its_roles() -> None:
    async with opened() as (front, client):
        paths = front.paths()
        assert {"/ws/v1/partitions", "/ws/v1/events/stream", "/ws/v1/usage", "/metrics", "/debug/pprof/cmdline"} < {
            *paths
        }
        for path in paths:
            for method in OTHER_METHODS:
                assert needed(method, path).role is _role(method, path), f"{method} {path}"
            for method in METHODS:
                role, what = _role(method, path), f"{method} {path}"
                assert needed(method, path).role is role, what
                without = await _status(client, method, path, {})
                assert without == 401 if role is not Role.NONE else without not in NOT_LET_IN, what
                reader = await _status(client, method, path, AS_READER)
                assert reader == 403 if role is Role.ADMIN else reader not in NOT_LET_IN, what
                admin = await _status(client, method, path, AS_ADMIN)
                assert admin not in NOT_LET_IN, what
                assert admin < 500, what
            assert await _status(client, "OPTIONS", path, {}) not in NOT_LET_IN, path
