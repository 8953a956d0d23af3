"""The gateway's audit entries while the log takes none: they wait in order, and a gap is an entry itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest
from manual_clock import ManualClock
from muster_bus.errors import BusError, LogFull, LogUnavailable, RecordTooLarge
from muster_bus.log import OutRecord
from muster_bus.topics import Topics
from muster_gateway import audit
from muster_gateway.audit import AuditWriter
from muster_gateway.errors import OverLimit
from muster_proto.muster.v1.audit_pb2 import AuditEntry
from muster_runtime.caller import Caller
from muster_runtime.identity import NOBODY
from virtual.plugin import advance


class Writer:
    """A log that fails while it has an error."""

    def __init__(self) -> None:
        self.taken: list[AuditEntry] = []
        self.down: BusError | None = None
        self.too_large = ""  # the RM whose entries no log takes
        self.tried = 0

    async def wait_writable(self) -> None:
        return

    def append(self, record: OutRecord) -> Awaitable[int]:
        async def taken() -> int:
            self.tried += 1
            if self.down is not None:
                raise self.down
            if record.key == self.too_large.encode() and self.too_large:
                raise RecordTooLarge(record.topic, 2, 1)
            self.taken.append(AuditEntry.FromString(record.value or b""))
            return len(self.taken)

        return taken()

    async def close(self) -> None:
        return


def refuse(trail: AuditWriter, *numbers: int) -> None:
    for number in numbers:
        trail.record_refused(Caller(NOBODY, "10.0.0.1", "grpc", "/a/B"), "pause", f"rm-{number}", OverLimit("no"))


@asynccontextmanager
async def running(trail: AuditWriter, writer: Writer) -> AsyncIterator[None]:
    task = asyncio.create_task(trail.run(writer))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Writer:
    monkeypatch.setattr(audit, "_RETRY_S", 0.001)
    return Writer()


def make(waiting_max: int = 100) -> AuditWriter:
    return AuditWriter(Topics(partitions=1), ManualClock(), "g", waiting_max)


@pytest.mark.parametrize("error", [LogUnavailable("away"), LogFull("full")])
async def test_entries_wait_for_the_log_in_their_order(writer: Writer, error: BusError) -> None:
    trail = make()
    writer.down = error
    async with running(trail, writer):
        refuse(trail, 1, 2, 3)
        await advance()
        assert writer.tried >= 3, "it tries again"
        refuse(trail, 4)
        writer.down = None
        await advance()
        assert len(writer.taken) == 4, "all are written"
    assert [entry.rm_id for entry in writer.taken] == ["rm-1", "rm-2", "rm-3", "rm-4"]
    assert [entry.id for entry in writer.taken] == ["g/1", "g/2", "g/3", "g/4"]


async def test_what_does_not_fit_is_counted_where_it_would_be(writer: Writer) -> None:
    trail = make(waiting_max=3)
    writer.down = LogUnavailable("away")
    async with running(trail, writer):
        refuse(trail, *range(1, 8))
        await advance()
        assert writer.tried >= 2, "it tries again"
        writer.down = None
        await advance()
        assert len(writer.taken) == 4, "what waited is written, and the gap"
        refuse(trail, 8)
        await advance()
        assert len(writer.taken) == 5, "and it goes on"
    assert [entry.rm_id or entry.action for entry in writer.taken] == ["rm-1", "rm-2", "rm-3", "lost", "rm-8"]
    gap = writer.taken[3]
    assert (gap.count, gap.result, gap.door, gap.gateway_id) == (4, AuditEntry.FAILED, "internal", "g")
    assert 0 < gap.first_ns <= gap.recorded_ns
    assert "3 waited" in gap.reason


async def test_entries_after_a_gap_come_after_it(writer: Writer) -> None:
    """While entries wait, room appears, fills up, and appears again: each gap stands where its entries would be."""
    trail = make(waiting_max=2)
    refuse(trail, 1, 2, 3)
    await trail.finish(writer, 1.0)
    refuse(trail, 4, 5, 6, 7)
    await trail.finish(writer, 1.0)
    counted = [(entry.rm_id or entry.action, entry.count) for entry in writer.taken]
    assert counted == [("rm-1", 1), ("rm-2", 1), ("lost", 1), ("rm-4", 1), ("rm-5", 1), ("lost", 2)]


async def test_one_that_no_log_takes_does_not_hold_the_others(writer: Writer) -> None:
    trail = make()
    writer.too_large = "rm-1"
    async with running(trail, writer):
        refuse(trail, 1, 2)
        await advance()
        assert len(writer.taken) == 2, "the rest is written"
    assert [entry.rm_id or entry.action for entry in writer.taken] == ["rm-2", "lost"]


async def test_a_gateway_that_ends_does_not_wait_for_ever(writer: Writer) -> None:
    trail = make()
    writer.down = LogUnavailable("away")
    refuse(trail, 1)
    before = audit.metrics.audit_lost._value.get()
    await trail.finish(writer, 60.0)
    assert writer.taken == []
    assert audit.metrics.audit_lost._value.get() == before + 1


async def test_an_end_during_a_write_writes_nothing_twice(writer: Writer) -> None:
    """The task is cancelled while the writer has an entry: the rest is written at the end, that one is not."""
    trail, given, go_on = make(), asyncio.Event(), asyncio.Event()
    append = writer.append

    def slow(record: OutRecord) -> Awaitable[int]:
        async def taken() -> int:
            given.set()
            await go_on.wait()
            return await append(record)

        return asyncio.shield(asyncio.ensure_future(taken()))

    writer.append = slow  # type: ignore[method-assign]
    async with running(trail, writer):
        refuse(trail, 1, 2)
        await given.wait()
    go_on.set()
    await advance(0.1)  # (a log appends in order; this one does not)
    await trail.finish(writer, 60.0)
    assert [entry.rm_id for entry in writer.taken] == ["rm-1", "rm-2"]
