"""Metrics are rendered beside the event loop, and once for all readers that wait."""

from __future__ import annotations

import asyncio
import threading

import pytest
from muster_runtime import exposition
from muster_runtime.exposition import READERS_MAX, ExpositionBusy, SharedExposition, own_beside


class Rendering:
    def __init__(self) -> None:
        self.began = 0
        self.may_end = asyncio.Event()

    async def __call__(self) -> bytes:
        self.began += 1
        number = self.began
        await self.may_end.wait()
        return b"%d" % number


async def read(shared: SharedExposition) -> bytes:
    async with shared as text:
        return text


async def test_waiting_callers_share_one_rendering_that_began_after_their_call() -> None:
    rendering = Rendering()
    shared = SharedExposition(rendering, monotonic_s=lambda: 0.0)
    first = asyncio.create_task(read(shared))
    while not rendering.began:  # noqa: ASYNC110
        await asyncio.sleep(0)
    others = [asyncio.create_task(read(shared)) for _ in range(READERS_MAX - 1)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert rendering.began == 1, "a second rendering began beside the first one"
    rendering.may_end.set()
    assert await first == b"1"
    assert set(await asyncio.gather(*others)) == {b"2"}
    assert await read(shared) == b"3"


async def test_no_more_readers_than_the_limit() -> None:
    rendering = Rendering()
    shared = SharedExposition(rendering, monotonic_s=lambda: 0.0)
    readers = [asyncio.create_task(read(shared)) for _ in range(READERS_MAX)]
    for _ in range(5):
        await asyncio.sleep(0)
    with pytest.raises(ExpositionBusy):
        await read(shared)
    rendering.may_end.set()
    await asyncio.gather(*readers)
    assert await read(shared)


async def test_a_failed_rendering_fails_for_its_readers_only() -> None:
    results: list[bytes | Exception] = [OSError("away"), b"text"]

    async def render() -> bytes:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    shared = SharedExposition(render)
    with pytest.raises(OSError, match="away"):
        await read(shared)
    assert await read(shared) == b"text"


async def test_after_a_rendering_there_is_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [0.0], list[float]()

    async def sleep(wait_s: float) -> None:
        slept.append(wait_s)
        now[0] += wait_s

    async def render() -> bytes:
        now[0] += 2.0
        return b""

    monkeypatch.setattr(exposition.asyncio, "sleep", sleep)
    shared = SharedExposition(render, lambda: now[0])
    for _ in range(3):
        await read(shared)
    assert slept == [8.0, 8.0]


async def test_the_processes_own_metrics_are_rendered_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def generate() -> bytes:
        threads.append(threading.get_ident())
        if len(threads) == 1:
            raise RuntimeError("dictionary changed size during iteration")
        return b"x 1\n"

    monkeypatch.setattr(exposition, "generate_latest", generate)
    assert await own_beside() == b"x 1\n"
    assert len(threads) == 2
    assert threading.get_ident() not in threads
