"""Kafka, Redis and PostgreSQL killed in turn while events flow, and back after a while (MUSTER_OUTAGE_S).

Each is a server of the test's own, ended by ``kill -9``, and started again with what it had written. Redis comes back
empty, as one without persistence does. Afterwards the books are looked at as after any crash, and history in PostgreSQL
and in Parquet holds every event once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import httpx
import pytest
import servers
from chaos.harness import Deployment, assert_each_task_once, on_kafka
from history_files import rows_of
from muster_client.settings import ClientSettings
from muster_replay.replay import ReplayOptions, replay
from waiting import eventually
from wanting import server_wanted

OPENB = Path(__file__).parents[2] / "examples" / "openb"
RM_ID = "openb"
TASKS = 8_152
OUTAGE_S = float(os.environ.get("MUSTER_OUTAGE_S", "6"))
# When so many asks are sent, and no server is away any more. Between outages asks are sent as fast as they are taken.
OUTAGES: dict[servers.Kind, int] = {"postgres": 800, "redis": 3_000, "kafka": 5_500}
CHUNK = 20
# The pace of asks while a server is away.
PAUSE_S = 0.15
# So many asks before the next outage are kept back until the present one is noticed: it wants to see decisions.
KEPT_BACK = 600
# What says so, and in which words; and whether allocations go on meanwhile.
SAID: dict[servers.Kind, list[tuple[str, str]]] = {
    "postgres": [("event-publisher", "postgres")],
    "redis": [("gateway", "the session store does not answer")],
    "kafka": [
        ("gateway", "the log does not answer"),
        ("event-publisher", "the log does not answer"),
        ("scheduler", ""),
    ],
}
UNHARMED: tuple[servers.Kind, ...] = ("postgres", "redis")
WAIT_S = 120.0

pytestmark = [
    pytest.mark.slow, pytest.mark.kafka, pytest.mark.redis, pytest.mark.postgres,
    pytest.mark.timeout(600 + 6 * OUTAGE_S),
]  # fmt: skip


@dataclass
class Breakable:
    """Servers of the test's own."""

    directory: Path
    servers: dict[servers.Kind, servers.Server] = field(default_factory=dict)

    def start(self) -> None:
        for kind in servers.KINDS:
            with server_wanted():
                self.servers[kind] = servers.own(kind, self.directory)

    def kill(self, kind: servers.Kind) -> None:
        servers.kill(self.servers[kind])

    def start_again(self, kind: servers.Kind) -> None:
        self.servers[kind] = servers.start_again(self.servers[kind], self.directory)

    def stop(self) -> None:
        for server in self.servers.values():
            servers.stop(server)


