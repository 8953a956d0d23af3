"""Holds answers against ``/ws/v1/openapi.json``: each has the schema of its operation, and no field that none has."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import httpx
from jsonschema import Draft202012Validator
from muster_rest.openapi import document_json
from muster_rest.route import Media
from muster_rest.route_table import through_the_gateway
from referencing import Registry, Resource

_BASE = "urn:muster"
_TEXT_AS_JSON = [route.path for route in through_the_gateway() if route.media is Media.TEXT_AS_JSON]


def document() -> Any:
    return json.loads(document_json())


def conforms(method: str, path: str, status: int, body: bytes) -> None:
    """Raises AssertionError for a body of JSON that the document does not have.

    :param path: as the document has it.
    """
    operation = _strict()["paths"][path][method.lower()]
    responses = operation["responses"]
    found = responses.get(str(status), responses["default"])
    where = f"#/paths/{_escaped(path)}/{method.lower()}/responses/{status}"
    if "$ref" in found:
        where, found = found["$ref"], _strict()["components"]["responses"][found["$ref"].rpartition("/")[2]]
    if "application/json" not in found["content"]:
        return
    errors = sorted(_validator(f"{where}/content/application~1json/schema").iter_errors(json.loads(body)), key=str)
    assert not errors, f"{method} {path} {status}: {errors[0].json_path}: {errors[0].message[:500]}"


async def holds(answer: httpx.Response) -> None:
    """An httpx response hook: JSON answers of documented paths must have their schema."""
    path = operation_of(answer.request.method, answer.request.url.path)
    is_json = answer.headers.get("content-type", "").startswith("application/json") and path not in _TEXT_AS_JSON
    if path is not None and is_json:
        conforms(answer.request.method, path, answer.status_code, await answer.aread())


def has_schema(name: str, value: Any) -> None:
    """Raises AssertionError for a value that is not what a schema of the document says."""
    errors = sorted(_validator(f"#/components/schemas/{name}").iter_errors(value), key=str)
    assert not errors, f"{name}: {errors[0].json_path}: {errors[0].message[:500]}"


def operation_of(method: str, path: str) -> str | None:
    """The path in the document of a request's path; None: it has none."""
    fitting = [
        each
        for each, operations in document_paths()
        if method.lower() in operations and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", each), path)
    ]
    return min(fitting, key=lambda each: each.count("{"), default=None)


@cache
def document_paths() -> list[tuple[str, Any]]:
    return list(document()["paths"].items())


@cache
def _strict() -> Any:
    """The document, with undocumented fields forbidden in every object."""
    return _closed(document())


def _closed(value: Any) -> Any:
    if isinstance(value, list):
        return [_closed(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {key: _closed(each) for key, each in value.items()}
    if found.get("type") == "object" and "properties" in found:
        found.setdefault("additionalProperties", False)
    return found


@cache
def _validator(reference: str) -> Draft202012Validator:
    registry: Any = Registry().with_resource(_BASE, Resource.opaque(_strict()))
    return Draft202012Validator({"$ref": f"{_BASE}{reference}"}, registry=registry)


def _escaped(path: str) -> str:
    return path.replace("~", "~0").replace("/", "~1").replace("{", "%7B").replace("}", "%7D")
