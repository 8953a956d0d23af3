"""``POST /ws/v1/explain/futures``: the waiting asks under another configuration, simulated in a process of its own."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from muster_core.model.commands import AskItem, UpdateAllocations
from unit.view.recorded import Bench, Recorded, client_of
from unit.view.test_when import SLOW

FREE = "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: [{name: a}, {name: b}]}]}]"


async def asked(client: httpx.AsyncClient, config: str) -> dict[str, Any]:
    """Ask until the answer is made: its process has the lowest priority."""
    for _ in range(5):
        answer = await client.post("/ws/v1/explain/futures", content=config)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        if found["state"] != "MAKING":
            return found
    raise AssertionError(found["message"])


def limited(bench: Bench) -> Recorded:
    """The node has room for two asks, their queue only for one: k2 waits for its max."""
    rm = bench.rm()
    rm.cluster.now_ns = bench.clock.now_ns()
    rm.cluster.node("n1", vcore=8_000)
    rm.cluster.app("x", "root.a")
    rm.do(UpdateAllocations((AskItem("k1", "x", "default", {"vcore": 4_000}, execution_timeout_ms=3_600_000),)))
    rm.cluster.ask("x", "k2", vcore=4_000)
    rm.info.last_decided_ns = rm.cluster.now_ns
    return rm


async def test_both_futures_and_what_is_wrong_with_a_configuration(bench: Bench) -> None:
    rm = limited(bench)
    await bench.write(rm)
    async with bench.view(**SLOW) as view, client_of(view) as client:
        found = await asked(client, FREE)
        assert (found["state"], found["partition"], found["simulations"], found["problems"]) == (
            "COMPARED",
            "default",
            9,
            [],
        )
        (queue,) = found["queues"]
        assert (queue["queue"], queue["asks"]) == ("root.a", 1)
        assert queue["other"] == {"started": 1.0, "half": 0.0, "most": 0.0}
        assert queue["present"]["started"] == 1.0
        assert 0 < queue["present"]["half"] == queue["present"]["most"] <= 3_600, "what is left of the hour"
        assert (found["rise"]["present"][0], found["rise"]["other"][0]) == (0.0, 1.0)
        assert found["message"].startswith(
            "1 waiting ask, 9 simulations of the present state under each configuration."
        )
        assert (await asked(client, FREE))["at"] == found["at"], "it is used again"
        refused = await asked(client, "partitions: [{name: default, queues: [{name: root, fast: 1}]}]")
        assert (refused["state"], refused["message"]) == ("REFUSED", "It would be refused: 1 problem.")
        assert "fast" in refused["problems"][0]


async def test_a_paused_rm_has_no_future(bench: Bench) -> None:
    rm = limited(bench)
    rm.info.paused, rm.info.paused_ns = True, rm.cluster.now_ns
    await bench.write(rm)
    async with bench.view(**SLOW) as view, client_of(view) as client:
        found = await asked(client, FREE)
        assert (found["state"], found["queues"], found["rise"]) == ("UNKNOWN", [], None)
        assert "because an operator paused the resource manager" in found["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b"#" * (200 << 10), "body: over 131,072 bytes, expected a queue configuration", id="too large"),
        pytest.param(b"a: \xff", "body: no UTF-8 at byte 3", id="no text"),
    ],
)
async def test_other_bodies_are_refused(bench: Bench, body: bytes, message: str) -> None:
    await bench.write(limited(bench))
    async with bench.view() as view, client_of(view) as client:
        answer = await client.post("/ws/v1/explain/futures", content=body)
        assert (answer.status_code, answer.json()["message"]) == (400, message)
