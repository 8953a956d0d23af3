"""How a large transaction of the embedded log becomes visible to readers of its process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.backends.sqlite_work_items import LARGE_RECORDS
from muster_bus.backends.tail import PartitionTail, TailPart
from muster_bus.clock import SystemClock
from muster_bus.log import OutRecord, Record
from muster_bus.settings import LogSettings

MANY = 10 * LARGE_RECORDS + 5


async def test_the_step_that_shows_it_touches_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, parts = [0], PartitionTail.split_records

    def counted(first: int, records: Sequence[Record], size: int) -> list[TailPart]:
        made[0] += len(records)
        return parts(first, records, size)

    monkeypatch.setattr(PartitionTail, "split_records", staticmethod(counted))
    settings = LogSettings(sqlite_path=tmp_path / "log.db", partitions=1)
    topics = settings.topics()
    log = SqliteLog(topics.specs(), settings, SystemClock())
    await log.start()
    try:
        reader = await log.reader(topics.events, 0, 0)
        owner = await log.take_over("group", topics.requests, 0)
        records = [OutRecord(topics.events, 0, b"k", b"%d" % number) for number in range(MANY)]
        committing = asyncio.create_task(owner.commit([*records, OutRecord(topics.state, 0, b"k", b"v")], 1))
        passes, shown = [made[0]], -1
        while shown < 0:
            await asyncio.sleep(0)
            passes.append(made[0])
            shown = len(passes) if reader.cached_end() else -1
        await committing
        assert reader.cached_end() == MANY, "no reader gets only some of it"
        assert passes[-1] == passes[-2] == MANY, "all parts were there before"
        assert max(after - before for before, after in pairwise(passes)) <= LARGE_RECORDS
        found: list[bytes | None] = []
        while len(found) < MANY:
            found += [record.value for record in await reader.read(1_000, 5.0)]
        assert found == [record.value for record in records]
        await reader.close()
    finally:
        await log.close()
