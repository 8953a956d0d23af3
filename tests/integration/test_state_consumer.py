"""examples/python/objects.py, a foreign consumer of si.state.v1, compared with the view's answers over REST."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from e2e.gang_rig import Rm, muster_here
from muster_client import ask, existing_allocation
from muster_proto.si.v1 import si_pb2 as si
from muster_si.constants import FOREIGN
from waiting import eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "python" / "objects.py"
TIMEOUT_S = 180
QUEUES = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues: [{name: a}, {name: b}]
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


async def objects(*where: str) -> Any:
    """Return the example's output for all records at its start."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(EXAMPLE), *where, "--json"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def said_by_rest(rm: Rm) -> Any:
    (partition,) = [each for each in await rm.get("/ws/v1/partitions") if each["clusterId"] == rm.rm_id]
    nodes = await rm.get("/ws/v1/partition/default/nodes")
    queues = await rm.get("/ws/v1/partition/default/queues")
    states = {state: count for state, count in partition.get("applications", {}).items() if state != "total"}
    states["Rejected"] = len(await rm.get("/ws/v1/partition/default/applications/rejected"))
    return {
        "life": "RUNNING",
        "queues": 1 + len(queues["children"]),
        "nodes": partition["totalNodes"],
        "applications": states,
        "pending": queues.get("pendingResource", {}).get("vcore", 0) // 3_000,
        "allocations": partition["totalContainers"],
        "used": queues["allocatedResource"],
        "capacity": {"vcore": sum(node["capacity"]["vcore"] for node in nodes)},
    }


async def lived(rm: Rm) -> None:
    await rm.nodes(n1=4_000, n2=4_000, n3=2_000)
    await rm.application("app", "root.a")
    await rm.application("lost", "root.nowhere")
    await rm.application("other", "root.b")
    await rm.client.send_asks([ask(f"t{number}", "app", {"vcore": 1_000}) for number in range(4)])
    await rm.client.send_asks([ask(f"large{number}", "other", {"vcore": 3_000}) for number in range(5)])
    daemon = existing_allocation("daemon", "", "n3", {"vcore": 500})
    daemon.allocationTags[FOREIGN] = "static"
    await rm.client.send_asks([daemon])
    await eventually(lambda: {f"t{number}" for number in range(4)} <= set(rm.runs), "the small ones run")
    await rm.ends("t0", "t1")
    await rm.node_action("n3", si.NodeInfo.DECOMISSION)
    await rm.barrier()


async def agree(rm: Rm, *where: str) -> dict[str, Any]:
    """Wait until the example and the view agree."""
    last: list[Any] = []

    async def same() -> bool:
        last[:] = [(await objects(*where)).get(f"{rm.rm_id}/default"), await said_by_rest(rm)]
        return bool(last[0] == last[1])

    try:
        await eventually(same, "they agree", TIMEOUT_S)
    except AssertionError as error:
        raise AssertionError(f"{error}: the example says {last[0]}, REST says {last[1]}") from None
    found: dict[str, Any] = last[0]
    return found


async def holds_what_was_lived(rm: Rm, *where: str) -> None:
    """Wait until the example shows what the RM knows: the RM's stream and the log's readers follow independently."""

    async def holds() -> bool:
        found = await agree(rm, *where)
        assert (found["nodes"], found["applications"]) == (2, {"Running": 2, "Rejected": 1})
        # (The daemon's allocation is foreign, and is echoed.)
        runs, large = len(rm.runs.keys() - {"daemon"}), sum(name.startswith("large") for name in rm.runs)
        return found["allocations"] == runs > 2 and found["pending"] == 5 - large > 0

    await eventually(holds, "the example shows what the RM knows", TIMEOUT_S)


async def test_on_the_embedded_log_beside_its_owner_and_after_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with (
        muster_here(data) as muster,
        Rm(muster.gateway, muster.http, "rm/1 %", QUEUES) as rm,
        Rm(muster.gateway, muster.http, "rm-2", QUEUES) as second,
    ):
        await lived(rm)
        await lived(second)
        await holds_what_was_lived(rm, str(data))
        await agree(second, str(data))
        await rm.client.register()  # a new registration: all objects are gone
        await rm.nodes(n1=4_000)
        left = await objects(str(data))
        assert (left["rm/1 %/default"]["nodes"], left["rm/1 %/default"]["applications"]) == (1, {})
        assert left["rm-2/default"]["nodes"] == 2
        last = await objects(str(data))
    after = await objects(str(data))
    assert {name: each["nodes"] for name, each in after.items()} == {name: each["nodes"] for name, each in last.items()}


def test_without_a_log_it_says_so(tmp_path: Path) -> None:
    assert nothing_at(EXAMPLE, str(tmp_path)) == (
        f"there is no log.db in {tmp_path}: expected the data directory of `muster up`"
    )


@pytest.mark.kafka
@pytest.mark.parametrize("name", ["objects.py", "consume_events.py"])
def test_without_a_topic_they_say_so(name: str, kafka_bootstrap: str) -> None:
    """(Otherwise they would wait for ever.)"""
    said = nothing_at(EXAMPLE.with_name(name), kafka_bootstrap, "--topic", "nobody.made-this")
    assert said.startswith("there is no topic nobody.made-this: ")


def nothing_at(example: Path, *arguments: str) -> str:
    command = [sys.executable, str(example), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 1
    return done.stderr.strip()


@pytest.mark.kafka
async def test_on_kafka(tmp_path: Path, kafka_bootstrap: str) -> None:
    prefix = f"objects-{uuid4().hex[:8]}."
    given = [
        "log.backend=kafka",
        f"log.kafka_bootstrap_servers={kafka_bootstrap}",
        f"log.topic_prefix={prefix}",
        "log.partitions=2",
    ]
    async with muster_here(tmp_path / "data", given) as muster, Rm(muster.gateway, muster.http, "rm", QUEUES) as rm:
        await lived(rm)
        await holds_what_was_lived(rm, kafka_bootstrap, "--topic", f"{prefix}si.state.v1")
