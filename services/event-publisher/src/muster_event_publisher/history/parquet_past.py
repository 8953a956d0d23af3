"""Reads the files of :mod:`muster_event_publisher.history.parquet` backwards, for the search of ended objects.

A row group is read at a time, the newest first: its narrow columns, and where they have a chosen event, the others. A
search that goes on finds its file by the times in the files' metadata. It works in one thread of its own.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from muster_event_publisher.ended import events
from muster_event_publisher.ended.events import Kind, Mark, PastEvent, Selection, Stretch
from muster_event_publisher.errors import SinkUnavailable, SinkUnusable
from muster_event_publisher.event_decoding import EventRecord
from muster_event_publisher.history.file_stores import FileStore
from muster_event_publisher.history.files import UnreadableFile
from muster_event_publisher.history.parquet import footer_of
from muster_event_publisher.history.rebuild import serialised
from muster_event_publisher.history.thread_yield import SLICE, pause

_NARROW = (
    "rm", "id", "timestamp_ns", "type_number", "change_type_number", "change_detail_number", "object_id",
    "reference_id",
)  # fmt: skip
_WIDE = ("instance", "message", "resource")
# What is remembered of files.
_FILES_REMEMBERED = 256
# Chosen events of one read: a list needs few, and each costs some microseconds.
_CHOSEN_MAX = 2_000
# Where the rows of several RMs alternate, an allocation's user is looked for so far behind it.
_BEHIND = 64


class _Group(NamedTuple):
    rows: int
    oldest_ns: int


class _File(NamedTuple):
    """The RMs with events in a file, and its row groups, oldest first."""

    rms: frozenset[str]
    groups: list[_Group]


class ParquetPast:
    """See :class:`muster_event_publisher.ended.events.PastReader`.

    :param paths: the files of an RM's partition, oldest first. Called in the thread; raises OSError.
    """

    def __init__(self, name: str, store: FileStore, paths: Callable[[str], list[str]]) -> None:
        self._name, self._store, self._paths = name, store, paths
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"{name} search")
        self._files: OrderedDict[str, _File] = OrderedDict()

    async def past(self, rm_id: str, below: Mark | None, selection: Selection, most: int) -> Stretch:
        """Looks at ``most`` events, and the rest of their row group."""
        import pyarrow as pa

        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: self._read(rm_id, below, selection, most)
            )
        except pa.ArrowException as error:
            raise SinkUnusable(self._name, f"{self._store.display_name}: {error}") from error
        except OSError as error:
            raise SinkUnavailable(self._name, f"{self._store.display_name}: {error.strerror or error}") from error
        except UnreadableFile as error:
            raise SinkUnusable(self._name, f"{self._store.display_name}: {error}") from error

    async def close(self) -> None:
        """Waits for the read that runs."""
        await asyncio.to_thread(self._thread.shutdown, wait=True)

    # The following methods run in the thread.

    def _read(self, rm_id: str, below: Mark | None, selection: Selection, most: int) -> Stretch:
        paths, begun = self._paths(rm_id), below
        past_events: list[PastEvent] = []
        looked_at = 0
        for index in range(self._last(paths, below), -1, -1):
            file = self._file(paths[index])
            if rm_id not in file.rms:
                continue
            for number in range(len(file.groups) - 1, -1, -1):
                if below is not None and file.groups[number].oldest_ns > below.at_ns:
                    continue
                oldest, rows = self._group(paths[index], number, rm_id, below, selection, past_events)
                below = oldest or below
                looked_at += rows
                if (looked_at >= most or len(past_events) >= _CHOSEN_MAX) and below != begun:
                    return Stretch(past_events, below, looked_at)
        return Stretch(past_events, None, looked_at)

    def _last(self, paths: Sequence[str], below: Mark | None) -> int:
        """Index of the last file that can have something from before ``below``."""
        low, high = 0, len(paths)
        while below is not None and low < high:
            middle = (low + high) // 2
            groups = self._file(paths[middle]).groups
            if groups and groups[0].oldest_ns > below.at_ns:
                high = middle
            else:
                low = middle + 1
        return high - 1

    def _file(self, path: str) -> _File:
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = _file(self._store, path)
            if len(self._files) > _FILES_REMEMBERED:
                self._files.popitem(last=False)
        return file

    def _group(
        self, path: str, number: int, rm_id: str, below: Mark | None, selection: Selection, past_events: list[PastEvent]
    ) -> tuple[Mark | None, int]:
        """Adds the chosen events of a row group, or the newest of them. Returns the place of the oldest event of the RM
        that was looked at, and how many events were.
        """
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        with self._store.open(path) as file:
            source = pq.ParquetFile(file)
            table = source.read_row_group(number, columns=list(_NARROW), use_threads=False)
            of_rm = pc.equal(table["rm"], rm_id)
            if below is not None:
                times, ids = table["timestamp_ns"], table["id"]
                same = pc.and_(pc.equal(times, below.at_ns), pc.less(ids, below.id))
                of_rm = pc.and_(of_rm, pc.or_(pc.less(times, below.at_ns), same))
            mine = pc.indices_nonzero(of_rm)
            if not len(mine):
                return None, table.num_rows
            first = mine[0].as_py()
            chosen = pc.indices_nonzero(pc.and_(of_rm, _mask(table, selection))).to_pylist()
            if len(chosen) > _CHOSEN_MAX:
                chosen = chosen[-_CHOSEN_MAX:]
                first = chosen[0]
            oldest = Mark(table["timestamp_ns"][first].as_py(), table["id"][first].as_py())
            rows = set(chosen)
            if selection.kind is Kind.APPLICATION:
                rows |= _companion_rows(table, rm_id, rows, bool(selection.name))
            if rows:
                wide = source.read_row_group(number, columns=list(_WIDE), use_threads=False)
                past_events += _events(table, wide, sorted(rows, reverse=True))
        return oldest, mine[-1].as_py() - first + 1


def _file(store: FileStore, path: str) -> _File:
    import pyarrow.parquet as pq

    with store.open(path) as file:
        metadata = pq.read_metadata(file)
    column = metadata.schema.to_arrow_schema().get_field_index("timestamp_ns")
    if column < 0:
        raise UnreadableFile(f"{path} has no column timestamp_ns")
    groups = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        statistics = group.column(column).statistics
        oldest_ns = statistics.min if statistics is not None and statistics.has_min_max else 0
        groups.append(_Group(group.num_rows, oldest_ns))
    return _File(frozenset(rm_id for rm_id, *_ in footer_of(metadata, path).runs), groups)


def _mask(table: Any, selection: Selection) -> Any:
    """Which rows a selection has: as :func:`muster_event_publisher.ended.events.chosen`, for a whole table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, change, detail = table["type_number"], table["change_type_number"], table["change_detail_number"]
    names, references = table["object_id"], table["reference_id"]

    def fits(column: Any) -> Any:
        if selection.name:
            return pc.equal(column, selection.name)
        return pc.match_substring(column, selection.text, ignore_case=True)

    own = pc.and_(pc.equal(kind, events.TYPES[selection.kind]), fits(names))
    if not selection.name:
        details = pa.array(sorted(events.DETAILS[selection.kind]), pa.int32())
        makes_life = pc.is_in(detail, details)
        if selection.kind is Kind.APPLICATION:
            begun = pc.and_(pc.equal(detail, events.ALLOCATED), pc.equal(change, events.ADD))
            makes_life = pc.or_(makes_life, begun)
        own = pc.and_(own, makes_life)
    if selection.kind is Kind.QUEUE:
        return pc.and_(own, pc.not_equal(change, events.NONE))
    if selection.kind is Kind.NODE:
        return own
    joined = pc.and_(pc.equal(kind, events.QUEUE), pc.equal(detail, events.QUEUE_APP))
    if selection.name:
        linked = pc.and_(pc.equal(kind, events.USERGROUP), pc.equal(detail, events.APP_LINK))
        joined = pc.or_(joined, linked)
    return pc.or_(own, pc.and_(joined, fits(references)))


