"""A hung followers' process is replaced by the main process, and delays no request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hanging import can_hang, hang
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.clock import SystemClock
from muster_bus.log_factory import make_log
from muster_cli.errors import UsageError
from muster_cli.followers_messages import socket_directory
from muster_cli.followers_process import FollowersFailed, FollowersProcess, FollowersSilent
from muster_cli.settings import MusterSettings, embedded_defaults, load
from muster_rest.system_health import Part
from muster_runtime.default_rm import default_rm_metadata
from starlette.types import Message
from unit.publisher.feeding import Feeder

WITHIN_S = 240.0  # for a whole test, with two starts of a process

pytestmark = pytest.mark.timeout(2 * WITHIN_S)

PARTS = (Part.VIEW, Part.PUBLISHER, Part.USAGE)
SECRET = "s3cret-of-nobody"
# No other test has an RM of this name: if both processes have a gauge, this process's value counts, and other tests
# leave values in it.
RM = "rm-of-followers-process"


async def said_of(process: FollowersProcess) -> list[str]:
    """What the followers say of themselves, or why they say nothing."""
    said: list[str] = []
    for check in process.checks().values():
        try:
            said += (await check()).problems
        except FollowersSilent as error:
            said.append(str(error))
    return said


class Rig:
    """A log, and its followers in a process of their own."""

    def __init__(self, directory: Path, **given: object) -> None:
        self.settings: MusterSettings = load(
            None, (), [(name, "", value) for name, value in given.items()], embedded_defaults(directory), {}
        ).values
        directory.mkdir(exist_ok=True)

    @asynccontextmanager
    async def running(self, *, available_s: float = 20.0) -> AsyncIterator[FollowersProcess]:
        log = make_log(self.settings.log, SystemClock())
        assert isinstance(log, SqliteLog)
        self.log = log
        process = FollowersProcess(self.settings, log, SystemClock(), PARTS, available_s=available_s, wait_min_s=0.05)
        await log.start()
        try:
            await process.open()
            async with asyncio.timeout(WITHIN_S):
                await process.start()
                yield process
        finally:
            await process.stop()
            await process.close()
            await log.close()


async def asked(process: FollowersProcess, path: str) -> int:
    """Return the status of a GET at the view."""
    found: list[int] = []

    async def receive() -> Message:
        await asyncio.sleep(WITHIN_S)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            found.append(message["status"])

    scope: dict[str, Any] = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": [],
        "client": ("192.0.2.7", 5),
    }  # fmt: skip
    await process.view(scope, receive, send)
    return found[0]


async def test_a_hung_followers_process_is_replaced_without_delaying_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(
        tmp_path / "data",
        **{
            "publisher.postgres_dsn": f"postgresql://u:{SECRET}@127.0.0.1:1/none",
            "publisher.stop_timeout_s": 0,  # there is no such server, so waiting for it is useless
        },
    )
    # (It gets no requests after 5 s of silence. A busy test must look at it between that moment and its end.)
    can_hang(monkeypatch)
    async with rig.running(available_s=12.0) as process:
        assert await process.healthy()
        assert await asked(process, "/ws/v1/partitions") == 200
        first = process.pid
        for place in ("cmdline", "environ"):
            assert SECRET.encode() not in Path(f"/proc/{first}/{place}").read_bytes()  # noqa: ASYNC240
        assert socket_directory(rig.settings.log.sqlite_path).stat().st_mode & 0o777 == 0o700
        hang(first)
        # 1. meanwhile much more is written than a pipe buffers
        feeder = Feeder(rig.log, rig.settings.log.topics())
        waits = asyncio.create_task(asked(process, "/ws/v1/partitions"))
        statuses, said = set(), set()
        number = 0
        while number < 4_000:
            await feeder.events(RM, range(number, number + 100))
            number += 100
        assert process.pid == first, "all of this was written to a hung process"
        while process.pid == first:
            await feeder.events(RM, range(number, number + 20))
            number += 20
            if not process.is_responsive:
                statuses.add(await asked(process, "/ws/v1/partitions"))
                said.update(await said_of(process))
            await asyncio.sleep(0.001)
        assert any("has reported nothing for" in text for text in said)
        assert statuses == {503}, "requests to a hung process get 503"
        assert await waits == 503, "a waiting request gets 503, too"
        # 2. the next process has all of it
        while not await process.healthy():  # noqa: ASYNC110 - it is told
            await asyncio.sleep(0.01)
        assert process.pid not in (0, first)
        assert await asked(process, "/ws/v1/partitions") == 200
        events = f'muster_publisher_ring_events{{rm="{RM}"}} {min(number, 100_000)}.0'
        async with asyncio.timeout(60):  # (it answers before it has read everything)
            while events not in (await process.exposition()).decode():  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
        async with asyncio.timeout(60):  # (the followers report once a second)
            while not any("postgres" in one for one in await said_of(process)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert SECRET not in str(await said_of(process))
        last = process.pid
    assert not Path(f"/proc/{last}").exists()  # noqa: ASYNC240
    assert not socket_directory(rig.settings.log.sqlite_path).exists()


async def test_bad_settings_are_refused_as_in_one_process(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data", **{"publisher.sinks": {"mine": {"kind": "nothing-of-that-name"}}})
    with pytest.raises(UsageError, match="nothing-of-that-name"):
        async with rig.running():
            pass


async def test_a_follower_that_cannot_start_ends_the_start(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        rig = Rig(tmp_path / "data", **{"publisher.http_address": f"127.0.0.1:{taken.getsockname()[1]}"})
        with pytest.raises(FollowersFailed, match=r"event-publisher could not start.* is taken"):
            async with rig.running():
                pass


async def test_it_may_be_stopped_while_it_begins(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data")
    log = make_log(rig.settings.log, SystemClock())
    assert isinstance(log, SqliteLog)
    process = FollowersProcess(rig.settings, log, SystemClock(), PARTS)
    await process.close()  # before anything
    process = FollowersProcess(rig.settings, log, SystemClock(), PARTS)
    await log.start()
    await process.open()
    await asyncio.sleep(0)
    async with asyncio.timeout(WITHIN_S):
        await process.close()
    await log.close()


async def test_event_calls_carry_the_default_rm(tmp_path: Path) -> None:
    """A call without an RM means `gateway.default_rm`, in the followers' process and at a separate publisher."""
    settings = load(None, (), [("gateway.default_rm", "", "rm-b")], embedded_defaults(tmp_path / "data"), {}).values
    log = make_log(settings.log, SystemClock())
    assert isinstance(log, SqliteLog)
    process = FollowersProcess(settings, log, SystemClock(), PARTS)
    try:
        assert default_rm_metadata("rm-b")
        assert process.events._default_rm == default_rm_metadata("rm-b")
    finally:
        await process.close()
