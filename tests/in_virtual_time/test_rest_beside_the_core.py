"""Details of REST that readers of YuniKorn look at, through the gateway: a field each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from contract import rest_shapes as shapes
from e2e.gang_rig import Muster, P, Rm, muster_here
from ruamel.yaml import YAML
from waiting import eventually

QUEUES = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - {name: gangs}
          - {name: others, parent: true, queues: [{name: a}]}
"""


@pytest.fixture
async def muster(tmp_path: Path) -> AsyncIterator[Muster]:
    # (Samples of the histories come all the time.)
    async with muster_here(tmp_path, ["view.history_interval_s=0.01"]) as it:
        yield it


@pytest.fixture
async def rm(muster: Muster) -> AsyncIterator[Rm]:
    async with Rm(muster.gateway, muster.http, "rm", QUEUES) as it:
        yield it


async def test_a_node_has_its_partition_as_an_attribute(rm: Rm) -> None:
    await rm.nodes(n1=1_000)
    for path in ("node/n1", "nodes"):
        found = await rm.shows(f"{P}/{path}", bool)
        (shown,) = found if isinstance(found, list) else [found]
        assert shown["attributes"]["si/node-partition"] == "[rm]default"


async def test_accepted_applications_that_are_being_allocated_are_named_by_their_queues(muster: Muster, rm: Rm) -> None:
    await rm.nodes(n1=4_000, n2=4_000)
    await rm.application("gang", "root.gangs", 6_000)
    await rm.placeholders("gang", 3, 2_000)
    await rm.runs_these("workers-p0", "workers-p1", "workers-p2")
    await rm.application("single", "root.others.a")
    await rm.real("single", "waits", 3_000, group="")
    await rm.barrier()
    muster.clock.forward(3)  # it has waited long enough for a node to be kept free for it
    await rm.barrier()

    def named(queue: dict[str, Any]) -> tuple[list[str], int]:
        return queue.get("allocatingAcceptedApps", []), queue.get("runningApps", 0)

    whole = await rm.shows(f"{P}/queues", lambda root: named(root)[0] == ["gang", "single"])
    assert {each["queuename"]: named(each) for each in whole["children"]} == {
        "root.gangs": (["gang"], 0),
        "root.others": (["single"], 0),
    }
    assert named(await rm.get(f"{P}/queue/root.others.a")) == (["single"], 0)


async def test_the_configuration_says_that_root_is_a_parent_and_how_long_locks_may_take(muster: Muster, rm: Rm) -> None:
    async with httpx.AsyncClient(base_url=muster.http, timeout=60) as http:
        await rm.shows(f"{P}/queues", bool)
        said = (await http.get("/ws/v1/config", headers={"Accept": "application/json"})).json()
        (root,) = said["Partitions"][0]["Queues"]
        assert (root["Parent"], said["DeadlockTimeoutSeconds"]) == (True, 60)
        assert [each.get("Parent") for each in root["Queues"]] == [None, True]
        text = (await http.get("/ws/v1/config")).text
        written = YAML(typ="safe").load(text)
        (root,) = written["partitions"][0]["queues"]
        assert (root["parent"], written["deadlocktimeoutseconds"]) == (True, 60)
        assert [each.get("parent") for each in root["queues"]] == [None, True]


async def test_a_state_dump_names_the_event_streams_that_are_open(muster: Muster, rm: Rm) -> None:
    async with httpx.AsyncClient(base_url=muster.http, timeout=60) as http:

        async def streams() -> list[dict[str, str]]:
            answer = await http.get("/debug/fullstatedump")
            shapes.valid(answer.content, shapes.StateDump)
            found: list[dict[str, str]] = answer.json().get("eventStreams", [])
            return found

        await rm.shows(f"{P}/queues", bool)
        assert await streams() == []
        async with http.stream("GET", "/ws/v1/events/stream?state=false") as stream:
            assert await anext(stream.aiter_lines())
            (one,) = await eventually(streams, "the stream is in the dump")
            assert one["Name"] == "127.0.0.1"
            opened = datetime.fromisoformat(one["CreatedAt"])
            assert opened.tzinfo is not None
            assert abs(opened.timestamp() - muster.clock.now_ns() / 1e9) < 3600

        async def ended() -> bool:
            return not await streams()

        await eventually(ended, "the stream is gone")


async def test_a_running_gang_shows_what_its_replaced_placeholders_used(muster: Muster, rm: Rm) -> None:
    await rm.nodes(n1=4_000)
    await rm.application("gang", "root.gangs", 2_000)
    (placeholder,) = await rm.placeholders("gang", 1, 2_000)
    await rm.runs_these(placeholder)
    muster.clock.forward(10)
    await rm.swaps(placeholder, await rm.real("gang", "real", 2_000))
    app = await rm.app("gang", lambda said: said["applicationState"] == "Running")
    assert app["resourceHistory"]["placeholderResource"]["UNKNOWN"]["vcore"] >= 10 * 2_000


async def test_a_state_dump_has_two_histories_of_one_moment(muster: Muster, rm: Rm) -> None:
    await rm.nodes(n1=4_000)
    async with httpx.AsyncClient(base_url=muster.http, timeout=60) as http:
        lengths = set()

        async def of_one_moment() -> bool:
            dump = (await http.get("/debug/fullstatedump")).json()
            # (What is empty is not in a dump.)
            ran, held = ([s["timestamp"] for s in dump.get(name, [])] for name in ("appHistory", "containerHistory"))
            assert ran == held
            lengths.add(len(ran))
            return len(lengths) >= 20

        await eventually(of_one_moment, "dumps between twenty samples")
