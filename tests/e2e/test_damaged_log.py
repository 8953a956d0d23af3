"""`muster up` refuses a log with a hole in one sentence, and `muster repair` goes on without what is missing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import sqlite3
import subprocess
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from e2e.full_disk import small_disk
from frozen.furnish import Stream, allocation, application, node
from muster_proto.si.v1 import si_pb2 as si
from muster_proto.si.v1.si_pb2_grpc import SchedulerStub
from muster_replay.local_process import muster_command
from up import Up
from waiting import eventually

CONFIG = "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: [{name: a}]}]}]"
KEYS = [f"task-{number}" for number in range(6)]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    one = Up(tmp_path)
    yield one
    one.process.kill()


def muster(*arguments: str, code: int) -> str:
    """What a command prints."""
    outcome = subprocess.run(muster_command(*arguments), capture_output=True, text=True, timeout=240)
    assert outcome.returncode == code, outcome
    return outcome.stdout + outcome.stderr


def work(up: Up) -> None:
    """Places the tasks, each in a transaction of its own."""
    with grpc.insecure_channel(up.grpc) as channel:
        scheduler = SchedulerStub(channel)
        request = si.RegisterResourceManagerRequest(rmID="one", version="1", policyGroup="queues", config=CONFIG)
        scheduler.RegisterResourceManager(request, timeout=60)
        nodes, apps = Stream(scheduler.UpdateNode, "one"), Stream(scheduler.UpdateApplication, "one")
        nodes.until(si.NodeRequest(rmID="one", nodes=[node("n1")]), lambda answer: answer.accepted)
        apps.until(
            si.ApplicationRequest(rmID="one", new=[application("app", "root.a")]), lambda answer: answer.accepted
        )
        stream = Stream(scheduler.UpdateAllocation, "one")
        for key in KEYS:
            request = si.AllocationRequest(rmID="one", allocations=[allocation("app", key)])
            stream.until(request, lambda answer, key=key: key in [made.allocationKey for made in answer.new])


def remove_a_block(data: Path, topic: str, mark: bytes) -> None:
    """Removes the newest block of a topic that has these bytes in it, but for the topic's newest one."""
    with contextlib.closing(sqlite3.connect(data / "log.db", isolation_level=None)) as connection:
        rows = connection.execute(
            "SELECT b.id FROM partitions p JOIN blocks b ON b.id >> 40 = p.id "
            "WHERE p.topic = ? AND codec = 0 AND instr(body, ?) ORDER BY b.id DESC",
            (topic, mark),
        ).fetchall()
        assert len(rows) > 1
        connection.execute("DELETE FROM blocks WHERE id = ?", rows[1])


async def test_a_missing_block_of_the_state_is_refused_and_repaired(up: Up, tmp_path: Path) -> None:
    await up.start()
    await asyncio.to_thread(work, up)
    assert up.process.stop() == 0
    remove_a_block(up.data, "si.state.v1", b"one/alloc/")
    whole = {path.name: path.read_bytes() for path in up.data.glob("log.db")}

    told = muster(*up.arguments, "--set", "process.log_level=error", code=2)
    assert told.count("\n") == 1, told
    assert re.search(r"si\.state\.v1\[\d\] from 0 to \d+, with records of 'one': it has \d+ blocks instead of", told)
    assert f"muster repair --data-dir {up.data}" in told
    assert "instead of" in muster("verify", "--data-dir", str(up.data), code=1)

    listed = muster("repair", "--data-dir", str(up.data), code=1)
    words = re.findall(r"--accept (\w+)", listed)
    assert len(words) == 1
    assert "with records of 'one'" in listed
    muster("repair", "--data-dir", str(up.data), "--accept", "another", code=1)
    assert {path.name: path.read_bytes() for path in up.data.glob("log.db")} == whole

    muster("repair", "--data-dir", str(up.data), "--accept", words[0], code=0)
    (aside,) = up.data.glob("replaced-*")
    assert (aside / "log.db").read_bytes() == whole["log.db"]
    assert "accepted at" in muster("verify", "--data-dir", str(up.data), code=0)
    await up.start()

    def is_told() -> bool:
        with contextlib.suppress(urllib.error.HTTPError):  # 404: the publisher has not heard of the RM yet
            lowest = json.loads(up.get("/ws/v1/events/batch?rm=one")[1])["LowestID"]  # of the new instance
            return b"goes on without" in up.get(f"/ws/v1/events/batch?rm=one&start={lowest}")[1]
        return False

    await eventually(is_told, "an event tells of the loss")
    assert up.process.stop() == 0
    assert "accepted at" in muster("verify", "--data-dir", str(up.data), code=0)


def read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


@pytest.mark.parametrize("kept", ["log.db*", "log.db-wal", ""], ids=["killed", "without the index", "stopped"])
async def test_a_log_is_read_where_nothing_can_be_written(up: Up, tmp_path: Path, kept: str) -> None:
    """
    :param kept: files beside the log.
    """
    await up.start()
    await asyncio.to_thread(work, up)
    if kept:
        up.process.kill()
    else:
        assert up.process.stop() == 0
    with small_disk(tmp_path / "disk", 64) as disk:
        for path in [up.data / "log.db", *up.data.glob("*.mark"), *(up.data.glob(kept) if kept else ())]:
            shutil.copy(path, disk.path / path.name)
        assert (disk.path / "log.db-wal").exists() == bool(kept)
        before = {path.name: path.read_bytes() for path in disk.path.iterdir()}
        read_only(disk.path)
        assert "whole" in muster("verify", "--data-dir", str(disk.path), code=0)
        shown = muster("history", "app", "app", "--rm", "one", "--data-dir", str(disk.path), code=0)
        assert KEYS[0] in shown
        assert {path.name: path.read_bytes() for path in disk.path.iterdir()} == before
