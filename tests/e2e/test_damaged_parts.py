"""`muster up` on a log with a damaged block: what decisions need stops the start with one sentence; what is only shown
is passed over, and health, the answers and the RM's stream say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sqlite3
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.clock import SystemClock
from muster_bus.log import OutRecord
from muster_bus.settings import LogSettings
from muster_client.admin import AdminClient
from muster_proto.si.v1 import si_pb2
from muster_proto.si.v1.si_pb2_grpc import SchedulerStub
from muster_replay.local_process import muster_command
from up import Up
from waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.timeout(600)
CONFIG = "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: [{name: a}]}]}]"
ONE_PARTITION = {"MUSTER_LOG__PARTITIONS": "1"}
ROUNDS = 12  # each is a block of requests, responses, events and state
LOOKS = ["/ws/v1/whoami", "/ws/v1/partition/default/queues", "/ws/v1/events/batch?rm=rm", "/health", "/"]
REST_LOOKS = 30


async def _register(stub: SchedulerStub) -> None:
    request = si_pb2.RegisterResourceManagerRequest(rmID="rm", version="1", policyGroup="queues", config=CONFIG)
    await stub.RegisterResourceManager(request, timeout=PATIENCE_S)


async def _worked(up: Up) -> None:
    """An RM registers nodes in some rounds; an operator pauses and resumes it, for the audit trail."""
    async with grpc.aio.insecure_channel(up.grpc) as channel:
        stub = SchedulerStub(channel)
        await _register(stub)
        call = stub.UpdateNode()
        for number in range(ROUNDS):
            node = si_pb2.NodeInfo(
                nodeID=f"n{number}",
                action=si_pb2.NodeInfo.CREATE,
                schedulableResource=si_pb2.Resource(resources={"vcore": si_pb2.Quantity(value=8)}),
            )
            await call.write(si_pb2.NodeRequest(rmID="rm", nodes=[node]))
            await call.read()
        call.cancel()
    async with AdminClient(up.grpc) as admin:
        for _ in range(6):
            await admin.pause("rm", timeout_s=PATIENCE_S)
            await admin.resume("rm", timeout_s=PATIENCE_S)


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a Muster that worked and ended."""
    directory = tmp_path_factory.mktemp("worked")
    up = Up(directory, environment=ONE_PARTITION)

    async def work() -> None:
        await up.start()
        await _worked(up)

    try:
        asyncio.run(work())
        up.process.stop()
    finally:
        up.process.kill()
    return up.data


def _damage(data: Path, topic: str, offset: int | None = None) -> tuple[int, int]:
    """Flips a bit in a block of a topic: that which begins at the offset, or one in the middle. Returns its first
    offset, and the one behind it.
    """
    with contextlib.closing(sqlite3.connect(data / "log.db", isolation_level=None)) as connection:
        rows = connection.execute(
            "SELECT b.id, b.body FROM blocks b JOIN partitions p ON b.id >> 40 = p.id WHERE p.topic = ? ORDER BY b.id",
            (topic,),
        ).fetchall()
        assert len(rows) >= 2, f"{topic} has {len(rows)} blocks"
        begins = [place & (1 << 40) - 1 for place, _ in rows]
        number = len(rows) // 2 - 1 if offset is None else begins.index(offset)
        (place, body), (after, _) = rows[number : number + 2]
        middle = len(body) // 2
        changed = body[:middle] + bytes([body[middle] ^ 4]) + body[middle + 1 :]
        connection.execute("UPDATE blocks SET body = ? WHERE id = ?", (changed, place))
        return place & (1 << 40) - 1, after & (1 << 40) - 1


@contextlib.asynccontextmanager
async def _up_with_damage(
    worked: Path, directory: Path, topic: str, *, later: bool = False, **environment: str
) -> AsyncIterator[tuple[Up, tuple[int, int]]]:
    """:param later: the block is damaged while Muster works."""
    up = Up(directory, environment=ONE_PARTITION | environment)
    shutil.copytree(worked, up.data)
    place = (0, 0) if later else _damage(up.data, topic)
    try:
        await up.start()
        yield up, _damage(up.data, topic) if later else place
        text = up.process.log_file.read_text()
        assert "Traceback" not in text
        assert text.count("the followers' process was started") == 1
        assert text.count("log.damaged_part_passed") <= 2, "one line for each service that meets it"
    finally:
        up.process.kill()


def _json(up: Up, path: str) -> Any:
    return json.loads(up.get(path)[1])


def _problems(up: Up) -> list[str]:
    return [each for each in up.get("/health")[1].decode().splitlines() if "the log is damaged" in each]


