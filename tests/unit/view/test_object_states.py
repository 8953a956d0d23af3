"""``POST /ws/v1/object-states``: the states of many objects at once (docs/history-servers.md)."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from builders import nodes
from muster_core.model.commands import NodeAction, UpdateApplications
from muster_view.rest import object_states
from muster_view.rest.object_states import WANTED_MAX
from unit.view.recorded import Bench, client_of

P = "/ws/v1/partition/default"


async def states(client: httpx.AsyncClient, *wanted: dict[str, Any]) -> list[Any]:
    answer = await client.post("/ws/v1/object-states", content=json.dumps(wanted).encode())
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["instanceUUID"] == ""
    return [json.loads(each[0]["state"]) if each else None for each in found["states"]]


async def test_each_kind_is_as_rest_answers_it(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=10)
    rm.cluster.app("x", "root.a")
    rm.cluster.ask("x", "k1", vcore=3)
    rm.cluster.app("both", "root.b")
    rm.cluster.app("both", "root")  # refused, with the id of an existing one
    rm.cluster.app("refused", "root")
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        found = await states(
            client,
            {"kind": "application", "id": "x", "keys": ["k1"]},
            {"kind": "node", "id": "n1"},
            {"kind": "queue", "id": "root.a"},
            {"kind": "queue", "id": "root"},
            {"kind": "application", "id": "both"},
            {"kind": "rejected", "id": "both"},
            {"kind": "application", "id": "refused"},
            {"kind": "node", "id": "nope"},
        )
        paths = ("application/x", "node/n1", "queue/root.a", "queue/root", "application/both")
        assert found[:5] == [(await client.get(f"{P}/{path}")).json() for path in paths]
        refused = (await client.get(f"{P}/applications/rejected")).json()
        assert found[5:] == [*refused, None]


async def test_of_an_application_with_many_only_what_is_named(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=60)
    rm.cluster.app("x", "root.b")
    for number in range(80):
        rm.cluster.ask("x", f"k{number}", vcore=1)
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        (found,) = await states(client, {"kind": "application", "id": "x", "keys": ["k3", "k79", "gone"]})
    assert [each["allocationKey"] for each in found["allocations"]] == ["k3"]
    assert [each["allocationKey"] for each in found["requests"]] == ["k79"]
    assert found["usedResource"] == {"vcore": 60}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{}", "Expected `array`, got `object`"),
        (b'[{"kind":"user","id":"x"}]', "Invalid enum value 'user' - at `$[0].kind`"),
        (b'[{"kind":"node"}]', "missing required field `id` - at `$[0]`"),
        (b'[{"kind":"node","id":"x","more":1}]', "unknown field `more`"),
        (b"\xff", "The body is not a list of objects"),
        (json.dumps([{"kind": "node", "id": "x"}] * (WANTED_MAX + 1)).encode(), "1001 objects: expected at most 1000"),
    ],
)
async def test_invalid_requests_are_refused(bench: Bench, body: bytes, words: str) -> None:
    await bench.write(bench.rm())
    async with bench.view() as view, client_of(view) as client:
        answer = await client.post("/ws/v1/object-states", content=body)
    assert (answer.status_code, words in answer.json()["message"]) == (400, True), answer.text


async def test_removed_objects_have_their_last_state(bench: Bench) -> None:
    rm = bench.rm()
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        created: list[int] = []
        for user in ("ann", "bob", "cid"):
            rm.cluster.now_ns += 1
            created.append(rm.cluster.now_ns)
            rm.cluster.app("x", "root.a", user=user)
            rm.cluster.node("n1", vcore=1)
            await bench.write(rm)
            if user != "cid":
                gone = nodes(NodeAction.DECOMISSION, {"n1": None})
                rm.cluster.do(UpdateApplications(remove=(("default", "x"),)), gone)
                await bench.write(rm)
        wanted = [{"kind": "application", "id": "x"}, {"kind": "node", "id": "n1"}, {"kind": "queue", "id": "root.a"}]
        answer = await client.post("/ws/v1/object-states", content=json.dumps(wanted).encode())
        apps, hosts, queues = answer.json()["states"]
    assert [json.loads(each["state"])["user"] for each in apps] == ["cid", "bob", "ann"]
    assert [each["createdNano"] for each in apps] == [each["createdNano"] for each in hosts] == created[::-1]
    assert len({json.loads(each["state"])["id"] for each in apps}) == 3
    assert len(queues) == 1


async def test_queues_of_an_rm_that_registers_anew_are_as_they_were_at_last(bench: Bench) -> None:
    rm = bench.rm()
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        rm.cluster.node("n1", vcore=2)
        rm.cluster.app("x", "root.a")
        rm.cluster.ask("x", "k", vcore=2)
        await bench.write(rm)
        anew = bench.rm()
        anew.info.registrations = 2
        await bench.write(anew)
        answer = await client.post("/ws/v1/object-states", content=b'[{"kind":"queue","id":"root.a"}]')
        (queues,) = answer.json()["states"]
    assert [json.loads(each["state"]).get("allocatedResource") for each in queues] == [None, {"vcore": 2}]


async def test_few_are_remembered(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    monkeypatch.setattr(object_states, "_KEPT_BYTES", 2_000)
    rm = bench.rm()
    departed = object_states.RemovedObjects()
    for number in range(30):
        name = f"n{number % 10 if number < 20 else 0}"
        rm.cluster.node(name, vcore=1)
        departed.add("rm1", rm.cluster.partition, "node", (name,))
        departed.add("rm1", rm.cluster.partition, "alloc", ("x", "k"))
        departed.add("rm1", rm.cluster.partition, "node", ("never",))
        rm.cluster.do(nodes(NodeAction.DECOMISSION, {name: None}))
    found = [len(departed.find(object_states.ObjectKey("rm1", "node", f"n{number}"))) for number in range(10)]
    assert found[0] == object_states._KEPT_OF_NAME
    assert 4 < sum(found) < 12
