"""A gateway's requests to the view: in this process and behind a URL, whole and in pieces, and with failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from muster_gateway.errors import InvalidRequest, OverLimit, ViewUnavailable
from muster_gateway.http_forwarder import HttpForwarder
from muster_gateway.http_front import HttpBackend
from muster_gateway.view_client import PIECE_BYTES, ViewAnswer, ViewClient, path_of
from muster_runtime.caller import Caller, calling
from muster_runtime.elapsed import elapsed_s
from muster_runtime.go_json import error_body
from muster_runtime.http_server import HttpServer
from muster_runtime.identity import LOOPBACK
from starlette.types import Receive, Scope, Send

MAX_BYTES = 300_000
LARGE = bytes(range(256)) * 1024  # 256 KiB


class FakeView:
    """Answers by the path's last part. Keeps its requests, and the size that was read of an endless body."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes, bytes]] = []
        self.sent = 0
        self.left = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append((scope["method"], scope["raw_path"], scope["query_string"]))
        what = scope["path"].rpartition("/")[2]
        try:
            if what == "endless":
                await self._endless(receive, send)
            else:
                await getattr(self, f"_{what}", self._small)(send)
        except asyncio.CancelledError:
            self.left.set()
            raise

    async def _start(self, send: Send, status: int = 200) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})

    async def _small(self, send: Send, status: int = 200) -> None:
        await self._start(send, status)
        await send({"type": "http.response.body", "body": b'{"a":', "more_body": True})
        await send({"type": "http.response.body", "body": b"1}\n", "more_body": False})

    async def _missing(self, send: Send) -> None:
        await self._small(send, 404)

    async def _away(self, send: Send) -> None:
        await self._small(send, 503)

    async def _large(self, send: Send) -> None:
        await self._start(send)
        await send({"type": "http.response.body", "body": LARGE})

    async def _endless(self, receive: Receive, send: Send) -> None:
        await self._start(send)
        await receive()
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": LARGE, "more_body": True})
            self.sent += 1
            await asyncio.sleep(0)
        self.left.set()

    async def _mute(self, send: Send) -> None:
        await asyncio.Event().wait()

    async def _stuck(self, send: Send) -> None:
        await self._start(send)
        await send({"type": "http.response.body", "body": b"[1,", "more_body": True})
        await asyncio.Event().wait()

    async def _broken(self, send: Send) -> None:
        await self._start(send)
        await send({"type": "http.response.body", "body": b"[1,", "more_body": True})
        raise ValueError("a defect")


@asynccontextmanager
async def behind_a_url(view: FakeView) -> AsyncIterator[HttpBackend]:
    server = HttpServer(view, "127.0.0.1:0", 0.5)
    serving = asyncio.create_task(server.serve())
    target = HttpForwarder(f"http://127.0.0.1:{server.port}", "view", 2.0)
    try:
        await asyncio.wait_for(server.wait_started(), 5)
        yield target
    finally:
        await target.close()
        server.kill()
        await asyncio.wait({serving}, timeout=5)


@pytest.fixture
def view() -> FakeView:
    return FakeView()


@pytest.fixture(params=["here", "url"])
async def target(request: pytest.FixtureRequest, view: FakeView) -> AsyncIterator[HttpBackend]:
    if request.param == "here":
        yield view
    else:
        async with behind_a_url(view) as there:
            yield there


@pytest.fixture
def make(target: HttpBackend) -> Callable[..., ViewClient]:
    def client(timeout_s: float = 10.0, max_bytes: int = MAX_BYTES) -> ViewClient:
        return ViewClient(target, timeout_s, max_bytes)

    return client


async def test_a_get_names_the_rm_and_gives_status_and_body(make: Any, view: FakeView) -> None:
    answer = await make().get(path_of("explain", "ask", "a/b c", "%ü?#"), "rm 1&x", {"partition": "default"})
    assert answer == ViewAnswer(200, b'{"a":1}\n')
    assert view.asked == [("GET", b"/ws/v1/explain/ask/a%2Fb%20c/%25%C3%BC%3F%23", b"rm=rm+1%26x&partition=default")]


async def test_dots_alone_are_a_name_and_no_step_up(make: Any, view: FakeView) -> None:
    await make().get(path_of("partition", "default", "node", "..", "."))
    assert view.asked == [("GET", b"/ws/v1/partition/default/node/%2E%2E/%2E", b"")]


async def test_another_status_is_an_answer(make: Any) -> None:
    assert (await make().get(path_of("missing"))).status == 404


