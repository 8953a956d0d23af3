"""History as JSON lines, one event a line: ``select * from read_json('DIR/**/*.jsonl.zst')``, or any text tool.

The layout is that of ``files.py``. A line has the columns of the Parquet files, ``resource`` as an object.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import zstandard

from muster_event_publisher.event_runs import EventRun
from muster_event_publisher.history.columns import columns_of
from muster_event_publisher.history.file_stores import FileStore
from muster_event_publisher.history.files import FileSink, KnownIds, PartitionSummary, UnreadableFile
from muster_event_publisher.history.registry import FileSinkOptions, SinkContext, SinkPlan, options_as
from muster_event_publisher.history.sink import LastEvent
from muster_event_publisher.history.thread_yield import SLICE, pause


class JsonLine(msgspec.Struct):
    """The JSON object of an event."""

    rm: str
    instance: str
    id: int
    timestamp_ns: int
    type: str
    type_number: int
    change_type: str
    change_type_number: int
    change_detail: str
    change_detail_number: int
    object_id: str
    reference_id: str
    message: str
    resource: dict[str, int]
    partition: int
    offset: int


class _LineKey(msgspec.Struct):
    """Returns RM, instance and id of a line's event."""

    rm: str
    instance: str
    id: int
    offset: int


class JsonlOptions(FileSinkOptions):
    """The options of ``[publisher.sinks.NAME]``."""

    compress: bool = True


def make_sink(options: Mapping[str, object], context: SinkContext) -> SinkPlan:
    """The factory of ``muster.event_sinks``."""
    store_options = options_as(JsonlOptions, options, context)
    return FileSink(
        context.name, store_options.file_store(), JsonlFormat(store_options.compress)
    ), store_options.policy()


class JsonlFormat:
    """See :class:`muster_event_publisher.history.files.FileFormat`.

    :param compress: by zstd; the suffix shows it.
    """

    def __init__(self, compress: bool = True) -> None:
        self._compress = compress
        self.suffix = ".jsonl.zst" if compress else ".jsonl"
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(_LineKey)

    def encode(self, partition: int, runs: list[EventRun], last: LastEvent, highest_ids: KnownIds) -> Sequence[Any]:
        return self._content(self._lines(partition, runs))

    def summary(self, store: FileStore, path: str) -> PartitionSummary:
        newest = deque(self._line_keys(store, path), maxlen=1)
        if not newest:
            raise UnreadableFile(f"{path} has no events")
        last = newest[0]
        event = LastEvent(last.offset, last.rm, last.instance, last.id)
        return PartitionSummary(event, {(last.rm, last.instance): last.id})

    def highest_ids(self, store: FileStore, paths: list[str]) -> KnownIds:
        highest_ids: KnownIds = {}
        for path in paths:
            for event in self._line_keys(store, path):
                highest_ids[event.rm, event.instance] = event.id
        return highest_ids

    def cut(self, store: FileStore, path: str, start: int) -> Sequence[Any]:
        lines = self._text(store, path).splitlines(keepends=True)
        return self._content([line for line in lines if self._decoder.decode(line).offset >= start])

    def upgrade(self, store: FileStore) -> None:
        return

    def _lines(self, partition: int, runs: list[EventRun]) -> Iterator[bytes]:
        for run, first in [(whole, start) for whole in runs for start in range(0, len(whole), SLICE)]:
            columns = columns_of(run.values[first : first + SLICE])
            lines = [
                JsonLine(
                    run.rm_id, run.instance, run.first_id + index, timestamp_ns, kind, kind_number, change,
                    change_number, detail, detail_number, object_id, reference_id, message, dict(resource), partition,
                    run.offsets[index],
                )
                for index, (
                    timestamp_ns, kind, kind_number, change, change_number, detail, detail_number, object_id,
                    reference_id, message, resource,
                ) in enumerate(zip(*columns, strict=True), start=first)
            ]  # fmt: skip
            yield self._encoder.encode_lines(lines)
            pause()

    def _content(self, lines: Iterator[bytes] | list[bytes]) -> list[bytes]:
        if not self._compress:
            return list(lines)
        packer = zstandard.ZstdCompressor().compressobj()
        return [*(packer.compress(line) for line in lines), packer.flush()]

    def _line_keys(self, store: FileStore, path: str) -> Iterator[_LineKey]:
        for line in self._text(store, path).splitlines():
            try:
                yield self._decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise UnreadableFile(f"{path} has a line that is no event: {error}") from error

    def _text(self, store: FileStore, path: str) -> bytes:
        data = store.get(path)
        if not self._compress:
            return data
        try:
            return zstandard.ZstdDecompressor().decompressobj().decompress(data)
        except zstandard.ZstdError as error:
            raise UnreadableFile(f"{path} is no zstd file: {error}") from error
