"""The scheduler writes the audit entry of a question that it gets; otherwise the gateway writes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest
from muster_bus.errors import LogUnavailable
from muster_bus.log import OutRecord
from muster_bus.topics import Topics
from muster_gateway.codec import CommandAnswer
from muster_gateway.errors import LogDown, OverLimit, SchedulerTimeout
from muster_gateway.scheduler_rpc import SchedulerRpc
from muster_gateway.settings import GatewaySettings
from muster_runtime.caller import Caller, calling
from muster_runtime.identity import NOBODY

TOPICS = Topics(partitions=1)
RECORD = OutRecord(TOPICS.requests, 0, b"rm", b"")


class Writer:
    """A log's writer that is full, fails, or takes the record."""

    def __init__(self, *, full: bool = False, fails: bool = False) -> None:
        self._full, self._fails = full, fails

    async def wait_writable(self) -> None:
        if self._full:
            await asyncio.Event().wait()

    def append(self, _record: OutRecord) -> Awaitable[int]:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self._fails:
            done.set_exception(LogUnavailable("away"))
        else:
            done.set_result(0)
        return done


def tail() -> Any:
    """A tail of responses that never come."""
    return SimpleNamespace(
        partition=0,
        register_call=lambda _rm_id, _request_id: asyncio.get_running_loop().create_future(),
        cancel_call=lambda _request_id: None,
    )


@pytest.mark.parametrize(
    ("writer", "most", "error", "carried"),
    [
        (Writer(), 0, OverLimit, False),
        (Writer(full=True), 1, SchedulerTimeout, False),
        (Writer(fails=True), 1, LogDown, False),
        (Writer(), 1, SchedulerTimeout, True),
    ],
)
async def test_the_scheduler_writes_the_entry_of_what_it_gets(
    writer: Writer, most: int, error: type[Exception], carried: bool
) -> None:
    settings = GatewaySettings.model_construct(max_registrations_waiting=most, registration_timeout_s=0.01)
    questions = SchedulerRpc(settings, TOPICS, writer, [tail()])  # type: ignore[arg-type]
    caller = Caller(NOBODY, "peer", "grpc", "method")
    caller.carried = True  # as the request's record is made
    with calling(caller), pytest.raises(error):
        await questions.call(CommandAnswer, "rm", "request", RECORD)
    assert caller.carried is carried


@pytest.mark.parametrize("first", ["the answer", "the time-out"])
async def test_of_an_answer_and_the_time_out_in_one_turn_the_first_counts(first: str) -> None:
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[Any] = loop.create_future()
    answer = CommandAnswer("request", "OK", "")

    def comes() -> None:
        if not answered.done():
            answered.set_result((answer, 7))

    there = SimpleNamespace(partition=0, register_call=lambda *_: answered, cancel_call=lambda _: None)
    settings = GatewaySettings.model_construct(max_registrations_waiting=1, registration_timeout_s=0.05)
    questions = SchedulerRpc(settings, TOPICS, Writer(), [there])  # type: ignore[arg-type]
    with calling(Caller(NOBODY, "peer", "grpc", "method")):
        asking = asyncio.create_task(questions.call(CommandAnswer, "rm", "request", RECORD))
        await asyncio.sleep(0)
        loop.call_later(0.02 if first == "the answer" else 0.08, comes)
        time.sleep(0.2)  # noqa: ASYNC251 - both are due in the same turn
        if first == "the answer":
            assert await asking == (answer, 7)
        else:
            with pytest.raises(SchedulerTimeout):
                await asking
