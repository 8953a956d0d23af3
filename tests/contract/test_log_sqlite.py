from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from contract.log_contract import LogContract
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.backends.sqlite_work_items import TimeBudget
from muster_bus.clock import SystemClock
from muster_bus.settings import LogSettings


def always_in_the_loop(log: SqliteLog) -> None:
    """Makes the loop commit small units however slow the disk is."""
    log._allowance = TimeBudget(1.0, 1_000_000.0, 0.0)


class ShiftedClock(SystemClock):
    """The system's time plus a shift, to make records old."""

    shift_ns = 0

    def now_ns(self) -> int:
        return super().now_ns() + self.shift_ns


class SqliteBench:
    """An embedded log.

    :param tail_bytes: 0: the tail keeps next to nothing, so that reads come from the file.
    :param loop_share: 0: the writer's thread commits everything; 1: the event loop, as often as it can.
    """

    def __init__(self, path: Path, tail_bytes: int, loop_share: float = 0.1) -> None:
        self.settings = LogSettings(
            backend="sqlite",
            partitions=2,
            sqlite_path=path / "log.db",
            sqlite_tail_bytes=tail_bytes,
            sqlite_loop_share=loop_share,
        )
        self.clock = ShiftedClock()
        self.logs: list[SqliteLog] = []

    async def open(self, settings: LogSettings | None = None) -> SqliteLog:
        for log in self.logs:
            await log.close()
        settings = settings or self.settings
        log = SqliteLog(settings.topics().specs(), settings, self.clock)
        self.logs.append(log)
        await log.start()
        if settings.sqlite_loop_share == 1:
            always_in_the_loop(log)
        return log

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Retention is by age: makes the blocks before ``offset`` old in the file, then lets it run."""
        log = self.logs[-1]
        place = log.partition(topic, partition)

        def age(connection) -> None:  # type: ignore[no-untyped-def]
            connection.execute(
                "UPDATE blocks SET timestamp_ms = 0 WHERE id >= ? AND next_offset <= ? AND id < ?",
                (place.id << 40, offset, (place.id + 1) << 40),
            )

        await log._order(age)
        await log.maintain()


@pytest.fixture(
    params=[(0, 0.1), (64 << 20, 0), (64 << 20, 1)],
    ids=["from-the-file", "by-the-thread", "by-the-loop"],
)
async def bench(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[SqliteBench]:
    bench = SqliteBench(tmp_path, *request.param)
    yield bench
    for log in bench.logs:
        await log.close()


class TestSqliteLog(LogContract):
    pass
