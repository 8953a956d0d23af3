"""A log that lost records, or another log, is noticed at the start. The write-ahead log stays bounded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.backends.sqlite_mark import mark_path, read_mark
from muster_bus.clock import SystemClock
from muster_bus.errors import LogBehind, LogFull
from muster_bus.log import OutRecord
from muster_bus.log_mark import LogMark, check, token_of
from muster_bus.settings import LogSettings
from structlog.testing import capture_logs

RECORDS = 300


def settings(directory: Path, **changes: object) -> LogSettings:
    return LogSettings(partitions=1, sqlite_path=directory / "log.db", **changes)  # type: ignore[arg-type]


async def opened(directory: Path, **changes: object) -> SqliteLog:
    wanted = settings(directory, **changes)
    log = SqliteLog(wanted.topics().specs(), wanted, SystemClock())
    await log.start()
    return log


async def fill(log: SqliteLog, count: int = RECORDS, size: int = 100) -> None:
    writer = await log.writer("test")
    for done in [
        writer.append(OutRecord(log.settings.topics().events, 0, b"k", os.urandom(size))) for _ in range(count)
    ]:
        await done
    await writer.close()


@pytest.fixture
async def killed(tmp_path: Path) -> Path:
    """The directory of a log whose process was killed: most records are in the write-ahead log only."""
    alive, data = tmp_path / "alive", tmp_path / "data"
    log = await opened(alive, sqlite_mark_interval_s=600.0)  # (nothing changes while the files are copied)
    await fill(log)
    log._keeper.store()
    shutil.copytree(alive, data)
    await log.close()
    return data


def contents(data: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in data.iterdir() if each.suffix != ".lock"}


def reading(path: Path) -> subprocess.Popen[str]:
    """Another program with a snapshot of the log, until its input ends."""
    command = [sys.executable, "-c", _READER, str(path)]
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    assert reader.stdout.readline()
    return reader


def without_wal(data: Path) -> None:
    (data / "log.db-wal").unlink()
    (data / "log.db-shm").unlink()


def without_log(data: Path) -> None:
    (data / "log.db").unlink()


def with_an_empty_log(data: Path) -> None:
    (data / "log.db").write_bytes(b"")


def with_none_of_them(data: Path) -> None:
    for name in ("log.db", "log.db-wal", "log.db-shm"):
        (data / name).unlink()


@pytest.mark.parametrize("lose", [without_wal, without_log, with_an_empty_log, with_none_of_them])
async def test_a_log_that_lost_records_does_not_start_until_the_loss_is_accepted(
    killed: Path, lose: Callable[[Path], None]
) -> None:
    lose(killed)
    before = contents(killed)
    with pytest.raises(LogBehind) as refused:
        await opened(killed)
    assert "log.db.mark" in str(refused.value)
    assert f"log.accept_loss={refused.value.token}" in str(refused.value)
    assert contents(killed) == before
    with pytest.raises(LogBehind):
        await opened(killed, accept_loss="true")
    with capture_logs() as lines:
        log = await opened(killed, accept_loss=refused.value.token)
    assert log.loss
    assert [line["log_level"] for line in lines if line["event"] == "log.loss_accepted"] == ["warning"]
    await fill(log, 3)
    await log.close()
    again = await opened(killed)
    assert again.loss, "the loss holds until the RMs' histories have it"
    await again.mark_loss_reported()
    await again.close()
    again = await opened(killed, accept_loss=refused.value.token)
    assert not again.loss
    await again.close()


async def test_a_log_that_lost_nothing_starts_after_a_kill_and_after_a_stop(killed: Path) -> None:
    for _ in range(2):
        log = await opened(killed)
        mark = await log.mark()
        assert mark.records == RECORDS
        assert not log.loss
        await log.close()
    written = read_mark(killed / "log.db").mark
    assert written is not None
    assert written == LogMark(mark.log_id, {"si.events.v1/0": RECORDS}, written.heads)


async def test_another_log_in_its_place_is_noticed(killed: Path, tmp_path: Path) -> None:
    other = await opened(tmp_path / "other")
    await fill(other, 2 * RECORDS)
    await other.close()
    for name in ("log.db-wal", "log.db-shm"):
        (killed / name).unlink()
    shutil.copy(tmp_path / "other" / "log.db", killed / "log.db")
    with pytest.raises(LogBehind, match="another log"):
        await opened(killed)


async def test_a_log_of_the_version_before_gets_an_identity(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    await fill(log, 5)
    await log.close()
    mark_path(tmp_path / "log.db").unlink()
    with sqlite3.connect(tmp_path / "log.db") as connection:
        connection.execute("DROP TABLE identity")
    connection.close()
    log = await opened(tmp_path)
    mark = await log.mark()
    await log.close()
    assert mark.log_id
    written = read_mark(tmp_path / "log.db").mark
    assert written is not None
    assert written == LogMark(mark.log_id, {"si.events.v1/0": 5}, written.heads)


async def test_an_unreadable_side_file_is_replaced_with_a_warning(killed: Path) -> None:
    mark_path(killed / "log.db").write_bytes(b"\x00garbage")
    with capture_logs() as lines:
        log = await opened(killed)
    assert any(line["event"] == "log.mark_unreadable" for line in lines)
    await log.close()
    assert read_mark(killed / "log.db").mark is not None


async def test_without_a_sync_for_each_commit_the_mark_waits_for_a_checkpoint(tmp_path: Path) -> None:
    log = await opened(tmp_path, sqlite_synchronous="normal")
    await fill(log)
    assert (await log.mark()).records == 0
    await log._order(lambda connection: log._committer.finish_checkpoint() if connection.in_transaction else None)
    log._committer.finish_checkpoint()
    assert (await log.mark()).records == RECORDS
    await log.close()


def test_nobody_who_knows_nothing_refuses() -> None:
    present = LogMark("a", {"t/0": 3})
    assert check("log", present, "sessions", None, "") == ""
    assert check("log", present, "sessions", LogMark("b", {"t/0": 0}), "") == ""
    assert check("log", present, "sessions", LogMark("a", {"t/0": 3}), "") == ""


def test_a_message_says_what_is_missing() -> None:
    known = LogMark("a", {"t/0": 10, "t/1": 5, "u/0": 2})
    with pytest.raises(LogBehind, match=r"at least 8 records are missing \(t/0 ends at 4 instead of 10, u/0 ends at 0"):
        check("log /d", LogMark("a", {"t/0": 4, "t/1": 9}), "the session store", known, "")
    assert "8 records" in check("log /d", LogMark("a", {"t/0": 4, "t/1": 9}), "x", known, token_of(known))


# ---- the write-ahead log ------------------------------------------------------------------------------------------

_READER = """
import sqlite3, sys
connection = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, isolation_level=None)
connection.execute("BEGIN")
print(connection.execute("SELECT count(*) FROM blocks").fetchone()[0], flush=True)
sys.stdin.readline()
"""


_SMALL_LIMITS = {
    "_WAL_BYTES": 1 << 20,
    "_WAL_LIMIT_BYTES": 4 << 20,
    "_WAL_FILE_BYTES_MAX": 6 << 20,
    "_READERS_PAUSE_S": 0.0,
}


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _SMALL_LIMITS.items():
        monkeypatch.setattr(f"muster_bus.backends.sqlite_commits.{name}", value)


@pytest.mark.usefixtures("small_limits")
async def test_the_write_ahead_log_is_bounded_beside_readers_that_never_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # (On a busy machine a reader of 20 ms may keep its snapshot for longer than Muster's own ones ever do.)
    monkeypatch.setattr("muster_bus.backends.sqlite_commits._READERS_WAIT_MS", 20_000)
    log = await opened(tmp_path)
    wal = tmp_path / "log.db-wal"
    stopped = threading.Event()

    def read_on() -> None:
        with contextlib.closing(sqlite3.connect(log.path, isolation_level=None)) as connection:
            while not stopped.is_set():
                connection.execute("BEGIN")
                connection.execute("SELECT count(*) FROM topics").fetchone()
                stopped.wait(0.02)
                connection.execute("ROLLBACK")

    largest = 0
    with ThreadPoolExecutor(4) as threads:
        readers = [threads.submit(read_on) for _ in range(4)]  # one of them has a snapshot at each moment
        for _ in range(200):
            await fill(log, 1, 250_000)
            largest = max(largest, wal.stat().st_size)
        stopped.set()
        for each in readers:
            each.result()
    await log.close()
    assert largest < 8 << 20


@pytest.mark.usefixtures("small_limits")
async def test_a_reader_that_does_not_end_is_told_and_its_end_gives_the_room_back(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    await fill(log, 1)
    reader = await asyncio.to_thread(reading, log.path)
    for _ in range(30):
        await fill(log, 1, 250_000)
    assert log._committer.blocked_wal_bytes > 4 << 20
    assert any("another program" in problem for problem in log.problems())
    reader.communicate("\n")
    for _ in range(40):
        await fill(log, 1, 250_000)
    assert not log.problems()
    assert (tmp_path / "log.db-wal").stat().st_size < 8 << 20
    await log.close()


# ---- a full disk --------------------------------------------------------------------------------------------------


async def test_a_full_log_refuses_reads_on_and_finds_room_by_itself(tmp_path: Path) -> None:
    log = await opened(tmp_path, sqlite_mark_interval_s=0.05, sqlite_tail_bytes=0)
    await fill(log, 3)
    assert log.refusal() == ""
    (pages,) = log._writing.execute("PRAGMA page_count").fetchone()
    await log._order(lambda connection: connection.execute(f"PRAGMA max_page_count = {pages}"))
    with pytest.raises(LogFull, match="the disk is full; this transaction was not written"):
        await fill(log, 1, 1 << 16)
    assert "is full" in log.refusal()
    reader = await log.reader(log.settings.topics().events, 0)
    assert len(await reader.read(10, 0)) == 3
    log._writing.execute("PRAGMA max_page_count = 1000000")
    async with asyncio.timeout(60):
        while log.refusal():  # noqa: ASYNC110 - maintenance looks for room
            await asyncio.sleep(0.02)
    await fill(log, 1, 1 << 16)
    await log.close()
