"""The process of the informers: a child of the scheduler's process; only ``process.py`` starts it.

A change costs an informer, its handler and its cache as much time as the scheduler, and a Python process uses one core
at a time. So the informers have a process of their own. It runs the same parts (``service.py``) over a log at the other
end of a pipe.

``muster_runtime.child_process`` describes its start and its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import Callable, Sequence
from typing import cast

from muster_bus.clock import Clock, SystemClock
from muster_bus.errors import LogError
from muster_bus.log import LogReader, LogWriter, PartitionOwner, Record
from muster_bus.pipe.messages import Append, AppendResults, error_of
from muster_bus.pipe.pipe_appends import PipeWriter
from muster_bus.topics import Topics
from muster_core.external.errors import InvalidExternalSettings, NotSynced
from muster_runtime import logs
from muster_runtime.child_main import become_child, run_child
from muster_runtime.ending import first_of
from muster_runtime.message_channel import Channel

from muster_informers import child_metrics
from muster_informers.pipe_messages import (
    HandlerReply,
    HandlerRequest,
    InformersEnded,
    InformersStatus,
    LogReply,
    LogRequest,
    Message,
    MetricSamples,
    StartInformers,
    StopInformers,
)
from muster_informers.service import ExternalService
from muster_informers.settings import ExternalSettings

_STATUS_INTERVAL_S, _SAMPLE_S = 0.1, 1.0
# The check for news takes at most one part in so many of the time.
_STATUS_TIME_DIVISOR = 10


class PipeReader:
    """A :class:`~muster_bus.log.LogReader` at the other end of a pipe; it gets only offers of the informers' sources.

    Its position also moves past records that it does not return.
    """

    def __init__(self, bus: PipeLog, number: int, topic: str, partition: int, position: int) -> None:
        self._bus, self._number = bus, number
        self._topic, self._partition = topic, partition
        self._position = position

    @property
    def position(self) -> int:
        return self._position

    def seek(self, offset: int) -> None:
        self._position = offset

    def cached_end(self) -> int:
        return self._position

    async def read(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        answer = await self._bus.ask(
            "read", self._number, offset=self._position, records_max=max_records, timeout_s=timeout_s
        )
        self._position = answer.offset
        return [
            Record(self._topic, self._partition, record.offset, record.timestamp_ms, record.key, record.value)
            for record in answer.records
        ]

    async def first_offset(self) -> int:
        return (await self._bus.ask("first", self._number)).offset

    async def end_offset(self, max_age_s: float = 0.0) -> int:
        return (await self._bus.ask("end", self._number)).offset

    async def written_end(self) -> int:
        return await self.end_offset()

    async def close(self) -> None:
        with contextlib.suppress(LogError):
            await self._bus.ask("close", self._number)


class PipeLog:
    """A :class:`~muster_bus.log.Log` at the other end of a pipe, with the methods that informers need."""

    def __init__(self, channel: Channel[Message], before: Callable[[], None] = lambda: None) -> None:
        self._channel, self._before = channel, before
        self._writers: list[PipeWriter] = []
        self._last_request_number = 0
        self._readers = 0
        self._answers: dict[int, asyncio.Future[LogReply]] = {}

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def healthy(self) -> bool:
        return True

    async def identity(self) -> str:
        raise NotImplementedError("informers give no positions")

    async def writer(self, name: str) -> LogWriter:
        assert not self._writers, "one writer for all"
        writer = PipeWriter(self._append)
        self._writers.append(writer)
        return writer

    async def reader(
        self, topic: str, partition: int, start: int | None = None, *, fetch_max_bytes: int | None = None
    ) -> LogReader:
        self._readers += 1
        number = self._readers
        answer = await self.ask("open", number, topic=topic, partition=partition, offset=start)
        return PipeReader(self, number, topic, partition, answer.offset)

    async def take_over(self, group: str, topic: str, partition: int) -> PartitionOwner:
        raise NotImplementedError("informers own no partition")

    def _append(self, append: Append) -> None:
        self._before()
        self._channel.send(append)

    async def ask(self, operation: str, reader: int, **more: object) -> LogReply:
        """Asks the parent. Raises the log's error."""
        self._last_request_number += 1
        number = self._last_request_number
        future: asyncio.Future[LogReply] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        try:
            self._channel.send(LogRequest(number, reader, operation, **more))  # type: ignore[arg-type]
            answer = await future
        finally:
            self._answers.pop(number, None)
        if answer.failure is not None:
            raise error_of(answer.failure)
        return answer

    def handle_reply(self, message: AppendResults | LogReply) -> None:
        if isinstance(message, AppendResults):
            for writer in self._writers:
                writer.resolve(message)
        elif (future := self._answers.get(message.number)) is not None and not future.done():
            future.set_result(message)


