"""What stands in for sockets and processes in virtual time (``tests/virtual``), beside the real thing: HTTP servers,
and the sandbox of queue configurations. Calls, logs, groups and sessions have contracts of their own beside this file.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from random import Random
from typing import Any, Protocol

import httpx
import pytest
from muster_queue_config.parser_messages import OUT_OF_MEMORY
from muster_queue_config.sandboxed_parser import SandboxedParser
from muster_queue_config.settings import QueueConfigSettings
from muster_runtime.http_server import HttpServer
from starlette.types import ASGIApp, Receive, Scope, Send
from virtual.http import Answer, Site, fetch
from virtual.ports import Ports
from virtual.sandbox import InlineReading

PATIENCE_S = 30.0
GOOD = "partitions:\n  - name: default\n    queues:\n      - name: root\n        submitacl: '*'\n"
LONG_LIST = "a: [" + "x," * 470_000 + "]\n"


# ---- HTTP -----------------------------------------------------------------------------------------------------------


class Web(Protocol):
    async def serve(self, app: ASGIApp) -> None: ...

    async def fetch(
        self, path: str, method: str = "GET", body: bytes = b"", leaves: Callable[[bytes], bool] | None = None
    ) -> Answer: ...


class RealWeb:
    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def serve(self, app: ASGIApp) -> None:
        server = HttpServer(app, "127.0.0.1:0", 1.0)
        await server.start()
        self._stack.push_async_callback(server.stop)
        self._client = await self._stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False, timeout=PATIENCE_S)
        )

    async def fetch(
        self, path: str, method: str = "GET", body: bytes = b"", leaves: Callable[[bytes], bool] | None = None
    ) -> Answer:
        async with self._client.stream(method, path, content=body) as response:
            content = b""
            async for piece in response.aiter_raw():
                content += piece
                if leaves is not None and leaves(piece):
                    break
            return Answer(response.status_code, dict(response.headers), content)


class VirtualWeb:
    async def serve(self, app: ASGIApp) -> None:
        self._site = Site(app)

    async def fetch(
        self, path: str, method: str = "GET", body: bytes = b"", leaves: Callable[[bytes], bool] | None = None
    ) -> Answer:
        return await fetch(self._site, path, method=method, body=body, pieces=leaves)


class PortsWeb(RealWeb):
    """httpx, which reaches what serves at a port without sockets."""

    async def serve(self, app: ASGIApp) -> None:
        ports = Ports(Random(1))
        server = ports.http_server(app, "127.0.0.1:0")
        self._client = await self._stack.enter_async_context(
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{server.port}", transport=ports.transport(), timeout=PATIENCE_S
            )
        )


@pytest.fixture(params=["http", "virtual", "ports"])
async def web(request: pytest.FixtureRequest) -> AsyncIterator[Web]:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        made = {"http": lambda: RealWeb(stack), "virtual": VirtualWeb, "ports": lambda: PortsWeb(stack)}
        yield made[request.param]()


async def respond(send: Send, status: int, *pieces: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"x-kind", b"test")]})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def test_a_request_arrives_and_its_answer_comes_back(web: Web) -> None:
    seen: dict[str, Any] = {}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        seen.update(method=scope["method"], path=scope["path"], query=scope["query_string"], body=body)
        seen["raw"], seen["host"] = scope["raw_path"], dict(scope["headers"]).get(b"host") is not None
        await respond(send, 201, b"some", b"thing")

    await web.serve(app)
    answer = await web.fetch("/a%2Fb/c?x=1&y=2", "POST", b"given")
    assert (answer.status, answer.headers["x-kind"], answer.body) == (201, "test", b"something")
    assert seen == {
        "method": "POST", "path": "/a/b/c", "raw": b"/a%2Fb/c", "query": b"x=1&y=2", "body": b"given", "host": True
    }  # fmt: skip


async def test_a_client_that_leaves_is_noticed(web: Web) -> None:
    noticed = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        message = await receive()
        assert message["type"] == "http.disconnect"
        noticed.set()

    await web.serve(app)
    answer = await web.fetch("/", leaves=lambda piece: True)
    assert answer.body == b"first"
    await noticed.wait()


async def test_an_answer_that_breaks_off_is_no_answer(web: Web) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
        await send({"type": "http.response.body", "body": b"12345", "more_body": True})
        raise RuntimeError("it fails")

    await web.serve(app)
    with pytest.raises((httpx.HTTPError, ConnectionError)):
        await web.fetch("/")


# ---- the sandbox ----------------------------------------------------------------------------------------------------


def judges() -> list[Any]:
    def ends(text: str) -> int | None:
        return -signal.SIGPROF if len(text) > 900_000 else None

    return [
        pytest.param(lambda limits: SandboxedParser(limits), id="process"),
        pytest.param(lambda limits: SandboxedParser(limits, lambda: InlineReading(ends)), id="virtual"),
    ]


@pytest.fixture(params=judges())
async def judge(request: pytest.FixtureRequest) -> AsyncIterator[SandboxedParser]:
    made = request.param(QueueConfigSettings(max_bytes=1 << 20, cpu_s=0.05))
    yield made
    await made.close()


async def test_a_sandbox_reads_texts_one_after_the_other(judge: SandboxedParser) -> None:
    bad = GOOD.replace("root", "root*!")
    first, second = await asyncio.gather(judge.parse(GOOD, "a"), judge.parse(bad, "b"))
    assert first.accepted
    assert first.compiled
    assert not second.accepted
    assert second.problems[0].severity == "error"


async def test_a_sandbox_that_runs_out_of_time_refuses_and_reads_the_next_one(judge: SandboxedParser) -> None:
    refused = await judge.parse(LONG_LIST)
    assert not refused.accepted
    assert "processor time" in refused.problems[0].message
    assert judge.pid is None
    assert (await judge.parse(GOOD)).accepted


async def test_a_sandbox_that_is_killed_is_started_again(judge: SandboxedParser) -> None:
    assert (await judge.parse(GOOD)).accepted
    judge.kill("a test")
    with suppress(TimeoutError):
        assert (await judge.parse(GOOD.replace("*", "a"))).accepted


async def test_out_of_memory_is_a_verdict() -> None:
    judge = SandboxedParser(QueueConfigSettings(), lambda: InlineReading(lambda _: OUT_OF_MEMORY))
    refused = await judge.parse(GOOD)
    assert "MiB of memory" in refused.problems[0].message
    await judge.close()
