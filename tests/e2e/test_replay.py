"""The main job on real input, by the commands that a user types."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from chaos.harness import Deployment, embedded, on_kafka
from muster_replay.local_process import muster_command

ROOT = Path(__file__).parents[2]
OPENB = ROOT / "examples" / "openb"
TASKS = 8_152
RM_MINIMAL = ROOT / "examples" / "rm_minimal.py"
COMMAND_TIMEOUT_S, SETTLE_TIMEOUT_S = 400, 300

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


async def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )


async def replay_by_command(deployment: Deployment, directory: Path) -> dict[str, Any]:
    found = directory / "report.json"
    command = muster_command(
        "replay-trace", str(OPENB), "--gateway", deployment.gateway, "--http", deployment.http, "--json", str(found),
        "--timeout-s", str(SETTLE_TIMEOUT_S),
    )  # fmt: skip
    done = await run(command)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{deployment.logs()}"
    report: dict[str, Any] = json.loads(found.read_text())
    return report


def assert_every_task_is_accounted_for(report: dict[str, Any]) -> None:
    assert report["good"], report["complaints"]
    assert report["tasks"] == TASKS
    assert report["placed"] + sum(report["pending"].values()) == TASKS
    assert report["placed"] > 7_000, "the cluster has room for most of them"
    assert "WAITING_FOR_TURN" not in report["pending"]
    assert report["events_written"] > report["placed"]
    assert report["utilisation_source"] == "REST"


@pytest.fixture
async def muster_up(tmp_path: Path) -> AsyncIterator[Deployment]:
    deployment = embedded(tmp_path)
    await deployment.start()
    yield deployment
    await deployment.stop()


async def highest_event(deployment: Deployment, at_least: int = 1) -> int:
    """Highest event id; the publisher may still be reading, or read nothing for a while."""
    last = -1
    async with httpx.AsyncClient(base_url=deployment.http, timeout=60) as http:
        for _ in range(400):
            batch = (await http.get("/ws/v1/events/batch", params={"rm": "openb", "count": "1"})).json()
            if batch.get("HighestID", 0) == last >= at_least:
                return last
            last = batch.get("HighestID", 0)
            await asyncio.sleep(0.3)
    raise AssertionError(f"the publisher does not come to rest at {at_least} or more; it has {last}")


async def partition(deployment: Deployment) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=deployment.http, timeout=60) as http:
        for _ in range(100):
            answer = await http.get("/ws/v1/partitions")
            found = [item for item in answer.json() if item["clusterId"] == "openb"] if answer.is_success else []
            if found:
                return {name: found[0][name] for name in ("name", "capacity", "totalNodes", "totalContainers")}
            await asyncio.sleep(0.1)
    raise AssertionError(f"no partition of openb: {answer.status_code} {answer.text[:200]}")


async def test_replay_on_the_embedded_log_and_after_kill_9_everything_is_there(
    muster_up: Deployment, tmp_path: Path
) -> None:
    report = await replay_by_command(muster_up, tmp_path)
    assert_every_task_is_accounted_for(report)
    before, events_before = await partition(muster_up), await highest_event(muster_up)
    await muster_up.kill("up")
    await muster_up.restart("up")
    assert await partition(muster_up) == before
    assert before["totalContainers"] == report["placed"]
    again = await replay_by_command(muster_up, tmp_path)  # a registration of the same RM: afresh, and ids go on
    assert_every_task_is_accounted_for(again)
    await highest_event(muster_up, events_before + again["placed"])


@pytest.mark.kafka
@pytest.mark.redis
async def test_replay_on_kafka(tmp_path: Path, kafka_bootstrap: str, redis_url: str) -> None:
    deployment = on_kafka(tmp_path, kafka_bootstrap, redis_url)
    await deployment.start()
    try:
        assert_every_task_is_accounted_for(await replay_by_command(deployment, tmp_path))
    finally:
        await deployment.stop()


async def test_the_demo_leaves_a_history_that_says_the_same(tmp_path: Path) -> None:
    data, found = tmp_path / "data", tmp_path / "report.json"
    began = time.monotonic()
    done = await run(muster_command("demo", str(OPENB), "--data-dir", str(data), "--json", str(found)))
    assert done.returncode == 0, done.stdout + done.stderr
    print(f"the demo took {time.monotonic() - began:.1f} s")
    report = json.loads(found.read_text())
    assert_every_task_is_accounted_for(report)
    for words in (
        "tasks placed",
        "placement rate",
        "ask → allocation p99",
        "GPU used",
        "events written",
        f"history usage --queue root --data-dir {data}",
    ):
        assert words in done.stdout
    sql = "select count(*) as n, count(distinct id) as ids, min(id) as low, max(id) as high from events"
    history = ["history", "--data-dir", str(data), "--rm", "openb", "--json"]
    answer = await run(muster_command(*history, sql))
    count, distinct, lowest, highest = json.loads(answer.stdout)[0].values()
    assert (distinct, lowest, highest) == (count, 0, count - 1)
    assert count >= report["events_written"]  # tasks that wait may have got a node reserved since
    answer = await run(muster_command(*history, "select count(*) as placed from allocations where end_id is null"))
    assert json.loads(answer.stdout) == [{"placed": report["placed"]}]
    used = "select resource_type, arg_max(used, id) as used from queue_usage where queue = 'root' group by all"
    (vcore,) = [
        row["used"]
        for row in json.loads((await run(muster_command(*history, used))).stdout)
        if row["resource_type"] == "vcore"
    ]
    assert round(vcore / 1000) == round(report["utilisation"]["vcore"]["used"] / 1000)
    queues = ["--as-it-was", str(OPENB / "queues.yaml")]
    answer = await run(muster_command("what-if", "--data-dir", str(data), "--rm", "openb", "--json", "-", *queues))
    (again,) = json.loads(answer.stdout)["plays"][0]["seeds"]
    # (A few decisions depend on which asks came together.)
    assert abs(again["all"]["started"] - report["placed"]) <= 0.01 * report["placed"], answer.stdout[:1_000]


async def test_the_minimal_rm_is_a_page_and_runs(muster_up: Deployment) -> None:
    assert len(RM_MINIMAL.read_text().splitlines()) <= 60
    done = await run([sys.executable, str(RM_MINIMAL), muster_up.gateway])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sorted(lines[:3]) == [f"run task-{number} on node-1" for number in range(3)]
    assert lines[3:] == ["task-0 has ended on node-1"]
