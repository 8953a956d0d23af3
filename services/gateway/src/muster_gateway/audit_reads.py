"""muster.v1.Audit on grpc.aio: reads the audit trail from the log, for identities with the right admin."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import grpc
from muster_bus.errors import BusError
from muster_bus.log import Log, LogReader
from muster_bus.topics import Topics

from muster_gateway import metrics
from muster_gateway.audit_codec import decode_entry, decode_read, encode_entries, fits
from muster_gateway.errors import LogDown, OverLimit, why_not
from muster_gateway.servicer import refuse

SERVICE = "muster.v1.Audit"
_READS_MAX = 8
_BATCH = 500
_READ_S = 0.5
# A partition may have records after its last entry, such as Kafka's marks of transactions: then the end is never read.
_EMPTY_S = 2.0


class AuditServicer:
    """The one method of muster.v1.Audit."""

    def __init__(self, bus: Log, topics: Topics) -> None:
        self._bus, self._topics = bus, topics
        self._reads = 0

    def handlers(self) -> grpc.GenericRpcHandler:
        """Returns a generic handler without serialisers."""
        methods: dict[str, Any] = {"Read": grpc.unary_stream_rpc_method_handler(self._read)}
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _read(self, raw: bytes, context: Any) -> None:
        try:
            with self._place():
                async for message in self._messages(raw):
                    await context.write(message)
        except asyncio.CancelledError:
            raise
        except BusError as error:
            down = LogDown(f"the log cannot be read ({why_not(error)}): try again")
            await refuse(context, down, lambda status: metrics.admin_calls.labels("Audit", status))
        except Exception as error:
            await refuse(context, error, lambda status: metrics.admin_calls.labels("Audit", status))
        metrics.admin_calls.labels("Audit", "OK").inc()

    @contextmanager
    def _place(self) -> Iterator[None]:
        if self._reads >= _READS_MAX:
            raise OverLimit(f"{self._reads} calls read the audit trail, expected at most {_READS_MAX}: try again")
        self._reads += 1
        try:
            yield
        finally:
            self._reads -= 1

    async def _messages(self, raw: bytes) -> AsyncIterator[bytes]:
        """Raises InvalidRequest, BusError."""
        wanted = decode_read(raw)
        async with AsyncExitStack() as stack:
            readers: list[LogReader] = []
            for partition in range(self._topics.partitions):
                reader = await self._bus.reader(self._topics.audit, partition)
                stack.push_async_callback(reader.close)
                readers.append(reader)
            # 1. what is there, by time over the partitions
            found: list[Any] = []
            async for entry in _merged([_Part(reader, await reader.end_offset()) for reader in readers]):
                if fits(entry, wanted):
                    found.append(entry)
                if len(found) >= _BATCH:
                    yield encode_entries(found)
                    found = []
            yield encode_entries(found)
            # 2. what comes
            while wanted.follow:
                batches = await asyncio.gather(*(reader.read(_BATCH, _READ_S) for reader in readers))
                new = [entry for records in batches for record in records if (entry := decode_entry(record))]
                new = [entry for entry in new if fits(entry, wanted)]
                if new:
                    yield encode_entries(sorted(new, key=lambda entry: entry.recorded_ns))


class _Part:
    """A partition up to its present end."""

    def __init__(self, reader: LogReader, end: int) -> None:
        self._reader, self._end = reader, end
        self._entries: deque[Any] = deque()
        self._last_id = ""

    async def first(self) -> Any:
        """Returns the next entry; None: there is none."""
        while not self._entries and self._reader.position < self._end:
            records = await self._reader.read(_BATCH, _EMPTY_S)
            if not records:
                return None
            for entry in (decode_entry(record) for record in records):
                # An entry that was tried again while Kafka gave no answer may be there twice, one after the other.
                if entry is not None and entry.id != self._last_id:
                    self._entries.append(entry)
                    self._last_id = entry.id
        return self._entries[0] if self._entries else None

    def take(self) -> Any:
        """Removes the entry that :meth:`first` returned."""
        return self._entries.popleft()


async def _merged(parts: list[_Part]) -> AsyncIterator[Any]:
    while True:
        firsts = [(first.recorded_ns, number) for number, part in enumerate(parts) if (first := await part.first())]
        if not firsts:
            return
        yield parts[min(firsts)[1]].take()
