"""Services in one process: the order of start and stop, and a clean stop after a failed start."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import pytest
from muster_cli.errors import ServiceDied, StartFailed
from muster_cli.service_runner import ManagedResource, NamedService, run, signals


class Fake:
    """A service that records its calls."""

    def __init__(self, name: str, diary: list[str], *, fails: str = "", ready_after: int = 0) -> None:
        self.name, self.diary, self.fails, self.ready_after = name, diary, fails, ready_after
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        self.diary.append(f"start {self.name}")
        if self.fails == "start":
            raise OSError("no server")
        if self.fails == "hang at start":
            await asyncio.Event().wait()

    async def wait(self) -> None:
        await asyncio.shield(self.ended)

    async def stop(self) -> None:
        self.diary.append(f"stop {self.name}")
        if self.fails == "stop":
            raise OSError("lost")
        if self.fails == "hang at stop":
            await asyncio.Event().wait()
        if not self.ended.done():
            self.ended.set_result(None)

    async def healthy(self) -> bool:
        self.ready_after -= 1
        return self.ready_after < 0


def _opened(diary: list[str]) -> ManagedResource:
    def note(what: str) -> Callable[[], Awaitable[None]]:
        async def write() -> None:
            diary.append(what)

        return write

    return ManagedResource("log", note("open log"), note("close log"))


async def _run(parts: list[Fake], diary: list[str], stop: asyncio.Event, **more: object) -> None:
    async with asyncio.timeout(5):
        named = [NamedService(part.name, part) for part in parts]
        await run(
            [_opened(diary)], named, stop=stop, stop_timeout_s=0.1, checks=[part.healthy for part in parts], **more
        )  # type: ignore[arg-type]


async def test_parts_start_in_order_and_stop_in_reverse() -> None:
    diary: list[str] = []
    stop = asyncio.Event()
    parts = [Fake("a", diary), Fake("b", diary, ready_after=2)]

    def ready() -> None:
        diary.append("ready")
        stop.set()

    await _run(parts, diary, stop, on_ready=ready)
    assert diary == ["open log", "start a", "start b", "ready", "stop b", "stop a", "close log"]


@pytest.mark.parametrize("cause", [RuntimeError("defect"), None])
async def test_a_part_that_ends_by_itself_ends_the_process(cause: Exception | None) -> None:
    diary: list[str] = []
    parts = [Fake("a", diary), Fake("b", diary)]
    ended = parts[0].ended
    asyncio.get_running_loop().call_later(0.02, lambda: ended.set_exception(cause) if cause else ended.set_result(None))
    with pytest.raises(ServiceDied, match="a died") as raised:
        await _run(parts, diary, asyncio.Event())
    assert raised.value.cause is cause
    assert diary[-3:] == ["stop b", "stop a", "close log"]


async def test_started_services_are_stopped_when_the_next_one_cannot_start() -> None:
    diary: list[str] = []
    with pytest.raises(StartFailed, match="b could not start: OSError: no server"):
        await _run([Fake("a", diary), Fake("b", diary, fails="start"), Fake("c", diary)], diary, asyncio.Event())
    assert diary == ["open log", "start a", "start b", "stop b", "stop a", "close log"]


async def test_a_start_that_waits_does_not_hold_a_stop_up() -> None:
    diary: list[str] = []
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.02, stop.set)
    await _run([Fake("a", diary, fails="hang at start")], diary, stop)
    assert diary == ["open log", "start a", "stop a", "close log"]


@pytest.mark.parametrize("failure", ["stop", "hang at stop"])
async def test_a_stop_that_fails_or_hangs_does_not_keep_the_others_from_stopping(failure: str) -> None:
    diary: list[str] = []
    stop = asyncio.Event()
    await _run([Fake("a", diary), Fake("b", diary, fails=failure)], diary, stop, on_ready=stop.set)
    assert diary[-3:] == ["stop b", "stop a", "close log"]


async def test_a_health_check_that_raises_ends_the_process() -> None:
    diary: list[str] = []
    part = Fake("a", diary)

    async def broken() -> bool:
        raise OSError("broken check")

    part.healthy = broken  # type: ignore[method-assign]
    with pytest.raises(OSError, match="broken check"):
        await _run([part], diary, asyncio.Event())
    assert diary[-1] == "close log"


# ---- two causes -----------------------------------------------------------------------------------------------------


def while_waiting(act: Callable[[], object]) -> Callable[[], None]:
    """Returns an ``on_ready`` that acts some turns of the loop later: the runner waits for its services by then."""

    async def soon() -> None:
        for _ in range(50):
            await asyncio.sleep(0)
        act()

    tasks: list[asyncio.Task[None]] = []
    return lambda: tasks.append(asyncio.create_task(soon()))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_of_two_parts_that_end_in_one_turn_the_first_is_told(order: tuple[int, int]) -> None:
    diary: list[str] = []
    parts = [Fake("a", diary), Fake("b", diary)]

    def die() -> None:
        for number in order:
            parts[number].ended.set_exception(RuntimeError(f"{number}"))

    with pytest.raises(ServiceDied, match=f"{'ab'[order[0]]} died"):
        await _run(parts, diary, asyncio.Event(), on_ready=while_waiting(die))
    assert diary[-3:] == ["stop b", "stop a", "close log"]


async def test_a_stop_does_not_hide_that_a_part_has_died() -> None:
    diary: list[str] = []
    stop = asyncio.Event()
    part = Fake("a", diary)

    async def dies() -> None:
        await part.ended
        asyncio.get_running_loop().call_soon(stop.set)

    part.wait = dies  # type: ignore[method-assign]
    with pytest.raises(ServiceDied, match="a died"):
        await _run([part], diary, stop, on_ready=while_waiting(lambda: part.ended.set_result(None)))


async def test_a_part_that_dies_of_a_stop_is_no_failure() -> None:
    diary: list[str] = []
    stop = asyncio.Event()
    part = Fake("a", diary)

    def stops() -> None:
        stop.set()
        part.ended.set_exception(RuntimeError("the log is closed"))

    await _run([part], diary, stop, on_ready=while_waiting(stops))
    assert diary[-2:] == ["stop a", "close log"]


@pytest.mark.parametrize("fails", ["", "start"])
async def test_a_part_that_dies_while_others_start_is_the_cause(fails: str) -> None:
    diary: list[str] = []
    first, second = Fake("a", diary), Fake("b", diary)

    async def start() -> None:
        first.ended.set_exception(RuntimeError("no disk"))
        for _ in range(10):
            await asyncio.sleep(0)
        if fails:
            raise OSError("a does not answer")
        await asyncio.Event().wait()

    second.start = start  # type: ignore[method-assign]
    with pytest.raises(ServiceDied, match="a died: RuntimeError: no disk"):
        await _run([first, second], diary, asyncio.Event())
    assert diary == ["open log", "start a", "stop b", "stop a", "close log"]


async def test_a_start_that_fails_is_the_cause_although_another_part_dies_of_it() -> None:
    diary: list[str] = []
    first, second = Fake("a", diary), Fake("b", diary)

    async def start() -> None:
        asyncio.get_running_loop().call_soon(first.ended.set_exception, RuntimeError("b has not started"))
        raise OSError("no server")

    second.start = start  # type: ignore[method-assign]
    with pytest.raises(StartFailed, match="b could not start: OSError: no server"):
        await _run([first, second], diary, asyncio.Event())


async def test_a_repeated_sigterm_changes_nothing() -> None:
    stop = asyncio.Event()
    with signals(stop):
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(5):
            await stop.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.01)
    assert stop.is_set()


async def test_a_second_sigint_ends_the_process_at_once() -> None:
    stop = asyncio.Event()
    with signals(stop):
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(5):
            await stop.wait()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
