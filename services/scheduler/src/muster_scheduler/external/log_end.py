"""The log's end of the pipe: what the informers' process appends and reads (``pipe.py``), on the scheduler's log.

What it appends: ``muster_bus.pipe.writing``.

Of ``si.state`` only offers of the informers' sources go over: all the rest stays where it is, looked at by its key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine

from muster_bus.clock import Clock
from muster_bus.errors import LogError
from muster_bus.log import Log, LogReader, LogWriter
from muster_bus.pipe.messages import Append, failure_of
from muster_bus.pipe.writing import Appends
from muster_service.channel import Channel

from muster_scheduler.external.pipe import Answer, Ask, Message, ReadRecord

# Readers: how long one waits for an offer, and lets others gather before it looks at them.
_READ_S, _GATHER_S = 0.25, 0.02
_READ_RECORDS_MAX = 10_000


class LogEnd:
    """See the module's words.

    :param offers: how the keys of the sources' offers begin.
    :param on_defect: told what cannot be: nothing that is asked can be relied on then.
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
        self._appends = Appends(channel.send, writer, on_defect)
        self._readers: dict[int, LogReader] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, message: Append | Ask) -> None:
        """Does what is asked; the answer goes over when it is there."""
        if isinstance(message, Append):
            self._appends.take(message)
        else:
            self._spawn(self._answer(message), "reader")

    async def settled(self) -> None:
        """Returns when everything that was appended is on the log, or refused."""
        await self._appends.settled()

    async def close(self) -> None:
        """Leaves nothing behind but what is under way."""
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
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_defect(error)

    # ---- what it reads -----------------------------------------------------------------------------------------------

    async def _answer(self, ask: Ask) -> None:
        try:
            answer = await self._asked(ask)
        except LogError as error:
            answer = Answer(ask.number, failure=failure_of(error))
        self._channel.send(answer)

    async def _asked(self, ask: Ask) -> Answer:
        if ask.what == "open":
            reader = self._readers[ask.reader] = await self._log.reader(ask.topic, ask.partition, ask.offset)
            return Answer(ask.number, reader.position)
        if ask.what == "close":
            if (closed := self._readers.pop(ask.reader, None)) is not None:
                await closed.close()
            return Answer(ask.number)
        reader = self._readers[ask.reader]
        if ask.what == "first":
            return Answer(ask.number, await reader.first_offset())
        if ask.what == "end":
            return Answer(ask.number, await reader.end_offset())
        return await self._read(ask, reader)

    async def _read(self, ask: Ask, reader: LogReader) -> Answer:
        """The next offers; what else is on the topic is none of the informers' business."""
        if ask.offset is not None and ask.offset != reader.position:
            reader.seek(ask.offset)
        found: list[ReadRecord] = []
        looked_at, until_s = 0, self._clock.monotonic() + min(ask.timeout_s, _READ_S)
        while not found and looked_at < _READ_RECORDS_MAX and (left_s := until_s - self._clock.monotonic()) > 0:
            records = await reader.read(ask.records_max, left_s)
            looked_at += len(records)
            found = [
                ReadRecord(each.offset, each.timestamp_ms, each.key, each.value)
                for each in records
                if each.key is not None and each.key.startswith(self._offers)
            ]
            if 0 < len(records) < ask.records_max:
                await asyncio.sleep(_GATHER_S)
            else:
                await asyncio.sleep(0)
        return Answer(ask.number, reader.position, tuple(found))
