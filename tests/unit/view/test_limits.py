"""The view's limits for readers: slow readers, stalled readers, and readers that arrive meanwhile."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import MutableMapping
from typing import Any

import pytest
from counters import by_status
from muster_view import ViewService
from structlog.testing import capture_logs
from unit.view.recorded import Bench, Recorded

P = "/ws/v1/partition/default"
DUMP = "/debug/fullstatedump"
MANY = 3_000


class Reader:
    """Sends one request, and takes its answer message by message as the test allows.

    :ivar largest: size of the body's largest message.
    """

    def __init__(self, view: ViewService, path: str, encoding: bytes = b"identity", *, takes: bool = True) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.largest = 0
        self.takes = asyncio.Event()
        self.is_asked = asyncio.Event()
        if takes:
            self.takes.set()
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"accept-encoding", encoding)],
        }
        self.task = asyncio.ensure_future(view.asgi(scope, self._receive, self._send))

    async def answered(self) -> Reader:
        await asyncio.wait_for(self.task, 60)
        return self

    async def _receive(self) -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        self.is_asked.set()
        await self.takes.wait()
        self.body += message["body"]
        self.largest = max(self.largest, len(message["body"]))


async def large(bench: Bench) -> Recorded:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=1_000_000, memory=10**12)
    rm.cluster.app("x", "root.b")
    rm.cluster.ask("x", "k", vcore=1, wanted=MANY)
    await bench.write(rm)
    return rm


async def test_dumps_above_the_limit_get_retry_after(bench: Bench) -> None:
    await large(bench)
    async with bench.view(dumps_max=1) as view:
        first = Reader(view, DUMP, takes=False)
        await asyncio.wait_for(first.is_asked.wait(), 60)
        second = await Reader(view, DUMP).answered()
        assert (second.status, second.headers["retry-after"]) == (503, "1")
        assert json.loads(second.body)["message"] == "1 state dumps are under way already: try again"
        assert (await Reader(view, f"{P}/nodes").answered()).status == 200
        first.takes.set()
        await first.answered()
        third = await Reader(view, DUMP).answered()
        assert (first.status, third.status) == (200, 200)
        assert json.loads(first.body)["nodes"] == json.loads(third.body)["nodes"]


async def test_large_answers_together_hold_no_more_than_they_may(bench: Bench) -> None:
    await large(bench)
    async with bench.view(answers_bytes_max=1 << 20) as view:
        slow = [Reader(view, f"{P}/nodes", takes=False) for _ in range(2)]
        await asyncio.wait_for(slow[0].is_asked.wait(), 60)
        # When the limit is used up, all but small answers are refused.
        refused = await Reader(view, f"{P}/node/n1").answered()
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert json.loads(refused.body)["message"] == "Too many large answers are under way: try again"
        assert (await Reader(view, f"{P}/queue/root.b").answered()).status == 200
        for each in slow:
            each.takes.set()
            await each.answered()
        assert (await Reader(view, f"{P}/node/n1").answered()).status == 200


async def test_a_reader_that_takes_nothing_is_cut_and_holds_nothing(bench: Bench) -> None:
    await large(bench)
    async with bench.view(stalled_s=0.05, dumps_max=1) as view:
        stalled = [Reader(view, path, takes=False) for path in (DUMP, f"{P}/nodes", f"{P}/queue/root.b")]
        for each in stalled:
            await each.answered()
            assert each.body == b""
        assert (view.asgi.limits.held_bytes, view.asgi.limits.dumps) == (0, 0)
        assert (await Reader(view, DUMP).answered()).status == 200


def counted(route: str) -> dict[str, float]:
    """Return the requests of a route so far, by status."""
    return by_status("muster_view_requests", route=route)


async def test_a_request_that_is_cancelled_is_no_error(bench: Bench) -> None:
    await large(bench)
    async with bench.view() as view:
        before = counted(DUMP)
        with capture_logs() as logs:
            reader = Reader(view, DUMP, takes=False)
            await asyncio.wait_for(reader.is_asked.wait(), 60)
            reader.task.cancel()
            await asyncio.gather(reader.task, return_exceptions=True)
        assert counted(DUMP) == {**before, "499": before.get("499", 0) + 1}
        assert [each for each in logs if each["log_level"] in ("error", "warning")] == []
        assert (view.asgi.limits.held_bytes, view.asgi.limits.dumps) == (0, 0)


async def test_a_request_whose_reader_is_cut_is_no_error(bench: Bench) -> None:
    await large(bench)
    async with bench.view(stalled_s=0.05) as view:
        before = counted(DUMP)
        await Reader(view, DUMP, takes=False).answered()
        assert counted(DUMP) == {**before, "499": before.get("499", 0) + 1}


@pytest.mark.parametrize("encoding", [b"identity", b"gzip"])
async def test_a_large_answer_is_whole_and_comes_as_it_is_taken(bench: Bench, encoding: bytes) -> None:
    await large(bench)
    async with bench.view() as view:
        found = await Reader(view, f"{P}/applications/active", encoding).answered()
        body = bytes(found.body)
        assert int(found.headers["content-length"]) == len(body)
        assert found.headers["x-muster-consistency"] == "snapshot"
        if encoding == b"gzip":
            body = gzip.decompress(body)
        else:
            assert found.largest < 128 * 1024 < len(body)
        assert len(json.loads(body)[0]["allocations"]) == MANY
