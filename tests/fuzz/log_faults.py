"""Faults of an embedded log's files: a page, a block or a column of a directory that has lived has an earlier, another
or a changed content. Each is found by ``muster verify`` or by a start, or it changes nothing. ``make fuzz-log``:

    PYTHONPATH=tests python -m fuzz.log_faults --tries 5000 [--seed 7]
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import logging
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.backends.sqlite_file_reader import LogFile
from muster_bus.backends.sqlite_mark import write_mark
from muster_bus.backends.sqlite_schema import PAGE_BYTES, mark_of
from muster_bus.clock import SystemClock
from muster_bus.errors import LogError
from muster_bus.settings import LogSettings
from muster_cli.backup import examine

from fuzz.log_life import Life, lived

FRAME_HEADER, WAL_HEADER = 24, 32
SILENT, HARMLESS, BY_VERIFY, BY_START = "silent", "changes nothing", "found by verify", "found by the start"

Fault = Callable[[Path, Life, random.Random], str]


# ---- faults ----------------------------------------------------------------------------------------------------------


def page(data: Path, life: Life, chance: random.Random) -> str:
    """A page of the main file."""
    path = data / "log.db"
    content = bytearray(path.read_bytes())
    number = chance.randrange(len(content) // PAGE_BYTES)
    at = number * PAGE_BYTES
    new, how = _other_page(content, at, life, chance)
    content[at : at + PAGE_BYTES] = new
    path.write_bytes(content)
    return f"page {number + 1}: {how}"


def frame(data: Path, life: Life, chance: random.Random) -> str:
    """A page of the write-ahead log."""
    path = data / "log.db-wal"
    if not path.exists() or path.stat().st_size <= WAL_HEADER:
        return page(data, life, chance)
    content = bytearray(path.read_bytes())
    whole = FRAME_HEADER + PAGE_BYTES
    number = chance.randrange((len(content) - WAL_HEADER) // whole)
    at = WAL_HEADER + number * whole
    if chance.random() < 0.3:  # the frame of an earlier commit, with its own header
        other = WAL_HEADER + chance.randrange((len(content) - WAL_HEADER) // whole) * whole
        content[at : at + whole] = content[other : other + whole]
        how = "another frame"
    else:
        at += FRAME_HEADER
        new, how = _other_page(content, at, life, chance)
        content[at : at + PAGE_BYTES] = new
    path.write_bytes(content)
    return f"frame {number}: {how}"


def _other_page(content: bytearray, at: int, life: Life, chance: random.Random) -> tuple[bytes, str]:
    """What stands in a page's place."""
    present = bytes(content[at : at + PAGE_BYTES])
    match chance.randrange(5):
        case 0 | 1:
            earlier = chance.choice(life.earlier).read_bytes()
            found = earlier[at : at + PAGE_BYTES]
            if len(found) == PAGE_BYTES:
                return found, "its earlier content"
            return bytes(PAGE_BYTES), "never written"
        case 2:
            other = chance.randrange(len(content) // PAGE_BYTES) * PAGE_BYTES
            return bytes(content[other : other + PAGE_BYTES]), "another page's content"
        case 3:
            changed = bytearray(present)
            for _ in range(chance.choice((1, 1, 8))):
                changed[chance.randrange(PAGE_BYTES)] ^= 1 << chance.randrange(8)
            return bytes(changed), "changed bits"
        case _:
            half = PAGE_BYTES // 2  # a torn write
            earlier = chance.choice(life.earlier).read_bytes()[at : at + PAGE_BYTES].ljust(PAGE_BYTES, b"\0")
            return present[:half] + earlier[half:], "half of its earlier content"


def block(data: Path, life: Life, chance: random.Random) -> str:
    """A block: removed, or with the content of another one, of the same topic or of an earlier moment."""
    with contextlib.closing(sqlite3.connect(data / "log.db", isolation_level=None)) as connection:
        ids = [id_ for (id_,) in connection.execute("SELECT id FROM blocks ORDER BY id")]
        id_ = chance.choice(_interesting(ids, chance))
        where = f"block {id_ >> 40}/{id_ & ((1 << 40) - 1)}"
        columns = "next_offset, timestamp_ms, codec, body, claim, position, previous, heads, digest"
        match chance.randrange(6):
            case 0 | 1:
                connection.execute("DELETE FROM blocks WHERE id = ?", (id_,))
                return f"{where}: removed"
            case 2:
                other = chance.choice([each for each in ids if each >> 40 == id_ >> 40])
                connection.execute(
                    "UPDATE blocks SET (codec, body) = (SELECT codec, body FROM blocks WHERE id = ?) WHERE id = ?",
                    (other, id_),
                )
                return f"{where}: the body of {other & ((1 << 40) - 1)}"
            case 3:
                other = chance.choice([each for each in ids if each >> 40 == id_ >> 40])
                connection.execute(
                    f"UPDATE blocks SET ({columns}) = (SELECT {columns} FROM blocks WHERE id = ?) WHERE id = ?",
                    (other, id_),
                )
                return f"{where}: all of {other & ((1 << 40) - 1)}"
            case 4:
                earlier = _earlier_row(chance.choice(life.earlier), id_, columns)
                if earlier is None:
                    connection.execute("DELETE FROM blocks WHERE id = ?", (id_,))
                    return f"{where}: not there, as before"
                marks = ", ".join("?" * len(earlier))
                connection.execute(f"UPDATE blocks SET ({columns}) = ({marks}) WHERE id = ?", (*earlier, id_))
                return f"{where}: as it was before"
            case _:
                new = id_ + chance.choice((1, -1, 7, 1 << 40))
                if new in ids:
                    return f"{where}: as it is"
                connection.execute("UPDATE blocks SET id = ? WHERE id = ?", (new, id_))
                return f"{where}: in another place"


def _interesting(ids: list[int], chance: random.Random) -> list[int]:
    """Often the newest block of a partition."""
    if chance.random() < 0.7:
        return ids
    return list({id_ >> 40: id_ for id_ in ids}.values())


def _earlier_row(path: Path, id_: int, columns: str) -> Any:
    with contextlib.closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as earlier:
        return earlier.execute(f"SELECT {columns} FROM blocks WHERE id = ?", (id_,)).fetchone()


def column(data: Path, life: Life, chance: random.Random) -> str:
    """A column of any table."""
    with contextlib.closing(sqlite3.connect(data / "log.db", isolation_level=None)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = chance.choice([*tables, "blocks", "blocks"])
        rows = [id_ for (id_,) in connection.execute(f"SELECT rowid FROM {table}")]
        if not rows:
            return f"{table} is empty"
        names = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
        name, row = chance.choice(names), chance.choice(rows)
        (value,) = connection.execute(f"SELECT {name} FROM {table} WHERE rowid = ?", (row,)).fetchone()
        new = _changed(value, connection, table, name, chance)
        with contextlib.suppress(sqlite3.IntegrityError):
            connection.execute(f"UPDATE {table} SET {name} = ? WHERE rowid = ?", (new, row))
        shown = [value if not isinstance(value, bytes) else f"{len(value)} bytes" for value in (value, new)]
        return f"{table}.{name} of {row}: {shown[1]!r} instead of {shown[0]!r}"


def _changed(value: Any, connection: sqlite3.Connection, table: str, name: str, chance: random.Random) -> Any:
    if chance.random() < 0.3:
        values = [each for (each,) in connection.execute(f"SELECT {name} FROM {table}")]
        return chance.choice(values)
    if isinstance(value, int):
        return value + chance.choice((1, -1, 64, -64, 1 << 30, -(1 << 30), 35 * 365 * 86_400_000))
    if isinstance(value, bytes):
        at = chance.randrange(len(value) or 1)
        return value[:at] + bytes([(value[at] if value else 0) ^ 1 << chance.randrange(8)]) + value[at + 1 :]
    if isinstance(value, str):
        return value[:-1] + chr(ord(value[-1]) ^ 1) if value else "x"
    return chance.choice((0, 1, 77))


FAULTS: tuple[Fault, ...] = (page, page, page, frame, block, block, block, column, column, column)


# ---- verdicts --------------------------------------------------------------------------------------------------------


def content_of(data: Path) -> dict[Any, Any]:
    """What Muster makes of a log: the state of each key, all other records by their offsets, and the positions."""
    found: dict[Any, Any] = {}
    with LogFile(data / "log.db") as log:
        for topic, partition in sorted(log.partition_ids):
            records, (at, end) = [], log.bounds(topic, partition)
            while at < end:
                some, at = log.read(topic, partition, at)
                records += some
            if topic.endswith("si.state.v1"):
                state = {record.key: record.value for record in records}
                found[topic, partition] = {key: value for key, value in state.items() if value is not None}
            else:
                found[topic, partition] = [(each.offset, each.key, each.value, each.headers) for each in records]
    with contextlib.closing(sqlite3.connect(data / "log.db")) as connection:
        claims = connection.execute("SELECT group_name, topic, partition, position FROM claims").fetchall()
    found["positions"] = sorted(claims)
    return found


def start(data: Path) -> None:
    """Opens the log as Muster does. Raises LogError."""
    settings = LogSettings(sqlite_path=data / "log.db", sqlite_maintenance_interval_s=3600.0)
    with LogFile(settings.sqlite_path) as file:
        settings = settings.model_copy(update={"partitions": len(file.partitions(settings.topics().requests)) or 4})

    async def opened() -> None:
        log = SqliteLog(settings.topics().specs(), settings, SystemClock())
        await log.start()
        await log.close()

    asyncio.run(opened())


def verdict(data: Path, expected: dict[Any, Any]) -> tuple[str, str]:
    """What becomes of a directory with a fault, and why."""
    if problems := examine(data).problems:
        return BY_VERIFY, problems[0]
    try:
        start(data)
    except LogError as error:
        return BY_START, str(error)
    try:
        found = content_of(data)
    except LogError as error:
        return SILENT, f"only a reader finds it: {error}"
    different = [key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)]
    return (SILENT, f"differs in {different}") if different else (HARMLESS, "")


class Bench:
    """Tries faults on copies of a directory: as the kill left it, and with the write-ahead log moved into the file."""

    def __init__(self, life: Life, directory: Path) -> None:
        self._life, self._directory = life, directory
        self._starts = [life.data, directory / "without-wal"]
        shutil.copytree(life.data, self._starts[1], ignore=shutil.ignore_patterns("history"))
        with contextlib.closing(sqlite3.connect(self._starts[1] / "log.db")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            newest = mark_of(connection)
        # The mark of a killed process may be a second old (decision 0160); with a new one, each loss must be found.
        for data in self._starts:
            write_mark(data / "log.db", newest)
        whole = self._copy(self._starts[0])
        assert examine(whole).problems == []
        start(whole)
        self._expected = content_of(whole)

    def _copy(self, source: Path) -> Path:
        target = self._directory / "try"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for name in ("log.db", "log.db-wal", "log.db.mark"):
            if (source / name).exists():
                shutil.copyfile(source / name, target / name)
        return target

    def attempt(self, seed: int) -> tuple[str, str, str]:
        """Returns the verdict, the fault and the reason."""
        chance = random.Random(seed)
        data = self._copy(self._starts[chance.randrange(2)])
        fault = chance.choice(FAULTS)
        told = fault(data, self._life, chance)
        result, why = verdict(data, self._expected)
        return result, f"{fault.__name__}: {told}", why


def main() -> int:
    """Returns the exit code: 1 if a fault was silent."""
    parser = argparse.ArgumentParser(prog="fuzz.log_faults")
    parser.add_argument("--tries", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--life", type=Path, help="a directory of an earlier run")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    with tempfile.TemporaryDirectory() as directory:
        folder = arguments.life or Path(directory) / "life"
        earlier = tuple(sorted(folder.glob("earlier-*.db")))
        life = Life(folder / "data", earlier) if earlier else lived(folder)
        bench = Bench(life, Path(directory))
        began = time.monotonic()
        for number in range(arguments.tries):
            seed = arguments.seed * 1_000_003 + number
            result, told, why = bench.attempt(seed)
            counts[told.split(":")[0], result] += 1
            if result == SILENT:
                print(f"silent (seed {seed}): {told}: {why}", flush=True)
        took = time.monotonic() - began
    for (kind, result), count in sorted(counts.items()):
        print(f"{kind:<8} {result:<20} {count:>6,}")
    silent = sum(count for (_, result), count in counts.items() if result == SILENT)
    print(f"seed {arguments.seed}: {arguments.tries:,} tries in {took:.0f} s, {silent} silent")
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
