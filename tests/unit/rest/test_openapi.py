"""The OpenAPI document is valid, and has every route with its role and its parameters."""

from __future__ import annotations

from typing import Any

import openapi_spec_validator
import pytest
from contract import openapi
from muster_rest import openapi as openapi_document
from muster_rest.route import Route
from muster_rest.route_table import through_the_gateway
from muster_runtime.identity import Role

DOCUMENT = openapi.document()
ROUTES = through_the_gateway()


def test_it_is_openapi() -> None:
    openapi_spec_validator.validate(DOCUMENT)
    assert DOCUMENT["openapi"] == "3.1.0"


def test_it_has_every_route_and_no_other() -> None:
    described = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert described == {(route.method, route.path) for route in ROUTES}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_an_operation_says_what_its_route_says(route: Route) -> None:
    operation: Any = DOCUMENT["paths"][route.path][route.method.lower()]
    assert operation["summary"] == route.summary
    assert operation["security"] == ([] if route.role is Role.NONE else [{"token": [route.role]}])
    parameters = operation.get("parameters", [])
    given = [(each["in"], each["name"]) for each in parameters if "$ref" not in each]
    assert given == [
        *(("path", name) for name in route.path_parameters),
        *(("query", p.name) for p in route.parameters),
    ]
    references = [each["$ref"].rpartition("/")[2] for each in parameters if "$ref" in each]
    assert references == (["Muster-After", "Muster-Wait"] if openapi_document.takes_position(route) else [])
    assert {int(status) for status in operation["responses"] if status != "default"} == set(route.statuses)
    assert ("requestBody" in operation) == (route.body is not None)


def test_a_body_that_differs_is_found() -> None:
    """The tests of REST compare each answer with the document. This test shows that the comparison can fail."""
    openapi.conforms("GET", "/ws/v1/history/apps", 200, b'[{"timestamp":1,"totalApplications":"2"}]')
    for wrong in (b'[{"timestamp":"1"}]', b'[{"time":1}]', b"{}"):
        with pytest.raises(AssertionError):
            openapi.conforms("GET", "/ws/v1/history/apps", 200, wrong)
    with pytest.raises(AssertionError):
        openapi.conforms("GET", "/ws/v1/clusters", 404, b'{"status_code":404}')
