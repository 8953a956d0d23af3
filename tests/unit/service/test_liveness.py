"""Liveness is answered by a thread of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator

import pytest
from muster_runtime.liveness import Liveness

PATIENCE_S = 60.0
STALL_S = 1.0


@pytest.fixture
async def liveness() -> AsyncIterator[Liveness]:
    made = Liveness("127.0.0.1:0", STALL_S)
    await made.start()
    yield made
    await made.stop()


def ask(port: int, path: str = "/health/live", method: str = "GET") -> tuple[int, dict[str, object]]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            body = answer.read()
            return answer.status, json.loads(body) if body else {}
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


async def test_a_process_whose_loop_turns_lives(liveness: Liveness) -> None:
    assert await asyncio.to_thread(ask, liveness.port) == (200, {"status": "live"})
    assert await asyncio.to_thread(ask, liveness.port, "/health/live", "HEAD") == (200, {})
    assert (await asyncio.to_thread(ask, liveness.port, "/else"))[0] == 404
    assert (await asyncio.to_thread(ask, liveness.port, "/", "POST"))[0] == 405


async def test_a_stopped_loop_is_told_by_the_thread_and_a_turning_one_lives_again(liveness: Liveness) -> None:
    answers: list[int] = []
    told = threading.Event()

    def probe() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and 503 not in answers:
            answers.append(ask(liveness.port)[0])
        told.set()

    thread = threading.Thread(target=probe)
    thread.start()
    # This blocks the loop, as a long computation does, until the thread has answered.
    assert told.wait(PATIENCE_S)
    assert answers[-1] == 503
    async with asyncio.timeout(PATIENCE_S):
        while (await asyncio.to_thread(ask, liveness.port))[0] != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    thread.join()


PROGRAM = """
import asyncio, sys
from muster_runtime.liveness import Liveness

async def main():
    liveness = Liveness("127.0.0.1:0", float(sys.argv[1]))
    await liveness.start()
    print(liveness.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_process_that_was_stopped_for_a_while_lives() -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(STALL_S)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert ask(port)[0] == 200
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(3 * STALL_S)
        os.kill(process.pid, signal.SIGCONT)
        assert {ask(port)[0] for _ in range(200)} == {200}
    finally:
        process.kill()
        process.wait()


async def test_a_silent_client_holds_nobody(liveness: Liveness) -> None:
    silent = [socket.create_connection(("127.0.0.1", liveness.port)) for _ in range(10)]
    try:
        assert (await asyncio.to_thread(ask, liveness.port))[0] == 200
    finally:
        for each in silent:
            each.close()


async def test_it_stops_without_having_started() -> None:
    made = Liveness("127.0.0.1:0", STALL_S)
    await made.stop()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", made.port), timeout=PATIENCE_S)
