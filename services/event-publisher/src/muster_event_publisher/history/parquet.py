"""History as Parquet files in one folder, readable with anything: ``select * from read_parquet('DIR/*.parquet')``.

A write makes one file per RM in it, named by RM, instance, partition and its first and last event id. A file appears
whole (written beside, fsync, rename); after the last one the partition's progress file is replaced in the same way. A
crash in between leaves files ahead of the progress; their events come again and are recognised by the ids in the names.

The work is done in one thread, a few hundred events at a time with a pause in between: with the whole of Muster in one
process, the event loop gets the interpreter back within about a millisecond.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote

import structlog

from muster_event_publisher.errors import SinkUnavailable
from muster_event_publisher.events import EventBatch, EventRun
from muster_event_publisher.history.columns import columns_of
from muster_event_publisher.history.sink import LastEvent, Progress, last_event

log = structlog.get_logger(__name__)
T = TypeVar("T")

# Events per slice of work; about a millisecond in which the interpreter is ours.
_SLICE = 256
# Pause after a slice: long enough for a waiting event loop to take over, short against the slice.
_PAUSE_S = 0.0003
_NAME = re.compile(
    r"(?P<rm>[^~]*)~(?P<instance>[^~]*)~p(?P<partition>\d+)~(?P<first>\d{20})-(?P<last>\d{20})\.parquet"
).fullmatch
_WRITING = ".writing"
_PART_LENGTH = 60


class ParquetSink:
    """See :class:`muster_event_publisher.history.sink.Sink`.

    Columns: rm, instance, id, timestamp_ns, type, type_number, change_type, change_type_number, change_detail,
    change_detail_number, object_id, reference_id, message, resource (map of type name to int64).
    """

    name = "parquet"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="parquet")
        self._lock_file: IO[bytes] | None = None
        # Highest durable id of each RM and instance (as in the files' names): what came before is passed over.
        self._last_ids: dict[tuple[str, str], int] = {}

    async def start(self) -> None:
        await self._in_thread(self._start)

    async def progress(self, partition: int) -> Progress | None:
        return await self._in_thread(lambda: self._read_progress(partition))

    async def write(self, batch: EventBatch) -> None:
        await self._in_thread(lambda: self._write(batch))

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown, wait=True)
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except OSError as error:
            raise SinkUnavailable(self.name, f"{self._folder}: {error.strerror or error}") from error

    # What follows runs in the thread.

    def _start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._lock_file is None:
            lock_file = (self._folder / ".lock").open("ab")
            try:
                fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                lock_file.close()
                raise SinkUnavailable(self.name, f"another publisher writes to {self._folder}") from error
            self._lock_file = lock_file
        for path in self._folder.glob(f".*{_WRITING}"):
            path.unlink()
        self._last_ids.clear()
        for path in self._folder.iterdir():
            if match := _NAME(path.name):
                key = (match["rm"], match["instance"])
                self._last_ids[key] = max(self._last_ids.get(key, -1), int(match["last"]))

    def _read_progress(self, partition: int) -> Progress | None:
        try:
            stored: dict[str, Any] = json.loads(self._progress_path(partition).read_bytes())
            return Progress(
                int(stored["end"]),
                LastEvent(int(stored["offset"]), stored["rm"], stored["instance"], int(stored["id"])),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            # The names of the files still say what is there; only the way through the log is longer.
            log.warning("progress file is unreadable; reading the log from its start", partition=partition)
            return None

    def _write(self, batch: EventBatch) -> None:
        # 1. one file for each RM and instance
        by_rm: dict[tuple[str, str], list[EventRun]] = {}
        for run in batch.runs:
            key = (run.rm_id, run.instance)
            known = self._last_ids.get((_quoted(run.rm_id), _quoted(run.instance)), -1)
            if run.last_id > known:
                by_rm.setdefault(key, []).append(run.from_index(max(known + 1 - run.first_id, 0)))
        for (rm_id, instance), runs in by_rm.items():
            self._write_file(rm_id, instance, batch.partition, runs)
            self._last_ids[_quoted(rm_id), _quoted(instance)] = runs[-1].last_id
        # 2. the progress, after all of them
        last = last_event(batch)
        stored = {
            "end": batch.end, "offset": last.offset, "rm": last.rm_id, "instance": last.instance, "id": last.event_id
        }  # fmt: skip
        self._replace(self._progress_path(batch.partition), lambda path: path.write_bytes(json.dumps(stored).encode()))

    def _write_file(self, rm_id: str, instance: str, partition: int, runs: list[EventRun]) -> None:
        import pyarrow.parquet

        name = (
            f"{_quoted(rm_id)}~{_quoted(instance)}~p{partition}~{runs[0].first_id:020d}-{runs[-1].last_id:020d}.parquet"
        )
        table = _table(rm_id, instance, runs)
        self._replace(
            self._folder / name,
            lambda path: pyarrow.parquet.write_table(table, path, compression="zstd", row_group_size=128 * 1024),
        )

    def _replace(self, path: Path, write: Callable[[Path], object]) -> None:
        """The file is either not there (or as before), or whole and durable."""
        beside = path.with_name(f".{path.name}{_WRITING}")
        write(beside)
        _sync(beside)
        beside.replace(path)
        _sync(self._folder)

    def _progress_path(self, partition: int) -> Path:
        return self._folder / f".progress-p{partition}.json"


def _table(rm_id: str, instance: str, runs: list[EventRun]) -> Any:
    import pyarrow as pa

    schema = _schema()
    batches = []
    for run in runs:
        for start in range(0, len(run), _SLICE):
            values = run.values[start : start + _SLICE]
            columns = columns_of(values)
            ids = range(run.first_id + start, run.first_id + start + len(values))
            count = len(values)
            batches.append(
                pa.record_batch(
                    [
                        pa.array([rm_id] * count, pa.string()),
                        pa.array([instance] * count, pa.string()),
                        pa.array(ids, pa.int64()),
                        pa.array(columns.timestamp_ns, pa.int64()),
                        pa.array(columns.type_name, pa.string()),
                        pa.array(columns.type_number, pa.int32()),
                        pa.array(columns.change_type_name, pa.string()),
                        pa.array(columns.change_type_number, pa.int32()),
                        pa.array(columns.change_detail_name, pa.string()),
                        pa.array(columns.change_detail_number, pa.int32()),
                        pa.array(columns.object_id, pa.string()),
                        pa.array(columns.reference_id, pa.string()),
                        pa.array(columns.message, pa.string()),
                        pa.array(columns.resource, pa.map_(pa.string(), pa.int64())),
                    ],
                    schema=schema,
                )
            )
            time.sleep(_PAUSE_S)
    return pa.Table.from_batches(batches, schema)


def _schema() -> Any:
    import pyarrow as pa

    text, number = pa.string(), pa.int32()
    return pa.schema(
        [
            ("rm", text),
            ("instance", text),
            ("id", pa.int64()),
            ("timestamp_ns", pa.int64()),
            ("type", text),
            ("type_number", number),
            ("change_type", text),
            ("change_type_number", number),
            ("change_detail", text),
            ("change_detail_number", number),
            ("object_id", text),
            ("reference_id", text),
            ("message", text),
            ("resource", pa.map_(text, pa.int64())),
        ]
    )


def _quoted(text: str) -> str:
    """Letters, digits, '_', '-' and '.' as they are; '~' separates the parts of a name, so it is escaped too.

    What is too long for a file's name (255 bytes for all parts) is cut, and made unique by its hash.
    """
    quoted = quote(text, safe="").replace("~", "%7E")
    if len(quoted) <= _PART_LENGTH:
        return quoted
    return f"{quoted[:_PART_LENGTH]}%%{sha256(text.encode()).hexdigest()[:16]}"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
