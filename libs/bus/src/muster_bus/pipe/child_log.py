"""The embedded log in a child of the process that owns it.

The child reads without the parent: SQLite's write-ahead log lets any process see the last commit without delaying the
writer. So the child reads records from the file and decodes them. The pipe only tells when there is something new. The
child's writes go over the pipe to the log's owner (``log_server.py``), with the same contract and the same errors.

Each thread owns some parts:

    event loop      ends, spans, waiting readers, the pipe, a connection for ends alone. All public methods run here.
    reader          the connection. Each read is a short snapshot of its own, so that checkpoints can proceed.

A *span* holds the records of one block, from a position up to the next block's beginning. Compaction leaves holes in
it. Each partition keeps its newest spans in a chain, which its readers share: a block with three readers is decoded
once.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from muster_bus import metrics
from muster_bus.backends.read_ahead import ChangeSignal, ReadAheadReader
from muster_bus.backends.record_limits import RecordRules
from muster_bus.backends.sqlite_file_reader import LogFile
from muster_bus.errors import LogClosed, LogDamaged, LogError, LogUnavailable, OffsetOutOfRange
from muster_bus.log import LogReader, LogWriter, OutRecord, PartitionOwner, Record
from muster_bus.pipe.messages import (
    AppendResults,
    Commit,
    EndsChanged,
    FromChild,
    FromLog,
    GetCommitted,
    GetHealth,
    Release,
    Reply,
    SyncDone,
    SyncRequest,
    TakeOver,
    error_of,
)
from muster_bus.pipe.pipe_appends import PipeWriter
from muster_bus.settings import LogSettings

_READ_BYTES = 2 << 20  # limit of stored bytes per read
_RECORD_MEMORY_BYTES = 250  # memory of a record besides its content
_CHAIN_BYTES_MAX = 16 << 20  # limit of all chains; readers of a partition are close to each other
_HEALTHY_FOR_S = 0.5
_CLOSE_TIMEOUT_S = 2.0

T = TypeVar("T")


class RecordSpan(NamedTuple):
    """All visible records from ``start`` up to, not including, ``end``. Offsets may be missing."""

    start: int
    end: int
    records: list[Record]
    size_bytes: int


class _PartitionView(ChangeSignal):
    """A partition.

    :ivar first: lowest offset that exists.
    :ivar end: one past the highest visible offset that this process knows.
    :ivar spans: the chain, without gaps.
    :ivar chain_end: end of the chain.
    :ivar has_readers: somebody has read it.
    """

    def __init__(self, topic: str, partition: int, first: int, end: int) -> None:
        super().__init__()
        self.topic, self.partition, self.first, self.end = topic, partition, first, end
        self.spans: deque[RecordSpan] = deque()
        self.chain_end = end
        self.has_readers = False
        self.fetching = asyncio.Lock()

    def moved(self, first: int, end: int) -> None:
        """Takes new bounds. Neither goes back: a message may be older than what a reader saw in the file."""
        self.first = max(self.first, first)
        if end > self.end:
            self.end = end
            self.signal()

    def cached_records(self, position: int, max_records: int) -> list[Record] | None:
        """Returns the chain's records from ``position`` on; None if the chain does not hold the position."""
        if not self.spans or not self.spans[0].start <= position < self.chain_end:
            return None
        index = bisect_right(self.spans, position, key=lambda span: span.start) - 1
        kept: list[Record] = []
        while index < len(self.spans) and len(kept) < max_records:
            span = self.spans[index]
            records = span.records
            if span.start < position:
                records = records[bisect_right(records, position - 1, key=lambda record: record.offset) :]
            kept += records[: max_records - len(kept)]
            index += 1
        return kept or None