@pytest.fixture
def breakable() -> Iterator[Breakable]:
    with tempfile.TemporaryDirectory(prefix="muster-outages-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o711)  # PostgreSQL's user must get through
        it = Breakable(Path(directory))
        try:
            it.start()
            yield it
        finally:
            it.stop()


async def test_each_server_goes_and_comes_back_while_events_flow(tmp_path: Path, breakable: Breakable) -> None:
    schema, history = f"outage_{secrets.token_hex(4)}", tmp_path / "history"
    dsn = breakable.servers["postgres"].address
    environment = {
        "MUSTER_PUBLISHER__POSTGRES_DSN": dsn,
        "MUSTER_PUBLISHER__POSTGRES_SCHEMA": schema,
        "MUSTER_PUBLISHER__PARQUET_DIR": str(history),
        "MUSTER_PUBLISHER__PARQUET_ROLL_S": "1",
        "MUSTER_PUBLISHER__RETRY_MAX_S": "2",
    }
    deployment = on_kafka(tmp_path, breakable.servers["kafka"].address, breakable.servers["redis"].address, environment)
    async with deployment.running(), deployment.supervised():
        # 1. each server goes and comes back
        on_sent, outages = breaking(deployment, breakable)
        report = await replay(OPENB, options(deployment), on_sent=on_sent)
        await asyncio.gather(*outages)
        assert len(outages) == len(OUTAGES), "not every outage came to pass: the test has shown nothing"
        # 2. and everything is well again
        for name in deployment.operations:
            await said(deployment, name, 200, "")
        ids = await assert_each_task_once(deployment, report, RM_ID, TASKS)
        # 3. history has caught up
        await eventually_equal(lambda: rows_in_postgres(dsn, schema), (len(ids), len(ids)))
        await eventually_equal(lambda: rows_in_parquet(history), (len(ids), len(ids)))


def options(deployment: Deployment) -> ReplayOptions:
    return ReplayOptions(
        gateway=deployment.gateway,
        http=deployment.http,
        rm_id=RM_ID,
        chunk=CHUNK,
        quiet_s=5.0,  # every server is back when the last ask is sent
        answer_timeout_s=WAIT_S,
        settle_timeout_s=OUTAGE_S + 2 * WAIT_S,
        rest_timeout_s=WAIT_S,
        rest_silence_s=OUTAGE_S + WAIT_S,
        client=ClientSettings(backoff_seed=11),
    )


def breaking(
    deployment: Deployment, breakable: Breakable
) -> tuple[Callable[[int], Awaitable[None]], list[asyncio.Task[None]]]:
    """A hook for the replay that ends the next server when enough asks were sent, and the tasks that it started."""
    due = list(OUTAGES.items())
    begun: list[asyncio.Task[None]] = []
    noticed = asyncio.Event()

    async def on_sent(sent: int) -> None:
        last = sent == TASKS or bool(due and sent >= due[0][1])
        if begun and not begun[-1].done():
            await asyncio.wait(begun[-1:], timeout=None if last else PAUSE_S)
            if due and sent >= due[0][1] - KEPT_BACK and not last:
                await first_of(begun[-1], noticed)
        if begun and begun[-1].done():
            begun[-1].result()  # what failed there fails here, at once
        if due and sent >= due[0][1]:
            noticed.clear()
            begun.append(asyncio.create_task(outage(deployment, breakable, due.pop(0)[0], noticed)))

    return on_sent, begun


async def first_of(task: asyncio.Task[None], event: asyncio.Event) -> None:
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


async def outage(deployment: Deployment, breakable: Breakable, kind: servers.Kind, noticed: asyncio.Event) -> None:
    await asyncio.to_thread(breakable.kill, kind)
    try:
        # 1. it is said
        for name, words in SAID[kind]:
            await said(deployment, name, 503, words)
        # 2. what does not need it goes on: asks follow that were kept back until now
        before = await newest_event(deployment) if kind in UNHARMED else 0
        noticed.set()
        await asyncio.sleep(OUTAGE_S)
        if kind in UNHARMED:

            async def decided() -> bool:
                return await newest_event(deployment) > before + 1

            await eventually(decided, f"without {kind} something is decided", every_s=0.05)
    finally:
        await asyncio.to_thread(breakable.start_again, kind)
    # 3. it is back
    for name, _ in SAID[kind]:
        await said(deployment, name, 200, "")


async def said(deployment: Deployment, name: str, status: int, words: str) -> None:
    """Waits until the process's health has this status, and these words in it."""
    answer = ""
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while asyncio.get_running_loop().time() < deadline:
            try:
                health = await client.get(f"{deployment.operations[name]}/health")
                answer = f"{health.status_code} {health.text}"
                if health.status_code == status and words in health.text:
                    return
            except httpx.HTTPError as error:
                answer = repr(error)
            await asyncio.sleep(0.2)
    pytest.fail(f"{name} says {answer!r}, expected {status} with {words!r}")


async def newest_event(deployment: Deployment) -> int:
    """Id of the newest event, as REST says. It repeats the question until there is an answer: a process may be away."""
    async with asyncio.timeout(WAIT_S), httpx.AsyncClient(timeout=WAIT_S, trust_env=False) as client:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                answer = await client.get(f"{deployment.http}/ws/v1/events/batch?count=1")
                return int(answer.raise_for_status().json()["HighestID"])
            await asyncio.sleep(0.2)


async def rows_in_postgres(dsn: str, schema: str) -> tuple[int, int]:
    connection = await asyncpg.connect(dsn)
    try:
        row = await connection.fetchrow(f"select count(*), count(distinct (instance, rm, id)) from {schema}.events")
    finally:
        await connection.close()
    return row[0], row[1]


async def rows_in_parquet(history: Path) -> tuple[int, int]:
    query = f"select count(*), count(distinct (instance, rm, id)) from read_parquet('{history}/**/*.parquet')"
    [(rows, events)] = await asyncio.to_thread(rows_of, query)
    return rows, events


async def eventually_equal(count: Callable[[], Awaitable[tuple[int, int]]], wanted: tuple[int, int]) -> None:
    found = await count()
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while found != wanted and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.5)
        found = await count()
    assert found == wanted
