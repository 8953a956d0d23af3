"""What is missing in an embedded log, or changed, is found: by a start what it relies on, by a check all."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from manual_clock import ManualClock
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.backends.sqlite_backup import verify_log
from muster_bus.backends.sqlite_wal import unread_commits
from muster_bus.clock import SystemClock
from muster_bus.errors import LogDamaged
from muster_bus.log import OutRecord
from muster_bus.settings import LogSettings
from muster_proto.muster.bus.v1.envelope_pb2 import ResponseEnvelope
from unit.bus.toy import read_all

COMMITS = 12
TOPICS = LogSettings(partitions=1).topics()
KEPT_TOPICS = [TOPICS.state, TOPICS.requests, TOPICS.responses, TOPICS.events]
Make = Callable[[Path], Awaitable[Path]]
CHAINED = ("chains", "chain_claims", "chain_heads", "chain_gaps")


async def opened(path: Path, clock: ManualClock | None = None, **changes: object) -> SqliteLog:
    settings = LogSettings(partitions=1, sqlite_path=path / "log.db", sqlite_maintenance_interval_s=3600.0, **changes)  # type: ignore[arg-type]
    log = SqliteLog(settings.topics().specs(), settings, clock or SystemClock())
    await log.start()
    return log


async def fill(log: SqliteLog, commits: Sequence[int] = range(COMMITS)) -> None:
    """Each commit has a request, a state of some keys, a response and an event."""
    writer = await log.writer("test")
    owner = await log.take_over("group", TOPICS.requests, 0)
    for number in commits:
        position = await writer.append(OutRecord(TOPICS.requests, 0, b"rm", b"%d" % number)) + 1
        keys = [b"rm/alloc/%d" % (number % 4), b"rm/app/%d" % number]
        states = [OutRecord(TOPICS.state, 0, key, b"%d" % number) for key in keys]
        headers = (("id", b"%d" % number), ("rm", b"rm"), ("instance", b"i"))
        others = [
            OutRecord(TOPICS.responses, 0, b"rm", b"%d" % number),
            OutRecord(TOPICS.events, 0, b"rm", b"%d" % number, headers),
        ]
        await owner.commit([*states, *others], position)


async def a_stopped_log(path: Path) -> Path:
    log = await opened(path)
    await fill(log)
    await log.close()
    return path


async def a_killed_log(path: Path) -> Path:
    """Its newest commits are after the last note."""
    log = await opened(path / "live", sqlite_mark_interval_s=3600.0)
    await fill(log)
    shutil.copytree(path / "live", path / "killed")
    await log.close()
    return path / "killed"


LOGS = pytest.mark.parametrize("make", [a_stopped_log, a_killed_log])


@pytest.fixture
async def stopped(tmp_path: Path) -> Path:
    return await a_stopped_log(tmp_path / "stopped")


@pytest.fixture
async def killed(tmp_path: Path) -> Path:
    return await a_killed_log(tmp_path)


def change(path: Path, statement: str, *arguments: object) -> None:
    with contextlib.closing(sqlite3.connect(path / "log.db", isolation_level=None)) as connection:
        assert connection.execute(statement, arguments).rowcount > 0, statement


def ids(path: Path, topic: str) -> list[int]:
    with contextlib.closing(sqlite3.connect(path / "log.db")) as connection:
        rows = connection.execute(
            "SELECT b.id FROM partitions p JOIN blocks b ON b.id >> 40 = p.id WHERE p.topic = ? ORDER BY b.id", (topic,)
        ).fetchall()
    return [id_ for (id_,) in rows]


async def refusal(path: Path) -> LogDamaged:
    """With which a start refuses the log. It changes nothing."""
    before = (path / "log.db").read_bytes()
    with pytest.raises(LogDamaged) as caught:
        await opened(path)
    assert (path / "log.db").read_bytes() == before
    assert f"muster repair --data-dir {path}" in str(caught.value)
    return caught.value


@LOGS
@pytest.mark.parametrize("which", [0, 5, -1])
async def test_a_missing_block_of_the_state_is_refused(make: Make, which: int, tmp_path: Path) -> None:
    path = await make(tmp_path)
    change(path, "DELETE FROM blocks WHERE id = ?", ids(path, TOPICS.state)[which])
    error = await refusal(path)
    assert "missing" in str(error) or "instead of" in str(error)
    assert verify_log(path / "log.db").problems


@LOGS
@pytest.mark.parametrize("topic", KEPT_TOPICS)
async def test_the_newest_block_of_each_topic_is_missed(make: Make, topic: str, tmp_path: Path) -> None:
    path = await make(tmp_path)
    change(path, "DELETE FROM blocks WHERE id = ?", ids(path, topic)[-1])
    await refusal(path)


async def test_each_block_is_missed_by_a_check(stopped: Path) -> None:
    whole = (stopped / "log.db").read_bytes()
    for topic in KEPT_TOPICS:
        for row in ids(stopped, topic):
            change(stopped, "DELETE FROM blocks WHERE id = ?", row)
            problems = verify_log(stopped / "log.db").problems
            assert problems, (topic, row)
            assert topic in problems[0]
            (stopped / "log.db").write_bytes(whole)


@pytest.mark.parametrize("topic", KEPT_TOPICS)
async def test_the_body_of_another_block_is_refused(stopped: Path, topic: str) -> None:
    """By the start where decisions need it, else by whoever reads it."""
    rows = ids(stopped, topic)
    change(stopped, "UPDATE blocks SET body = (SELECT body FROM blocks WHERE id = ?) WHERE id = ?", rows[4], rows[-1])
    assert topic in verify_log(stopped / "log.db").problems[0]
    if topic in (TOPICS.state, TOPICS.requests):
        error = await refusal(stopped)
    else:
        log = await opened(stopped)
        reader = await log.reader(topic, 0)
        assert len(await reader.read(1_000, 0.1)) == COMMITS - 1
        with pytest.raises(LogDamaged) as caught:
            await reader.read(1_000, 0.1)
        error = caught.value
        await reader.close()
        await log.close()
    assert (error.topic, error.next_offset) == (topic, {TOPICS.state: 2}.get(topic, 1) * COMMITS)


COLUMNS = (
    ("blocks", ("next_offset", "timestamp_ms", "previous", "digest"), ("+ 1", "- 1", "+ (1 << 30)")),
    ("partitions", ("first_offset", "cleaned_to", "kept"), ("+ 1", "+ 64")),
    ("claims", ("position",), ("- 1", "- 5", "+ 1", "+ 64")),
    ("topics", ("partitions",), ("+ 1", "- 1")),
    ("chains", ("next_offset", "head", "blocks", "total", "unchained", "first_offset"), ("+ 1",)),
    ("chain_claims", ("position", "epoch"), ("+ 1",)),
    ("chain_heads", ("heads",), ("+ 1",)),
)


async def test_a_check_finds_each_changed_column(stopped: Path) -> None:
    whole = (stopped / "log.db").read_bytes()
    for table, columns, changes in COLUMNS:
        for column in columns:
            for by in changes:
                statement = f"UPDATE {table} SET {column} = {column} {by}"
                change(
                    stopped, f"{statement} WHERE rowid = (SELECT max(rowid) FROM {table} WHERE {column} IS NOT NULL)"
                )
                assert verify_log(stopped / "log.db").problems, statement
                (stopped / "log.db").write_bytes(whole)


async def test_a_first_offset_that_is_too_high_is_refused(stopped: Path) -> None:
    for topic in KEPT_TOPICS:
        shutil.copytree(stopped, copy := stopped.with_name(f"copy-{topic}"))
        change(copy, "UPDATE partitions SET first_offset = 5 WHERE topic = ?", topic)
        await refusal(copy)


async def test_a_kill_after_any_commit_is_no_break(tmp_path: Path) -> None:
    log = await opened(tmp_path / "live", sqlite_mark_interval_s=3600.0)
    for number in range(4):
        await fill(log, range(number * 3, number * 3 + 3))
        shutil.copytree(tmp_path / "live", copy := tmp_path / f"copy-{number}")
        assert verify_log(copy / "log.db").problems == []
        again = await opened(copy)
        assert len(await read_all(again, TOPICS.responses)) == number * 3 + 3
        await fill(again, range(number * 3 + 3, COMMITS))
        await again.close()
        assert verify_log(copy / "log.db").problems == []
    await log.close()


async def test_retention_and_compaction_keep_the_note(tmp_path: Path) -> None:
    clock = ManualClock()
    log = await opened(tmp_path, clock, requests_retention_s=100.0, sqlite_compaction_min_records=1)
    for turn in range(3):
        await fill(log, range(turn * COMMITS, (turn + 1) * COMMITS))
        clock.advance(70)
        await log.maintain()
        assert verify_log(tmp_path / "log.db").problems == []
    reader = await log.reader(TOPICS.requests, 0)
    assert await reader.first_offset() > 0
    await log.close()
    assert len(ids(tmp_path, TOPICS.state)) < 3 * COMMITS
    await (await opened(tmp_path)).close()
    assert verify_log(tmp_path / "log.db").problems == []


def as_an_older_version_wrote_it(path: Path) -> None:
    """Takes all away that a version without chains does not write."""
    with contextlib.closing(sqlite3.connect(path / "log.db", isolation_level=None)) as connection:
        for table in CHAINED:
            connection.execute(f"DROP TABLE {table}")
        for column in ("previous", "heads", "digest"):
            connection.execute(f"ALTER TABLE blocks DROP COLUMN {column}")


async def test_a_log_of_an_older_version_gains_its_chain(stopped: Path) -> None:
    as_an_older_version_wrote_it(stopped)
    assert verify_log(stopped / "log.db").problems == []
    log = await opened(stopped)
    await fill(log, range(COMMITS, 2 * COMMITS))
    await log.close()
    assert verify_log(stopped / "log.db").problems == []
    rows = ids(stopped, TOPICS.state)
    for row in (rows[3], rows[-3]):  # of the older version, and of this one
        shutil.copytree(stopped, copy := stopped.with_name(f"without-{row}"))
        change(copy, "DELETE FROM blocks WHERE id = ?", row)
        await refusal(copy)


async def test_an_older_version_may_use_the_log_in_between(stopped: Path) -> None:
    """It takes over, appends, retains and rewrites without digests, and knows no note."""
    for topic in (TOPICS.state, TOPICS.responses):
        last = ids(stopped, topic)[-1]
        with contextlib.closing(sqlite3.connect(stopped / "log.db", isolation_level=None)) as connection:
            connection.execute("UPDATE claims SET epoch = epoch + 1")
            connection.execute(
                "INSERT INTO blocks (id, next_offset, timestamp_ms, codec, body, claim, position) "
                "SELECT next_offset | (id >> 40 << 40), next_offset + (next_offset - (id & ((1 << 40) - 1))), "
                "timestamp_ms, codec, body, claim, position FROM blocks WHERE id = ?",
                (last,),
            )
    first, second, *_ = ids(stopped, TOPICS.state)
    change(stopped, "DELETE FROM blocks WHERE id = ?", first)
    change(stopped, "UPDATE blocks SET previous = NULL, heads = NULL, digest = NULL WHERE id = ?", second)
    change(stopped, "DELETE FROM blocks WHERE id = ?", ids(stopped, TOPICS.requests)[0])
    change(stopped, "UPDATE partitions SET first_offset = 1 WHERE topic = ?", TOPICS.requests)
    change(stopped, "UPDATE partitions SET cleaned_to = 4, kept = 2 WHERE topic = ?", TOPICS.state)
    assert verify_log(stopped / "log.db").problems == []
    log = await opened(stopped)
    await fill(log, range(COMMITS, 2 * COMMITS))
    await log.close()
    assert verify_log(stopped / "log.db").problems == []
    change(stopped, "DELETE FROM blocks WHERE id = ?", ids(stopped, TOPICS.state)[4])
    await refusal(stopped)


async def test_a_gap_in_the_ids_of_events_is_found(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    await fill(log, [0, 1, 2, 5, 6])
    await log.close()
    (problem,) = verify_log(tmp_path / "log.db").problems
    assert "an event of 'rm' has the id 5 after 2" in problem


async def test_a_gap_in_the_numbers_of_responses_is_found(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    owner = await log.take_over("group", TOPICS.requests, 0)
    for rm_id, number in [("one", 1), ("two", 7), ("one", 2), ("one", 5), ("two", 8), ("one", 1)]:
        value = ResponseEnvelope(rm_id=rm_id, sequence=number, response=b"r").SerializeToString()
        await owner.commit([OutRecord(TOPICS.responses, 0, rm_id.encode(), value)], 0)
    await log.close()
    (problem,) = verify_log(tmp_path / "log.db").problems
    assert f"{TOPICS.responses}[0] from 3 to 3" in problem
    assert "a response to 'one' has the number 5 after 2" in problem


async def test_commits_behind_a_damaged_frame_are_missed(killed: Path) -> None:
    ahead = killed / "log.db-wal"
    whole = ahead.read_bytes()
    frame = 24 + 8192
    frames = (len(whole) - 32) // frame
    assert unread_commits(killed / "log.db", interrupted=False) is None
    for at in range(frames // 3, frames, 7):
        damaged = bytearray(whole)
        damaged[32 + at * frame + 5_000] ^= 1
        ahead.write_bytes(damaged)
        unread = unread_commits(killed / "log.db", interrupted=False)
        assert unread is not None
        assert unread.frame <= at + 1
        if unread.commits == 1:  # the last commit, which a power failure may have interrupted
            assert unread_commits(killed / "log.db", interrupted=True) is None
        assert any("log.db-wal is damaged" in problem for problem in verify_log(killed / "log.db").problems)
        await refusal(killed)
    ahead.write_bytes(whole[: len(whole) - 100])  # a commit that was interrupted
    assert unread_commits(killed / "log.db", interrupted=True) is None


async def test_a_tail_of_another_history_is_refused(stopped: Path, tmp_path: Path) -> None:
    """The log ends where the side file says, with other records."""
    other = tmp_path / "other"
    shutil.copytree(stopped, other, ignore=shutil.ignore_patterns("other"))
    mark = (stopped / "log.db.mark").read_text()
    with contextlib.closing(sqlite3.connect(other / "log.db")) as connection:
        (place,) = connection.execute("SELECT id FROM partitions WHERE topic = ?", (TOPICS.responses,)).fetchone()
        (head,) = connection.execute("SELECT head FROM chains WHERE id = ?", (place,)).fetchone()
    assert str(head) in mark
    (other / "log.db.mark").write_text(mark.replace(str(head), str(head ^ 1)))
    error = await refusal(other)
    assert "log.db.mark" in str(error)
    assert error.topic == TOPICS.responses
