"""An embedded log's file as a log that is only read, in another process than the one that it belongs to.

Readers see what is committed in the file, as the owner's do, and never hold its writer up (``sqlite_file.py``). SQLite
tells a change by a counter in shared memory; it is looked at every few milliseconds, and when somebody asks for it
(:meth:`FollowedFile.look`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from muster_bus import metrics
from muster_bus.backends.sqlite_file import LogFile
from muster_bus.errors import LogClosed, LogUnavailable
from muster_bus.log import LogWriter, PartitionOwner, Record

# How soon new records are noticed that nobody asks for: some 10 µs of work each.
_LOOK_S = 0.01


class FollowedFile:
    """See :class:`muster_bus.log.Log`: readers only. Belongs to one event loop.

    :param path: the file of a log that its owner has started.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: LogFile | None = None
        self._seen = -1
        self._waiting: set[asyncio.Future[None]] = set()
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises LogUnavailable, LogIncompatible."""
        self._file = LogFile(self.path)
        self._looking = asyncio.create_task(self._look_for_ever(), name="log file")

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        file, self._file = self._file, None
        self._wake()
        if file is not None:
            file.close()

    async def healthy(self) -> bool:
        with contextlib.suppress(LogUnavailable, LogClosed):
            self.file().change()
            return True
        return False

    async def writer(self, name: str) -> LogWriter:
        raise LogUnavailable(f"log {self.path} is only read here: {name} cannot write")

    async def reader(self, topic: str, partition: int, start: int | None = None) -> FileReader:
        first, _ = self.file().bounds(topic, partition)
        return FileReader(self, topic, partition, first if start is None else start)

    async def take_over(self, group: str, topic: str, partition: int) -> PartitionOwner:
        raise LogUnavailable(f"log {self.path} is only read here: {group} cannot own {topic}[{partition}]")

    def look(self) -> None:
        """Wakes those who wait for records when there are new ones; they read in the event loop's next turn."""
        if self._file is None or not self._waiting:
            return
        with contextlib.suppress(LogUnavailable):  # (whoever reads is told)
            seen = self._file.change()
            if seen == self._seen:
                return
            self._seen = seen
        self._wake()

    def file(self) -> LogFile:
        """Raises LogClosed."""
        if self._file is None:
            raise LogClosed(f"log {self.path} is not open")
        return self._file

    async def changed(self, timeout_s: float) -> None:
        """Returns when there may be something new, or after ``timeout_s``."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        self._waiting.add(waiting)
        timer = loop.call_later(timeout_s, _finish, waiting)
        try:
            await waiting
        finally:
            timer.cancel()
            self._waiting.discard(waiting)

    def _wake(self) -> None:
        for waiting in self._waiting:
            _finish(waiting)
        self._waiting.clear()

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self.look()


class FileReader:
    """See :class:`muster_bus.log.LogReader`."""

    def __init__(self, log: FollowedFile, topic: str, partition: int, position: int) -> None:
        self._log, self._topic, self._partition = log, topic, partition
        self._position = position
        self._ahead: list[Record] = []  # read from the file and not given yet
        self._given = 0  # index into it
        self._next = position  # where the file is read next
        self._closed = False

    @property
    def position(self) -> int:
        return self._position

    def seek(self, offset: int) -> None:
        self._position = self._next = offset
        self._ahead, self._given = [], 0

    async def read(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        self._check()
        if not self._fill() and timeout_s > 0:
            await self._log.changed(timeout_s)
            self._check()
            self._fill()
        records = self._ahead[self._given : self._given + max_records]
        self._given += len(records)
        # (Behind the last record of what was read may be a hole that compaction left.)
        self._position = self._next if self._given >= len(self._ahead) else records[-1].offset + 1
        if records:
            metrics.records_read.labels(self._topic).inc(len(records))
        return records

    async def first_offset(self) -> int:
        return self._log.file().bounds(self._topic, self._partition)[0]

    async def end_offset(self) -> int:
        return self._log.file().bounds(self._topic, self._partition)[1]

    async def close(self) -> None:
        self._closed = True

    def _fill(self) -> bool:
        """Whether there is something to give."""
        if self._given < len(self._ahead):
            return True
        self._ahead, self._given = [], 0
        while not self._ahead:
            before = self._next
            self._ahead, self._next = self._log.file().read(self._topic, self._partition, before)
            if self._next == before:
                return False
        return True

    def _check(self) -> None:
        if self._closed:
            raise LogClosed(f"the reader of {self._topic}[{self._partition}] is closed")
        self._log.file()


def _finish(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
