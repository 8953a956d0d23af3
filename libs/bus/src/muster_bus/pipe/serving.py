"""The parent's end of a log whose file a child reads by itself (``following.py``).

No record's content goes to the child. One frame tells the child which partitions moved since the last frame. It is sent
at once, so that an answer of a follower includes what its reader got before; requests alone wait for the outcome that
follows them. The child's writes come here and go to the log's owner.
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
    AskCommitted,
    AskHealthy,
    Commit,
    FromChild,
    FromLog,
    Moved,
    Release,
    Reply,
    TakeOver,
    failure_of,
)
from muster_bus.pipe.writing import Appends

# While the child does not read the pipe, movements are collected. The child later gets only the newest.
_UNSENT_BYTES_MAX = 64 << 10
_TOLD_LATER_S = 0.02
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
        self._appends = Appends(self._send, writer, on_defect)
        self._owners: dict[int, PartitionOwner] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._moved: dict[int, tuple[int, int]] = {}
        self._timer: asyncio.TimerHandle | None = None  # of a frame that may wait
        self._is_due = False  # a frame is the next thing to do
        self._unread = bus.ids_of(bus.settings.topics().requests)
        self._closed = False
        bus.watch(self._note)

    def take(self, message: FromChild) -> None:
        """Carries out a message. Its answer follows when it is known."""
        match message:
            case Append():
                self._appends.take(message)
            case Release():
                self._spawn(self._release(message.owner))
            case _:
                self._spawn(self._answer(message))

    async def settled(self) -> None:
        """Returns when everything appended or committed is on the log, or refused."""
        await self._appends.settled()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def close(self) -> None:
        """Stops serving and cancels the open questions."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._bus.unwatch(self._note)
        await self._appends.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for number in list(self._owners):
            await self._release(number)

    # ---- movements --------------------------------------------------------------------------------------------------

    def _note(self, place: int, first_offset: int, end: int) -> None:
        self._moved[place] = (first_offset, end)
        loop = asyncio.get_running_loop()
        if place not in self._unread:
            if not self._is_due:
                self._is_due = True
                loop.call_soon(self._tell)
        elif self._timer is None and not self._is_due:
            self._timer = loop.call_later(_UNREAD_S, self._tell)

    def _tell(self) -> None:
        self._is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closed:
            return
        if self._unsent_bytes() > _UNSENT_BYTES_MAX:
            self._timer = asyncio.get_running_loop().call_later(_TOLD_LATER_S, self._tell)
            return
        self._tell_now()

    def _tell_now(self) -> None:
        if self._moved:
            moved, self._moved = self._moved, {}
            self._to_child(Moved(tuple((place, *offsets) for place, offsets in moved.items())))

    def _send(self, message: FromLog) -> None:
        """Sends a message. Sends the movements first, so that the child knows what was visible before the answer."""
        if self._moved:
            self._tell_now()
        self._to_child(message)

    # ---- questions --------------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name="pipe-log")
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_defect(error)

    async def _answer(self, ask: TakeOver | Commit | AskCommitted | AskHealthy) -> None:
        try:
            reply = Reply(ask.number, await self._value(ask))
        except BusError as error:
            reply = Reply(ask.number, failure=failure_of(error))
        self._send(reply)

    async def _value(self, ask: TakeOver | Commit | AskCommitted | AskHealthy) -> int | None:
        match ask:
            case TakeOver():
                self._owners[ask.number] = await self._bus.take_over(ask.group, ask.topic, ask.partition)
                return None
            case Commit():
                records = [OutRecord(*each) for each in ask.records]
                await self._owner(ask.owner).commit(records, ask.input_position)
                return None
            case AskCommitted():
                return await self._owner(ask.owner).committed()
            case AskHealthy():
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
