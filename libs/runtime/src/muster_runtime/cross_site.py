"""Detects requests that a browser sends for a page of another host. Any page can make a browser request any address.

A browser on this machine may show such a page. The page then reaches this machine's loopback and its containers'
networks. YuniKorn's answers allow every page to read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from muster_runtime.addresses import is_loopback
from muster_runtime.go_json import error_body
from muster_runtime.identity import IDENTITY_HEADER

_ANOTHER = "it is a request of another host's page"


@lru_cache(maxsize=64)
def names_loopback(url: str) -> bool:
    """Tells whether a URL names this machine, by an address or a name that no other machine can have."""
    host = _host(url)
    return host == "localhost" or host.endswith(".localhost") or is_loopback(host)


def values_of(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """Returns all values of a header. A decision about a request looks at each: which one counts is not defined."""
    return [value for header, value in headers if header == name]


def foreign_page(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """Returns why a request comes from a page of another host; "": it does not, or the browser does not tell.

    :param headers: names in lower case. No browser repeats these headers. If one is there twice, each value counts.
    """
    if origins := values_of(headers, b"origin"):
        return "" if all(names_loopback(origin.decode("latin-1")) for origin in origins) else _ANOTHER
    sites = values_of(headers, b"sec-fetch-site")
    return _ANOTHER if any(site.strip().lower() == b"cross-site" for site in sites) else ""


def for_programs(app: ASGIApp, *, private: bool) -> ASGIApp:
    """Wraps an application for programs, without authentication: a page of another host gets 403.

    Requests from the gateway pass, whatever page they come from, because the gateway has checked them. (No page can
    send the gateway's header: a browser asks first, and the answers to OPTIONS do not allow it.)

    :param private: the application listens on the loopback only. Then ``Host`` must also name this machine, or have no
        dot, as names of containers and of a machine's own hosts file. An attacker can let a name of theirs stand for
        127.0.0.1 (rebinding), and the browser would give the answer to their page. On other addresses, the valid names
        are not known.
    """

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = scope["headers"]
            reason = foreign_page(headers) if not values_of(headers, IDENTITY_HEADER) else ""
            if private and not all(map(_may_be_ours, values_of(headers, b"host"))):
                reason = "the header Host names another host"
            if reason:
                await _refuse(send, reason, body_wanted=scope["method"] != "HEAD")
                return
        await app(scope, receive, send)

    return serve


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


@lru_cache(maxsize=64)
def _may_be_ours(host: bytes) -> bool:
    url = f"//{host.decode('latin-1')}"
    name = _host(url)
    return names_loopback(url) or (bool(name) and not set(name) & {".", ":"})


async def _refuse(send: Send, reason: str, *, body_wanted: bool) -> None:
    body = error_body(403, f"{reason}: ask the gateway")
    headers = [(b"content-type", b"application/json; charset=UTF-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body if body_wanted else b"", "more_body": False})
