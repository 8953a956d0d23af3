"""`muster up` refuses a log that lost records, says what to do, and records an accepted loss."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import sqlite3
import subprocess
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from muster_proto.si.v1 import si_pb2
from muster_proto.si.v1.si_pb2_grpc import SchedulerStub
from muster_replay.local_process import muster_command
from up import Up
from waiting import eventually

CONFIG = "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: [{name: a}]}]}]"


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    one = Up(tmp_path)
    yield one
    one.process.kill()


async def register(up: Up, rm_id: str) -> None:
    async with grpc.aio.insecure_channel(up.grpc) as channel:
        request = si_pb2.RegisterResourceManagerRequest(rmID=rm_id, version="1", policyGroup="queues", config=CONFIG)
        await SchedulerStub(channel).RegisterResourceManager(request, timeout=60)


def refused(up: Up) -> str:
    """The one line with which it does not start."""
    outcome = subprocess.run(
        muster_command(*up.arguments, "--set", "process.log_level=error"), capture_output=True, text=True, timeout=240
    )
    assert outcome.returncode == 2, outcome
    assert outcome.stderr.count("\n") == 1, outcome.stderr
    assert "docs/backup.md" in outcome.stderr
    return outcome.stderr


def knows_the_log(data: Path) -> bool:
    """The gateway's sweep keeps the log's mark with the sessions."""
    with contextlib.closing(sqlite3.connect(data / "sessions.db")) as connection:
        return any("si.state" in content for (content,) in connection.execute("SELECT content FROM log_mark"))


def without_wal(data: Path) -> None:
    (data / "log.db-wal").unlink()
    (data / "log.db-shm").unlink()


def without_anything_of_the_log(data: Path) -> None:
    for each in data.glob("log.db*"):  # the side file, too: the sessions know
        each.unlink()


@pytest.mark.parametrize("lose", [without_wal, without_anything_of_the_log])
async def test_a_lost_log_does_not_start(up: Up, tmp_path: Path, lose: Callable[[Path], None]) -> None:
    await up.start()
    await register(up, "one")
    async with asyncio.timeout(60):
        while not knows_the_log(tmp_path / "data"):  # noqa: ASYNC110 - another process's file
            await asyncio.sleep(0.2)
    up.process.kill()
    lose(tmp_path / "data")
    assert "log.accept_loss=" in refused(up)
    assert "log.accept_loss=" in refused(up), "a second start is refused, too"


async def test_an_accepted_loss_is_an_event_and_what_is_left_goes_on(up: Up, tmp_path: Path) -> None:
    data = tmp_path / "data"
    await up.start()
    await register(up, "one")
    assert up.process.stop() == 0
    older = shutil.copy(data / "log.db", tmp_path / "older.db")
    await up.start()
    await register(up, "two")
    assert up.process.stop() == 0
    shutil.copy(older, data / "log.db")
    said = refused(up)
    assert "is older than log.db.mark: at least" in said
    (word,) = re.findall(r"log\.accept_loss=(\w+)", said)
    up.process = type(up.process)(
        muster_command(*up.arguments, "--set", f"log.accept_loss={word}"), tmp_path / "accepted.log"
    )
    await up.start()

    def told() -> list[str]:
        with contextlib.suppress(urllib.error.HTTPError):  # 404: the publisher has not heard of the RM yet
            return losses()
        return []

    def losses() -> list[str]:
        lowest = json.loads(up.get("/ws/v1/events/batch?rm=one")[1])["LowestID"]  # of the new instance
        # (The oldest ones leave while the publisher still reads the log: then there are none from that one on.)
        events = json.loads(up.get(f"/ws/v1/events/batch?rm=one&start={lowest}")[1])["EventRecords"] or []
        return [event["objectID"] for event in events if "is older than" in event.get("message", "")]

    await eventually(told, "an event tells of the loss", every_s=0.1)
    assert told() == ["root"]
    assert "log.loss_accepted" in (tmp_path / "accepted.log").read_text()
    await register(up, "two")
    assert up.process.stop() == 0
    await up.start()
