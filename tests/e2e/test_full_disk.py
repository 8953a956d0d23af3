"""`muster up` on a full disk: it starts for reading, says so, refuses what writes, and goes on when there is room."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from e2e.full_disk import small_disk
from e2e.test_lost_log import register
from muster_cli.probe import probe
from muster_client.audit_client import AuditClient, AuditQuery
from muster_replay.local_process import muster_command
from up import Up
from waiting import eventually

pytestmark = pytest.mark.timeout(600)
PATIENCE_S = 90.0


def health(up: Up) -> tuple[int, str]:
    try:
        status, said = up.get("/health")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""
    return status, said.decode()


async def until(up: Up, status: int, told: str = "") -> str:
    """Waits until health answers so. Returns what it says."""
    async with asyncio.timeout(PATIENCE_S):
        while (found := health(up))[0] != status or told not in found[1]:
            assert up.process.running, up.process.log_tail()
            await asyncio.sleep(0.2)
    return found[1]


async def test_a_full_disk_is_read_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 12) as disk:
        up = Up(disk.path)
        up.process = type(up.process)(muster_command(*up.arguments), tmp_path / "up.log")
        try:
            await up.start()
            await register(up, "one")
            before = await records(up, lambda found: bool(found))
            # 1. full while it works, killed, started again
            disk.fill()
            await until(up, 503, "is full")
            up.process.kill()
            up.process.start()
            said = await until(up, 503, "the disk of log")
            assert "no request is taken until there is room; reading works" in said
            # 2. reads
            async with asyncio.timeout(PATIENCE_S):
                while "not reachable" in str(answer := get(up, "/ws/v1/partitions")):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            assert [each["clusterId"] for each in json.loads(answer)] == ["one"]
            await records(up, lambda found: found[: len(before)] == before)
            explained = await asyncio.to_thread(up.get, "/ws/v1/explain/pending")
            assert explained[0] == 200
            # 3. refusals
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await register(up, "two")
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "disk is full" in str(refused.value.details())
            assert not probe(f"grpc://{up.grpc}", 3.0)[0]
            assert await asyncio.to_thread(refused_attempt, up) == 401
            # 4. room
            disk.free()
            await until(up, 200)
            await register(up, "two")
            # 5. the audit trail has what happened meanwhile, once (of two processes, each of which writes when it can)
            found = await audited(up, lambda found: len(found) >= 2)
            assert sorted((each["method"], each["action"], each["count"]) for each in found) == [
                ("/si.v1.Scheduler/RegisterResourceManager", "register", 1),
                ("GET /ws/v1/partitions", "read", 1),
            ]
            assert "Traceback" not in up.process.log_file.read_text()
            assert up.process.stop() == 0
        finally:
            up.process.kill()


async def records(up: Up, enough: Callable[[list[Any]], bool]) -> list[Any]:
    """The RM's events, once they are as wanted: the publisher follows the log."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = get(up, "/ws/v1/events/batch?rm=one")
            found = json.loads(answer)["EventRecords"] or [] if answer != "not reachable" else []
            if enough(found):
                return list(found)
            await asyncio.sleep(0.2)


def refused_attempt(up: Up) -> int:
    """The status for a request that a proxy passed on for somebody elsewhere."""
    headers = {"X-Forwarded-For": "203.0.113.9"}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{up.http}/ws/v1/partitions", headers=headers)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


async def audited(up: Up, enough: Callable[[list[Any]], bool]) -> list[Any]:
    """The calls that were refused or failed, once they are as wanted."""
    async with AuditClient(up.grpc) as client:

        async def read() -> list[Any]:
            found = [each async for batch in client.read(AuditQuery()) for each in batch]
            found = [each for each in found if each["result"] != "accepted" and each["action"] != "audit"]
            return found if enough(found) else []

        return list(await eventually(read, "the trail has them", PATIENCE_S))


def get(up: Up, path: str) -> str:
    try:
        return up.get(path)[1].decode()
    except OSError:
        return "not reachable"
