"""A read of the audit trail with a position has all entries that are written, also those that become visible later."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.damage import DamagedParts
from muster_bus.log import LogReader, OutRecord
from muster_bus.topics import Topics
from muster_gateway.audit_codec import AuditAttempt, AuditResult, encode_entry
from muster_gateway.audit_reader import AuditLogReader
from muster_runtime.caller import Caller, calling
from muster_runtime.identity import GATEWAY

TOPICS = Topics(partitions=1)


class LateReader:
    """Shows nothing until it was asked for the end three times."""

    def __init__(self, reader: LogReader) -> None:
        self._reader, self._asked = reader, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def end_offset(self, max_age_s: float = 0.0) -> int:
        self._asked += 1
        return await self._reader.end_offset() if self._asked > 3 else 0


class LateLog(MemoryLog):
    async def reader(self, *place: Any, **more: Any) -> Any:
        return LateReader(await super().reader(*place, **more))


async def first_entry(log: LateLog, after: str) -> Any:
    trail = AuditLogReader(log, TOPICS, DamagedParts("they are not shown"))
    async with AsyncExitStack() as stack:
        with calling(Caller(GATEWAY, after=after)):
            (part,) = await trail.partition_cursors(stack)
        return await part.peek()


async def test_a_read_with_a_position_waits_for_what_is_written() -> None:
    log = LateLog(TOPICS.specs(), SystemClock())
    await log.start()
    attempt = AuditAttempt("", "", "", "grpc", "", "pause", "rm", AuditResult.ACCEPTED, "")
    value = encode_entry(attempt, "e1", "gw", 1, 1, 0)
    await (await log.writer("test")).append(OutRecord(TOPICS.audit, 0, b"rm", value))
    assert (await first_entry(log, "position")).id == "e1"
    assert await first_entry(log, "") is None
    await log.close()
