"""The embedded log's own promises: one file, one process, no loss over a kill, bounded growth."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from contract.test_log_sqlite import always_in_the_loop
from hypothesis import example, given, settings
from hypothesis import strategies as st
from manual_clock import ManualClock
from muster_bus.backends import blocks
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.backends.sqlite_schema import SCHEMA_VERSION
from muster_bus.backends.sqlite_work_items import TimeBudget
from muster_bus.clock import SystemClock
from muster_bus.errors import LogDamaged, LogError, LogIncompatible, LogUnavailable, OffsetOutOfRange, TopicMismatch
from muster_bus.log import OutRecord, Record
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics
from unit.bus.sqlite_child import settings_for
from unit.bus.toy import read_all

CHILD = Path(__file__).with_name("sqlite_child.py")


def _spawn(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, str(CHILD), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def _settings(tmp_path: Path, **changes: object) -> LogSettings:
    return LogSettings(backend="sqlite", partitions=1, sqlite_path=tmp_path / "log.db", **changes)  # type: ignore[arg-type]


async def _open(settings: LogSettings, clock: ManualClock | SystemClock | None = None) -> SqliteLog:
    log = SqliteLog(settings.topics().specs(), settings, clock or SystemClock())
    await log.start()
    return log


# ---- death --------------------------------------------------------------------------------------------------------


async def test_kill_in_the_middle_tears_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "log.db")
    chance = random.Random(1)
    told = 0
    for _ in range(6):
        child = _spawn("write", path)
        assert child.stdout is not None
        try:
            target = told + chance.randrange(20, 200)
            while told < target:
                line = child.stdout.readline()
                assert line, child.communicate()[1]
                told = int(line.split()[-1]) if "log." not in line else told
        finally:
            child.send_signal(signal.SIGKILL)
            rest, _ = child.communicate()
        told = max([told, *(int(line) for line in rest.splitlines()[:-1] if line.isdigit())])
        told = await _check_after_kill(path, told)


async def _check_after_kill(path: str, told: int) -> int:
    """Check that no committed record is lost and that position and state fit the output. Return the position."""
    log = await _open(settings_for(path).model_copy(update={"sqlite_maintenance_interval_s": 600.0}))
    topics = settings_for(path).topics()
    try:
        position = await (await log.take_over("group", topics.requests, 0)).committed()
        assert position is not None
        assert position >= told
        for topic in (topics.responses, topics.events):
            assert [int(record.value or b"") for record in await read_all(log, topic)] == list(range(position))
        expected: dict[bytes, bytes] = {}
        for number in range(position):
            expected |= {b"key-%d" % (number * key % 23): b"%d" % number for key in range(20)}
        folded = {record.key: record.value for record in await read_all(log, topics.state)}
        assert folded == expected
    finally:
        await log.close()
    return position


def test_a_full_disk_loses_nothing_and_the_log_goes_on_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    child = _spawn("fill", str(path), str(1 << 20))
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    last = output.splitlines()[-1]
    committed, appended = (int(word) for word in last.split()[:2])
    assert committed > 20
    assert str(path) in last
    assert "this transaction was not written" in last

    async def check() -> None:
        log = await _open(settings_for(str(path)))
        topics = settings_for(str(path)).topics()
        assert len(await read_all(log, topics.responses)) == committed
        assert len(await read_all(log, topics.requests)) == appended
        assert await (await log.take_over("group", topics.requests, 0)).committed() == committed
        await log.close()

    asyncio.run(check())


# ---- commits in the event loop --------------------------------------------------------------------------------------


def _threads_of(log: SqliteLog) -> set[str]:
    """Collects the names of the threads that run statements on the log's writing connection from now on."""
    names: set[str] = set()
    log._writing.set_trace_callback(lambda _: names.add(threading.current_thread().name))
    return names


async def _is_made_in_the_loop(threads: set[str], commit: Callable[[], Awaitable[object]]) -> None:
    """Commits until the loop did it alone. (The thread lets go of the connection a moment after its last work.)"""
    async with asyncio.timeout(60):
        while True:
            threads.clear()
            await commit()
            if threads == {threading.current_thread().name}:
                return