class _StatusReporter:
    """Reports the informers' state to the parent when it changes. The report is sent before the informers' records, so
    that health knows a state before a reader sees it on the log.
    """

    def __init__(self, channel: Channel[Message], clock: Clock) -> None:
        self._channel, self._clock = channel, clock
        self._last: InformersStatus | None = None
        self._next_s = 0.0
        self.service: ExternalService | None = None

    def report(self) -> None:
        began_s = self._clock.monotonic()
        if self.service is None or began_s < self._next_s:
            return
        status = InformersStatus(self.service.synced, tuple(self.service.synced_once()), tuple(self.service.problems()))
        if status != self._last:
            self._last = status
            self._channel.send(status)
        now_s = self._clock.monotonic()
        self._next_s = now_s + _STATUS_TIME_DIVISOR * (now_s - began_s)

    async def run(self) -> None:
        sampled_s = self._clock.monotonic() - _SAMPLE_S
        while True:
            self.report()
            if self._clock.monotonic() - sampled_s >= _SAMPLE_S:
                sampled_s = self._clock.monotonic()
                self._channel.send(MetricSamples(child_metrics.families()))
            await asyncio.sleep(_STATUS_INTERVAL_S)


async def serve(channel: Channel[Message], clock: Clock) -> None:
    """Runs informers by the parent's instructions, until it sends Stop. Raises EOFError: the parent is gone."""
    # 1. the parent's instructions
    begin = await channel.receive()
    if not isinstance(begin, StartInformers):
        raise EOFError
    logs.configure(cast("logs.Level", begin.log_level), cast("logs.Format", begin.log_format))
    sys.path[:] = begin.path
    teller = _StatusReporter(channel, clock)
    bus = PipeLog(channel, teller.report)
    settings = ExternalSettings.model_validate(begin.settings)
    topics = Topics(**begin.topics)  # type: ignore[arg-type]
    try:
        service = ExternalService(settings, bus, topics, clock, begin.partitions, begin.incarnation)
    except InvalidExternalSettings as error:
        channel.send(InformersEnded({}, tuple(error.problems)))
        await _stopped(channel, bus)
        return
    teller.service = service
    # 2. run
    received = asyncio.create_task(_stopped(channel, bus, service), name="pipe")
    await service.start()
    beside = [
        asyncio.create_task(teller.run(), name="teller"),
        asyncio.create_task(_report_sync_failure(service, channel), name="sync"),
    ]
    try:
        (await first_of(received, *beside)).result()
        # 3. stop: the pipe is still read for answers about records on their way to the log
        received = asyncio.create_task(_stopped(channel, bus, service), name="pipe")
        await service.stop()
    finally:
        for task in (received, *beside):
            task.cancel()
        await asyncio.gather(received, *beside, return_exceptions=True)
    await channel.flush()


async def _stopped(channel: Channel[Message], bus: PipeLog, service: ExternalService | None = None) -> None:
    """Takes the parent's messages; returns at Stop. Raises EOFError."""
    while True:
        message = await channel.receive()
        match message:
            case None:
                raise EOFError
            case StopInformers():
                return
            case AppendResults() | LogReply():
                bus.handle_reply(message)
            case HandlerRequest() if service is not None:
                judged = await service.call_handler(message.name, 0, message.begins, message.calls)
                channel.send(HandlerReply(message.number, tuple(judged)))


async def _report_sync_failure(service: ExternalService, channel: Channel[Message]) -> None:
    """Reports informers that have not synced in time; the parent decides what follows."""
    try:
        await service.wait()
    except NotSynced as error:
        channel.send(InformersEnded(error.informers))
    await asyncio.Event().wait()


def main() -> None:
    """:raises SystemExit: the command line is not the parent's."""
    end = become_child("the scheduler")
    gc.set_threshold(10_000, 20, 100)  # fleets are large, and nearly all objects stay
    run_child(end, Message, lambda channel: serve(channel, SystemClock()))


if __name__ == "__main__":
    main()
