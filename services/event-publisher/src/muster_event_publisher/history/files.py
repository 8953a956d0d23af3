"""History in files whose names record the progress: the common part of Parquet and JSON lines.

::

    DIR/<log generation>/p<partition>/<start>-<end>.<suffix>

A write makes one file of a partition's events in the positions ``[start, end)``, of all RMs together. So the highest
``end`` is the position to continue from, and a write that is repeated after a crash finds its own file. No other
record of the progress exists.

log generation
    A number that grows when the log is replaced by another one, whose positions mean something else (a new volume, a
    restored backup). The new folder begins with ``before.json``: the highest event id of each RM so far, so that
    events which the new log repeats are not stored twice. Generation 0 holds files of a layout without positions.

overlap
    Two files of one partition can share positions when two publishers write to one S3 prefix without a group, or after
    a crash during the repair of such an overlap. Each start repairs overlaps: a file inside another one is removed, and
    a file that overlaps another one is cut. After that the files hold each event once.

All work runs in one thread, a few hundred events at a time with a pause in between. So the event loop of a process
that runs all of Muster gets the interpreter back within about a millisecond.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
import structlog

from muster_event_publisher import metrics
from muster_event_publisher.errors import SinkUnavailable, SinkUnusable
from muster_event_publisher.event_runs import EventBatch, EventRun
from muster_event_publisher.history.file_stores import FileStore
from muster_event_publisher.history.sink import LastEvent, SinkProgress, last_event

log = structlog.get_logger(__name__)
T = TypeVar("T")

# Highest event id of each RM and instance.
KnownIds = dict[tuple[str, str], int]

_GENERATION = re.compile(r"\d{6}").fullmatch
_SPAN = re.compile(r"(?P<start>\d{20})-(?P<end>\d{20})(?P<suffix>\..+)").fullmatch
_BEFORE = "before.json"


class UnreadableFile(Exception):
    """A file's content does not match its name."""


class PartitionSummary(NamedTuple):
    """The summary in the last file of a partition.

    :param highest_ids: the highest ids up to and including this file, as far as the file holds them.
    """

    last: LastEvent
    highest_ids: KnownIds


class FileFormat(Protocol):
    """The file format. Called in the sink's thread; reading raises OSError and Unreadable."""

    @property
    def suffix(self) -> str:
        """The files' suffix, with the dot."""
        ...

    def encode(self, partition: int, runs: list[EventRun], last: LastEvent, highest_ids: KnownIds) -> Sequence[Any]:
        """A file's content, as buffers.

        :param last: the last event of the write, which need not be among the runs.
        :param highest_ids: the highest ids, these runs included.
        """
        ...

    def summary(self, store: FileStore, path: str) -> PartitionSummary: ...

    def highest_ids(self, store: FileStore, paths: list[str]) -> KnownIds:
        """The highest ids in these files of a partition, in order. May read all the files."""
        ...

    def cut(self, store: FileStore, path: str, start: int) -> Sequence[Any]:
        """The content of a file from a position on."""
        ...

    def upgrade(self, store: FileStore) -> None:
        """Moves the files of an older version's layout into this one, as generation 0."""
        ...


class FileSpan(NamedTuple):
    """The name of a file and the positions in it."""

    start: int
    end: int
    name: str


@dataclass
class _PartitionFiles:
    """The state of a partition's files."""

    generation: int
    end: int = 0
    last: LastEvent | None = None
    highest_ids: KnownIds = field(default_factory=dict)


