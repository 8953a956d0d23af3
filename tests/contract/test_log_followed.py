"""The embedded log in a child process: it reads the file, and writes through a pipe."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from contract.log_contract import LogContract
from contract.test_log_sqlite import SqliteBench
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.pipe.child_log import ChildLog
from muster_bus.pipe.log_server import LogServer
from muster_bus.pipe.messages import FromChild, FromLog
from muster_bus.settings import LogSettings
from muster_runtime.message_channel import Channel


class Followed:
    """A log, and the same from the other end of a pipe. Both are in this process: the pipe does not know."""

    def __init__(self, owned: SqliteLog) -> None:
        self._owned = owned
        self._tasks: list[asyncio.Task[None]] = []
        self.defects: list[BaseException] = []

    async def start(self) -> ChildLog:
        one, other = socket.socketpair()
        self._here: Channel[FromChild] = await Channel.over(one, FromChild)
        self._there: Channel[FromLog] = await Channel.over(other, FromLog)
        server = self.server = LogServer(
            self._owned,
            await self._owned.writer("followers"),
            self._here.send,
            lambda: self._here.unsent_bytes,
            self.defects.append,
        )
        self.log = ChildLog(self._owned.settings, self._there.send)
        self._tasks = [
            asyncio.create_task(_pass(self._here, server.handle)),
            asyncio.create_task(_pass(self._there, self.log.handle)),
        ]
        await self.log.start()
        return self.log

    async def stop(self) -> None:
        await self.log.close()
        await self.server.wait_flushed()
        await self.server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._here.close()
        self._there.close()
        assert not self.defects


async def _pass(channel, take) -> None:  # type: ignore[no-untyped-def]
    while (message := await channel.receive()) is not None:
        take(message)


class FollowedBench(SqliteBench):
    def __init__(self, path: Path, tail_bytes: int) -> None:
        super().__init__(path, tail_bytes)
        self._followed: list[Followed] = []

    async def open(self, settings: LogSettings | None = None) -> ChildLog:  # type: ignore[override]
        await self.stop()
        followed = Followed(await super().open(settings))
        log = await followed.start()
        self._followed.append(followed)
        return log

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        await super().delete_before(topic, partition, offset)
        # What is told of it is on its way.
        async with asyncio.timeout(30):
            reader = await self._followed[-1].log.reader(topic, partition)
            while await reader.first_offset() < offset:  # noqa: ASYNC110 - the contract has no word for it
                await asyncio.sleep(0.001)

    async def stop(self) -> None:
        while self._followed:
            await self._followed.pop().stop()


@pytest.fixture(params=[0, 64 << 20], ids=["from-the-file", "from-chains"])
async def bench(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[FollowedBench]:
    bench = FollowedBench(tmp_path, request.param)
    yield bench
    await bench.stop()
    for log in bench.logs:
        await log.close()


class TestFollowedLog(LogContract):
    pass
