"""The view of `muster up` in a process of its own: what it shows, its end, and its beginning again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from chaos.harness import Deployment, embedded
from muster_cli.followers_process import socket_directory
from muster_client import RmClient
from perf.driver import Driver, Shape

RM = "own"
PATH = f"/ws/v1/partition/default/application/app-0?rm={RM}"


async def get(deployment: Deployment, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    def asked() -> tuple[int, dict[str, str], bytes]:
        request = urllib.request.Request(f"{deployment.http}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read()

    return await asyncio.to_thread(asked)


def child_of(deployment: Deployment) -> int:
    pid = deployment.processes["up"].pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if b"muster_cli.followers_child" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    return 0


@asynccontextmanager
async def registered(deployment: Deployment) -> AsyncIterator[tuple[Driver, RmClient]]:
    """An RM with one application, which asks for one thing at a time."""
    driver = Driver(deployment.gateway, RM, Shape(nodes=1, asks=100, queues=1, applications=1))
    async with driver.client() as rm:
        await driver.set_up(rm)
        driver.shape = replace(driver.shape, asks=1)
        yield driver, rm


@pytest.fixture
async def up(tmp_path: Path) -> AsyncIterator[Deployment]:
    deployment = embedded(tmp_path)
    async with deployment.running():
        yield deployment


async def test_an_answer_shows_what_its_reader_was_told_before(up: Deployment) -> None:
    async with registered(up) as (driver, rm):
        for number in range(30):
            await driver.ask_up_front(rm, f"k{number}")
            status, headers, body = await get(up, PATH)
            assert (status, headers["x-muster-consistency"]) == (200, "snapshot")
            assert len(json.loads(body)["allocations"]) == number + 1
            assert headers["x-muster-lag-records"] == "0"


async def test_it_begins_again_when_it_is_killed_and_nobody_else_notices(up: Deployment) -> None:
    async with registered(up) as (driver, rm):
        first = child_of(up)
        assert (await get(up, PATH))[0] == 200
        os.kill(first, signal.SIGKILL)
        await driver.ask_up_front(rm, "k")
        async with asyncio.timeout(60):
            while (answer := await get(up, PATH))[0] != 200:
                assert answer[0] == 503, answer
                await asyncio.sleep(0.05)
        assert len(json.loads(answer[2])["allocations"]) == 1
        assert child_of(up) not in (0, first)
        assert b"the followers' process is gone" in up.processes["up"].log_file.read_bytes()


async def test_a_level_is_set_in_both_processes_and_an_end_leaves_nothing(up: Deployment, tmp_path: Path) -> None:
    assert (await get(up, "/ws/v1/loglevel/debug", "PUT"))[0] == 200
    assert (await get(up, "/ws/v1/loglevel"))[2] == b'"debug"\n'
    stacks = (await get(up, "/debug/stack"))[2]
    assert b"muster_scheduler/service" in stacks or b"partition_worker" in stacks  # of the process that decides
    child = child_of(up)
    await up.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert not await asyncio.to_thread(socket_directory(tmp_path / "data/log.db").exists)
