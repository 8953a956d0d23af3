"""Both ends of appending over a pipe.

Records go to the log in their order of arrival, many at once. Each is settled when the log has it or refuses it. The
child's end bounds the unsettled records. Other messages on the pipe do not wait behind an unreachable log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from muster_bus.errors import LogClosed, LogError, LogUnavailable
from muster_bus.log import LogWriter, OutRecord
from muster_bus.pipe.messages import Append, AppendResults, EncodedError, PipeRecord, error_of, failure_of, out_record

# Limit of unsettled bytes; above it ``ready`` waits.
UNSETTLED_BYTES_MAX = 8 << 20
_FRAME_BYTES = 1 << 20
_CLOSE_TIMEOUT_S = 2.0


class PipeWriter:
    """A :class:`~muster_bus.log.LogWriter` at the child's end of a pipe. The appends of one turn of the loop are one
    frame.

    :param send: sends over the pipe.
    """

    def __init__(self, send: Callable[[Append], None], unsettled_bytes_max: int = UNSETTLED_BYTES_MAX) -> None:
        self._send = send
        self._unsettled_bytes_max = unsettled_bytes_max
        self._number = 0
        self._batch: list[PipeRecord] = []
        self._batch_bytes = 0
        self._unsettled: dict[int, tuple[asyncio.Future[int], int]] = {}
        self._unsettled_bytes = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._closed = False

    def append(self, record: OutRecord) -> Awaitable[int]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()
        if self._closed:
            done.set_exception(LogClosed("the writer is closed"))
            return done
        size = len(record.key or b"") + len(record.value or b"") + 64
        self._number += 1
        if not self._batch:
            loop.call_soon(self._flush)
        self._batch.append(PipeRecord(self._number, *record))
        self._batch_bytes += size
        self._unsettled[self._number] = (done, size)
        self._unsettled_bytes += size
        if self._batch_bytes >= _FRAME_BYTES:
            self._flush()
        return done

    async def wait_writable(self) -> None:
        while self._unsettled_bytes >= self._unsettled_bytes_max and not self._closed:
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(room)
            await room
        if self._closed:
            raise LogClosed("the writer is closed")

    async def close(self) -> None:
        """Waits until the appended records are durable."""
        self._closed = True
        self._flush()
        self._wake_waiting()
        if self._unsettled:
            await asyncio.wait([done for done, _ in self._unsettled.values()], timeout=_CLOSE_TIMEOUT_S)

    def resolve(self, settled: AppendResults) -> None:
        """Takes the outcomes of records."""
        for number, offset in settled.durable:
            if not (done := self._pop_unsettled(number)).done():
                done.set_result(offset)
        for number, failure in settled.refused:
            if not (done := self._pop_unsettled(number)).done():
                done.set_exception(error_of(failure))
        if self._waiting and self._unsettled_bytes < self._unsettled_bytes_max:
            self._wake_waiting()

    def _pop_unsettled(self, number: int) -> asyncio.Future[int]:
        done, size = self._unsettled.pop(number)
        self._unsettled_bytes -= size
        return done

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for room in waiting:
            if not room.done():
                room.set_result(None)

    def _flush(self) -> None:
        if self._batch:
            batch, self._batch, self._batch_bytes = self._batch, [], 0
            self._send(Append(tuple(batch)))


class PipeAppendServer:
    """The log's end: passes appends from the pipe to a writer, in their order.

    :param send: sends over the pipe.
    :param on_defect: called with an unexpected error; no answer can be relied on after it.
    """

    def __init__(
        self, send: Callable[[AppendResults], None], writer: LogWriter, on_defect: Callable[[BaseException], None]
    ) -> None:
        self._send, self._writer, self._on_defect = send, writer, on_defect
        self._appends: asyncio.Queue[Append] = asyncio.Queue()
        self._under_way: set[asyncio.Future[int]] = set()
        self._durable: list[tuple[int, int]] = []
        self._refused: list[tuple[int, EncodedError]] = []
        self._task = asyncio.create_task(self._append_all(), name="pipe-appends")
        self._task.add_done_callback(self._ended)

    def enqueue(self, append: Append) -> None:
        """Queues appends. They are settled later, one by one."""
        self._appends.put_nowait(append)

    async def wait_flushed(self) -> None:
        """Returns when everything appended is on the log, or refused."""
        await self._appends.join()
        if self._under_way:
            await asyncio.wait(set(self._under_way))

    async def close(self) -> None:
        """Stops taking appends. Those already given to the writer go on."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_defect(error)

    async def _append_all(self) -> None:
        while True:
            append = await self._appends.get()
            for new in append.records:
                try:
                    await self._writer.wait_writable()
                    done = asyncio.ensure_future(self._writer.append(out_record(new)))
                except LogError as error:
                    self._add_result(new.number, failure_of(error))
                    continue
                self._under_way.add(done)
                done.add_done_callback(partial(self._appended, new.number))
            self._appends.task_done()

    def _appended(self, number: int, done: asyncio.Future[int]) -> None:
        self._under_way.discard(done)
        if done.cancelled():
            self._add_result(number, failure_of(LogUnavailable("it was cancelled")))
        elif (error := done.exception()) is not None:
            self._add_result(number, failure_of(error))
        else:
            self._add_result(number, done.result())

    def _add_result(self, number: int, result: int | EncodedError) -> None:
        if not self._durable and not self._refused:
            asyncio.get_running_loop().call_soon(self._send_results)
        if isinstance(result, EncodedError):
            self._refused.append((number, result))
        else:
            self._durable.append((number, result))

    def _send_results(self) -> None:
        durable, refused = tuple(self._durable), tuple(self._refused)
        self._durable, self._refused = [], []
        self._send(AppendResults(durable, refused))
