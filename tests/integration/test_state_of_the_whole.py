"""The only scheduler on Kafka is killed: every reader says the same worst part, its age and what to do, and is green
again when another one works. Probes of the other processes do not change.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import grpc.aio
import pytest
from chaos.harness import Deployment, on_kafka
from muster_cli.probe import probe
from muster_client.health_client import Grade, HealthClient
from muster_proto.si.v1 import si_pb2 as si
from muster_replay.local_process import muster_command
from waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(600)]

# A gateway's processes start on two busy cores.
WITHIN_S = 120.0
GONE = "no scheduler has answered for partitions 0 and 1 for "
REMEDY = "start one: muster scheduler"
PARTITIONS = 2


class Told(NamedTuple):
    """What each reader says: whether it is bad, and its text."""

    rest: tuple[bool, str]
    grpc: tuple[bool, str]
    probe_text: tuple[bool, str]
    check: tuple[bool, str]
    command: tuple[bool, str]
    metrics: tuple[bool, str]

    def all_say(self, *texts: str) -> bool:
        return all(bad and all(text in said for text in texts) for bad, said in self[:-1]) and self.metrics[0]

    def all_well(self) -> bool:
        return not any(bad for bad, _ in self)


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


async def told(deployment: Deployment) -> Told:
    """Asks every reader of the whole."""
    http = deployment.http

    async def asked(path: str) -> tuple[int, str]:
        return await asyncio.to_thread(get, f"{http}{path}")

    async def by_grpc() -> tuple[bool, str]:
        async with HealthClient(deployment.gateway) as client:
            state = await client.get(10)
        return state.grade != Grade.OK, f"{Grade.Name(state.grade)} {state.part}: {state.sentence} {state.remedy}"

    async def by_command() -> tuple[bool, str]:
        command = muster_command("health", f"grpc://{deployment.gateway}", "--timeout-s", "10")
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        return process.returncode != 0, out.decode()

    (_, rest), whole, (status, text), (_, check), command, (_, metrics) = await asyncio.gather(
        asked("/ws/v1/health"),
        by_grpc(),
        asked("/health"),
        asked("/ws/v1/scheduler/healthcheck"),
        by_command(),
        asked("/metrics"),
    )
    owners = [line for line in metrics.splitlines() if line.startswith("muster_partition_owner{")]
    state: dict[str, Any] = json.loads(rest)
    return Told(
        (state["grade"] != "ok", json.dumps(state)),
        whole,
        (status != 200, text),
        (not json.loads(check)["Healthy"], check),
        command,
        (len(owners) != PARTITIONS or any(line.endswith(" 0.0") for line in owners), "\n".join(owners)),
    )


async def register(deployment: Deployment, timeout_s: float = 60.0) -> None:
    request = si.RegisterResourceManagerRequest(rmID="rm", version="1", policyGroup="queues")
    async with grpc.aio.insecure_channel(deployment.gateway) as channel:
        call = channel.unary_unary(
            "/si.v1.Scheduler/RegisterResourceManager",
            request_serializer=si.RegisterResourceManagerRequest.SerializeToString,
            response_deserializer=si.RegisterResourceManagerResponse.FromString,
        )
        await call(request, timeout=timeout_s)


async def changes(deployment: Deployment, part: str) -> list[str]:
    """The grades of a part, as the gateway's log has them."""
    text = await asyncio.to_thread(deployment.processes["gateway"].log_file.read_text)
    entries = [json.loads(line) for line in text.splitlines() if line.startswith("{") and "health changed" in line]
    return [each["grade"] for each in entries if each["part"] == part]


async def test_no_scheduler_is_alive(tmp_path: Path, kafka_bootstrap: str) -> None:
    environment = {
        "MUSTER_LOG__PARTITIONS": str(PARTITIONS),
        "MUSTER_GATEWAY__REGISTRATION_TIMEOUT_S": "1",
        "MUSTER_PROCESS__LOG_FORMAT": "json",
    }
    deployment = on_kafka(tmp_path, kafka_bootstrap, "memory://", environment)
    async with deployment.running():

        async def all_well() -> bool:
            return (await told(deployment)).all_well()

        async def all_say_so() -> Told | None:
            found = await told(deployment)
            return found if found.all_say("scheduler", GONE, REMEDY) else None

        await eventually(all_well, "all is well", WITHIN_S, 0.2)
        await register(deployment)
        before = await changes(deployment, "scheduler")
        # 1. nobody asks for anything: the heartbeats alone are missing
        await deployment.kill("scheduler")
        found: Told = await eventually(all_say_so, "every reader says so", WITHIN_S, 0.2)
        assert json.loads(found.rest[1])["grade"] == "failed"
        assert found.probe_text[1].startswith("NOT_SERVING\n")
        ages = json.loads(found.rest[1])
        assert 8 <= (ages["checked"] - ages["since"]) / 1e9 < WITHIN_S, "it is as old as the last heartbeat"
        # 2. no other process is out of service
        for name in ("gateway", "view", "event-publisher"):
            for path in ("/livez", "/readyz"):
                assert (await asyncio.to_thread(get, f"{deployment.operations[name]}{path}"))[0] == 200, (name, path)
        assert (await asyncio.to_thread(probe, f"grpc://{deployment.gateway}", 10.0))[0]
        # 3. what an RM gets
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await register(deployment)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        said = str(refused.value.details())
        assert said.startswith("no scheduler has answered for partition "), said
        assert said.endswith(" s: register again"), said
        # 4. another one works
        deployment.processes["scheduler"].start()
        await eventually(all_well, "all is well again", WITHIN_S, 0.2)
        await register(deployment)
        # 5. one line for each change
        assert (await changes(deployment, "scheduler"))[len(before) :] == ["degraded", "failed", "ok"]
        assert "Traceback" not in deployment.processes["gateway"].log_file.read_text()
