"""The benchmark of the view prints all its figures, at any speed. Its load generator understands HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from muster_runtime.http_server import HttpServer
from starlette.types import Receive, Scope, Send

from bench.view_load import MIX, Connection, request

ROOT = Path(__file__).parents[2]
SIZES = (0, 1, 1_000, 300_000)


async def answer(scope: Scope, _receive: Receive, send: Send) -> None:
    """A body of the path's length in bytes, in chunks of different lengths or with Content-Length."""
    kind, size = scope["path"].strip("/").split("/")
    headers = [(b"content-length", size.encode())] if kind == "whole" else []
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    left = int(size)
    while left > 0:
        part = min(left, 1 + left // 3)
        await send({"type": "http.response.body", "body": b"\r\n0\r\n\r\n"[:1] * part, "more_body": True})
        left -= part
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def test_the_load_takes_whole_answers_of_any_form_one_after_the_other() -> None:
    server = HttpServer(answer, "127.0.0.1:0", 1.0)
    await server.start()
    connection = await Connection.open("127.0.0.1", server.port)
    try:
        for size in SIZES:
            for kind in ("whole", "chunked"):
                status, got = await asyncio.wait_for(connection.ask(request("x", f"/{kind}/{size}", gzip=True)), 60)
                assert status == 200
                assert got >= size, (kind, size)
                assert kind == "chunked" or got == size
    finally:
        connection.close()
        server.kill()


def test_reads_of_a_small_cluster() -> None:
    command = [sys.executable, "-m", "bench.view_bench", "--only", "reads", "--form", "embedded"]
    command += ["--rounds", "1", "--seconds", "1", "--nodes", "20", "--allocations", "200", "--per-s", "200"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["embedded"]["reads"]
    for name in ("still", "deciding"):
        (run,) = found[name]["rounds"]
        # (On a busy machine a reader may be too far behind, and says so.)
        assert set(run["statuses"]) <= {"200", "503"}, run
        assert sum(run["statuses"].values()) == 200, run
        assert run["statuses"].get("200"), run
        assert not run["broken"]
        assert set(run["kinds"]) <= {kind.name for kind in MIX}
        assert 0 < found[name]["p50_ms"] <= found[name]["p99_ms"]
        assert "up" in run["cpu_percent"]
