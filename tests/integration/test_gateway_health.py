"""The state of the whole at a gateway's own doors: certificates, services that are away or behind, callers without
rights, and what a call without a decision says.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest
from certificates import Authority
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.topics import Topics
from muster_client.health_client import Grade, HealthClient
from muster_gateway.service import Gateway
from muster_gateway.sessions import make_sessions
from muster_gateway.settings import GatewaySettings
from muster_proto.si.v1 import si_pb2 as si
from muster_rest.system_health import OwnerFacts, OwnerState, Part, SchedulerFacts, ServiceFacts
from starlette.types import Receive, Scope, Send
from waiting import eventually

TOKEN = "a-token-of-16-characters"
TOKENS = {"ops": {"role": "read", "token": TOKEN}}
AS_READER = {"Authorization": f"Bearer {TOKEN}"}


async def nobody(_scope: Scope, _receive: Receive, send: Send) -> None:
    """A view that is away, as the front sees it."""
    await send({"type": "http.response.start", "status": 503, "headers": []})
    await send({"type": "http.response.body", "body": b'{"status_code":503}', "more_body": False})


class World:
    """A gateway on a log in memory, and what it learns of the others."""

    def __init__(self) -> None:
        self.owners = SchedulerFacts([OwnerFacts(0, OwnerState.SERVING, 0.0, 8.0)])
        self.view = ServiceFacts()
        self.view_is_away = False

    async def _view(self) -> ServiceFacts:
        if self.view_is_away:
            raise ConnectionError("their process has ended")
        return self.view

    @asynccontextmanager
    async def running(self, **settings: Any) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
        topics, clock = Topics(partitions=1), SystemClock()
        log = MemoryLog(topics.specs(), clock)
        await log.start()
        chosen = GatewaySettings.model_validate(
            {
                "grpc_address": "127.0.0.1:0",
                "http_address": "127.0.0.1:0",
                "health_interval_s": 0.02,
                "reload_interval_s": 0.02,
                "stop_grace_s": 0.05,
                **settings,
            }
        )
        gateway = Gateway(
            chosen,
            log,
            topics,
            make_sessions(chosen, clock),
            clock,
            view=nobody,
            publisher=nobody,
            services={Part.VIEW: self._view},
            scheduler=lambda: self.owners,
        )
        await gateway.start()
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.http_port}", timeout=60) as client:
                yield gateway, client
        finally:
            await gateway.stop()
            await log.close()


async def state(client: httpx.AsyncClient, headers: dict[str, str] | None = None) -> dict[str, Any]:
    answer = await client.get("/ws/v1/health", headers=headers)
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


async def until(client: httpx.AsyncClient, grade: str, part: str = "") -> dict[str, Any]:
    async def told() -> dict[str, Any] | None:
        found = await state(client)
        return found if (found["grade"], found["part"]) == (grade, part) else None

    found: dict[str, Any] = await eventually(told, f"{part} is {grade}")
    return found


async def test_a_certificate_near_its_end_and_at_its_end(tmp_path: Path) -> None:
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    Authority(valid_days=30).server().write(*files)
    tls = {"certificate": str(files[0]), "key": str(files[1]), "http": False}
    async with World().running(tls=tls) as (gateway, client):
        await until(client, "ok")
        Authority(valid_days=12).server().write(*files)
        soon = await until(client, "degraded", "certificates")
        assert soon["sentence"].startswith(f"gateway.tls.certificate {files[0]} ends in 12 days")
        assert "replace the file" in soon["remedy"]
        assert (await client.get("/health")).status_code == 200
        Authority(valid_days=-1).server().write(*files)
        ended = await until(client, "failed", "certificates")
        assert " ended " in ended["sentence"]
        assert (await client.get("/health")).text.startswith("NOT_SERVING\nfailed: certificates: gateway.tls.certific")
        files[0].write_text("nothing")
        await eventually(lambda: gateway._doorman.problems(), "the bad file is noticed")
        assert (await until(client, "failed", "certificates"))["since"] == ended["since"], "nothing else is known"
        Authority(valid_days=30).server().write(*files)
        await until(client, "ok")


async def test_a_view_that_is_behind_or_away_and_its_return() -> None:
    world = World()
    async with world.running() as (_, client):
        await until(client, "ok")
        lag = "the view is 70000 records and 40.0 s behind"
        world.view = ServiceFacts(serves=False, problems=[lag], behind=[lag])
        assert (await until(client, "degraded", "view"))["sentence"] == lag
        world.view_is_away = True
        away = await until(client, "failed", "view")
        assert away["sentence"].startswith("the view has not answered for ")
        assert away["sentence"].endswith(": their process has ended")
        # The health check answers without the view, and the probes are about this process.
        check = (await client.get("/ws/v1/scheduler/healthcheck")).json()
        assert check["Healthy"] is False
        (failed,) = [each for each in check["HealthChecks"] if not each["Succeeded"]]
        assert (failed["Name"], failed["Description"]) == ("View", "The view shows the present state")
        assert failed["DiagnosisMessage"].startswith("failed: the view has not answered for ")
        for path in ("/readyz", "/livez", "/health/ready", "/health/live"):
            assert (await client.get(path)).text == "SERVING\n"
        world.view, world.view_is_away = ServiceFacts(), False
        await until(client, "ok")


async def test_a_caller_without_a_right_to_read_gets_the_grade_alone() -> None:
    world = World()
    world.owners = SchedulerFacts([OwnerFacts(0, OwnerState.SERVING, 75.0, 8.0)])
    async with world.running(tokens=TOKENS) as (gateway, client):
        await eventually(lambda: gateway._monitor is not None and gateway._monitor._state, "it is computed")
        bare = await state(client)
        assert (bare["grade"], bare["part"], bare["sentence"], bare["parts"]) == ("failed", "", "", [])
        assert (await client.get("/health")).text == "NOT_SERVING\n"
        full = await state(client, AS_READER)
        assert full["sentence"] == "no scheduler has answered for partition 0 for 75 s"
        async with HealthClient(f"127.0.0.1:{gateway.grpc_port}") as nameless:
            answer = await nameless.get()
            assert (answer.grade, answer.sentence, list(answer.parts)) == (Grade.FAILED, "", [])
        async with HealthClient(
            f"127.0.0.1:{gateway.grpc_port}", metadata=[("authorization", f"Bearer {TOKEN}")]
        ) as one:
            answer = await one.get()
            assert (answer.part, answer.sentence) == (full["part"], full["sentence"])
            assert [each.part for each in answer.parts] == [each["part"] for each in full["parts"]]


@pytest.mark.parametrize("deadline_s", [2.0, 60.0])
async def test_a_call_that_gets_no_decision_names_the_part_at_fault(deadline_s: float) -> None:
    world = World()
    world.owners = SchedulerFacts([OwnerFacts(0, OwnerState.SERVING, 75.0, 8.0)])
    # (With the shorter deadline, the caller stops waiting before the gateway would.)
    async with world.running(registration_timeout_s=1.0 if deadline_s > 10 else 60.0) as (gateway, client):
        await until(client, "failed", "scheduler")
        request = si.RegisterResourceManagerRequest(rmID="rm", version="1", policyGroup="queues")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel:
            call = channel.unary_unary("/si.v1.Scheduler/RegisterResourceManager")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(request.SerializeToString(), timeout=deadline_s)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert refused.value.details() == "no scheduler has answered for partition 0 for 75 s: register again"


async def test_one_line_of_the_log_for_each_change(capfd: pytest.CaptureFixture[str]) -> None:
    world = World()
    async with world.running() as (_, client):
        await until(client, "ok")
        capfd.readouterr()
        world.owners = SchedulerFacts([OwnerFacts(0, OwnerState.STUCK, 20.0, 8.0, "partition 0 has not moved")])
        checked = (await until(client, "failed", "scheduler"))["checked"]

        async def computed_again() -> bool:
            return bool((await state(client))["checked"] > checked + 200_000_000)

        await eventually(computed_again, "it was computed several times since")
        world.owners = SchedulerFacts([OwnerFacts(0, OwnerState.SERVING, 0.0, 8.0)])
        await until(client, "ok")
        said = [line for line in "".join(capfd.readouterr()).splitlines() if "health changed" in line]
        assert len(said) == 2, json.dumps(said)
        assert "partition 0 has not moved" in said[0]