async def test_a_small_commit_is_made_in_the_loop(tmp_path: Path) -> None:
    log = await _open(_settings(tmp_path))
    always_in_the_loop(log)
    topics = log.settings.topics()
    threads = _threads_of(log)
    writer = await log.writer("test")
    owner = await log.take_over("group", topics.requests, 0)
    await _is_made_in_the_loop(threads, lambda: writer.append(OutRecord(topics.requests, 0, b"k", b"v")))
    await _is_made_in_the_loop(threads, lambda: owner.commit([OutRecord(topics.responses, 0, b"k", b"v")], 1))
    threads.clear()
    await writer.append(OutRecord(topics.requests, 0, b"k", bytes(100_000)))
    assert threads == {"muster-log-writer"}, "a large unit goes to the thread"
    assert await owner.committed() == 1
    await log.close()


async def test_no_commit_is_made_in_the_loop_without_a_share(tmp_path: Path) -> None:
    log = await _open(_settings(tmp_path, sqlite_loop_share=0))
    threads = _threads_of(log)
    writer = await log.writer("test")
    for _ in range(3):
        await writer.append(OutRecord(log.settings.topics().requests, 0, b"k", b"v"))
    assert threads == {"muster-log-writer"}
    await log.close()


async def test_the_loop_waits_for_no_commit_of_the_thread_and_overtakes_none(tmp_path: Path) -> None:
    log = await _open(_settings(tmp_path))
    always_in_the_loop(log)
    topics = log.settings.topics()
    writer = await log.writer("test")
    began, may_end = threading.Event(), threading.Event()

    def hold(_: sqlite3.Connection) -> None:
        began.set()
        assert may_end.wait(60)

    def append() -> asyncio.Future[int]:
        return asyncio.ensure_future(writer.append(OutRecord(topics.requests, 0, b"k", b"v")))

    held = asyncio.create_task(log._order(hold))
    assert await asyncio.to_thread(began.wait, 60)
    appends = []
    for _ in range(3):  # each is a unit of its own
        appends.append(append())
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not any(append.done() for append in appends)
    may_end.set()
    await held
    assert await asyncio.gather(*appends, append()) == [0, 1, 2, 3]
    await _is_made_in_the_loop(_threads_of(log), append)
    records = await read_all(log, topics.requests)
    assert [record.offset for record in records] == list(range(len(records)))
    await log.close()


async def test_a_defect_of_a_commit_in_the_loop_ends_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await _open(_settings(tmp_path, sqlite_maintenance_interval_s=600.0))
    always_in_the_loop(log)
    owner = await log.take_over("group", log.settings.topics().requests, 0)
    await _is_made_in_the_loop(_threads_of(log), lambda: owner.commit([], 1))

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(log._committer, "_execute", fail)
    with pytest.raises(ZeroDivisionError):
        await owner.commit([OutRecord(log.settings.topics().responses, 0, b"k", b"v")], 1)
    await asyncio.sleep(0)
    with pytest.raises(LogUnavailable, match="its writer failed"):
        log.check_open()
    await log.close()


def test_an_allowance_is_a_share_of_the_time() -> None:
    allowance = TimeBudget(0.1, 0.01, now_s=0.0)
    assert allowance.has_some(0.0)
    allowance.spend(0.5)  # a disk that was slow once
    assert not allowance.has_some(4.8)
    assert allowance.has_some(5.0)
    allowance.spend(0.011)
    assert allowance.has_some(1_000.0)
    allowance.spend(0.0099)
    assert allowance.has_some(1_000.0), "no more is saved than the limit"
    allowance.spend(0.0002)
    assert not allowance.has_some(1_000.0)
    assert not TimeBudget(0.0, 0.01, now_s=0.0).has_some(1_000.0)


# ---- opening ------------------------------------------------------------------------------------------------------


async def test_a_second_process_gets_the_error_that_the_file_is_in_use(tmp_path: Path) -> None:
    log = await _open(settings_for(str(tmp_path / "log.db")))
    child = _spawn("write", str(tmp_path / "log.db"))
    _, errors = child.communicate(timeout=60)
    assert child.returncode != 0
    assert "LogUnavailable" in errors
    assert str(tmp_path / "log.db") in errors
    with pytest.raises(LogUnavailable, match="in use"):
        await _open(settings_for(str(tmp_path / "log.db")))
    assert await log.healthy()  # the refused ones did no harm
    await log.close()
    await (await _open(settings_for(str(tmp_path / "log.db")))).close()


