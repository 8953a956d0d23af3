"""The routes as an OpenAPI 3.1 document: ``/ws/v1/openapi.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

import msgspec
from muster_runtime.identity import Role
from muster_si.positions import AFTER_HEADER, POSITION_HEADER, WAIT_HEADER

from muster_rest.route import Media, Parameter, Route
from muster_rest.route_table import through_the_gateway
from muster_rest.shapes.base import ErrorDao

_REF = "#/components/schemas/{name}"
_ERROR = {"$ref": "#/components/responses/Error"}
_TYPES = {
    Media.JSON: "application/json",
    Media.JSON_LINES: "application/json",
    Media.TEXT_AS_JSON: "application/json",
    Media.YAML: "application/x-yaml",
    Media.HTML: "text/html",
    Media.TEXT: "text/plain",
    Media.PROMETHEUS: "text/plain",
    Media.FILE: "*/*",
}
_TEXT = {"type": "string"}
# With these the body is the answer, not an error.
_ANSWERS = (200,)
_EMPTY = (304,)
# The gateway's own endpoints that take a position, and one of the services behind it that takes none.
_OWN_AT_POSITION = ("front.audit", "front.healthcheck")
_AT_NO_POSITION = ("", "events.open_streams")
_POSITION_PARAMETERS = {
    AFTER_HEADER: {
        "name": AFTER_HEADER,
        "in": "header",
        "description": "The answer includes this position, or several with commas between them (docs/consistency.md).",
        "schema": _TEXT,
    },
    WAIT_HEADER: {
        "name": WAIT_HEADER,
        "in": "header",
        "description": "The longest wait for that, in seconds; then the answer is 503 with `Retry-After`.",
        "schema": {"type": "number", "minimum": 0},
    },
}
_ABOUT = (
    "YuniKorn's REST interface, and Muster's own endpoints. A request needs a role: `read` or `admin`. Beside the "
    "statuses of an operation: 401 and 403 (docs/security.md), 408 for a body that comes too slowly, 500 for a defect, "
    "503 with `Retry-After` when a service is away or busy."
)


@cache
def document_json() -> bytes:
    """The document of everything that the gateway lets in, as JSON."""
    return json.dumps(document(through_the_gateway()), separators=(",", ":")).encode() + b"\n"


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """An OpenAPI document of routes."""
    schemas = _Schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Muster",
            "version": version("muster"),
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "parameters": _POSITION_PARAMETERS,
            "responses": {
                "Error": {
                    "description": "The request was refused or failed. An unknown path and a wrong method are answered "
                    "with text.",
                    "content": {"application/json": {"schema": schemas.of(ErrorDao)}, "text/plain": {"schema": _TEXT}},
                }
            },
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token has a role; `admin` includes `read`. Without configured tokens, requests "
                    "from the same machine need none.",
                }
            },
        },
    }


def _operation(route: Route, schemas: _Schemas) -> dict[str, Any]:
    parameters = [_parameter(parameter, "path", schemas) for parameter in route.described()]
    parameters += [_parameter(parameter, "query", schemas) for parameter in route.parameters]
    if takes_position(route):
        parameters += [{"$ref": f"#/components/parameters/{name}"} for name in _POSITION_PARAMETERS]
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "tags": [route.handler.partition(".")[0] or "moved"],
        "security": [{"token": [str(route.role)]}] if route.role is not Role.NONE else [],
        "responses": {str(status): _response(route, status, schemas) for status in route.statuses}
        | {"default": _ERROR},
    }
    if route.notes:
        operation["description"] = route.notes
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        kind = "text/plain" if route.body is str else "application/json"
        operation["requestBody"] = {"content": {kind: {"schema": schemas.of(route.body)}}}
    return operation


def _operation_id(route: Route) -> str:
    """An operation's id, such as ``get_partition_node``; ids of the gateway's own endpoints begin with ``get_own``."""
    path = route.path.removeprefix("/ws/v1") if route.path.startswith(("/ws/v1/", "/debug/")) else f"/own{route.path}"
    words = [route.method.lower(), *path[1:].split("/")]
    return "_".join(re.sub(r"[{}]", "", word).replace(".", "_").replace("-", "_") for word in words)


def _parameter(parameter: Parameter, location: str, schemas: _Schemas) -> dict[str, Any]:
    required = parameter.required or location == "path"
    return {
        "name": parameter.name,
        "in": location,
        "description": parameter.summary,
        "required": required,
        "schema": schemas.of(parameter.kind),
    }


def _response(route: Route, status: int, schemas: _Schemas) -> dict[str, Any]:
    phrase = HTTPStatus(status).phrase
    if status in _EMPTY:
        return {"description": phrase}
    if route.moved_to:
        return {"description": f"{phrase}: {route.moved_to}", "headers": {"Location": {"schema": _TEXT}}}
    own_error = route.media is not Media.JSON and status == HTTPStatus.SERVICE_UNAVAILABLE and route.role is Role.NONE
    if status not in _ANSWERS and not own_error:
        return _ERROR
    content: dict[str, Any] = {_TYPES[route.media]: {"schema": _TEXT}}
    if route.media is Media.TEXT_AS_JSON:
        content = {_TYPES[route.media]: {"schema": {"description": "Text; only its type says JSON."}}}
    elif route.media is Media.JSON_LINES:
        # (OpenAPI 3.1 has no type for JSON lines.)
        line = schemas.of(route.schema)
        content = {_TYPES[route.media]: {"schema": _TEXT | {"description": "An object in each line."}, "x-line": line}}
    elif route.schema is not None:
        content["application/json"] = {"schema": schemas.of(route.schema)}
    response: dict[str, Any] = {"description": phrase, "content": content}
    if route.handler == "front.operate":
        response["headers"] = {POSITION_HEADER: {"schema": _TEXT, "description": "As `position`."}}
    return response


def takes_position(route: Route) -> bool:
    """Whether a read can name the position that its answer includes."""
    owner = route.handler.partition(".")[0]
    return route.handler in _OWN_AT_POSITION or (
        owner not in ("front", "process") and route.handler not in _AT_NO_POSITION
    )


class _Schemas:
    """The JSON schemas of the routes' types.

    :ivar components: the schemas with a name.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        kinds: list[Any] = [ErrorDao]
        for route in routes:
            kinds += [kind for kind in (route.schema, route.body) if kind is not None]
            kinds += [parameter.kind for parameter in (*route.described(), *route.parameters)]
        schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
        names = {name: _plain(name) for name in components}
        assert len(set(names.values())) == len(names), "two shapes have one name"
        self.components = {names[name]: _renamed(schema, names) for name, schema in sorted(components.items())}
        self._of: dict[Any, dict[str, Any]] = {
            kind: _renamed(schema, names) for kind, schema in zip(kinds, schemas, strict=True)
        }

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of a type that a route names."""
        return self._of[kind]


def _plain(name: str) -> str:
    """``muster_rest.shapes.explain.NodeDao`` → ``ExplainNode``; YuniKorn's own names stay."""
    *_, module, shape = ["", *name.split(".")][-2:]
    prefix = "" if module in ("", "state") else module.title().replace("_", "")
    return prefix + shape.removesuffix("Dao")


def _renamed(value: Any, names: dict[str, str]) -> Any:
    """A schema with other names of components, and Markdown in its descriptions."""
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    renamed = {}
    for key, item in value.items():
        if key == "$ref" and isinstance(item, str):
            renamed[key] = _REF.format(name=names[item.removeprefix(_REF.format(name=""))])
        elif key == "description" and isinstance(item, str):
            renamed[key] = " ".join(item.replace("``", "`").split())
        elif key == "title" and isinstance(item, str):
            continue
        else:
            renamed[key] = _renamed(item, names)
    return renamed
