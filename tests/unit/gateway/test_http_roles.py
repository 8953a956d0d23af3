"""The roles of routes: every endpoint states one, and no spelling of a path gets around it."""

from __future__ import annotations

import re

import pytest
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.topics import Topics
from muster_event_publisher.app import PublisherService
from muster_event_publisher.derive.rest import UsageRest
from muster_event_publisher.derive.settings import DeriveSettings
from muster_event_publisher.settings import PublisherSettings
from muster_gateway.http_roles import needed
from muster_rest.route import READS, Route
from muster_rest.services import PUBLISHER, VIEW, default_role, through_the_gateway
from muster_runtime.identity import Role
from muster_view import ViewService
from muster_view.settings import ViewSettings
from starlette import routing

ROUTES = through_the_gateway()


def test_the_services_answer_the_routes_of_the_table_and_no_other() -> None:
    topics = Topics(partitions=1)
    log, clock = MemoryLog(topics.specs(), SystemClock()), SystemClock()
    view = ViewService(ViewSettings(http_address=""), log, topics, clock).asgi
    assert view.routes == list(VIEW.routes)
    usage = UsageRest(DeriveSettings(), log, topics)
    publisher = PublisherService(PublisherSettings(http_address=""), log, topics, clock, extra_routes=usage.routes).asgi
    served = [route.path for route in publisher.routes if isinstance(route, routing.Route)]
    assert len(served) == len(publisher.routes)
    assert sorted(served) == sorted(route.path for route in PUBLISHER.routes)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_request_needs_what_its_route_says(route: Route) -> None:
    path = re.sub(r"\{[^}]*\}", "x", route.path)
    for method in route.methods:
        assert needed(method, path) is route.role


def test_no_request_has_two_routes() -> None:
    stated = [(re.sub(r"\{[^}]*\}", "{}", route.path), route.method) for route in ROUTES]
    assert len(stated) == len(set(stated))


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("GET", "/nothing", Role.READ),
        ("HEAD", "/ws/v1/nothing/at/all", Role.READ),
        ("POST", "/nothing", Role.ADMIN),
        ("DELETE", "/ws/v1/partitions", Role.ADMIN),
        ("GET", "/ws/v1/validate-conf", Role.READ),
        ("POST", "/ws/v1/validate-conf/x", Role.ADMIN),
        ("BREW", "/health", Role.ADMIN),
        ("OPTIONS", "/debug/stack", Role.NONE),
        ("OPTIONS", "/nothing", Role.NONE),
        ("PUT", "/ws/v1/loglevel/debug", Role.ADMIN),
        ("GET", "/debug", Role.ADMIN),
    ],
)
def test_paths_without_a_route(method: str, path: str, role: Role) -> None:
    assert needed(method, path) is role


@pytest.mark.parametrize(
    "path",
    [
        "/DEBUG/Stack",
        "//debug//stack",
        "/debug/stack/",
        "/debug/pprof/profile",
        "/Ws/V1/FullStateDump",
        "/ws/v1//stack",
    ],
)
def test_another_spelling_needs_no_less(path: str) -> None:
    assert needed("GET", path) is Role.ADMIN


def test_the_highest_role_counts() -> None:
    assert needed("GET", "/debug/nothing/at/all") is Role.ADMIN
    assert needed("GET", "/page/nothing/at/all") is Role.NONE
    assert needed("GET", "/ws/v1/loglevel") is Role.READ
    assert [default_role(method) for method in READS] == [Role.READ, Role.READ]