class ChildLog:
    """See the module's docstring, and :class:`muster_bus.log.Log`.

    :param send: sends over the pipe; never waits. Incoming messages go to :meth:`handle`.
    """

    def __init__(self, settings: LogSettings, send: Callable[[FromChild], None]) -> None:
        self.settings = settings
        self.rules = RecordRules(settings.topics().specs(), settings.max_record_bytes)
        self._send = send
        self._views: dict[tuple[str, int], _PartitionView] = {}
        self._by_id: dict[int, _PartitionView] = {}
        self._chain_order: deque[_PartitionView] = deque()  # one entry per span of a chain, oldest first
        self._chain_bytes = 0
        self._chain_bytes_max = min(settings.sqlite_tail_bytes, _CHAIN_BYTES_MAX)
        self._writer = PipeWriter(send, settings.max_queued_bytes)
        self._number = 0
        self._pending_requests: dict[int, asyncio.Future[int | None]] = {}
        self._state = "new"
        self._healthy = False
        self._healthy_until_s = float("-inf")
        self._file: LogFile | None = None
        self._bounds: LogFile | None = None  # of the event loop
        self._version = -1
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="muster-log-reader")

    # ---- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Opens the file. The parent has opened the log before. Raises LogUnavailable, LogIncompatible."""

        def opened() -> tuple[LogFile, LogFile, dict[int, _PartitionView]]:
            file, bounds = (LogFile(Path(self.settings.sqlite_path), any_thread=True) for _ in range(2))
            return (
                file,
                bounds,
                {
                    number: _PartitionView(topic, partition, *file.bounds(topic, partition))
                    for (topic, partition), number in file.partition_ids.items()
                },
            )

        self._file, self._bounds, self._by_id = await self._in_thread(opened)
        self._views = {(view.topic, view.partition): view for view in self._by_id.values()}
        self._state = "open"

    async def close(self) -> None:
        """Sends all appended records to the parent, then closes. Later calls raise LogClosed."""
        if self._state == "open":
            await self._writer.close()
        self._state = "closed"
        for view in self._by_id.values():
            view.signal()
        for future in self._pending_requests.values():
            if not future.done():
                future.set_exception(LogClosed("the log is closed"))
        if self._bounds is not None:
            self._bounds.close()
            self._bounds = None
        if self._file is not None:
            await self._in_thread(self._file.close)
            self._file = None
        self._thread.shutdown(wait=False)

    async def healthy(self) -> bool:
        """Tells whether the parent's log and the file answer. A positive answer is reused for a moment."""
        if self._state != "open":
            return False
        loop = asyncio.get_running_loop()
        if loop.time() >= self._healthy_until_s:
            try:
                async with asyncio.timeout(self.settings.health_timeout_s):
                    self._healthy = bool(await self.ask(GetHealth(self.number())))
            except (TimeoutError, LogError):
                self._healthy = False
            self._healthy_until_s = loop.time() + _HEALTHY_FOR_S
        return self._healthy

    async def identity(self) -> str:
        self.check_open()
        file = self._file
        assert file is not None, "it is open"
        return await self._in_thread(file.identity)

    async def writer(self, name: str) -> LogWriter:
        self.check_open()
        return _Writer(self, self._writer, name)

    async def reader(
        self, topic: str, partition: int, start: int | None = None, *, fetch_max_bytes: int | None = None
    ) -> LogReader:
        self.check_open()
        self.rules.spec(topic, partition)
        view = self._views[topic, partition]
        view.has_readers = True
        return _Reader(self, view, view.first if start is None else start)

    async def take_over(self, group: str, topic: str, partition: int) -> PartitionOwner:
        self.check_open()
        self.rules.spec(topic, partition)
        number = self.number()
        await self.ask(TakeOver(number, group, topic, partition))
        return _Owner(self, number)

    def check_open(self) -> None:
        """Raises LogClosed."""
        if self._state != "open":
            raise LogClosed(f"log {self.settings.sqlite_path} is {'not started' if self._state == 'new' else 'closed'}")

    # ---- the pipe ----------------------------------------------------------------------------------------------------

    def handle(self, message: FromLog) -> None:
        """Takes a message from the pipe."""
        match message:
            case EndsChanged():
                for number, first, end in message.places:
                    if (view := self._by_id.get(number)) is not None:
                        view.moved(first, end)
            case AppendResults():
                self._writer.resolve(message)
            case SyncRequest():
                self._send(SyncDone(message.number))
            case Reply():
                future = self._pending_requests.get(message.number)
                if future is not None and not future.done():
                    if message.failure is not None:
                        future.set_exception(error_of(message.failure))
                    else:
                        future.set_result(message.value)

    def number(self) -> int:
        """Returns the number of the next question."""
        self._number += 1
        return self._number

    async def ask(self, question: TakeOver | Commit | GetCommitted | GetHealth) -> int | None:
        """Sends a question and returns the answer. Raises the log's error."""
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._pending_requests[question.number] = future
        try:
            self._send(question)
            return await future
        finally:
            self._pending_requests.pop(question.number, None)

    def send(self, message: Release) -> None:
        """Sends a message that needs no answer."""
        self._send(message)

    # ---- the file ----------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Takes the present bounds of all partitions that have been read, from the file. Never waits for the parent.

        An answer that is made after it includes all that was visible before it. It takes some microseconds, and a few
        for each partition if something was committed meanwhile.
        """
        bounds = self._bounds
        if bounds is None:
            return
        with contextlib.suppress(LogUnavailable):  # the readers notice it, too
            if (version := bounds.version()) == self._version:
                return
            self._version = version
            for view in self._views.values():
                if view.has_readers:
                    view.moved(*bounds.bounds(view.topic, view.partition))

    async def read_bounds(self, view: _PartitionView) -> None:
        """Reads a partition's present bounds from the file."""
        file = self._file
        assert file is not None
        view.moved(*await self._in_thread(lambda: file.bounds(view.topic, view.partition)))

    async def fetch(self, view: _PartitionView, position: int, max_records: int) -> list[Record]:
        """Returns some records from ``position`` on, from the file or a chain. May return more than asked for.

        Raises OffsetOutOfRange, LogUnavailable, LogDamaged.
        """
        if position < view.chain_end:
            return [record for span in await self._read(view, position, max_records) for record in span.records]
        # At the end of the chain, one reader fetches for all readers.
        async with view.fetching:
            if (kept := view.cached_records(position, max_records)) is not None:
                return kept
            spans = await self._read(view, position, max_records)
            self._cache_spans(view, position, spans)
        return [record for span in spans for record in span.records]

    async def _read(self, view: _PartitionView, position: int, max_records: int) -> list[RecordSpan]:
        file = self._file
        if file is None:
            raise LogClosed(f"log {self.settings.sqlite_path} is closed")

        def read() -> list[RecordSpan]:
            spans: list[RecordSpan] = []
            count = stored = 0
            start = position
            try:
                with contextlib.closing(file.blocks_from(view.topic, view.partition, position)) as blocks:
                    for block, records in blocks:
                        size = sum(
                            len(record.key or b"") + len(record.value or b"") + _RECORD_MEMORY_BYTES
                            for record in records
                        )
                        spans.append(RecordSpan(start, block.next_offset, records, size))
                        start = block.next_offset
                        count += len(records)
                        stored += len(block.body)
                        if count >= max_records or stored >= _READ_BYTES:
                            break
            except LogDamaged:
                if not spans:  # otherwise the next read begins at the damaged block
                    raise
            return spans

        spans = await self._in_thread(read)
        if spans:
            view.moved(view.first, spans[-1].end)  # the file may be ahead of the pipe
        return spans

    def _cache_spans(self, view: _PartitionView, position: int, spans: Sequence[RecordSpan]) -> None:
        if position != view.chain_end:  # a reader read elsewhere, and a chain has no gaps
            self._chain_bytes -= sum(span.size_bytes for span in view.spans)
            view.spans.clear()
            self._chain_order = deque(queued for queued in self._chain_order if queued is not view)
            view.chain_end = position
        for span in spans:
            view.spans.append(span)
            view.chain_end = span.end
            self._chain_order.append(view)
            self._chain_bytes += span.size_bytes
        while self._chain_bytes > self._chain_bytes_max:
            self._chain_bytes -= self._chain_order.popleft().spans.popleft().size_bytes

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except RuntimeError as error:  # the executor is shut down
            raise LogClosed(f"log {self.settings.sqlite_path} is closed") from error


