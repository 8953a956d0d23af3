"""Reads the audit trail from the log: for muster.v1.Audit on grpc.aio, and for pages over HTTP (``audit_pages.py``)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import grpc
from muster_bus.damage import DamagedParts, PassingReader, Readers
from muster_bus.errors import BusError, LogUnavailable, OffsetOutOfRange
from muster_bus.log import LogReader, Record
from muster_bus.topics import Topics
from muster_runtime.caller import current

from muster_gateway import metrics
from muster_gateway.audit_codec import decode_entry, decode_read, encode_entries, fits, lost_entry
from muster_gateway.errors import LogDown, OverLimit, append_failure_text
from muster_gateway.servicer import refuse

SERVICE = "muster.v1.Audit"
_READS_MAX = 8
_BATCH = 500
_READ_S = 0.5
# A partition may have records after its last entry, such as Kafka's marks of transactions: then the end is never read.
_EMPTY_S = 2.0
# A transaction that is committed becomes visible within milliseconds; after a broker's end, within seconds.
_VISIBLE_S, _POLL_S = 10.0, 0.005


class AuditLogReader:
    """The entries on the log. Few read them at a time: a read may go through the whole trail."""

    def __init__(self, bus: Readers, topics: Topics, damage: DamagedParts) -> None:
        self._bus, self._topics, self._damage = bus, topics, damage
        self._reads = 0
        # Waits for the position that the present caller named, if it named one. Whoever knows a view sets it.
        self.wait_for_position: Callable[[], Awaitable[None]] = _pass

    @property
    def partitions(self) -> int:
        """Returns the number of the log's partitions."""
        return self._topics.partitions

    @contextmanager
    def reader_slot(self) -> Iterator[None]:
        """Holds a place of a reader. Raises OverLimit."""
        if self._reads >= _READS_MAX:
            raise OverLimit(f"{self._reads} calls read the audit trail, expected at most {_READS_MAX}: try again")
        self._reads += 1
        try:
            yield
        finally:
            self._reads -= 1

    async def partition_cursors(self, stack: AsyncExitStack, positions: Sequence[int | None] = ()) -> list[AuditCursor]:
        """Returns each partition up to its present end. Raises BusError.

        :param stack: closes them.
        :param positions: the offset from which each of them is read; None: its first one.
        """
        cursors: list[AuditCursor] = []
        for partition in range(self._topics.partitions):
            reader = await self._bus.reader(self._topics.audit, partition)
            stack.push_async_callback(reader.close)
            position = positions[partition] if positions else None
            if position is not None:
                reader.seek(position)
            if current().after:
                await self._wait_visible(reader, partition)
            cursors.append(AuditCursor(reader, self._topics.audit, partition, await reader.end_offset(), self._damage))
        return cursors

    async def _wait_visible(self, reader: LogReader, partition: int) -> None:
        """Returns when all entries are visible that are written now. Raises BusError.

        The view has shown the caller's position. What was decided with it is written, but on Kafka each partition of a
        transaction becomes visible by itself.
        """
        end = await reader.written_end()
        try:
            async with asyncio.timeout(_VISIBLE_S):
                while await reader.end_offset() < end:  # noqa: ASYNC110 (a broker tells nobody)
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise LogUnavailable(f"{self._topics.audit}[{partition}] has a transaction that does not end") from None


async def _pass() -> None: ...


class AuditServicer:
    """The one method of muster.v1.Audit."""

    def __init__(self, trail: AuditLogReader) -> None:
        self._trail = trail

    def handlers(self) -> grpc.GenericRpcHandler:
        """Returns a generic handler without serialisers."""
        methods: dict[str, Any] = {"Read": grpc.unary_stream_rpc_method_handler(self._read)}
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _read(self, raw: bytes, context: Any) -> None:
        try:
            await self._trail.wait_for_position()
            with self._trail.reader_slot():
                async for message in self._messages(raw):
                    await context.write(message)
        except asyncio.CancelledError:
            raise
        except BusError as error:
            down = LogDown(f"the log cannot be read ({append_failure_text(error)}): try again")
            await refuse(context, down, lambda status: metrics.admin_calls.labels("Audit", status))
        except Exception as error:
            await refuse(context, error, lambda status: metrics.admin_calls.labels("Audit", status))
        metrics.admin_calls.labels("Audit", "OK").inc()

    async def _messages(self, raw: bytes) -> AsyncIterator[bytes]:
        """Raises InvalidRequest, BusError."""
        request = decode_read(raw)
        async with AsyncExitStack() as stack:
            parts = await self._trail.partition_cursors(stack)
            # 1. what is there, by time over the partitions
            batch: list[Any] = []
            async for entry in merged(parts):
                if fits(entry, request):
                    batch.append(entry)
                if len(batch) >= _BATCH:
                    yield encode_entries(batch)
                    batch = []
            yield encode_entries(batch)
            # 2. what comes
            while request.follow:
                batches = await asyncio.gather(*(part.follow() for part in parts))
                new = [entry for records in batches for record in records if (entry := decode_entry(record))]
                new = [entry for entry in new if fits(entry, request)]
                if new:
                    yield encode_entries(sorted(new, key=lambda entry: entry.recorded_ns))


class AuditCursor:
    """A partition up to its end at the beginning of a read."""

    def __init__(self, reader: LogReader, topic: str, partition: int, end: int, damage: DamagedParts) -> None:
        self.reader, self._end = PassingReader(reader, damage), end
        self._damage, self._topic, self._partition = damage, topic, partition
        self._entries: deque[tuple[int, Any]] = deque()
        self._last_id, self._last_ns = "", 0

    @property
    def position(self) -> int:
        """Returns the offset of the next entry."""
        return self._entries[0][0] if self._entries else self.reader.position

    async def peek(self) -> Any:
        """Returns the next entry; None: there is none. Raises BusError."""
        while not self._entries and self.reader.position < self._end:
            try:
                before = self.reader.position
                records = await self.reader.read(_BATCH, _EMPTY_S)
            except OffsetOutOfRange as gone:  # retention was faster than the reader
                self.reader.seek(min(max(gone.first, 0), self._end))
                continue
            if not records and self.reader.position == before:
                return None
            if not records:
                self._note_lost(before, self.reader.position)
            for record in records:
                entry = decode_entry(record)
                # An entry that was tried again while Kafka gave no answer may be there twice, one after the other.
                if entry is not None and entry.id != self._last_id:
                    self._entries.append((record.offset, entry))
                    self._last_id, self._last_ns = entry.id, entry.recorded_ns
        return self._entries[0][1] if self._entries else None

    def _note_lost(self, before: int, after: int) -> None:
        """Puts an entry in the place of those that a damaged part had."""
        if self._damage.at(self._topic, self._partition, before) is None:
            return  # a hole that a transaction left
        reason = f"entries from offset {before} to {after} are in a damaged part of the log"
        self._entries.append((before, lost_entry(f"{self._topic}/{self._partition}/{before}", self._last_ns, reason)))

    async def follow(self) -> Sequence[Record]:
        """Returns the next records. Raises BusError."""
        return await self.reader.read(_BATCH, _READ_S)

    def pop(self) -> Any:
        """Removes the entry that :meth:`peek` returned."""
        return self._entries.popleft()[1]


async def merged(parts: list[AuditCursor]) -> AsyncGenerator[Any, None]:
    """Yields the entries of partitions by their time. Raises BusError."""
    while True:
        firsts = [(first.recorded_ns, number) for number, part in enumerate(parts) if (first := await part.peek())]
        if not firsts:
            return
        yield parts[min(firsts)[1]].pop()
