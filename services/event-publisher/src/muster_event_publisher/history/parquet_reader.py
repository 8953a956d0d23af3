"""Reads events by id from the files of :mod:`muster_event_publisher.history.parquet`.

Each file's footer holds the highest id of each RM so far, so a binary search over the footers finds the file with an
id. The reader then reads only the row groups of that file that can hold the id. It works in one thread of its own.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from muster_bus.topics import Topics
from muster_runtime.elapsed import elapsed_s

from muster_event_publisher.ended.events import Mark, Selection, Stretch
from muster_event_publisher.errors import SinkUnavailable, SinkUnusable
from muster_event_publisher.history.file_stores import FileStore
from muster_event_publisher.history.files import UnreadableFile, folder_of, generations, spans
from muster_event_publisher.history.parquet import SUFFIX, Footer, read_footer
from muster_event_publisher.history.parquet_past import ParquetPast
from muster_event_publisher.history.rebuild import serialised
from muster_event_publisher.history.registry import FileSinkOptions, SinkContext, options_as
from muster_event_publisher.history.thread_yield import SLICE, pause
from muster_event_publisher.log_search import OldEvents

# The listing of files may be a little old, because only old events are read here.
_LISTED_FOR_S = 10.0
# Footers do not change; a few hundred bytes each.
_FOOTERS_MAX = 4_096
_COLUMNS = (
    "timestamp_ns", "type_number", "change_type_number", "change_detail_number", "object_id", "reference_id", "message",
    "resource",
)  # fmt: skip


def make_reader(options: Mapping[str, object], context: SinkContext) -> ParquetReader:
    """The factory of ``muster.history_readers``."""
    store_options = options_as(FileSinkOptions, options, context)
    return ParquetReader(context.name, store_options.file_store(), Topics(partitions=context.partitions))


class ParquetReader:
    """See :class:`muster_event_publisher.history.reader.HistoryReader`."""

    def __init__(self, name: str, store: FileStore, topics: Topics) -> None:
        self.name = name
        self._store, self._topics = store, topics
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"{name} reader")
        self._listings: dict[int, tuple[float, list[str]]] = {}
        self._footers: OrderedDict[str, Footer] = OrderedDict()
        self._past = ParquetPast(name, store, lambda rm_id: _paths(store, topics.partition_of(rm_id)))

    async def read(self, rm_id: str, instance: str, start: int, count: int) -> OldEvents | None:
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: self._read(rm_id, instance, start, count)
            )
        except OSError as error:
            self._listings.clear()
            raise SinkUnavailable(self.name, f"{self._store.display_name}: {error.strerror or error}") from error
        except UnreadableFile as error:
            raise SinkUnusable(self.name, f"{self._store.display_name}: {error}") from error

    async def past(self, rm_id: str, below: Mark | None, selection: Selection, most: int) -> Stretch:
        """See :class:`muster_event_publisher.ended.events.PastReader`."""
        return await self._past.past(rm_id, below, selection, most)

    async def close(self) -> None:
        await self._past.close()
        await asyncio.to_thread(self._thread.shutdown, wait=True)
        self._store.close()

    # The following methods run in the thread.

    def _read(self, rm_id: str, instance: str, start: int, count: int) -> OldEvents | None:
        paths = self._paths(self._topics.partition_of(rm_id))
        old_events: OldEvents | None = None
        next_id, low = start, 0
        while (old_events is None or len(old_events.values) < count) and count > 0:
            # 1. the first file with this id or a later one of the RM
            low = self._search(paths, (rm_id, instance), next_id, low)
            if low == len(paths):
                break
            # 2. its runs from there on, as long as the ids are consecutive
            for run_rm, run_instance, first, last in self._footer(paths[low]).runs:
                if (run_rm, run_instance) != (rm_id, instance) or last < next_id:
                    continue
                if old_events is not None and first > next_id:
                    return old_events
                first = max(first, next_id)
                if old_events is None:
                    old_events = OldEvents(first, [])
                last = min(last, first + count - len(old_events.values) - 1)
                old_events.values.extend(self._rows(paths[low], rm_id, instance, first, last))
                next_id = last + 1
                if len(old_events.values) >= count:
                    break
            low += 1
        return old_events

    def _paths(self, partition: int) -> list[str]:
        """See :func:`_paths`; remembered for a while."""
        listed_at, paths = self._listings.get(partition, (0.0, []))
        if not paths or elapsed_s() - listed_at > _LISTED_FOR_S:
            paths = _paths(self._store, partition)
            self._listings[partition] = (elapsed_s(), paths)
        return paths

    def _search(self, paths: list[str], who: tuple[str, str], min_id: int, low: int) -> int:
        """Index of the first file, from ``low`` on, up to which the RM has an id of at least ``min_id``."""
        high = len(paths)
        while low < high:
            middle = (low + high) // 2
            if self._footer(paths[middle]).highest_ids.get(who, -1) >= min_id:
                high = middle
            else:
                low = middle + 1
        return low

    def _footer(self, path: str) -> Footer:
        footer = self._footers.get(path)
        if footer is None:
            footer = self._footers[path] = read_footer(self._store, path)
            if len(self._footers) > _FOOTERS_MAX:
                self._footers.popitem(last=False)
        return footer

    def _rows(self, path: str, rm_id: str, instance: str, first: int, last: int) -> list[bytes]:
        import pyarrow.parquet as pq

        filters: list[Any] = [("rm", "=", rm_id), ("instance", "=", instance), ("id", ">=", first), ("id", "<=", last)]
        with self._store.open(path) as file:
            table = pq.read_table(file, columns=list(_COLUMNS), filters=filters, use_threads=False)
        if table.num_rows != last - first + 1:
            raise UnreadableFile(f"{path} has {table.num_rows} of the events {first} to {last} of {rm_id}")
        values: list[bytes] = []
        for start in range(0, table.num_rows, SLICE):
            piece = table.slice(start, SLICE)
            columns = [piece[name].to_pylist() for name in _COLUMNS]
            values += [serialised(*row) for row in zip(*columns, strict=True)]
            pause()
        return values


def _paths(store: FileStore, partition: int) -> list[str]:
    """The partition's files, oldest first. Raises OSError."""
    paths: list[str] = []
    for generation in generations(store):
        folder = folder_of(generation, partition)
        if generation == 0:
            names = [name for name in store.names(folder) if name.endswith(SUFFIX)]
        else:
            names = [span.name for span in spans(store, folder, SUFFIX)]
        paths += [f"{folder}/{name}" for name in names]
    return paths
