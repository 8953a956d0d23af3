"""A new file of the embedded log as the target of a copy.

The copy is ``log.db.copying`` until it is finished, so no process takes it for a log.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from muster_runtime import durable
from muster_runtime.private_files import make_private_directory

from muster_bus.backends import blocks
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.backends.sqlite_backup import verify_log
from muster_bus.backends.sqlite_chain import Chains, Row, note_claims
from muster_bus.backends.sqlite_mark import mark_path, read_mark, write_mark
from muster_bus.backends.sqlite_schema import INSERT_BLOCKS, OFFSET_BITS, connect, lock, mark_of, split_into_blocks
from muster_bus.clock import Clock
from muster_bus.errors import LogUnavailable, TargetNotEmpty
from muster_bus.log import Record
from muster_bus.settings import LogSettings

# It stays in the finished log and says where its records come from.
_COPIED_TABLE = """
CREATE TABLE IF NOT EXISTS copied (
    topic TEXT NOT NULL, partition INTEGER NOT NULL, position INTEGER NOT NULL, PRIMARY KEY (topic, partition)
)"""


class SqliteTarget:
    """See :class:`muster_bus.copying.target.CopyTarget`.

    :param settings: of the new log; ``sqlite_path`` is its file.
    :param make_way: called when the copy is whole and its side file is written, with the files of the new log; moves an
        older log aside. Without it the file must not exist.
    """

    def __init__(
        self, settings: LogSettings, clock: Clock, make_way: Callable[[Sequence[Path]], None] | None = None
    ) -> None:
        self.topics = settings.topics()
        self.name = f"log {settings.sqlite_path}"
        self._settings, self._clock, self._make_way = settings, clock, make_way
        self._final = Path(settings.sqlite_path)
        self._path = Path(f"{self._final}.copying")
        self._lock: IO[bytes] | None = None
        self._connection: sqlite3.Connection | None = None
        self._chains: Chains | None = None
        self._partition_ids: dict[tuple[str, int], int] = {}
        self._ends: dict[tuple[str, int], int] = {}

    async def start(self) -> None:
        await asyncio.to_thread(self._claim)
        # The log makes its own tables.
        new = SqliteLog(self.topics.specs(), self._settings.model_copy(update={"sqlite_path": self._path}), self._clock)
        await new.start()
        await new.close()
        with self._errors():
            self._connection = connection = connect(self._path, "full")
            connection.execute(_COPIED_TABLE)
            self._chains = Chains(connection)
            rows = connection.execute("SELECT topic, partition, id FROM partitions").fetchall()
            self._partition_ids = {(topic, partition): id_ for topic, partition, id_ in rows}
            for name, end in mark_of(connection).ends.items():
                topic, _, partition = name.rpartition("/")
                self._ends[topic, int(partition)] = end

    def _claim(self) -> None:
        try:
            make_private_directory(self._final.parent)
            if self._make_way is None:
                # (Who replaces a log has its lock.)
                self._lock = lock(self._final)
        except OSError as error:
            raise LogUnavailable(f"log {self._final} cannot be written: {error.strerror}") from error
        if self._make_way is None and self._final.exists():
            raise TargetNotEmpty(f"{self._final}: exists already; expected a directory without a log")

    async def copied(self, topic: str, sources: int) -> dict[int, int]:
        with self._errors():
            rows = self._open.execute("SELECT partition, position FROM copied WHERE topic = ?", (topic,)).fetchall()
        return dict(rows)

    async def write(self, topic: str, records: Mapping[int, Sequence[Record]], copied: Mapping[int, int]) -> None:
        await asyncio.to_thread(self._write, topic, records, copied)

    def _write(self, topic: str, records: Mapping[int, Sequence[Record]], copied: Mapping[int, int]) -> None:
        ends: dict[tuple[str, int], int] = {}
        rows: list[Row] = []
        with self._errors(), self._transaction() as connection:
            for partition, some in records.items():
                partition_id, offset = self._partition_ids[topic, partition], self._ends.get((topic, partition), 0)
                for part in split_into_blocks(list(some)):
                    moved = [record._replace(offset=offset + index) for index, record in enumerate(part)]
                    block = blocks.encode_records(moved, offset + len(moved))
                    rows.append((partition_id << OFFSET_BITS | offset, *block[1:]))
                    offset = block.next_offset
                ends[topic, partition] = offset
            sealed = self._chained.seal(rows)
            for row in sealed.rows:
                connection.execute(INSERT_BLOCKS[1], row)
            connection.executemany(
                "INSERT OR REPLACE INTO copied VALUES (?, ?, ?)",
                [(topic, partition, position) for partition, position in copied.items()],
            )
        self._chained.appended(sealed)
        self._ends.update(ends)

    async def ends(self, topic: str) -> list[int]:
        return [self._ends.get((topic, partition), 0) for partition in range(self.topics.partitions)]

    async def positions(self, group: str) -> list[int | None]:
        with self._errors():
            rows = self._open.execute(
                "SELECT partition, position FROM claims WHERE group_name = ? AND topic = ?",
                (group, self.topics.requests),
            ).fetchall()
        positions: dict[int, int | None] = dict(rows)
        return [positions.get(partition) for partition in range(self.topics.partitions)]

    async def set_positions(self, group: str, positions: Sequence[int]) -> None:
        with self._errors(), self._transaction() as connection:
            connection.executemany(
                "INSERT INTO claims (group_name, topic, partition, epoch, position) VALUES (?, ?, ?, 0, ?)",
                [(group, self.topics.requests, partition, position) for partition, position in enumerate(positions)],
            )
            note_claims(connection)  # an interrupted copy is opened again before it is finished

    async def finish(self) -> None:
        await asyncio.to_thread(self._finish)

    def _finish(self) -> None:
        with self._errors():
            connection = self._open
            with self._transaction():
                self._chained.note(connection)
            self._chained.noted()
            mark = mark_of(connection)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("PRAGMA journal_mode = DELETE")  # one file, without a write-ahead log
            connection.close()
            self._connection = None
            if problems := verify_log(self._path).problems:
                raise LogUnavailable(f"the copy {self._path} is damaged: {'; '.join(problems)}")
            durable.sync(self._path)
            # The side file comes first: if the rest is interrupted, Muster does not start with an older log, or with
            # an empty one.
            write_mark(self._final, mark)
            self._install()

    def finish_interrupted(self) -> bool:
        """Puts a whole copy in its place, if an earlier :meth:`finish` was interrupted. Call it instead of
        :meth:`start`. Returns whether it did.
        """
        with self._errors():
            if not self._path.exists():
                return False
            log_id, written = verify_log(self._path).mark.log_id, read_mark(self._final).mark
            if not log_id or written is None or written.log_id != log_id:
                return False
            self._install()
            return True

    def _install(self) -> None:
        for beside in (mark_path(self._path), Path(f"{self._path}.lock")):
            beside.unlink(missing_ok=True)
        if self._make_way is not None:
            self._make_way((self._path, mark_path(self._final)))
        self._path.replace(self._final)
        durable.sync(self._final.absolute().parent)

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def _open(self) -> sqlite3.Connection:
        assert self._connection is not None, "the target is started"
        return self._connection

    @property
    def _chained(self) -> Chains:
        assert self._chains is not None, "the target is started"
        return self._chains

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._open
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise LogUnavailable(f"{self._path} cannot be written: {error}") from error
        except OSError as error:
            raise LogUnavailable(f"{self._path} cannot be written: {error.strerror}") from error
