"""A Muster's life over four logs: a file, topics on Kafka, more of them, a file again. Nothing is lost or repeated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from integration.gateway_rig import Channel, Stream
from muster_gateway.stream_kind import StreamKind
from muster_proto.si.v1 import si_pb2 as si
from muster_replay.local_process import muster_command
from up import Up
from waiting import eventually

QUEUES = "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: [{name: a}]}]}]"
RMS = ["one", "two", "three", "four", "five"]
# A start takes half a second of a core, and growing three seconds.
FIRST_KILL_CPU_S, NEXT_KILL_CPU_S = 0.8, 0.6

pytestmark = [pytest.mark.kafka, pytest.mark.redis, pytest.mark.timeout(600)]


def muster(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = muster_command(*map(str, arguments))
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def done(*arguments: object) -> str:
    outcome = muster(*arguments)
    assert outcome.returncode == 0, outcome
    return outcome.stdout


def killed_and_done(*arguments: object) -> int:
    """Runs the same command until it ends, each time a bit longer before `kill -9`. Returns the number of kills.

    How long counts processor time: a busy machine changes nothing.
    """
    for kills in range(60):
        process = subprocess.Popen(
            muster_command(*map(str, arguments)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        most_s = FIRST_KILL_CPU_S + NEXT_KILL_CPU_S * kills
        while (used_s := cpu_s(process.pid)) is not None and used_s < most_s:
            time.sleep(0.01)
        process.kill()
        _, problem = process.communicate()
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, problem
            return kills
    raise AssertionError("it never ends")


def cpu_s(pid: int) -> float | None:
    """Processor time that a child has used; None: it has ended."""
    state, *fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return None if state == "Z" else (int(fields[10]) + int(fields[11])) / os.sysconf("SC_CLK_TCK")


def quantity(value: int) -> si.Resource:
    return si.Resource(resources={"vcore": si.Quantity(value=value), "memory": si.Quantity(value=value)})


async def allocated(stream: Stream, rm_id: str, key: str) -> int:
    """Asks, and returns the number of the response with the allocation."""
    ask = si.Allocation(allocationKey=key, applicationID="app", partitionName="default", resourcePerAlloc=quantity(1))
    await stream.send(si.AllocationRequest(rmID=rm_id, allocations=[ask]))
    while True:
        answer = await stream.receive()
        if [made.allocationKey for made in answer.new] == [key]:
            return int(answer.responseSequence)


async def furnished(port: int, rm_id: str) -> int:
    """An RM with a node and an allocation. Returns the number of its last response."""
    channel = Channel(port)
    await channel.register(rm_id, QUEUES, version="1")
    nodes = channel.open(StreamKind.NODE, rm_id)
    create = si.NodeInfo(nodeID="n", action=si.NodeInfo.CREATE, schedulableResource=quantity(100))
    await nodes.send(si.NodeRequest(rmID=rm_id, nodes=[create]))
    assert (await nodes.receive()).accepted
    apps = channel.open(StreamKind.APPLICATION, rm_id)
    new = si.AddApplicationRequest(
        applicationID="app", queueName="root.a", partitionName="default", ugi=si.UserGroupInformation(user="u")
    )
    await apps.send(si.ApplicationRequest(rmID=rm_id, new=[new]))
    assert (await apps.receive()).accepted
    number = await allocated(channel.open(StreamKind.ALLOCATION, rm_id), rm_id, "first")
    await channel.close()
    return number


def shown(up: Up, path: str) -> Any:
    return json.loads(up.get(path)[1])


def objects(up: Up, rm_id: str) -> Any:
    found = {
        path: shown(up, f"/ws/v1/partition/default/{path}?rm={rm_id}")
        for path in ("nodes", "queues", "application/app")
    }
    found["application/app"].pop("stateLog", None)
    return found


def history(up: Up, rm_id: str) -> Any:
    return shown(up, f"/ws/v1/events/batch?rm={rm_id}&count=10000")


async def test_a_muster_moves_over_four_logs(tmp_path: Path, kafka_bootstrap: str, redis_url: str) -> None:
    up = Up(tmp_path / "first")
    (tmp_path / "first").mkdir()
    await up.start()
    port = int(up.grpc.rpartition(":")[2])
    numbers = {rm_id: await furnished(port, rm_id) for rm_id in RMS}

    async def settled() -> bool:
        with suppress(urllib.error.HTTPError):  # 404: nothing was heard of an RM yet
            return all("first" in json.dumps((history(up, rm_id), objects(up, rm_id)["nodes"])) for rm_id in RMS)
        return False

    await eventually(settled, "the events are served")
    before = {rm_id: (objects(up, rm_id), history(up, rm_id)) for rm_id in RMS}
    in_use = muster("migrate", "--data-dir", up.data, "--to-data-dir", tmp_path / "second")
    assert in_use.returncode == 1, in_use
    assert "in use by another process" in in_use.stderr
    assert up.process.stop() == 0

    prefix = f"migrate{uuid4().hex[:8]}."
    kafka = {
        "log.backend": "kafka",
        "log.kafka_bootstrap_servers": kafka_bootstrap,
        "log.topic_prefix": prefix,
        "log.partitions": 5,
        "gateway.sessions_url": redis_url,
        "gateway.sessions_prefix": prefix,
    }
    at_kafka = [part for name, value in kafka.items() for part in ("--set", f"{name}={value}")]
    to_kafka = ["--to-set" if part == "--set" else part for part in at_kafka]
    said = done("migrate", "--data-dir", up.data, *to_kafka)
    assert "5 partitions" in said
    kills = killed_and_done("topics", "grow", 7, *at_kafka)
    assert kills, "it was killed at least once"
    assert "it has that many already" in done("topics", "grow", 7, *at_kafka)
    second = tmp_path / "second" / "data"
    done("migrate", *at_kafka, "--set", "log.partitions=7", "--to-data-dir", second, "--to-set", "log.partitions=8")
    done("topics", "grow", 9, "--data-dir", second)
    assert list(second.glob("replaced-*/log.db")), "the smaller log stays aside"
    done("verify", "--data-dir", second)

    up = Up(tmp_path / "second", "--set", "log.partitions=9")
    try:
        await up.start()
        for rm_id in RMS:
            objects_before, history_before = before[rm_id]
            assert objects(up, rm_id) == objects_before
            after = history(up, rm_id)
            assert after["InstanceUUID"] == history_before["InstanceUUID"]
            known = history_before["EventRecords"]
            assert after["EventRecords"][: len(known)] == known
            assert after["LowestID"] == history_before["LowestID"]
            # The RM's numbers continue, and nothing that it has heard comes again.
            channel = Channel(int(up.grpc.rpartition(":")[2]))
            stream = channel.open(StreamKind.ALLOCATION, rm_id, resume_after=numbers[rm_id])
            assert await allocated(stream, rm_id, "second") > numbers[rm_id]
            assert [made.allocationKey for answer in stream.got for made in answer.new] == ["second"]
            await channel.close()
    finally:
        up.process.kill()