async def _refused(up: Up) -> list[str]:
    """The lines with which it does not start, or ends."""
    outcome = await asyncio.to_thread(
        subprocess.run,
        muster_command(*up.arguments, "--set", "log.partitions=1", "--set", "process.log_level=error"),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert outcome.returncode == 2, outcome
    assert "Traceback" not in outcome.stderr
    return outcome.stderr.splitlines()


async def test_damage_of_the_state_is_one_sentence_and_exit_code_2(worked: Path, tmp_path: Path) -> None:
    up = Up(tmp_path, environment=ONE_PARTITION)
    shutil.copytree(worked, up.data)
    _damage(up.data, "si.state.v1")
    (line,) = await _refused(up)
    assert "si.state.v1[0] from " in line
    assert "muster repair" in line


async def test_a_damaged_request_that_is_not_decided_yet_ends_with_its_place_and_exit_code_2(
    worked: Path, tmp_path: Path
) -> None:
    """A start does not read all requests: the scheduler meets it."""
    up = Up(tmp_path, environment=ONE_PARTITION)
    shutil.copytree(worked, up.data)
    settings = LogSettings(partitions=1, sqlite_path=up.data / "log.db")
    topic, log = settings.topics().requests, SqliteLog(settings.topics().specs(), settings, SystemClock())
    await log.start()
    writer = await log.writer("test")
    offsets = [await writer.append(OutRecord(topic, 0, b"rm", b"not decided" * 9)) for _ in range(3)]
    await writer.close()
    await log.close()
    _damage(up.data, topic, offsets[0])
    lines = await _refused(up)
    assert f"{topic}[0] from {offsets[0]} to {offsets[1]}" in lines[-1]
    assert "muster repair" in lines[-1]


async def test_damaged_events_are_passed_over(worked: Path, tmp_path: Path) -> None:
    async with _up_with_damage(worked, tmp_path, "si.events.v1") as (up, (first, after)):
        await eventually(lambda: len(_problems(up)) == 1, PATIENCE_S)
        (problem,) = _problems(up)
        assert f"si.events.v1[0] from {first} to {after}" in problem
        for _ in range(REST_LOOKS):
            for path in LOOKS:
                assert up.get(path)[0] == 200, path
        assert up.get("/health")[1].startswith(b"SERVING\n")
        (check,) = [
            each for each in _json(up, "/ws/v1/scheduler/healthcheck")["HealthChecks"] if each["Name"] == "Whole log"
        ]
        assert not check["Succeeded"]
        assert f"si.events.v1[0] from {first} to {after}" in check["DiagnosisMessage"]
        # the answer names the gap, and gives what is on both sides of it
        found = _json(up, "/ws/v1/events/batch?rm=rm&count=10000")
        assert found["EventRecords"], found
        # and decisions go on
        async with grpc.aio.insecure_channel(up.grpc) as channel:
            await _register(SchedulerStub(channel))
        assert b'muster_bus_damaged_parts{topic="si.events.v1"}' in up.get("/metrics")[1]


async def test_events_that_are_damaged_while_muster_works_are_passed_over(worked: Path, tmp_path: Path) -> None:
    """Events that are older than the ring are read from the log when somebody asks."""
    few = {"MUSTER_PUBLISHER__RING_CAPACITY": "3"}
    async with _up_with_damage(worked, tmp_path, "si.events.v1", later=True, **few) as (up, (first, after)):
        assert _problems(up) == []
        for start in range(20):
            assert up.get(f"/ws/v1/events/batch?rm=rm&start={start}&count=100")[0] == 200
        await eventually(lambda: len(_problems(up)) == 1, PATIENCE_S)
        assert f"si.events.v1[0] from {first} to {after}" in _problems(up)[0]
        for path in LOOKS:
            assert up.get(path)[0] == 200, path


@pytest.mark.parametrize("topic", ["si.usage.v1", "si.usage-state.v1", "si.requests.v1"])
async def test_damage_of_what_is_derived_or_decided_already_stops_nothing(
    worked: Path, tmp_path: Path, topic: str
) -> None:
    async with _up_with_damage(worked, tmp_path, topic) as (up, _):
        if topic != "si.requests.v1":
            await eventually(lambda: len(_problems(up)) == 1, PATIENCE_S)
            assert topic in _problems(up)[0]
        for path in LOOKS:
            assert up.get(path)[0] == 200, path
        assert up.get("/ws/v1/usage?kind=queue")[0] == 200


async def test_damaged_audit_entries_have_an_entry_in_their_place(worked: Path, tmp_path: Path) -> None:
    async with _up_with_damage(worked, tmp_path, "si.audit.v1") as (up, (first, after)):
        entries = _json(up, "/ws/v1/audit?limit=1000")["entries"]
        lost = [each for each in entries if each["action"] == "lost"]
        assert [each["reason"] for each in lost] == [
            f"entries from offset {first} to {after} are in a damaged part of the log"
        ]
        assert 0 < entries.index(lost[0]) < len(entries) - 1
        await eventually(lambda: len(_problems(up)) == 1, "health names it, once")


async def test_an_rm_whose_unread_responses_are_damaged_is_told_to_register_again(worked: Path, tmp_path: Path) -> None:
    async with (
        _up_with_damage(worked, tmp_path, "si.responses.v1") as (up, _),
        grpc.aio.insecure_channel(up.grpc) as channel,
    ):
        stub = SchedulerStub(channel)
        call = stub.UpdateNode(metadata=[("muster-resume-after", "0")])
        await call.write(si_pb2.NodeRequest(rmID="rm"))
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(grpc.aio.AioRpcError):
                while await call.read() is not grpc.aio.EOF:
                    pass
            code, details = await call.code(), await call.details()
        assert code is grpc.StatusCode.DATA_LOSS
        assert "damaged part of the log" in details
        assert "register again" in details
        await eventually(lambda: len(_problems(up)) == 1, "health names it, once")
        # the way on
        await _register(stub)
        call = stub.UpdateNode()
        node = si_pb2.NodeInfo(nodeID="again", action=si_pb2.NodeInfo.CREATE)
        await call.write(si_pb2.NodeRequest(rmID="rm", nodes=[node]))
        answer = await call.read()
        assert [each.nodeID for each in answer.accepted] == ["again"]
        call.cancel()
