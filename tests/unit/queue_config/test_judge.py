"""Queue configurations are read in a process of their own, within limits."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator

import pytest
from muster_queue_config import config_codec
from muster_queue_config.errors import ParserBusy, ParserClosed
from muster_queue_config.queue_yaml import load_queue_config
from muster_queue_config.sandboxed_parser import SandboxedParser
from muster_queue_config.settings import QueueConfigSettings

LIMIT_S = 60.0
GOOD = "partitions:\n  - name: default\n    queues:\n      - name: root\n        submitacl: '*'\n"
# Takes ten seconds in pure Python, and a second in C.
LONG_LIST = "a: [" + "x," * 470_000 + "]\n"


def settings(**values: object) -> QueueConfigSettings:
    return QueueConfigSettings.model_validate({"max_bytes": 1 << 20, **values})


@pytest.fixture
async def judge() -> AsyncIterator[SandboxedParser]:
    made = SandboxedParser(settings())
    yield made
    await made.close()


async def test_a_verdict_is_that_of_reading_here(judge: SandboxedParser) -> None:
    bad = GOOD.replace("root", "root*!")
    good, refused = await asyncio.gather(judge.parse(GOOD), judge.parse(bad))
    config, _ = load_queue_config(GOOD)
    assert config is not None
    assert good.accepted
    assert config_codec.decode(GOOD, good.compiled) == config
    assert not refused.accepted
    assert list(refused.problems) == load_queue_config(bad)[1]


async def test_a_text_over_the_limit_is_refused_without_a_process() -> None:
    judge = SandboxedParser(settings(max_bytes=1024))
    refused = await judge.parse("#" * 1025)
    assert not refused.accepted
    assert "1025 bytes, expected at most 1024" in refused.problems[0].message
    assert judge.pid is None
    await judge.close()


async def test_too_much_time_is_a_verdict_and_the_next_text_is_read() -> None:
    judge = SandboxedParser(settings(cpu_s=0.05))
    try:
        refused = await judge.parse(LONG_LIST)
        assert not refused.accepted
        assert "more than 0.05 s of processor time" in refused.problems[0].message
        assert judge.pid is None
        assert (await judge.parse("")).accepted
        assert judge.pid is not None
    finally:
        await judge.close()


async def test_too_much_memory_is_a_verdict_and_the_next_text_is_read() -> None:
    judge = SandboxedParser(settings(memory_bytes=32 << 20, cpu_s=60))
    try:
        refused = await judge.parse(LONG_LIST)
        assert not refused.accepted
        assert "more than 32 MiB of memory" in refused.problems[0].message
        assert (await judge.parse(GOOD)).accepted
    finally:
        await judge.close()


async def test_a_killed_process_is_replaced_and_the_text_is_read_once_more(judge: SandboxedParser) -> None:
    await judge.parse(GOOD)
    assert judge.pid is not None
    first = judge.pid
    judge.kill("a test")
    assert (await judge.parse(GOOD + "#")).accepted
    assert judge.pid != first


async def test_the_event_loop_turns_while_a_hostile_text_is_read(judge: SandboxedParser) -> None:
    """In the service's own process, this text would block the event loop until it is read."""
    await judge.parse(GOOD)  # the process is running
    reading = asyncio.create_task(judge.parse(LONG_LIST))
    before = time.thread_time()
    turns = 0
    async with asyncio.timeout(LIMIT_S):
        while not reading.done():
            await asyncio.sleep(0.001)
            turns += 1
    used_s = time.thread_time() - before
    assert not (await reading).accepted
    assert turns > 1
    assert used_s < 0.5 * turns, "this process read the text itself"


async def test_rms_take_turns(judge: SandboxedParser) -> None:
    order: list[str] = []

    async def ask(whose: str, number: int) -> None:
        await judge.parse(f"{GOOD}# {whose} {number}", whose)
        order.append(whose)

    asks = [asyncio.create_task(ask("noisy", number)) for number in range(20)]
    await asyncio.sleep(0)  # they wait in a queue
    asks.append(asyncio.create_task(ask("quiet", 0)))
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*asks)
    assert order.index("quiet") <= 2


async def test_the_same_text_is_read_once(judge: SandboxedParser) -> None:
    first = await judge.parse(GOOD, "one")
    judge.kill("nobody needs it")
    assert await judge.parse(GOOD, "other") is first


async def test_an_idle_process_ends() -> None:
    judge = SandboxedParser(settings(idle_s=0.05))
    await judge.parse(GOOD)
    async with asyncio.timeout(LIMIT_S):
        while judge.pid is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (await judge.parse(GOOD + "#")).accepted
    await judge.close()


async def test_texts_that_wait_at_the_end_are_answered() -> None:
    judge = SandboxedParser(settings())
    waiting = [asyncio.create_task(judge.parse(f"{GOOD}# {number}")) for number in range(3)]
    await asyncio.sleep(0)
    await judge.close()
    for each in waiting:
        with pytest.raises(ParserClosed):
            await each
    with pytest.raises(ParserClosed):
        await judge.parse(GOOD)


async def test_no_more_than_so_many_texts_wait(judge: SandboxedParser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_queue_config.sandboxed_parser._WAITING_MAX", 2)
    asks = [asyncio.create_task(judge.parse(f"{GOOD}# {number}")) for number in range(4)]
    results = await asyncio.gather(*asks, return_exceptions=True)
    assert sum(isinstance(each, ParserBusy) for each in results) >= 1
    assert not any(isinstance(each, BaseException) and not isinstance(each, ParserBusy) for each in results)


async def test_the_process_ends_with_the_judge(judge: SandboxedParser) -> None:
    await judge.parse(GOOD)
    pid = judge.pid
    await judge.close()
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
