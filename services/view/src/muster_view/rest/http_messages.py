"""A request and its answer in the form that endpoints use, and the headers of YuniKorn's core."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote

from muster_runtime.gateway_note import NO_NOTE, GatewayNote
from muster_runtime.read_scope import EVERYTHING, ReadScope

from muster_view.rest.json_render import Pieces

_JSON = "application/json; charset=UTF-8"
HEADERS = {
    "Content-Type": _JSON,
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, OPTIONS",
    "Access-Control-Allow-Headers": "X-Requested-With,Content-Type,Accept,Origin",
}
# Beside GET's.
HEADERS_OF = {
    "GET": HEADERS,
    "POST": {**HEADERS, "Access-Control-Allow-Methods": "OPTIONS, POST"},
    "PUT": {**HEADERS, "Access-Control-Allow-Methods": "OPTIONS, PUT"},
}
ALLOW = {"GET": {"Allow": "GET, OPTIONS"}, "POST": {"Allow": "OPTIONS, POST"}, "PUT": {"Allow": "OPTIONS, PUT"}}
TEXT = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}


@dataclass(slots=True)
class HttpCall:
    """One request.

    :ivar path: the parameters in the path.
    :ivar query: the parameters in the query; of several with one name the first counts, as in Go.
    :ivar reach: the RMs and partitions that the answer may show; others do not exist for it.
    :ivar default_rm: the gateway's default for requests that name no RM.
    :ivar note: what only the gateway has, for texts about RMs.
    :ivar raw_query: the query as received.
    :ivar accept: the header as received.
    :ivar body: the body of a POST; a body that is too large is cut one byte after the limit.
    """

    path: dict[str, str]
    query: dict[str, str]
    rm_id: str | None = None
    default_rm: str = ""
    raw_query: str = ""
    accept: str = ""
    body: bytes = b""
    reach: ReadScope = EVERYTHING
    note: GatewayNote = NO_NOTE


@dataclass(slots=True)
class HttpAnswer:
    """The answer: a status, headers, and the body's pieces."""

    pieces: Pieces
    status: int = 200
    headers: Mapping[str, str] | None = None


Endpoint = Callable[[HttpCall], Awaitable[HttpAnswer]]


def redirect(path: str, query: str, status: int = 301) -> tuple[int, Mapping[str, str], bytes]:
    target = quote(path, safe="/:@!$&'()*+,;=~-._") + (f"?{query}" if query else "")
    link = target.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&#34;")
    headers = {"Location": target, "Content-Type": "text/html; charset=utf-8"}
    return status, headers, f'<a href="{link}">{HTTPStatus(status).phrase}</a>.\n\n'.encode()