async def test_a_large_answer_comes_whole_up_to_the_limit(make: Any) -> None:
    assert (await make().get(path_of("large"))).body == LARGE
    with pytest.raises(OverLimit, match="the view's answer is over 100,000 bytes: ask /ws/v1/large by HTTP"):
        await make(max_bytes=100_000).get(path_of("large"))


async def test_a_streamed_body_is_in_small_pieces(make: Any) -> None:
    async with make(max_bytes=1).open(path_of("large")) as answer:
        pieces = [piece async for piece in answer.pieces]
    assert answer.status == 200
    assert b"".join(pieces) == LARGE
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)


async def test_a_slow_reader_holds_the_view_up_and_leaving_ends_the_call(view: FakeView) -> None:
    async with ViewClient(view, 10.0, MAX_BYTES).open(path_of("endless")) as answer:
        async for _ in answer.pieces:
            for _ in range(100):
                await asyncio.sleep(0)
            break
        assert view.sent <= 2
    assert view.left.is_set()


async def test_leaving_ends_the_call_behind_a_url(view: FakeView) -> None:
    async with behind_a_url(view) as target:
        async with ViewClient(target, 10.0, MAX_BYTES).open(path_of("endless")) as answer:
            await anext(answer.pieces)
        await asyncio.wait_for(view.left.wait(), 10)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("away", "not reachable"),
        ("mute", r"did not answer within 0\.2 s|said nothing for 0\.2 s"),
        ("stuck", r"did not answer within 0\.2 s|said nothing for 0\.2 s"),
        ("broken", "broke off"),
    ],
)
async def test_a_view_that_fails_is_silent(make: Any, path: str, why: str) -> None:
    with pytest.raises(ViewUnavailable, match=why):
        await make(timeout_s=0.2 if path in ("mute", "stuck") else 10.0).get(path_of(path))


async def test_a_streamed_body_that_breaks_off_says_so(make: Any) -> None:
    async with make().open(path_of("broken")) as answer:
        assert await anext(answer.pieces) == b"[1,"
        with pytest.raises(ViewUnavailable, match="broke off"):
            await anext(answer.pieces)


async def test_an_unreachable_view_is_an_error() -> None:
    target = HttpForwarder("http://127.0.0.1:9", "view", 2.0)
    with pytest.raises(ViewUnavailable, match="not reachable"):
        await ViewClient(target, 5.0, MAX_BYTES).get(path_of("clusters"))
    await target.close()


# ---- positions -----------------------------------------------------------------------------------------------------


class LateView:
    """Refuses each read as a view does that is behind a position, or that cannot read one."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.headers: list[dict[bytes, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers.append(dict(scope["headers"]))
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        body = error_body(self.status, "the view says why")
        await send({"type": "http.response.body", "body": body, "more_body": False})


def _caller(**fields: Any) -> Caller:
    return Caller(LOOPBACK, "10.0.0.9", "grpc", "/a/b", **fields)


@pytest.mark.parametrize(("status", "error"), [(503, ViewUnavailable), (400, InvalidRequest)])
async def test_a_callers_position_goes_to_the_view_and_its_refusal_comes_back(
    status: int, error: type[Exception]
) -> None:
    late = LateView(status)
    view = ViewClient(late, 10, MAX_BYTES)
    with calling(_caller(after="abc", after_wait="2.5")):
        with pytest.raises(error, match="the view says why"):
            await view.get(path_of("nodes"))
        with pytest.raises(error, match="the view says why"):
            await view.wait_for_position()
    for headers in late.headers:
        assert headers[b"muster-after"] == b"abc"
        assert headers[b"muster-wait"] == b"2.500"
        assert headers[b"x-forwarded-for"] == b"10.0.0.9"


async def test_a_call_with_a_deadline_waits_until_shortly_before_it() -> None:
    late = LateView(503)
    with calling(_caller(after="abc", ends_s=elapsed_s() + 100)), pytest.raises(ViewUnavailable):
        await ViewClient(late, 10, MAX_BYTES).get(path_of("nodes"))
    assert 0 < float(late.headers[0][b"muster-wait"]) < 100
    with calling(_caller(after="abc", after_wait="soon")), pytest.raises(InvalidRequest, match="Muster-Wait: must be"):
        await ViewClient(late, 10, MAX_BYTES).get(path_of("nodes"))


async def test_without_a_position_nothing_is_added_and_nothing_is_waited_for() -> None:
    view = FakeView()
    with calling(_caller()):
        await ViewClient(view, 10, MAX_BYTES).wait_for_position()
        assert view.asked == []
        late = LateView(400)
        assert (await ViewClient(late, 10, MAX_BYTES).get(path_of("nodes"))).status == 400
    assert not {b"muster-after", b"muster-wait", b"x-forwarded-for"} & late.headers[0].keys()