class FileSink:
    """See :class:`muster_event_publisher.history.sink.Sink`."""

    def __init__(self, name: str, store: FileStore, form: FileFormat) -> None:
        self.name = name
        self._store, self._form = store, form
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._standings: dict[int, _PartitionFiles] = {}

    async def start(self) -> None:
        await self._in_thread(self._start)

    async def progress(self, partition: int) -> SinkProgress | None:
        return await self._in_thread(lambda: self._progress(partition))

    async def new_log(self, partition: int) -> None:
        await self._in_thread(lambda: self._new_log(partition))

    async def write(self, batch: EventBatch) -> None:
        await self._in_thread(lambda: self._write(batch))

    async def release(self, partition: int) -> None:
        """See :class:`muster_event_publisher.history.sink.LockingSink`."""
        await self._in_thread(lambda: self._release(partition))

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown, wait=True)
        self._store.close()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except OSError as error:
            raise SinkUnavailable(self.name, f"{self._store.display_name}: {error.strerror or error}") from error
        except UnreadableFile as error:
            raise SinkUnusable(self.name, f"{self._store.display_name}: {error}") from error

    # The following methods run in the thread.

    def _start(self) -> None:
        self._store.start(self.name, lambda: self._form.upgrade(self._store))
        self._standings.clear()

    def _release(self, partition: int) -> None:
        self._standings.pop(partition, None)
        self._store.unlock(partition)

    def _progress(self, partition: int) -> SinkProgress | None:
        self._store.lock(self.name, partition)
        standing = self._standings[partition] = self._load_partition(partition)
        return None if standing.last is None else SinkProgress(standing.end, standing.last)

    def _new_log(self, partition: int) -> None:
        standing = self._standings.get(partition) or self._load_partition(partition)
        # 1. the ids that are stored already: the new log may repeat them
        folder = folder_of(standing.generation, partition)
        paths = [f"{folder}/{span.name}" for span in spans(self._store, folder, self._form.suffix)]
        highest_ids = {**standing.highest_ids, **self._form.highest_ids(self._store, paths)}
        # 2. a new folder with those ids: from now on positions are those of the new log
        generation = standing.generation + 1
        before = {"known": [[rm_id, instance, last] for (rm_id, instance), last in sorted(highest_ids.items())]}
        self._store.write(f"{folder_of(generation, partition)}/{_BEFORE}", [msgspec.json.encode(before)])
        self._standings[partition] = _PartitionFiles(generation, highest_ids=highest_ids)

    def _load_partition(self, partition: int) -> _PartitionFiles:
        # 1. the newest generation with anything of this partition
        standing = _PartitionFiles(generation=1)
        file_spans: list[FileSpan] = []
        for generation in sorted(generations(self._store), reverse=True):
            folder = folder_of(generation, partition)
            names = self._store.names(folder)
            if _BEFORE in names:
                standing.highest_ids = self._before(f"{folder}/{_BEFORE}")
            if names and generation == 0:
                # These files have no positions: only the ids count.
                last_name = max(name for name in names if name.endswith(self._form.suffix))
                standing.highest_ids = self._form.summary(self._store, f"{folder}/{last_name}").highest_ids
            elif names:
                standing.generation = generation
                file_spans = self._repair(folder)
            if names:
                break
        # 2. its last file
        if file_spans:
            standing.end = file_spans[-1].end
            path = f"{folder_of(standing.generation, partition)}/{file_spans[-1].name}"
            summary = self._form.summary(self._store, path)
            standing.last = summary.last
            standing.highest_ids.update(summary.highest_ids)
        return standing

    def _repair(self, folder: str) -> list[FileSpan]:
        """The partition's files without overlaps, by position."""
        kept: list[FileSpan] = []
        tail_names: set[str] = set()
        reached = 0
        for span in spans(self._store, folder, self._form.suffix):
            if span.name in tail_names:  # an earlier cut made it, and crashed before it removed the file that it cut
                continue
            path = f"{folder}/{span.name}"
            if span.end <= reached:
                log.warning("file inside of another one removed", place=self._store.display_name, path=path)
                self._store.remove(path)
                continue
            if span.start < reached:
                log.warning(
                    "file that overlaps another one cut", place=self._store.display_name, path=path, start=reached
                )
                tail = FileSpan(reached, span.end, name_of(reached, span.end, self._form.suffix))
                self._store.write(f"{folder}/{tail.name}", self._form.cut(self._store, path, reached))
                self._store.remove(path)
                tail_names.add(tail.name)
                span = tail
            kept.append(span)
            reached = span.end
        return kept

    def _before(self, path: str) -> KnownIds:
        try:
            stored = msgspec.json.decode(self._store.get(path))
            return {(rm_id, instance): int(last) for rm_id, instance, last in stored["known"]}
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            raise UnreadableFile(f"{path} cannot be read: {error}") from error

    def _write(self, batch: EventBatch) -> None:
        standing = self._standings.get(batch.partition)
        if standing is None:
            self._store.lock(self.name, batch.partition)
            standing = self._standings[batch.partition] = self._load_partition(batch.partition)
        if not self._store.locks:
            self._check_alone(batch.partition, standing)
        # 1. the events that are not stored yet
        batch = batch.since(standing.end)
        runs, highest_ids = _without_stored(batch.runs, standing.highest_ids)
        # 2. one file with them (none when the log only repeats stored events)
        if runs:
            last = last_event(EventBatch(batch.partition, batch.start, batch.end, runs))
            name = name_of(batch.start, batch.end, self._form.suffix)
            content = self._form.encode(batch.partition, runs, last, highest_ids)
            self._store.write(f"{folder_of(standing.generation, batch.partition)}/{name}", content)
            metrics.EXPORT_FILES.labels(self.name).inc()
            standing.last, standing.highest_ids = last, highest_ids
            standing.end = batch.end

    def _check_alone(self, partition: int, standing: _PartitionFiles) -> None:
        """Raises OSError if another publisher has written to the partition since it was looked at: this one was paused,
        for example, and its partitions belong to others now.
        """
        file_spans = spans(self._store, folder_of(standing.generation, partition), self._form.suffix)
        if file_spans and max(span.end for span in file_spans) > standing.end:
            raise OSError(f"another publisher has written to partition {partition}")


def folder_of(generation: int, partition: int) -> str:
    return f"{generation:06d}/p{partition}"


def name_of(start: int, end: int, suffix: str) -> str:
    return f"{start:020d}-{end:020d}{suffix}"


def generations(store: FileStore) -> list[int]:
    """The generations that have a folder, in order."""
    return [int(name) for name in store.folders("") if _GENERATION(name)]


def spans(store: FileStore, folder: str, suffix: str) -> list[FileSpan]:
    """The files of a partition, by start; of files with the same start the longest first."""
    file_spans = []
    for name in store.names(folder):
        match = _SPAN(name)
        if match and match["suffix"] == suffix:
            file_spans.append(FileSpan(int(match["start"]), int(match["end"]), name))
    return sorted(file_spans, key=lambda span: (span.start, -span.end))


def _without_stored(runs: list[EventRun], highest_ids: KnownIds) -> tuple[list[EventRun], KnownIds]:
    """The runs without the events whose ids are known, and the known ids after these runs."""
    fresh: list[EventRun] = []
    after = dict(highest_ids)
    for run in runs:
        last = after.get((run.rm_id, run.instance), -1)
        if run.last_id <= last:
            continue
        fresh.append(run.from_index(max(last + 1 - run.first_id, 0)))
        after[run.rm_id, run.instance] = run.last_id
    return fresh, after
