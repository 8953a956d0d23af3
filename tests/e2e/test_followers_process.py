"""The followers of `muster up` in a process of their own: their answers, their end, and their restart."""

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

import exposed
import pytest
from chaos.harness import Deployment, embedded
from contract.log_contract import all_of
from history_files import rows_of
from muster_bus.clock import SystemClock
from muster_bus.log_factory import make_log
from muster_bus.topics import HEADER_EVENT_ID
from muster_cli.followers_messages import socket_directory
from muster_client import EventsClient, Place, RmClient
from waiting import eventually

from bench.driver import Driver, Shape

pytestmark = pytest.mark.usefixtures("not_forked")  # its child is looked for among the processes

RM = "own"
KILLS, ASKS = 3, 1_500
PATH = f"/ws/v1/partition/default/application/app-0?rm={RM}"


async def get(deployment: Deployment, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    def asked() -> tuple[int, dict[str, str], bytes]:
        request = urllib.request.Request(f"{deployment.http}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read()

    return await asyncio.to_thread(asked)


async def followers(deployment: Deployment) -> int:
    async with asyncio.timeout(60):
        while (await get(deployment, "/ws/v1/partitions"))[0] != 200:  # noqa: ASYNC110 - asked from outside
            await asyncio.sleep(0.05)
    return child_of(deployment)


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def child_of(deployment: Deployment) -> int:
    pid = deployment.processes["up"].pid
    own = Path(f"/proc/{pid}/cmdline").read_bytes()
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        command = Path(f"/proc/{child}/cmdline").read_bytes()
        if command == own or b"muster_cli.followers_child" in command:  # the first one is a copy
            return int(child)
    raise AssertionError(f"process {pid} has no followers' process")


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


async def test_the_copy_makes_private_files_and_may_open_as_many_as_its_parent(up: Deployment) -> None:
    child, parent = await followers(up), up.processes["up"].pid
    assert "Umask:\t0077" in Path(f"/proc/{child}/status").read_text()  # noqa: ASYNC240
    limits = [Path(f"/proc/{pid}/limits").read_text() for pid in (parent, child)]  # noqa: ASYNC240
    assert limits[0] == limits[1]


async def test_an_answer_includes_the_responses_that_its_reader_got_before(up: Deployment) -> None:
    async with registered(up) as (driver, rm):
        for number in range(30):
            await driver.ask_up_front(rm, f"k{number}")
            async with asyncio.timeout(60):
                while True:
                    status, headers, body = await get(up, PATH)
                    assert (status, headers["x-muster-consistency"]) == (200, "snapshot")
                    if headers["x-muster-lag-records"] == "0":
                        break  # (else it waited for `view.fresh_wait_s`, on a busy machine, and says so)
            assert len(json.loads(body)["allocations"]) == number + 1


@pytest.mark.timeout(600)
async def test_killed_again_and_again_it_shows_and_exports_all_once_and_decisions_go_on(tmp_path: Path) -> None:
    # Small writes, so that a kill meets the middle of many.
    small = {
        "MUSTER_PUBLISHER__PARQUET_ROLL_RECORDS": "500",
        "MUSTER_PUBLISHER__PARQUET_ROLL_S": "0.1",
        "MUSTER_DERIVE__WINDOW_S": "1",
        "MUSTER_DERIVE__BATCH_WAIT_S": "0.05",
    }
    up = embedded(tmp_path, small)
    async with up.running():
        # 1. killed while it follows a load
        driver = Driver(up.gateway, RM, Shape(nodes=4, asks=KILLS * ASKS, queues=2, applications=4))
        async with driver.client() as rm:
            await driver.set_up(rm)
            driver.shape = replace(driver.shape, asks=ASKS)
            pids = set()
            for number in range(KILLS):
                pid = await followers(up)
                pids.add(pid)
                asking = asyncio.create_task(driver.ask_up_front(rm, f"k{number}"))
                await asyncio.sleep(0.05 * number)
                os.kill(pid, signal.SIGKILL)
                status, headers, _ = await get(up, PATH)
                assert (status, headers.get("retry-after")) in ((503, "1"), (200, None))
                await asking  # decided, with nobody who follows
            assert len(pids) == KILLS
            # 2. what there is, is shown
            await followers(up)
            await eventually(lambda: allocations_shown(up, KILLS * ASKS), "all allocations are shown", every_s=0.05)
            assert not driver.rejected
            families = await eventually(lambda: all_in_the_ring(up), "the publisher has read it all", every_s=0.05)
            async with EventsClient(up.gateway) as client:
                assert (await client.batch(RM, place=Place(id=0), count=3)).events[0].id == 0
            assert families["muster_followers_process_starts_total"].value() == KILLS + 1
            assert families["muster_scheduler_decisions_total"].samples, "a metric of the scheduler"
            text = (await get(up, "/ws/v1/metrics"))[2].decode()
            assert "yunikorn_scheduler_" in text
        # 3. usage counts each allocation once
        counted = 0
        async with asyncio.timeout(60):
            while counted < KILLS * ASKS:
                status, _, body = await get(up, f"/ws/v1/usage?rm={RM}&kind=queue&name=root")
                usage = json.loads(body)["usage"] if status == 200 else []
                counted = sum(window["allocations"] for window in usage[0]["windows"]) if usage else 0
                await asyncio.sleep(0.05)
        assert counted == KILLS * ASKS
    # 4. and history has what the log has
    log = make_log(up.log_settings, SystemClock())
    await log.start()
    in_log = [
        int(dict(record.headers)[HEADER_EVENT_ID])
        for partition in range(up.log_settings.partitions)
        for record in await all_of(log, up.log_settings.topics().events, partition)
    ]
    await log.close()
    query = f"select id from read_parquet('{tmp_path / 'data/history'}/**/*.parquet') order by id"
    exported = await asyncio.to_thread(rows_of, query)
    assert len(in_log) > KILLS * ASKS
    assert [row[0] for row in exported] == sorted(in_log)


async def allocations_shown(up: Deployment, count: int) -> bool:
    status, _, body = await get(up, f"/ws/v1/partition/default/applications/active?rm={RM}")
    return status == 200 and sum(len(app["allocations"]) for app in json.loads(body)) == count


async def all_in_the_ring(up: Deployment) -> dict[str, exposed.Family]:
    """The metrics of both processes, once one of the followers' counts an event of each allocation; {}: not yet."""
    families = exposed.parse((await get(up, "/metrics"))[2].decode())
    ring = families.get("muster_publisher_ring_events")
    return families if ring is not None and ring.values("rm").get(RM, 0) > KILLS * ASKS else {}


async def test_without_the_one_that_decides_it_ends(up: Deployment) -> None:
    for sign in (signal.SIGCONT, signal.SIGSTOP):  # also while it hangs
        pid = await followers(up)
        os.kill(pid, sign)
        await up.kill("up")
        async with asyncio.timeout(60):
            while is_there(pid):  # noqa: ASYNC110 - another process's end
                await asyncio.sleep(0.02)
        await up.restart("up")
    await followers(up)


async def test_a_level_is_set_in_both_processes_and_an_end_leaves_nothing(up: Deployment, tmp_path: Path) -> None:
    await followers(up)
    assert (await get(up, "/ws/v1/loglevel/debug", "PUT"))[0] == 200
    assert (await get(up, "/ws/v1/loglevel"))[2] == b'"debug"\n'
    stacks = (await get(up, "/debug/stack"))[2]
    assert b"muster_scheduler." in stacks, stacks.decode()[:20_000]  # of the process that decides
    child = child_of(up)
    await up.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert not await asyncio.to_thread(socket_directory(tmp_path / "data/log.db").exists)
