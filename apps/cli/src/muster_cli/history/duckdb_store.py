"""The history as one DuckDB connection: `events`, the views over it, and its freshness.

The steps: 1 the Parquet files, by their names; 2 their content, per RM; 3 newer events in the log or in a running
Muster; 4 `events` over both, each event once; 5 the views; 6 the lock: queries can reach no other file and no setting.
"""

# ruff: noqa: S608 - what is not of this module goes through _quoted

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from muster_cli.errors import CommandError
from muster_cli.history import unexported_events as tails
from muster_cli.history import views
from muster_cli.history.source import HistoryLocation

if TYPE_CHECKING:
    import duckdb
    from muster_event_publisher.history.file_stores import FileStore

_GENERATION = re.compile(r"\d{6}").fullmatch
_PARTITION = re.compile(r"p\d+").fullmatch
_SPAN = re.compile(r"(\d{20})-(\d{20})\.parquet").fullmatch
_SUFFIX = ".parquet"
_ATTEMPTS = 3


class InstanceSpan(NamedTuple):
    """One instance of an RM: its ids from ``first_id`` to ``last_id``."""

    rm: str
    instance: str
    first_id: int
    last_id: int
    events: int
    newest_ns: int

    @property
    def missing(self) -> int:
        """Number of ids in the span that the history lacks."""
        return self.last_id - self.first_id + 1 - self.events


@dataclass(slots=True)
class HistoryDatabase:
    """An open history.

    :ivar connection: DuckDB; times are UTC.
    :ivar spans: of every RM and instance.
    :ivar files: the Parquet files.
    :ivar unexported: events in none of the files, with their source.
    :ivar rm: only this RM's events are visible; "": all.
    """

    connection: duckdb.DuckDBPyConnection
    source: HistoryLocation
    spans: list[InstanceSpan]
    files: list[str]
    unexported: Sequence[tuple[str, tails.UnexportedEvents]]
    rm: str = ""

    def freshness(self) -> list[str]:
        """Returns sentences: the number of events, their sources, their age, and gaps."""
        events = sum(span.events for span in self.spans)
        newest = max(span.newest_ns for span in self.spans)
        later = [(where, tail.events_of(self.rm)) for where, tail in self.unexported]
        exported = events - sum(count for _, count in later)
        parts = [f"{exported:,} in {_count(len(self.files), 'Parquet file')}"] if self.files else []
        parts += [f"{count:,} not exported yet, {where}" for where, count in later]
        sentences = [f"{_count(events, 'event')} ({'; '.join(parts)}), the newest of {_time(newest)}."]
        if self.source.log_file is None and not self.source.http:
            sentences.append("What is not exported yet is not in it; --data-dir or --http adds that.")
        if any(tail.cut for _, tail in self.unexported):
            sentences.append(
                f"More than {tails.EVENTS_MAX:,} events are not exported; only the newest of them are here."
            )
        sentences += [
            f"{_count(span.missing, 'event')} of {span.rm} between {span.first_id:,} and {span.last_id:,} "
            f"{'is' if span.missing == 1 else 'are'} missing (instance {span.instance})."
            for span in self.spans
            if span.missing
        ]
        sentences += [f"{sentence[0].upper()}{sentence[1:]}." for _, tail in self.unexported for sentence in tail.gaps]
        return sentences


@contextmanager
def open_history(source: HistoryLocation, rm: str = "", *, files_allowed: bool = False) -> Iterator[HistoryDatabase]:
    """Opens a history for one command.

    :param rm: only this RM's events are visible.
    :param files_allowed: SQL may read and write other files.

    Raises CommandError if there is no history, or if it cannot be read.
    """
    import duckdb

    connection = duckdb.connect(":memory:")
    try:
        yield _open(connection, source, rm, files_allowed=files_allowed)
    except duckdb.IOException as error:  # a file was removed, or is damaged
        raise CommandError(f"history in {source.display_name} cannot be read: {_first_line(error)}") from error
    finally:
        connection.close()


def _open(
    connection: duckdb.DuckDBPyConnection, source: HistoryLocation, rm: str, *, files_allowed: bool
) -> HistoryDatabase:
    import duckdb

    for attempt in range(_ATTEMPTS):
        try:
            return _open_once(connection, source, rm, files_allowed=files_allowed)
        except (OSError, duckdb.IOException) as error:
            # A publisher removes files at its start, so a file may be gone since its name was read.
            if attempt + 1 == _ATTEMPTS:
                raise CommandError(f"history in {source.display_name} cannot be read: {_first_line(error)}") from error
        except duckdb.Error as error:
            raise CommandError(f"history in {source.display_name} cannot be read: {_first_line(error)}") from error
    raise AssertionError("the last attempt raises")


