"""Two gateways, and `kill -9` of the one that serves the RM: it goes on at the other one, and hears everything once."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from chaos.harness import Deployment, assert_each_task_once, on_kafka
from chaos.test_kill import OPENB, RM_ID, TASKS, options
from chaos.test_outages import said
from muster_replay.replay import replay
from waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.redis, pytest.mark.timeout(600)]
KILLS = {"gateway": 1_500, "gateway-2": 5_000}  # asks sent


async def test_an_rm_goes_on_at_the_other_gateway(tmp_path: Path, kafka_bootstrap: str, redis_url: str) -> None:
    deployment = on_kafka(tmp_path, kafka_bootstrap, redis_url, first=("gateway-2",))
    due = list(KILLS.items())
    restarts: list[asyncio.Task[None]] = []
    pauses: list[asyncio.Task[float]] = []
    over = asyncio.Event()

    async def start_again(name: str) -> None:
        await asyncio.sleep(1)  # the RM is served by the other one meanwhile
        await deployment.restart(name)

    async def on_sent(sent: int) -> None:
        if due and sent >= due[0][1]:
            name, _ = due.pop(0)
            await asyncio.gather(*restarts)
            await deployment.kill(name)
            restarts.append(asyncio.create_task(start_again(name)))
            pauses.append(asyncio.create_task(pause(deployment, over)))

    async with deployment.running():
        for name in ("event-publisher", "gateway-2"):
            await said(deployment, name, 200, "")
        addresses = f"ipv4:{deployment.gateway},{deployment.second_gateway}"

        async def spread() -> bool:  # (at first, if its connection to one of them takes longer)
            assert (await balanced(addresses)).count("accepted") == 6
            return all([await served(deployment, name) for name in KILLS])

        await eventually(spread, "the streams are spread over both gateways", within_s=120)
        both = replace(options(deployment), gateway=addresses)
        report = await replay(OPENB, both, on_sent=on_sent)
        over.set()
        assert len(restarts) == len(KILLS), "not every gateway was killed: the test has shown nothing"
        await asyncio.gather(*restarts)
        print("no decision after the gateways' ends for", [f"{each:.2f} s" for each in await asyncio.gather(*pauses)])
    assert report.streams_lost >= 3, "the RM must have lost its streams"
    await assert_each_task_once(deployment, report, RM_ID, TASKS)


async def pause(deployment: Deployment, over: asyncio.Event) -> float:
    """Returns the seconds until the RM's requests are answered again.

    :param over: all of them are answered, so that no more events may come.
    """
    began_s, newest = time.monotonic(), 0
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:

        async def moves() -> bool:
            nonlocal newest
            answer = await client.get(f"{deployment.operations['event-publisher']}/ws/v1/events/batch?count=1")
            before, newest = newest, int(answer.json()["HighestID"])
            return newest > before > 0 or over.is_set()

        # (What was under way is answered at once.)
        await asyncio.sleep(0.2)
        await eventually(moves, "decisions go on", every_s=0.02)
    return time.monotonic() - began_s


async def balanced(addresses: str) -> str:
    """Returns what the example prints."""
    example = OPENB.parent / "python" / "balanced.py"
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(example), addresses, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, said.decode()
    return said.decode()


async def served(deployment: Deployment, gateway: str) -> bool:
    """Whether a gateway has read messages of streams."""
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        text = (await client.get(f"{deployment.operations[gateway]}/metrics")).text
    counts = re.findall(r'^muster_gateway_requests_total{kind="node"} (\S+)', text, re.MULTILINE)
    return any(float(count) > 0 for count in counts)
