"""A route: one endpoint, defined once. docs/rest.md, docs/security-rights.md and ``/ws/v1/openapi.json`` are made
from the routes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from muster_runtime.identity import Right, Role

_PARAMETER = re.compile(r"{(\w+)}")
READS = ("GET", "HEAD")


class Media(StrEnum):
    """The media of answers; the values are the words of the table in docs/rest.md."""

    JSON = "JSON"
    JSON_LINES = "JSON lines"
    TEXT_AS_JSON = "text as JSON"
    YAML = "YAML"
    HTML = "HTML"
    TEXT = "text"
    PROMETHEUS = "Prometheus"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a query or of a path.

    :ivar kind: its type, in msgspec's notation.
    :ivar required: a request without it is refused.
    """

    name: str
    summary: str
    kind: Any = str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint.

    :ivar path: ``{name}`` takes one part of a path.
    :ivar handler: ``module.function`` in the service that answers; "" for a path that moved.
    :ivar summary: one line.
    :ivar schema: the type of the answer's JSON; None: no JSON, or no fixed form.
    :ivar right: the right that the gateway requires.
    :ivar parameters: the parameters of the query.
    :ivar statuses: the statuses of its own answers, the usual one first.
    :ivar media: the media of the answer.
    :ivar body: the type of the request's JSON; ``str``: text; None: no body.
    :ivar core: YuniKorn's core has the endpoint, too.
    :ivar notes: for docs/rest.md: how it differs from YuniKorn's core, or which page describes it.
    :ivar why: for docs/security-rights.md: why it needs this right.
    :ivar moved_to: the new path of the endpoint.
    :ivar dump: the answer counts for ``view.dumps_max``.
    """

    method: Literal["GET", "POST", "PUT"]
    path: str
    handler: str
    summary: str
    schema: Any = None
    right: Right = Right.READ
    parameters: tuple[Parameter, ...] = ()
    statuses: tuple[int, ...] = (200, 400, 404)
    media: Media = Media.JSON
    body: Any = None
    core: bool = False
    notes: str = ""
    why: str = ""
    moved_to: str = ""
    dump: bool = False

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that need its right: HEAD needs the right of GET."""
        return READS if self.method == "GET" else (self.method,)

    @property
    def role(self) -> Role:
        """The role that suffices where no policy is configured."""
        return self.right.role

    @property
    def path_parameters(self) -> list[str]:
        """Their names, as in the path."""
        return _PARAMETER.findall(self.path)

    def described(self) -> list[Parameter]:
        """The path's parameters, with their meanings."""
        return [Parameter(name, PATH_PARAMETERS[name], required=True) for name in self.path_parameters]


PATH_PARAMETERS = {
    "partition": "A partition's name without its resource manager: `default`.",
    "queue": "A queue's full path, such as `root.a`. It is unescaped once more than other parts of a path.",
    "application": "An application's id.",
    "key": "The key of an ask or an allocation.",
    "allocation": "The key or the UUID of an allocation.",
    "state": "`active`; of a whole partition also `completed` or `rejected`.",
    "node": "A node's id.",
    "user": "A user's name. It is unescaped once more than other parts of a path.",
    "group": "A group's name. It is unescaped once more than other parts of a path.",
    "source": "The name of an informer.",
    "profile": "`cmdline`, `goroutine` or `profile`.",
    "level": "`debug`, `info`, `warning` or `error`.",
    "file": "The name of one of the page's files.",
}


@dataclass(frozen=True, slots=True)
class RoutedService:
    """A service and its routes.

    :ivar folders: the gateway passes on to the service all requests below these paths, with or without a route.
    """

    name: str
    routes: tuple[Route, ...]
    folders: tuple[str, ...] = ()