class _Reader(ReadAheadReader):
    """See :class:`muster_bus.log.LogReader`."""

    def __init__(self, bus: ChildLog, view: _PartitionView, position: int) -> None:
        super().__init__(position)
        self._bus, self._view = bus, view
        self._count_read = metrics.records_read.labels(view.topic).inc

    def cached_end(self) -> int:
        return max(self._position, self._view.end)

    async def read(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        await self._check()
        view = self._view
        if self._position == view.end and timeout_s > 0:
            await view.wait(timeout_s)
            await self._check()
        if self._position == view.end:
            return []
        if not self._ahead:
            records = view.cached_records(self._position, max_records)
            if records is None:
                records = await self._bus.fetch(view, self._position, max_records)
                await self._check()
                if not records:  # retention and compaction never remove the newest record before the end
                    raise LogDamaged(view.topic, view.partition, self._position, view.end, "nothing is there")
            self._ahead.replace(records)
        batch = self._ahead.pop(max_records)
        self._position = batch[-1].offset + 1
        self._count_read(len(batch))
        return batch

    async def first_offset(self) -> int:
        self._bus.check_open()
        return self._view.first

    async def end_offset(self, max_age_s: float = 0.0) -> int:
        self._bus.check_open()
        return self._view.end

    async def written_end(self) -> int:
        self._bus.check_open()
        await self._bus.read_bounds(self._view)
        return self._view.end

    async def close(self) -> None:
        self._closed = True
        self._view.signal()

    async def _check(self) -> None:
        view = self._view
        self._check_open()
        if self._position > view.end:  # the pipe may be behind the file
            await self._bus.read_bounds(view)
            self._check_open()
        if not view.first <= self._position <= view.end:
            raise OffsetOutOfRange(view.topic, view.partition, self._position, view.first, view.end)

    def _check_open(self) -> None:
        self._bus.check_open()
        if self._closed:
            raise LogClosed(f"the reader of {self._view.topic}[{self._view.partition}] is closed")


class _Writer:
    """See :class:`muster_bus.log.LogWriter`. All writers share one pipe writer, which keeps their order."""

    def __init__(self, bus: ChildLog, pipe: PipeWriter, name: str) -> None:
        self._bus, self._pipe, self._name = bus, pipe, name
        self._waiting: set[asyncio.Future[int]] = set()
        self._closed = False

    def append(self, record: OutRecord) -> Awaitable[int]:
        try:
            self._check()
            self._bus.rules.check(record)
        except LogError as error:  # the contract raises errors when the result is awaited
            refused: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused
        done = asyncio.ensure_future(self._pipe.append(record))
        self._waiting.add(done)
        done.add_done_callback(self._waiting.discard)
        return done

    async def wait_writable(self) -> None:
        self._check()
        await self._pipe.wait_writable()
        self._check()

    async def close(self) -> None:
        """Waits until the appended records are durable."""
        self._closed = True
        if self._waiting:
            await asyncio.wait(set(self._waiting), timeout=_CLOSE_TIMEOUT_S)

    def _check(self) -> None:
        if self._closed:
            raise LogClosed(f"writer {self._name} is closed")
        self._bus.check_open()


class _Owner:
    """See :class:`muster_bus.log.PartitionOwner`. The parent has the real owner."""

    def __init__(self, bus: ChildLog, number: int) -> None:
        self._bus, self._number = bus, number
        self._closed = False

    async def committed(self) -> int | None:
        self._check()
        return await self._bus.ask(GetCommitted(self._bus.number(), self._number))

    async def commit(self, records: Sequence[OutRecord], input_position: int | None) -> None:
        self._check()
        for record in records:
            self._bus.rules.check(record)
        await self._bus.ask(Commit(self._bus.number(), self._number, tuple(records), input_position))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            with contextlib.suppress(LogError):
                self._bus.send(Release(self._bus.number(), self._number))

    def _check(self) -> None:
        self._bus.check_open()
        if self._closed:
            raise LogClosed("the owner is closed")
