"""Run as a program by test_sqlite.py: uses an embedded log until it is killed, or until the file is full."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

from muster_bus.backends.sqlite import SqliteLog
from muster_bus.clock import SystemClock
from muster_bus.errors import LogUnavailable, TransactionFailed
from muster_bus.log import OutRecord
from muster_bus.settings import LogSettings


def settings_for(path: str) -> LogSettings:
    # Constant maintenance, so that kills also interrupt compaction and checkpoints.
    return LogSettings(
        backend="sqlite",
        partitions=1,
        sqlite_path=Path(path),
        sqlite_maintenance_interval_s=0.02,
        sqlite_compaction_min_records=200,
        sqlite_tombstone_grace_s=0,
    )


async def write(path: str) -> None:
    """Transactions without end. Number n writes n to two topics, state of a few keys, and position n + 1. Says on
    standard output which are committed."""
    settings = settings_for(path)
    topics = settings.topics()
    log = SqliteLog(topics.specs(), settings, SystemClock())
    await log.start()
    owner = await log.take_over("group", topics.requests, 0)
    number = await owner.committed() or 0
    while True:
        text = b"%d" % number
        records = [
            OutRecord(topics.responses, 0, b"k", text + b" " * 200),
            OutRecord(topics.events, 0, b"k", text),
            *(OutRecord(topics.state, 0, b"key-%d" % (number * key % 23), text) for key in range(20)),
        ]
        await owner.commit(records, number + 1)
        number += 1
        print(number, flush=True)


async def fill(path: str, limit_bytes: str) -> None:
    """Appends and commits until the file may not grow, then shows that the log goes on when it may."""
    settings = settings_for(path).model_copy(update={"sqlite_maintenance_interval_s": 60.0})
    topics = settings.topics()
    log = SqliteLog(topics.specs(), settings, SystemClock())
    await log.start()
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit_bytes), resource.RLIM_INFINITY))
    owner = await log.take_over("group", topics.requests, 0)
    writer = await log.writer("test")
    committed = appended = 0
    body = bytes(range(256)) * 8
    failures: list[Exception] = []
    while not failures:
        try:
            await owner.commit([OutRecord(topics.responses, 0, b"k", body)], committed + 1)
            committed += 1
        except TransactionFailed as error:
            failures.append(error)
    while len(failures) < 2:
        try:
            await writer.append(OutRecord(topics.requests, 0, b"k", body))
            appended += 1
        except LogUnavailable as error:
            failures.append(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    owner = await log.take_over("group", topics.requests, 0)
    assert await owner.committed() == committed, (await owner.committed(), committed)
    await owner.commit([OutRecord(topics.responses, 0, b"k", body)], committed + 1)
    await writer.append(OutRecord(topics.requests, 0, b"k", body))
    reader = await log.reader(topics.responses, 0)
    assert await reader.end_offset() == committed + 1
    await log.close()
    print(committed + 1, appended + 1, *(f"[{error}]" for error in failures))


if __name__ == "__main__":
    asyncio.run({"write": write, "fill": fill}[sys.argv[1]](*sys.argv[2:]))
