"""The rights of routes: every endpoint states one, and no spelling of a path gets around it."""

from __future__ import annotations

import re

import pytest
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.topics import Topics
from muster_event_publisher.derive.settings import DeriveSettings
from muster_event_publisher.derive.usage_rest import UsageRest
from muster_event_publisher.service import PublisherService
from muster_event_publisher.settings import PublisherSettings
from muster_gateway.route_rights import needed
from muster_rest.route import READS, Route
from muster_rest.route_table import PUBLISHER, VIEW, default_right, through_the_gateway
from muster_runtime.identity import Right
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
    publisher = PublisherService(PublisherSettings(http_address=""), log, topics, clock, usage=usage).asgi
    served = [route.path for route in publisher.routes if isinstance(route, routing.Route)]
    assert len(served) == len(publisher.routes)
    assert sorted(served) == sorted(route.path for route in PUBLISHER.routes)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_request_needs_what_its_route_says(route: Route) -> None:
    path = re.sub(r"\{[^}]*\}", "x", route.path)
    for method in route.methods:
        assert needed(method, path) is route.right


def test_no_request_has_two_routes() -> None:
    stated = [(re.sub(r"\{[^}]*\}", "{}", route.path), route.method) for route in ROUTES]
    assert len(stated) == len(set(stated))


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("GET", "/nothing", Right.INSPECT),
        ("HEAD", "/ws/v1/nothing/at/all", Right.INSPECT),
        ("POST", "/nothing", Right.ADMIN),
        ("DELETE", "/ws/v1/partitions", Right.ADMIN),
        ("GET", "/ws/v1/validate-conf", Right.INSPECT),
        ("POST", "/ws/v1/validate-conf/x", Right.ADMIN),
        ("BREW", "/health", Right.ADMIN),
        ("OPTIONS", "/debug/stack", Right.NONE),
        ("OPTIONS", "/nothing", Right.NONE),
        ("PUT", "/ws/v1/loglevel/debug", Right.ADMIN),
        ("GET", "/debug", Right.ADMIN),
    ],
)
def test_paths_without_a_route(method: str, path: str, right: Right) -> None:
    assert needed(method, path) is right


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
    assert needed("GET", path) is (Right.OPERATE if "dump" in path.lower() else Right.ADMIN)


def test_the_strongest_right_counts() -> None:
    assert needed("GET", "/debug/nothing/at/all") is Right.ADMIN
    assert needed("GET", "/page/nothing/at/all") is Right.NONE
    assert needed("GET", "/ws/v1/loglevel") is Right.INSPECT
    assert [default_right(method) for method in READS] == [Right.INSPECT, Right.INSPECT]
