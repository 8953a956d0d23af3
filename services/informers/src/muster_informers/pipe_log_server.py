"""The scheduler's end of the pipe: appends and reads on the log for the informers' process (``pipe_messages.py``).

``muster_bus.pipe.pipe_appends`` does the appending.

From ``si.state`` only offers of the informers' sources go through the pipe; their keys identify them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine

from muster_bus.clock import Clock
from muster_bus.errors import LogError
from muster_bus.log import Log, LogReader, LogWriter
from muster_bus.pipe.messages import Append, failure_of
from muster_bus.pipe.pipe_appends import PipeAppendServer
from muster_runtime.message_channel import Channel

from muster_informers.pipe_messages import LogReply, LogRequest, Message, ReadRecord

# How long a reader waits for an offer, and how long it then collects further offers.
_READ_S, _GATHER_S = 0.25, 0.02
_READ_RECORDS_MAX = 10_000


class PipeLogServer:
    """See the module's docstring.

    :param offers: the prefixes of the keys of the sources' offers.
    :param on_defect: called with an unexpected error; the child's requests cannot be served after it.
    """

    def __init__(
        self,
        channel: Channel[Message],
        writer: LogWriter,
        bus: Log,
        offers: tuple[bytes, ...],
        clock: Clock,
        on_defect: Callable[[BaseException], None],
    ) -> None:
        self._channel = channel
        self._log, self._offers, self._clock = bus, offers, clock
        self._on_defect = on_defect
        self._appends = PipeAppendServer(channel.send, writer, on_defect)
        self._readers: dict[int, LogReader] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}  # in their order

    def handle(self, message: Append | LogRequest) -> None:
        """Carries out a message. Its answer follows when it is known."""
        if isinstance(message, Append):
            self._appends.enqueue(message)
        else:
            self._spawn(self._answer(message), "reader")

    async def wait_flushed(self) -> None:
        """Returns when all appended records are on the log or refused."""
        await self._appends.wait_flushed()

    async def close(self) -> None:
        """Stops taking messages and closes the readers. Appends already given to the writer go on."""
        await self._appends.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for reader in self._readers.values():
            with contextlib.suppress(LogError):
                await reader.close()

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=f"external-log-{name}")
        self._tasks[task] = None
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_defect(error)

    # ---- reads -------------------------------------------------------------------------------------------------------

    async def _answer(self, ask: LogRequest) -> None:
        try:
            answer = await self._reply_to(ask)
        except LogError as error:
            answer = LogReply(ask.number, failure=failure_of(error))
        self._channel.send(answer)

    async def _reply_to(self, ask: LogRequest) -> LogReply:
        if ask.operation == "open":
            reader = self._readers[ask.reader] = await self._log.reader(ask.topic, ask.partition, ask.offset)
            return LogReply(ask.number, reader.position)
        if ask.operation == "close":
            if (closed := self._readers.pop(ask.reader, None)) is not None:
                await closed.close()
            return LogReply(ask.number)
        reader = self._readers[ask.reader]
        if ask.operation == "first":
            return LogReply(ask.number, await reader.first_offset())
        if ask.operation == "end":
            return LogReply(ask.number, await reader.end_offset())
        return await self._read(ask, reader)

    async def _read(self, ask: LogRequest, reader: LogReader) -> LogReply:
        """The next offers; other records of the topic are skipped."""
        if ask.offset is not None and ask.offset != reader.position:
            reader.seek(ask.offset)
        offers: list[ReadRecord] = []
        looked_at, until_s = 0, self._clock.monotonic() + min(ask.timeout_s, _READ_S)
        while not offers and looked_at < _READ_RECORDS_MAX and (left_s := until_s - self._clock.monotonic()) > 0:
            records = await reader.read(ask.records_max, left_s)
            looked_at += len(records)
            offers = [
                ReadRecord(record.offset, record.timestamp_ms, record.key, record.value)
                for record in records
                if record.key is not None and record.key.startswith(self._offers)
            ]
            if 0 < len(records) < ask.records_max:
                await asyncio.sleep(_GATHER_S)
            else:
                await asyncio.sleep(0)
        return LogReply(ask.number, reader.position, tuple(offers))
