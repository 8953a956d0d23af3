"""Which of several processes a request goes to."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from muster_gateway import backend_pool
from muster_gateway.backend_pool import FAR_BEHIND, BackendPool
from muster_gateway.http_forwarder import HttpForwarder
from muster_gateway.settings import GatewaySettings
from muster_runtime.http_server import HttpServer
from pydantic import ValidationError

A, B = "http://10.0.0.1:9081", "http://10.0.0.2:9081"


async def test_requests_stay_with_the_first_one() -> None:
    places = BackendPool(f"{A}/, {B}")
    assert list(await places.candidates()) == [A, B]
    places.mark_up(A, b"12")
    places.mark_up(B, b"0")
    assert list(await places.candidates()) == [A, B], "a little behind is near enough"


async def test_one_that_cannot_be_reached_is_asked_last_for_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    places = BackendPool(f"{A},{B}")
    places.mark_down(A)
    assert list(await places.candidates()) == [B, A]
    monkeypatch.setattr(backend_pool, "_AWAY_S", 0.0)
    assert list(await places.candidates()) == [A, B]


async def test_one_that_is_far_behind_is_left_for_one_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    places = BackendPool(f"{A},{B}")
    places.mark_up(A, b"%d" % (FAR_BEHIND + 2))
    assert list(await places.candidates()) == [B, A]
    places.mark_up(B, b"%d" % (FAR_BEHIND + 9))
    assert list(await places.candidates()) == [A, B], "the one that is less behind"
    places.mark_up(B, b"3")
    assert list(await places.candidates()) == [B, A]
    monkeypatch.setattr(backend_pool, "_LAG_S", 0.0)
    assert list(await places.candidates()) == [A, B]
    for lag in (None, b"", b"many", b"9" * 60):
        places.mark_up(A, lag)


async def test_a_name_stands_for_several(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [("10.0.0.2", 9081), ("10.0.0.1", 9081)]

    def resolve(*_: Any, **__: Any) -> list[tuple[Any, ...]]:
        if not found:
            raise socket.gaierror("nothing")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(backend_pool, "_NAMES_S", 0.0)
    places = BackendPool("http://view:9081")
    assert list(await places.candidates()) == [B, A]
    # The order of a name's answers changes; requests stay where they went.
    found.reverse()
    await places._resolve_names()
    assert list(places._resolved) == [B, A]
    found[:] = [("10.0.0.3", 9081), ("10.0.0.1", 9081)]
    await places._resolve_names()
    assert list(places._resolved) == [A, "http://10.0.0.3:9081"]
    # Where the name is unknown for a moment, the addresses of before serve.
    found.clear()
    await places._resolve_names()
    assert list(places._resolved) == [A, "http://10.0.0.3:9081"]
    unknown = BackendPool("http://view:9081")
    with pytest.raises(OSError, match="nothing"):
        await unknown.candidates()
    for each in (places, unknown):
        await each.close()


def view(name: bytes, lags: dict[bytes, int]) -> Any:
    """A view that says its name, and how far it is behind."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % len(name)), (b"x-muster-lag-records", b"%d" % lags[name])]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": name})

    return app


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[HttpServer]:
    server = HttpServer(app, "127.0.0.1:0", 1.0)
    await server.start()
    try:
        yield server
    finally:
        server.kill()
        await server.stop()


async def test_two_views_one_of_which_lags_and_dies() -> None:
    lags = {b"first": 0, b"second": 0}
    async with serving(view(b"first", lags)) as first, serving(view(b"second", lags)) as second:
        target = HttpForwarder(f"http://127.0.0.1:{first.port},http://127.0.0.1:{second.port}", "view", 5.0)
        transport = httpx.ASGITransport(target)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:

            async def ask() -> tuple[str, int]:
                answer = await http.get("/ws/v1/partitions")
                return answer.text, int(answer.headers["x-muster-lag-records"])

            assert [await ask() for _ in range(3)] == [("first", 0)] * 3
            # The answer says how far it is behind, and the next request goes to the other one.
            lags[b"first"] = 1_000_000
            assert await ask() == ("first", 1_000_000)
            assert await ask() == ("second", 0)
            # One that dies costs no request.
            second.kill()
            await second.stop()
            assert [await ask() for _ in range(3)] == [("first", 1_000_000)] * 3
            first.kill()
            await first.stop()
            assert (await http.get("/ws/v1/partitions")).status_code == 503
        await target.close()


@pytest.mark.parametrize("urls", ["", "view:9081", "http://a:1,", "http://a:1,ftp://b:2", "http://", "http://a:port"])
@pytest.mark.parametrize("setting", ["view_url", "publisher_url"])
def test_what_is_no_address_is_refused(setting: str, urls: str) -> None:
    with pytest.raises(ValidationError, match=r"expected (http://)?host:port"):
        GatewaySettings.model_validate({setting: urls})


def test_several_addresses_are_a_setting() -> None:
    urls = "http://view-1:9081, http://view-2:9081"
    assert GatewaySettings(view_url=urls).view_url == urls