async def test_another_schema_or_program_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    await (await _open(settings)).close()
    with sqlite3.connect(settings.sqlite_path) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(LogIncompatible, match=f"schema {SCHEMA_VERSION + 1}"):
        await _open(settings)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    before = other.read_bytes()
    with pytest.raises(LogIncompatible, match="not a log of Muster"):
        await _open(settings.model_copy(update={"sqlite_path": other}))
    assert other.read_bytes() == before


async def test_a_topic_of_another_kind_is_refused(tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    await (await _open(settings)).close()
    specs = [
        spec.__class__(spec.name, spec.partitions, "delete", 1000) if spec.cleanup == "compact" else spec
        for spec in settings.topics().specs()
    ]
    with pytest.raises(TopicMismatch, match="compact"):
        await SqliteLog(specs, settings, SystemClock()).start()


async def test_a_file_that_is_no_database_is_refused_by_name(tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    settings.sqlite_path.write_bytes(b"this is not a database, but long enough to be taken for one" * 100)
    with pytest.raises(LogUnavailable, match=r"log\.db"):
        await _open(settings)
    with pytest.raises(LogUnavailable, match="cannot be opened"):
        await _open(settings.model_copy(update={"sqlite_path": tmp_path / "log.db" / "below-a-file"}))


async def test_a_damaged_file_is_a_clear_error(tmp_path: Path) -> None:
    settings = _settings(tmp_path, sqlite_tail_bytes=0)
    topics = settings.topics()
    log = await _open(settings)
    owner = await log.take_over("group", topics.requests, 0)
    chance = random.Random(1)
    for number in range(50):
        await owner.commit([OutRecord(topics.events, 0, b"k", chance.randbytes(20_000))], number)
    await log.close()
    with settings.sqlite_path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        for offset in range(size // 4, size, 8192):
            file.seek(offset)
            file.write(b"\xa5" * 4096)

    async def use() -> None:
        log = await _open(settings)
        try:
            await read_all(log, topics.events)
        finally:
            await log.close()

    with pytest.raises(LogUnavailable, match=r"log\.db"):
        await use()


# ---- retention and compaction -------------------------------------------------------------------------------------


async def test_retention_deletes_what_is_old_and_remembers_where_it_was(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = _settings(tmp_path, requests_retention_s=100.0)
    topics = settings.topics()
    log = await _open(settings, clock)
    writer = await log.writer("test")
    slow = await log.reader(topics.requests, 0)
    for age in range(4):
        for number in range(10):
            await writer.append(OutRecord(topics.requests, 0, b"k", b"%d" % (age * 10 + number)))
        clock.advance(50)
    await log.maintain()
    with pytest.raises(OffsetOutOfRange) as caught:
        await slow.read(1, 0)
    assert (caught.value.first, caught.value.end) == (20, 40)
    assert [int(record.value or b"") for record in await read_all(log, topics.requests)] == list(range(20, 40))
    clock.advance(1000)
    await log.maintain()
    assert await read_all(log, topics.requests) == []
    await log.close()
    log = await _open(settings, clock)  # offsets go on although no record with them is left
    reader = await log.reader(topics.requests, 0)
    assert await reader.first_offset() == await reader.end_offset() == 40
    assert await (await log.writer("test")).append(OutRecord(topics.requests, 0, b"k", b"v")) == 40
    await log.close()


async def test_a_topic_can_be_compacted_and_lose_what_is_old_as_well(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = _settings(tmp_path, usage_retention_s=100.0, sqlite_compaction_min_records=10)
    topics = settings.topics()
    log = await _open(settings, clock)
    writer = await log.writer("test")
    for number in range(4):
        for key in (b"same", b"k%d" % number):
            await writer.append(OutRecord(topics.usage, 0, key, b"%d" % number * 300_000))  # a block each
        clock.advance(50)
    await log.maintain()
    assert {record.key for record in await read_all(log, topics.usage)} == {b"same", b"k2", b"k3"}
    clock.advance(1000)
    await log.maintain()
    assert await read_all(log, topics.usage) == []
    await log.close()


async def test_compaction_bounds_the_file(tmp_path: Path) -> None:
    settings = _settings(tmp_path, sqlite_compaction_min_records=500)
    topics = settings.topics()
    log = await _open(settings)
    owner = await log.take_over("group", topics.requests, 0)
    chance = random.Random(1)
    sizes = []
    for _ in range(12):
        for number in range(20):
            records = [OutRecord(topics.state, 0, b"key-%d" % key, chance.randbytes(100)) for key in range(50)]
            await owner.commit(records, number)
        await log.maintain()
        sizes.append(_stored_bytes(settings))
    assert max(sizes) < 60 * 12_000, "about 50 keys of 100 bytes, and the newest blocks"
    newest = {record.key: record.value for record in records}
    await log.close()
    log = await _open(settings)
    read = await read_all(log, topics.state)
    assert len(read) < 1500
    assert {record.key: record.value for record in read} == newest
    await log.close()


def _stored_bytes(settings: LogSettings) -> int:
    connection = sqlite3.connect(f"file:{settings.sqlite_path}?mode=ro", uri=True)
    try:
        return int(connection.execute("SELECT coalesce(sum(length(body)), 0) FROM blocks").fetchone()[0])
    finally:
        connection.close()


_KEYS = st.integers(0, 3)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(st.tuples(_KEYS, st.booleans()), min_size=1, max_size=12)),
        st.tuples(st.just("age"), st.integers(0, 2000)),
        st.tuples(st.just("maintain"), st.none()),
        st.tuples(st.just("reopen"), st.none()),
    ),
    min_size=1,
    max_size=25,
)


@example(  # a tombstone may go only after the record that it supersedes
    steps=[("write", [(0, False), (0, True)]), ("age", 1500), ("write", [(1, False)]), ("maintain", None)]
)
@example(  # the same over two passes
    steps=[
        ("write", [(0, False), (1, False)]),
        ("write", [(0, True)]),
        ("write", [(1, False)]),
        ("maintain", None),
        ("age", 1500),
        ("write", [(2, False)]),
        ("maintain", None),
        ("reopen", None),
    ]
)
@settings(max_examples=60)
@given(steps=_STEPS)
def test_compaction_keeps_the_newest_of_each_key(steps: list[tuple[str, object]]) -> None:
    """Compared with a dictionary: compactions and restarts do not change a fold's result.

    A fold from any position never brings back a deleted key, nor an older value after a newer one.
    """
    directory = Path(tempfile.mkdtemp())
    try:
        asyncio.run(_run_steps(directory, steps))
    finally:
        shutil.rmtree(directory)


async def _run_steps(directory: Path, steps: list[tuple[str, object]]) -> None:
    settings = _settings(
        directory, sqlite_compaction_min_records=1, sqlite_tombstone_grace_s=1000.0, sqlite_tail_bytes=0,
        sqlite_synchronous="normal", sqlite_maintenance_interval_s=600.0,
    )  # fmt: skip
    topics, clock = settings.topics(), ManualClock()
    written: list[tuple[int, bytes, bytes | None]] = []
    log = await _open(settings, clock)
    for number, (step, argument) in enumerate(steps):
        if step == "write":
            owner = await log.take_over("group", topics.requests, 0)
            assert isinstance(argument, list)
            records = []
            for key, is_gone in argument:
                value = None if is_gone else b"%d/%d" % (number, len(written))
                written.append((len(written), b"%d" % key, value))
                records.append(OutRecord(topics.state, 0, b"%d" % key, value))
            await owner.commit(records, number)
        elif step == "age":
            assert isinstance(argument, int)
            clock.advance(argument)
        elif step == "maintain":
            await log.maintain()
        else:
            await log.close()
            log = await _open(settings, clock)
        await _check_fold(log, topics, written)
    await log.close()


async def _check_fold(log: SqliteLog, topics: Topics, written: list[tuple[int, bytes, bytes | None]]) -> None:
    read: list[Record] = await read_all(log, topics.state)
    assert {(r.offset, r.key, r.value) for r in read} <= set(written)
    offsets = [record.offset for record in read]
    assert offsets == sorted(set(offsets))
    expected = {key: value for _, key, value in written}
    folded = {record.key: record.value for record in read}
    alive = {key: value for key, value in expected.items() if value is not None}
    assert {key: value for key, value in folded.items() if value is not None} == alive
    reader = await log.reader(topics.state, 0)
    assert await reader.end_offset() == len(written)


async def test_a_compaction_that_is_cut_short_by_closing_is_not_taken_for_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _settings(tmp_path, sqlite_compaction_min_records=1)
    topics = settings.topics()
    log = await _open(settings)
    writer = await log.writer("test")
    for number in range(5):
        await writer.append(OutRecord(topics.state, 0, b"k", b"%d" % number))

    def cut(*_: object) -> list[blocks.Block]:
        log._maintenance._stopped.set()
        return []

    with monkeypatch.context() as short:
        short.setattr(log._maintenance, "_iterate", cut)
        await log.maintain()
    assert log.partition(topics.state, 0).cleaned_to == 0
    await log.close()
    log = await _open(settings)
    await log.maintain()
    assert log.partition(topics.state, 0).cleaned_to == 4
    assert [record.value for record in await read_all(log, topics.state)] == [b"3", b"4"]  # never the newest block
    await log.close()


async def test_a_read_from_the_file_gives_nothing_that_is_not_published_yet(tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    log = await _open(settings)
    owner = await log.take_over("group", settings.topics().requests, 0)
    await owner.commit([OutRecord(settings.topics().events, 0, b"k", b"%d" % number) for number in range(10)], 1)
    place = log.partition(settings.topics().events, 0)
    assert [record.offset for record in log._read_blocks(place, 0, 4, 100)] == [0, 1, 2, 3]
    assert [record.offset for record in log._read_blocks(place, 2, 7, 100)] == [2, 3, 4, 5, 6]
    await log.close()


# ---- small parts --------------------------------------------------------------------------------------------------


@given(
    pairs=st.lists(
        st.tuples(
            st.one_of(st.none(), st.binary(max_size=20)),
            st.one_of(st.none(), st.binary(max_size=3000)),
            st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3).map(tuple),
        ),
        min_size=1,
        max_size=20,
    ),
    first=st.integers(0, 1 << 39),
)
def test_blocks_give_back_what_was_put_in(pairs: list, first: int) -> None:  # type: ignore[type-arg]
    keys, values, headers = (list(column) for column in zip(*pairs, strict=True))
    expected = [
        Record("t", 3, first + index, 1_700_000_000_000, key, value, header)
        for index, (key, value, header) in enumerate(pairs)
    ]
    block = blocks.encode_run(first, 1_700_000_000_000, keys, values, headers)
    assert blocks.decode("t", 3, block) == expected
    some = [record._replace(timestamp_ms=record.timestamp_ms - record.offset % 7) for record in expected][::2]
    assert blocks.decode("t", 3, blocks.encode_records(some, first + len(expected))) == some


@pytest.mark.parametrize(("count", "codec"), [(1, blocks.PLAIN), (100, blocks.DEFLATED)])
def test_a_changed_byte_in_a_block_is_detected_or_harmless(count: int, codec: int) -> None:
    block = blocks.encode_run(0, 0, [b"k"] * count, [b"v" * 100] * count, [()] * count)
    assert block.codec == codec
    told = 0
    for place in range(len(block.body)):
        changed = block.body[:place] + bytes([block.body[place] ^ 1]) + block.body[place + 1 :]
        try:
            assert blocks.decode("t", 0, block._replace(body=changed)) == blocks.decode("t", 0, block)
        except LogDamaged as error:
            place = (error.topic, error.partition, error.first_offset, error.next_offset)
            assert place == ("t", 0, 0, count)
            told += 1
    assert told > len(block.body) // 2  # deflate has bits without meaning; none of them changes a record


async def test_errors_of_the_log_are_one_family(tmp_path: Path) -> None:
    assert issubclass(LogIncompatible, LogError)
    assert issubclass(LogUnavailable, LogError)