def _companion_rows(table: Any, rm_id: str, rows: set[int], nodes: bool) -> set[int]:
    """The rows of the nodes and users of the chosen allocations."""
    neighbours: set[int] = set()
    kinds, changes, details = (
        table[name].to_numpy() for name in ("type_number", "change_type_number", "change_detail_number")
    )
    ids, rms = table["id"].to_numpy(), table["rm"]
    for row in rows:
        if (kinds[row], changes[row], details[row]) != (events.APP, events.ADD, events.ALLOCATED):
            continue
        for neighbour in range(row + 1, min(row + 1 + _BEHIND, table.num_rows)):
            if ids[neighbour] - ids[row] > events.COMPANION_EVENTS_MAX and rms[neighbour].as_py() == rm_id:
                break
            if not 0 < ids[neighbour] - ids[row] <= events.COMPANION_EVENTS_MAX or rms[neighbour].as_py() != rm_id:
                continue
            is_user = kinds[neighbour] == events.USERGROUP and details[neighbour] == events.USER_RESOURCE
            if is_user or (nodes and kinds[neighbour] == events.NODE):
                neighbours.add(neighbour)
            if kinds[neighbour] == events.APP or is_user:
                break
    return neighbours


def _events(table: Any, wide: Any, rows: Sequence[int]) -> list[PastEvent]:
    past_events: list[PastEvent] = []
    for start in range(0, len(rows), SLICE):
        part = rows[start : start + SLICE]
        narrow = [table[name].take(part).to_pylist() for name in _NARROW[1:]]
        others = [wide[name].take(part).to_pylist() for name in _WIDE]
        for event_id, at_ns, kind, change, detail, name, reference, instance, message, resource in zip(
            *narrow, *others, strict=True
        ):
            value = serialised(at_ns, kind, change, detail, name, reference, message, resource)
            past_events.append(PastEvent(instance, event_id, EventRecord.FromString(value)))
        pause()
    return past_events
