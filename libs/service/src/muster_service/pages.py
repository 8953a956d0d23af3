"""Requests that a browser sends for somebody else's page: any page may have it ask any address that it reaches.

A page of another host that a browser on this machine shows reaches the loopback of this machine, and the networks of
its containers; and YuniKorn's answers say that every page may read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from muster_service.addresses import is_loopback
from muster_service.go_json import error_body
from muster_service.identity import IDENTITY_HEADER

_ANOTHER = "it is a request of another host's page"


@lru_cache(maxsize=64)
def names_loopback(url: str) -> bool:
    """Whether a URL names this machine, by an address or a name that nobody else can have."""
    host = _host(url)
    return host == "localhost" or host.endswith(".localhost") or is_loopback(host)


def foreign_page(headers: Mapping[bytes, bytes]) -> str:
    """Why a request is one of a page of another host; "": it is not, or its browser does not say so.

    :param headers: names in lower case.
    """
    if (origin := headers.get(b"origin")) is not None:
        return "" if names_loopback(origin.decode("latin-1")) else _ANOTHER
    return _ANOTHER if headers.get(b"sec-fetch-site", b"").lower() == b"cross-site" else ""


def for_programs(app: ASGIApp, *, private: bool) -> ASGIApp:
    """An application that asks nobody who they are, for programs: a page of another host gets 403.

    What came through the gateway is let through, whatever page it is of: there it was decided. (No page can send the
    header that says so: a browser asks first, and the answers to OPTIONS do not allow it.)

    :param private: it listens on the loopback only. Then ``Host`` must name it too, or have no dot, as names of a
        machine's own file of hosts and of containers: an attacker's name may stand for 127.0.0.1 (rebinding), and the
        browser takes the answer for theirs. Elsewhere it is not known how it is called.
    """

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            why = foreign_page(headers) if IDENTITY_HEADER not in headers else ""
            if private and not _may_be_ours(headers.get(b"host", b"localhost")):
                why = "the header Host names another host"
            if why:
                await _refuse(send, why, body_wanted=scope["method"] != "HEAD")
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


async def _refuse(send: Send, why: str, *, body_wanted: bool) -> None:
    body = error_body(403, f"{why}: ask the gateway")
    headers = [(b"content-type", b"application/json; charset=UTF-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body if body_wanted else b"", "more_body": False})