def _open_once(
    connection: duckdb.DuckDBPyConnection, source: HistoryLocation, rm: str, *, files_allowed: bool
) -> HistoryDatabase:
    # 1. the files
    names, may_overlap = _names(source.file_store)
    connection.execute("SET TimeZone = 'UTC'")
    exported_sql = _exported(connection, source.file_store, names)
    # 2. their content
    exported_spans = _spans(connection, exported_sql) if exported_sql else []
    exported = {(span.rm, span.instance): span.last_id for span in exported_spans}
    # 3. newer events
    unexported: list[tuple[str, tails.UnexportedEvents]] = []
    if source.log_file is not None:
        unexported.append(("from the log", tails.from_log(source.log_file, source.events_topic, exported)))
    if source.http:
        for _, tail in unexported:
            exported |= tail.last_ids
        unexported.append((f"from {source.http}", tails.from_rest(source.http, exported, source.timeout_s)))
    # 4. events
    parts = [exported_sql] if exported_sql else []
    tables = [table for _, tail in unexported for table in tail.tables]
    if tables:
        import pyarrow as pa

        connection.register("beyond", pa.concat_tables(tables))
        parts.append(f"SELECT {', '.join(tails.COLUMNS)} FROM beyond")
    if not parts:
        raise CommandError(f"no history yet: there are no events in {source.display_name}")
    _make_events(connection, parts, rm, once=may_overlap)
    spans = _spans(connection, "FROM events")
    if not spans:
        rms = sorted({name for name, _ in exported}.union(*(tail.rms for _, tail in unexported)))
        if rm and rms:
            raise CommandError(f"--rm {rm}: no events of it; known are {', '.join(rms)}")
        raise CommandError(f"no history yet: there are no events in {source.display_name}")
    # 5. the views
    for statement in views.statements():
        connection.execute(statement)
    # 6. the lock
    if not files_allowed:
        _restrict_access(connection, source.file_store, names)
    return HistoryDatabase(connection, source, spans, names, unexported, rm)


# ---- files ----------------------------------------------------------------------------------------------------------


def _names(store: FileStore | None) -> tuple[list[str], bool]:
    """Returns the paths of the Parquet files, and whether two of them may hold the same event.

    The layout is DIR/<log generation>/p<partition>/<start>-<end>.parquet. A file that covers another one replaces it: a
    publisher may have died before it removed the smaller one. Other names tell nothing about a file's content.
    """
    if store is None:
        return [], False
    paths = [name for name in store.names("") if name.endswith(_SUFFIX)]
    unsure = bool(paths)
    generations = [name for name in store.folders("") if _GENERATION(name)]
    for generation in generations:
        for partition in filter(_PARTITION, store.folders(generation)):
            folder = f"{generation}/{partition}"
            spans: list[tuple[int, int, str]] = []
            for name in store.names(folder):
                if match := _SPAN(name):
                    spans.append((int(match[1]), int(match[2]), name))
                elif name.endswith(_SUFFIX):
                    paths.append(f"{folder}/{name}")
                    unsure = True
            kept = _uncovered(spans)
            paths += [f"{folder}/{name}" for _, _, name in kept]
            unsure |= any(span[1] > next_[0] for span, next_ in pairwise(kept))
    return paths, unsure


def _uncovered(spans: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Returns the spans in order, without those inside of another one."""
    kept: list[tuple[int, int, str]] = []
    for span in sorted(spans, key=lambda candidate: (candidate[0], -candidate[1])):
        if not kept or span[1] > kept[-1][1]:
            kept.append(span)
    return kept


def _exported(connection: duckdb.DuckDBPyConnection, store: FileStore | None, names: list[str]) -> str:
    """Returns SQL for the events of the files; "" if there are none."""
    if store is None or not names:
        return ""
    columns = ", ".join(tails.COLUMNS)
    filesystem = getattr(store, "filesystem", None)
    if filesystem is None:
        paths = ", ".join(_quoted(f"{store.display_name}/{name}") for name in names)
        # By name, because files of an earlier layout have fewer columns.
        return f"SELECT {columns} FROM read_parquet([{paths}], union_by_name = true)"
    from pyarrow import dataset

    paths_there = [f"{getattr(store, 'root', '')}/{name}" for name in names]
    connection.register("exported", dataset.dataset(paths_there, tails.schema(), "parquet", filesystem))
    return f"SELECT {columns} FROM exported"


def _restrict_access(connection: duckdb.DuckDBPyConnection, store: FileStore | None, names: list[str]) -> None:
    if store is not None and getattr(store, "filesystem", None) is None:
        allowed = ", ".join(_quoted(f"{store.display_name}/{name}") for name in names)
        connection.execute(f"SET allowed_paths = [{allowed}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


# ---- events ---------------------------------------------------------------------------------------------------------


def _make_events(connection: duckdb.DuckDBPyConnection, parts: list[str], rm: str, *, once: bool) -> None:
    """Makes the view `events`. Removing duplicates sorts all events, so this is done only where there may be some."""
    where = f" WHERE rm = {_quoted(rm)}" if rm else ""
    dedup = " QUALIFY row_number() OVER (PARTITION BY rm, instance, id) = 1" if once else ""
    union = " UNION ALL ".join(f"({part})" for part in parts)
    connection.execute(
        "CREATE VIEW events AS SELECT rm, instance, id, make_timestamp(timestamp_ns // 1000) AS time, type, "
        "change_type, change_detail, object_id, reference_id, resource, message, timestamp_ns, type_number, "
        f"change_type_number, change_detail_number FROM ({union}){where}{dedup}"
    )


def _spans(connection: duckdb.DuckDBPyConnection, events: str) -> list[InstanceSpan]:
    rows = connection.execute(
        f"SELECT rm, instance, min(id), max(id), count(*), max(timestamp_ns) FROM ({events}) GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    return [InstanceSpan(*row) for row in rows]


# ---- words ----------------------------------------------------------------------------------------------------------


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
