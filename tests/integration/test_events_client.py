"""EventsClient and `muster events` at a real publisher: each event once, in order, over lost connections."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import structlog
from in_virtual_time.test_events_grpc import PATIENCE_S, World, asked, world
from muster_cli.main import run
from muster_client.events_client import Event
from muster_proto.si.v1.si_pb2 import EventRecord
from muster_replay.local_process import muster_command
from muster_runtime import logs
from unit.publisher.running import until_next

Printed = Callable[[], tuple[str, str]]


def address(it: World) -> str:
    return f"127.0.0.1:{it.publisher.service.grpc_port}"


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], tuple[str, str]]]:
    """Read the command's output since the last call. Restores the logging setup at the end."""
    root = logging.getLogger()
    before = structlog.get_config(), root.handlers[:], root.level
    logs.configure("critical", "auto")

    def both() -> tuple[str, str]:
        found = capsys.readouterr()
        return found.out, found.err

    yield both
    structlog.configure(**before[0])
    root.handlers[:], root.level = before[1], before[2]


async def muster(*arguments: str) -> int:
    return await asyncio.to_thread(run, ["events", *arguments])


async def test_the_command_prints_batches(printed: Printed) -> None:
    async with world() as it:
        await it.events(0, 2_500)
        at = ("--gateway", address(it))
        assert await muster("batch", *at, "--json", "--count", "2200") == 0
        lines = [json.loads(line) for line in printed()[0].splitlines()]
        assert [line["id"] for line in lines] == list(range(2_200))
        assert await muster("batch", *at, "--start", "7", "--count", "1", "--type", "app", "--object", "app-8") == 0
        header, line = printed()[0].splitlines()
        assert header.split() == ["time", "(UTC)", "id", "what", "object", "reference", "resource,", "message"]
        assert line.split() == [
            "2025-06-15", "15:06:40.008", "8", "APP", "ADD", "APP_ALLOC", "app-8", "alloc-8", "memory=8589934592",
            "vcore=8",
        ]  # fmt: skip
        assert await muster("batch", *at, "--since", "2025-06-15T15:06:42.499Z", "--json") == 0
        assert json.loads(printed()[0])["id"] == 2_499
        await it.publisher.feeder.events("rm", range(2_600, 2_601))
        await until_next(it.publisher, "rm", 2_601)
        assert await muster("batch", *at, "--newest", "2") == 0
        out, err = printed()
        assert "2600" in out
        assert err.splitlines()[-1] == "muster: events 2599 to 2599 no longer exist"


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--type", "APPS"), 2, "--type 'APPS', expected some of"),
        (("--start", "1", "--newest", "2"), 2, "--start, --since, --newest: expected one of them"),
        (("--since", "yesterday"), 2, "--since: must be a time as 2026-01-31T12:00:00Z, or at most 100 years"),
        (("--newest", "-1"), 2, "--newest: must be a whole number from 0 to 1,000,000,000, got '-1'"),
        (("--count", "0"), 2, "--count: must be a whole number from 1 to 1,000,000,000, got '0'"),
        (("--queue", "default"), 2, "filter.queue: 'default', expected a full path"),
        (("--rm", "nope"), 2, "rm_id: no events of 'nope'; known RMs: 'rm' (NOT_FOUND)"),
    ],
)
async def test_a_wrong_command_is_one_clear_line(
    printed: Printed, flags: tuple[str, ...], code: int, said: str
) -> None:
    async with world() as it:
        await it.events(0, 3)
        assert await muster("batch", "--gateway", address(it), *flags) == code
        out, err = printed()
        assert said in err
        assert (len(err.splitlines()), out) == (1, "")


@contextmanager
def interruptible() -> Iterator[None]:
    """Give processes that start meanwhile SIGINT's default action, even if the tests run in a shell's background.

    (`preexec_fn` would fork this process, with gRPC's threads and handlers in it: such a child may die.)
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


async def test_the_command_watches_until_it_is_ended() -> None:
    async with world() as it:
        await it.events(0, 3)
        command = muster_command(
            "events", "watch", "--gateway", address(it), "--start", "1", "--json", "--requests"
        )  # fmt: skip
        with interruptible():
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            found = [json.loads(await process.stdout.readline())["id"] for _ in range(2)]
            await it.events(3, 1)
            found.append(json.loads(await process.stdout.readline())["id"])
            await asked(it, "k")
            ask = json.loads(await process.stdout.readline())
        assert found == [1, 2, 3]
        assert (ask["type"], ask["objectID"], "id" in ask) == ("REQUEST", "k", False)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 130


def test_an_rms_text_does_not_control_a_terminal() -> None:
    from muster_cli.events import as_line

    line = as_line(Event(1, EventRecord(type=2, objectID="a\x1b[31m", message="x\ny")))
    assert line.isprintable()
    assert "a\\x1b[31m" in line
