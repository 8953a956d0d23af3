"""The parent's end of a log whose file a child reads by itself (``child_log.py``).

No record's content goes to the child. One frame tells the child which partitions moved since the last frame. Frames
have a distance, because each wakes the child and its readers; requests alone wait for the outcome that follows them.
Whoever passes a question on to the child waits for ``told`` before, so that the answer includes what its reader got
before. The child's writes come here and go to the log's owner.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine

from muster_bus.backends.sqlite import SqliteLog
from muster_bus.errors import BusError, LogClosed, LogError
from muster_bus.log import LogWriter, OutRecord, PartitionOwner
from muster_bus.pipe.messages import (
    Append,
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
    failure_of,
)
from muster_bus.pipe.pipe_appends import PipeAppendServer

# While the child does not read the pipe, movements are collected. The child later gets only the newest.
_UNSENT_BYTES_MAX = 64 << 10
_BACKPRESSURE_PAUSE_S = 0.02
# Between two frames. A follower that is asked less often works less: it reads several commits in one go.
_PAUSE_S = 0.02
_SYNC_TIMEOUT_S = 1.0  # a child that is busy for longer takes a question later, too
# No follower reads requests, and each is followed by an outcome. Alone they wait for so long.
_UNREAD_S = 0.05


class LogServer:
    """Serves one child. Made in the running event loop.

    :param send: sends over the pipe; never waits.
    :param unsent_bytes: returns the bytes that the child has not read.
    :param writer: takes the child's appends.
    :param on_defect: called with an unexpected error; no answer can be relied on after it.
    """

    def __init__(
        self,
        bus: SqliteLog,
        writer: LogWriter,
        send: Callable[[FromLog], None],
        unsent_bytes: Callable[[], int],
        on_defect: Callable[[BaseException], None],
    ) -> None:
        self._bus, self._to_child, self._unsent_bytes, self._on_defect = bus, send, unsent_bytes, on_defect
        self._appends = PipeAppendServer(self._send, writer, on_defect)
        self._owners: dict[int, PartitionOwner] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}  # in their order
        self._moved: dict[int, tuple[int, int]] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None  # of the next frame
        self._last_sent_s = float("-inf")  # time of the last frame
        self._frames = self._synced_frames = 0  # sent; of these, those that the child is known to have taken
        self._pending_syncs: dict[int, asyncio.Future[None]] = {}
        self._unread = bus.ids_of(bus.settings.topics().requests)
        self._closed = False
        bus.watch(self._note)

    def handle(self, message: FromChild) -> None:
        """Carries out a message. Its answer follows when it is known."""
        match message:
            case Append():
                self._appends.enqueue(message)
            case Release():
                self._spawn(self._release(message.owner))
            case SyncDone():
                if (synced := self._pending_syncs.get(message.number)) is not None and not synced.done():
                    synced.set_result(None)
            case _:
                self._spawn(self._answer(message))

    async def wait_synced(self) -> None:
        """Returns when the child knows of all records that are visible now, or is busy."""
        self._send_ends()
        frames = self._frames
        if frames == self._synced_frames or self._closed:
            return
        synced = self._pending_syncs.get(frames)
        if synced is None:
            synced = self._pending_syncs[frames] = self._loop.create_future()
            self._to_child(SyncRequest(frames))
        await asyncio.wait({synced}, timeout=_SYNC_TIMEOUT_S)
        self._pending_syncs.pop(frames, None)
        if synced.done():
            self._synced_frames = max(self._synced_frames, frames)

    async def wait_flushed(self) -> None:
        """Returns when everything appended or committed is on the log, or refused."""
        await self._appends.wait_flushed()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def close(self) -> None:
        """Stops serving and cancels the open questions."""
        self._closed = True
        self._cancel_timer()
        self._bus.unwatch(self._note)
        await self._appends.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for number in list(self._owners):
            await self._release(number)

    # ---- movements --------------------------------------------------------------------------------------------------

    def _note(self, partition_id: int, first_offset: int, end: int) -> None:
        self._moved[partition_id] = (first_offset, end)
        if partition_id not in self._unread:
            self._schedule_send(max(self._loop.time(), self._last_sent_s + _PAUSE_S))
        elif self._timer is None:
            self._schedule_send(self._loop.time() + _UNREAD_S)

    def _schedule_send(self, when_s: float) -> None:
        """Lets the next frame be sent then, or before."""
        if self._timer is None or self._timer.when() > when_s:
            self._cancel_timer()
            self._timer = self._loop.call_at(when_s, self._on_timer)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        if self._unsent_bytes() > _UNSENT_BYTES_MAX:
            self._schedule_send(self._loop.time() + _BACKPRESSURE_PAUSE_S)
            return
        self._send_ends()

    def _send_ends(self) -> None:
        if self._moved and not self._closed:
            self._cancel_timer()
            self._last_sent_s = self._loop.time()
            self._frames += 1
            moved, self._moved = self._moved, {}
            self._to_child(EndsChanged(tuple((partition_id, *offsets) for partition_id, offsets in moved.items())))

    def _send(self, message: FromLog) -> None:
        """Sends a message. Sends the movements first, so that the child knows what was visible before the answer."""
        if self._moved:
            self._send_ends()
        self._to_child(message)

    # ---- questions --------------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name="pipe-log")
        self._tasks[task] = None
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_defect(error)

    async def _answer(self, ask: TakeOver | Commit | GetCommitted | GetHealth) -> None:
        try:
            reply = Reply(ask.number, await self._value(ask))
        except BusError as error:
            reply = Reply(ask.number, failure=failure_of(error))
        self._send(reply)

    async def _value(self, ask: TakeOver | Commit | GetCommitted | GetHealth) -> int | None:
        match ask:
            case TakeOver():
                self._owners[ask.number] = await self._bus.take_over(ask.group, ask.topic, ask.partition)
                return None
            case Commit():
                records = [OutRecord(*record) for record in ask.records]
                await self._owner(ask.owner).commit(records, ask.input_position)
                return None
            case GetCommitted():
                return await self._owner(ask.owner).committed()
            case GetHealth():
                return int(await self._bus.healthy())

    def _owner(self, number: int) -> PartitionOwner:
        owner = self._owners.get(number)
        if owner is None:
            raise LogClosed("the owner is of no further use")
        return owner

    async def _release(self, number: int) -> None:
        owner = self._owners.pop(number, None)
        if owner is not None:
            with contextlib.suppress(LogError):
                await owner.close()
