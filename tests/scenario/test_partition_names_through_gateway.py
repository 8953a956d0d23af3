"""A partition named as REST shows it, ``[rm]name``, is the RM's partition wherever it is named."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from muster_client import application, ask, node
from scenario.operated import OTHER, QUEUES, RM, World
from waiting import PATIENCE_S, eventually

SHOWN = f"[{RM}]default"


async def test_items_name_the_partition_as_rest_shows_it(world: World) -> None:
    told = world.told
    (first,) = (await world.http.get("/ws/v1/partition/default/nodes")).json()
    assert first["attributes"]["si/node-partition"] == SHOWN
    await world.rm.send_nodes([node("n7", {"vcore": 4_000}, partition=SHOWN)])
    await world.rm.send_applications([application("w", "root.b", partition=SHOWN)])
    await world.rm.send_asks([ask("k7", "w", {"vcore": 3_000}, partition=SHOWN)])
    await world.until(lambda: "k7" in told.allocated, "the ask is placed")
    assert "w" in told.accepted
    # The prefix of another RM names no partition.
    await world.rm.send_applications([application("v", "root.b", partition=f"[{OTHER}]default")])
    await world.until(lambda: "v" in told.rejected, "another RM's partition does not exist")


@pytest.mark.parametrize("path", ["nodes", "queues", "queue/root.a/applications", "node/n%2F1"])
async def test_rest_takes_it(world: World, path: str) -> None:
    async def same() -> bool:
        answers = [await world.http.get(f"/ws/v1/partition/{quote(name)}/{path}") for name in ("default", SHOWN)]
        return [each.status_code for each in answers] == [200, 200] and answers[0].json() == answers[1].json()

    await eventually(same, "both names have one answer")
    answer = await world.http.get(f"/ws/v1/partition/{quote(f'[{OTHER}]default', safe='')}/{path}")
    assert answer.status_code == 404


async def test_operators_and_configurations_take_it(world: World) -> None:
    drained = await world.admin.drain_node(RM, "n/1", partition=SHOWN, timeout_s=PATIENCE_S)
    assert drained is not None
    named = QUEUES.replace("name: default", f"name: '[{RM}]Default'").replace("vcore: 3", "vcore: 9")
    answer = await world.admin.update_configuration(RM, named, timeout_s=PATIENCE_S)
    assert (answer.accepted, answer.changes) == (True, ("[default] root.a resources.max.vcore: 3 -> 9",))
    other = QUEUES.replace("name: default", "name: '[elsewhere]default'")
    answer = await world.admin.update_configuration(RM, other, timeout_s=PATIENCE_S)
    assert not answer.accepted
    assert [each.message for each in answer.problems if each.severity == "error"] == [
        f"must be default or [{RM}]default, got [elsewhere]default"
    ]
    # It is the same partition after a restart.
    await world.services.restart_scheduler()
    await world.rm.send_applications([application("u", "root.b", partition=SHOWN)])
    await world.until(lambda: "u" in world.told.accepted, "the application is accepted")
