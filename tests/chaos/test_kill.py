"""`kill -9` in the middle of the replay: each task is allocated once, and the log's numbers have no gap."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from chaos.harness import Deployment, assert_each_task_once, embedded, on_kafka
from muster_client.settings import ClientSettings
from muster_replay.replay import ReplayOptions, replay
from muster_replay.report import ReplayReport

OPENB = Path(__file__).parents[2] / "examples" / "openb"
RM_ID = "openb"
TASKS = 8_152
# About four seconds of asks: time to be killed in, and to be started again, while more of them come.
PACE_PER_S = 2_000.0
RESTART_PAUSE_S = 0.3  # the client must notice: streams break, first tries fail

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def options(deployment: Deployment) -> ReplayOptions:
    return ReplayOptions(
        gateway=deployment.gateway,
        http=deployment.http,
        access=deployment.access,
        rm_id=RM_ID,
        asks_per_s=PACE_PER_S,
        quiet_s=5.0,  # longer than a restart: silence while the scheduler is away is not the end
        settle_timeout_s=120.0,
        rest_timeout_s=60.0,
        client=ClientSettings(backoff_seed=11),
    )


def killing(
    deployment: Deployment, name: str, at: tuple[int, ...]
) -> tuple[Callable[[int], Awaitable[None]], list[asyncio.Task[None]]]:
    """A hook for the replay: kills the process when so many asks are sent, and starts it again beside the replay."""
    due = sorted(at)
    restarts: list[asyncio.Task[None]] = []

    async def start_again() -> None:
        await asyncio.sleep(RESTART_PAUSE_S)
        await deployment.restart(name)

    async def on_sent(sent: int) -> None:
        if due and sent >= due[0]:
            due.pop(0)
            # (The client takes thousands of asks while nobody serves it: a slow restart could outlast the replay.)
            await asyncio.gather(*restarts)
            await deployment.kill(name)
            restarts.append(asyncio.create_task(start_again()))

    return on_sent, restarts


async def replay_and_kill(deployment: Deployment, name: str, at: tuple[int, ...]) -> ReplayReport:
    async with deployment.running():
        on_sent, restarts = killing(deployment, name, at)
        report = await replay(OPENB, options(deployment), on_sent=on_sent)
        assert len(restarts) == len(at), "not every kill came to pass: the test has shown nothing"
        await asyncio.gather(*restarts)
    return report


async def test_muster_up_killed_and_started_again(tmp_path: Path) -> None:
    deployment = embedded(tmp_path)
    report = await replay_and_kill(deployment, "up", (1_500, 5_000))
    assert report.streams_lost >= 3, "the client must have lost its streams"
    await assert_each_task_once(deployment, report, RM_ID, TASKS)


@pytest.mark.kafka
@pytest.mark.redis
@pytest.mark.parametrize("name", ["scheduler", "gateway"])
async def test_a_service_killed_on_kafka(tmp_path: Path, kafka_bootstrap: str, redis_url: str, name: str) -> None:
    deployment = on_kafka(tmp_path, kafka_bootstrap, redis_url)
    report = await replay_and_kill(deployment, name, (1_500, 5_000))
    if name == "gateway":
        assert report.streams_lost >= 3, "the client must have lost its streams"
    await assert_each_task_once(deployment, report, RM_ID, TASKS)
