"""The table of roles: every endpoint is in it, and no spelling of a path gets around it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.topics import Topics
from muster_event_publisher.app import PublisherService
from muster_event_publisher.derive.rest import UsageRest
from muster_event_publisher.derive.settings import DeriveSettings
from muster_event_publisher.settings import PublisherSettings
from muster_gateway.http_front import OWN_PATHS
from muster_gateway.http_roles import READS, ROWS, Row, default, needed
from muster_scheduler.view import ViewService
from muster_scheduler.view.settings import ViewSettings
from muster_service.identity import Role
from starlette.routing import Route

DOCS = Path(__file__).parents[3] / "docs" / "security.md"


def _endpoints() -> set[str]:
    """The paths of everything that answers behind the front, and of the front itself."""
    topics = Topics(partitions=1)
    log, clock = MemoryLog(topics.specs(), SystemClock()), SystemClock()
    view = ViewService(ViewSettings(http_address=""), log, topics, clock).asgi
    paths = {pattern for routes in view._routes._by_length.values() for _, pattern, *_ in routes}
    usage = UsageRest(DeriveSettings(), log, topics)
    publisher = PublisherService(PublisherSettings(http_address=""), log, topics, clock, extra_routes=usage.routes).asgi
    for route in publisher.routes:
        assert isinstance(route, Route)
        paths.add(route.path)
    return paths | set(OWN_PATHS)


def _plain(pattern: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", pattern)


def test_every_endpoint_has_a_row() -> None:
    endpoints = _endpoints()
    assert {"/ws/v1/partitions", "/ws/v1/events/stream", "/ws/v1/usage", "/health/live"} <= endpoints
    stated = {_plain(row.pattern) for row in ROWS}
    below = tuple(row.pattern.removesuffix("*") for row in ROWS if row.pattern.endswith("/*"))
    missing = {path for path in endpoints if _plain(path) not in stated and not path.startswith(below)}
    assert not missing, "every endpoint states the role that it needs, in muster_gateway/http_roles.py"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.methods[0]} {row.pattern}")
def test_a_request_needs_what_its_row_says(row: Row) -> None:
    path = re.sub(r"\{[^}]*\}", "x", row.pattern).replace("/*", "/x/y")
    for method in row.methods:
        assert needed(method, path) is row.role


def test_no_request_has_two_rows() -> None:
    stated = [(_plain(row.pattern), method) for row in ROWS for method in row.methods]
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
def test_what_has_no_row(method: str, path: str, role: Role) -> None:
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
    rows = [row for row in ROWS if row.pattern.startswith("/ws/v1/loglevel") and "GET" not in row.methods]
    assert {row.role for row in rows} == {Role.ADMIN}
    assert needed("GET", "/ws/v1/loglevel") is Role.READ


def test_the_documentation_has_the_table() -> None:
    lines = DOCS.read_text().partition("## Who may what")[2].partition("\n## ")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `/")]
    said = [(cell[0].strip("`"), cell[1], cell[2]) for cell in cells]
    assert said == [(row.pattern, ", ".join(row.methods), str(row.role)) for row in ROWS]
    assert [cell[3] for cell in cells] == [row.why for row in ROWS]
    assert [default(method) for method in READS] == [Role.READ, Role.READ]
