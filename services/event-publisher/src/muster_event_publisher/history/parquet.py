"""History as Parquet files, readable with anything: ``select * from read_parquet('DIR/**/*.parquet')``.

The layout is that of ``files.py``. Under the key ``muster`` a file's footer holds its runs of ids, its last event, and
the highest id of each RM so far. That is enough to resume, and to find an id without reading rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import structlog

from muster_event_publisher.event_runs import EventRun
from muster_event_publisher.history.columns import columns_of
from muster_event_publisher.history.file_stores import FileStore
from muster_event_publisher.history.files import FileSink, KnownIds, PartitionSummary, UnreadableFile, folder_of
from muster_event_publisher.history.registry import FileSinkOptions, SinkContext, SinkPlan, options_as
from muster_event_publisher.history.sink import LastEvent
from muster_event_publisher.history.thread_yield import SLICE, pause

log = structlog.get_logger(__name__)

SUFFIX = ".parquet"
# Small enough that a search for an id reads only a part of a large file.
_ROW_GROUP = 16 * 1024
_FOOTER = b"muster"
_OLD_PROGRESS = (".progress-p", ".json")


class Footer(NamedTuple):
    """The content of a file's footer.

    :param runs: (rm, instance, first id, last id), in log order.
    :param highest_ids: the highest ids up to and including this file.
    """

    last: LastEvent
    runs: list[tuple[str, str, int, int]]
    highest_ids: KnownIds


def make_sink(options: Mapping[str, object], context: SinkContext) -> SinkPlan:
    """The factory of ``muster.event_sinks``."""
    store_options = options_as(FileSinkOptions, options, context)
    return FileSink(context.name, store_options.file_store(), ParquetFormat()), store_options.policy()


class ParquetFormat:
    """See :class:`muster_event_publisher.history.files.FileFormat`.

    Columns: rm, instance, id, timestamp_ns, type, type_number, change_type, change_type_number, change_detail,
    change_detail_number, object_id, reference_id, message, resource (map of type name to int64), partition, offset.
    """

    suffix = SUFFIX

    def encode(self, partition: int, runs: list[EventRun], last: LastEvent, highest_ids: KnownIds) -> Sequence[Any]:
        spans = [(run.rm_id, run.instance, run.first_id, run.last_id) for run in runs]
        return _encoded(_table(partition, runs), Footer(last, spans, highest_ids))

    def summary(self, store: FileStore, path: str) -> PartitionSummary:
        footer = read_footer(store, path)
        return PartitionSummary(footer.last, footer.highest_ids)

    def highest_ids(self, store: FileStore, paths: list[str]) -> KnownIds:
        return read_footer(store, paths[-1]).highest_ids if paths else {}

    def cut(self, store: FileStore, path: str, start: int) -> Sequence[Any]:
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        with store.open(path) as file:
            table = pq.read_table(file)
        footer = read_footer(store, path)
        tail = table.filter(pc.greater_equal(table["offset"], start))
        return _encoded(tail, footer._replace(runs=_runs_in(tail)))

    def upgrade(self, store: FileStore) -> None:
        """Files of the layout by ids (DIR/rm~instance~p0~first-last.parquet) go to generation 0, in order."""
        names = store.names("")
        old = [name for name in names if name.endswith(SUFFIX) and name.count("~") == 3]
        if not old:
            return
        import pyarrow as pa  # (33 MiB, which a start without such files does not need)
        import pyarrow.parquet as pq

        log.info("moving history of an earlier layout", place=store.display_name, files=len(old))
        for name in old:
            partition = int(name.split("~")[2][1:])
            folder = folder_of(0, partition)
            done = store.names(folder)
            if name not in done:
                with store.open(name) as file:
                    table = pq.read_table(file)
                count = table.num_rows
                table = table.append_column("partition", pa.array([partition] * count, pa.int32()))
                table = table.append_column("offset", pa.nulls(count, pa.int64())).cast(_schema())
                runs = _runs_in(table)
                highest_ids = self.highest_ids(store, [f"{folder}/{done_name}" for done_name in done])
                for rm_id, instance, _, last_id in runs:
                    highest_ids[rm_id, instance] = last_id
                rm_id, instance, _, last_id = runs[-1]
                footer = Footer(LastEvent(-1, rm_id, instance, last_id), runs, highest_ids)
                store.write(f"{folder}/{name}", _encoded(table, footer))
            store.remove(name)
        for name in names:
            if name.startswith(_OLD_PROGRESS[0]) and name.endswith(_OLD_PROGRESS[1]):
                store.remove(name)


def read_footer(store: FileStore, path: str) -> Footer:
    """A file's footer. Raises OSError, UnreadableFile."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with store.open(path) as file:
            metadata = pq.read_metadata(file)
    except pa.ArrowException as error:
        if isinstance(error, OSError):
            raise
        raise UnreadableFile(f"{path} is no Parquet file of Muster: {error}") from error
    return footer_of(metadata, path)


def footer_of(metadata: Any, path: str) -> Footer:
    """The footer among a file's metadata. Raises UnreadableFile."""
    try:
        stored = msgspec.json.decode((metadata.metadata or {})[_FOOTER])
        return Footer(
            LastEvent(*stored["last"]),
            [(rm_id, instance, first, last) for rm_id, instance, first, last in stored["runs"]],
            {(rm_id, instance): last for rm_id, instance, last in stored["known"]},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableFile(f"{path} is no Parquet file of Muster: {error}") from error


def _encoded(table: Any, footer: Footer) -> Sequence[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    stored = {
        "last": list(footer.last),
        "runs": footer.runs,
        "known": [(rm_id, instance, last) for (rm_id, instance), last in sorted(footer.highest_ids.items())],
    }
    table = table.replace_schema_metadata({_FOOTER: msgspec.json.encode(stored)})
    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression="zstd", row_group_size=_ROW_GROUP)
    return [out.getvalue()]


def _runs_in(table: Any) -> list[tuple[str, str, int, int]]:
    rms, instances, ids = (table[name].to_pylist() for name in ("rm", "instance", "id"))
    rows = list(zip(rms, instances, ids, strict=True))
    starts = [0] + [
        index
        for index, (before, after) in enumerate(pairwise(rows), start=1)
        if (before[0], before[1], before[2] + 1) != after
    ]
    return [
        (*rows[start][:2], rows[start][2], rows[end - 1][2])
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True)
        if end > start
    ]


def _table(partition: int, runs: list[EventRun]) -> Any:
    import pyarrow as pa

    schema = _schema()
    batches = []
    for run in runs:
        for start in range(0, len(run), SLICE):
            values = run.values[start : start + SLICE]
            columns = columns_of(values)
            ids = range(run.first_id + start, run.first_id + start + len(values))
            count = len(values)
            batches.append(
                pa.record_batch(
                    [
                        pa.array([run.rm_id] * count, pa.string()),
                        pa.array([run.instance] * count, pa.string()),
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
                        pa.array([partition] * count, pa.int32()),
                        pa.array(run.offsets[start : start + SLICE], pa.int64()),
                    ],
                    schema=schema,
                )
            )
            pause()
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
            ("partition", number),
            ("offset", pa.int64()),
        ]
    )
