"""`muster up` and the process of its informers: after a kill of either, nothing else is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from pathlib import Path

import httpx
import pytest
from e2e.external_rig import PATIENCE_S, ExternalUp, HttpSource, host, vm
from waiting import eventually

pytestmark = pytest.mark.usefixtures("not_forked")  # what a process looks like from outside is a part of it

SECRET = "s3cret-of-nobody"


def child_of(up: ExternalUp, times: int = 1) -> int:
    """The informers' process that was started last; 0: not so often yet."""
    lines = [line for line in up.process.log_file.read_text().splitlines() if line.startswith("{")]
    begun = "the informers' process was started"
    pids = [said["pid"] for line in lines if (said := json.loads(line))["event"] == begun]
    return int(pids[-1]) if len(pids) >= times else 0


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def metrics(up: ExternalUp) -> str:
    async with httpx.AsyncClient(base_url=up.http, timeout=PATIENCE_S, verify=False) as http:
        return (await http.get("/metrics")).text


async def test_killed_informers_are_lost_until_they_have_listed_again(tmp_path: Path) -> None:
    source = HttpSource(host("shared", 4), vm("vm-1", "shared", 1)).start()
    up = ExternalUp(
        tmp_path, {"vms": {"kind": "http", "rm": "rm-1", "url": source.url, "poll_s": 0.1, "token": SECRET}}
    )
    try:
        await up.start()
        pid = child_of(up)
        for each in (pid, up.process.pid):
            for place in ("cmdline", "environ"):
                assert SECRET.encode() not in Path(f"/proc/{each}/{place}").read_bytes()  # noqa: ASYNC240
        async with up.rm("rm-1") as rm:
            await rm.joins(own=1, shared=8)
            before = await rm.fills(1)
            # 1. nobody looks after the source; the RM's own node goes on
            os.kill(pid, signal.SIGSTOP)
            source.answer.fails(500)
            os.kill(pid, signal.SIGKILL)

            async def is_lost() -> bool:
                said = await up.source("rm-1", "vms")
                return bool(said["lost"]) and "killed by SIGKILL" in said["reason"]

            await eventually(is_lost, "the source is lost")
            assert not (await rm.node("shared"))["schedulable"]

            async def is_named() -> bool:
                return "informer vms (http)" in await up.health()

            await eventually(is_named, "health names the source")
            assert await rm.fills(5) == before | Counter(own=1)
            # 2. it is heard again
            source.answer.says(host("shared", 3), vm("vm-1", "shared", 1))

            async def has_begun() -> bool:
                return child_of(up, 2) != pid and (await up.source("rm-1", "vms"))["state"] == "LIVE"

            await eventually(has_begun, "the source is live")
            await rm.node_has("shared", 3)
            await rm.runs_all(own=1, shared=2)

            async def is_well() -> bool:
                return "vms" not in await up.health()

            await eventually(is_well, "no problem is told")

        async def is_counted() -> bool:
            return 'muster_external_objects{kind="node",source="vms"} 1.0' in await metrics(up)

        await eventually(is_counted, "the new one's metrics are shown")
        shown = await metrics(up)
        assert "muster_external_process_starts_total 2.0" in shown
        assert shown.count("# TYPE muster_external_objects gauge") == 1
        # 3. without a scheduler there are no informers
        pid = child_of(up, 2)
        assert is_there(pid)
        await asyncio.to_thread(up.process.kill)

        await eventually(lambda: not is_there(pid), "the informers' process has ended, too")
    finally:
        await asyncio.to_thread(up.process.kill)
        source.stop()
