"""``/ws/v1/external``: the statements of sources in pages, also of RMs that are not registered."""

from __future__ import annotations

from json import loads

import httpx
import pytest
from muster_bus.log import OutRecord
from muster_core.external.model import (
    NOT_CONFIGURED,
    ApplyExternalChanges,
    ExternalAllocation,
    ExternalApplication,
    ExternalChange,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
    OfferState,
    SetSourceState,
    SourceState,
    id_of,
    kind_of,
)
from muster_core.external.reports import ExternalReports
from muster_core.model.steps import finish
from muster_state import state_codec
from muster_view.rest.external import sources
from unit.view.recorded import Bench, client_of

LISTING, LIVE, STALE = SourceState.LISTING, SourceState.LIVE, SourceState.STALE
NODE = ExternalNode("h/1", {"vcore": 8000}, {"memory": 1}, {"zone": "a"})


def said(*what: ExternalObject, source: str = "vms", partition: str = "default") -> ApplyExternalChanges:
    changes = tuple(ExternalChange(kind_of(each), id_of(each), each) for each in what)
    return ApplyExternalChanges(partition, source, "life-1", changes)


def noted(state: SourceState, source: str = "vms", reason: str = "", partition: str = "default") -> SetSourceState:
    return SetSourceState(partition, source, "life-1", state, reason=reason)


async def unregistered(bench: Bench, rm_id: str, *commands: ApplyExternalChanges | SetSourceState) -> None:
    books, partition = ExternalReports(), bench.topics.partition_of(rm_id)
    for command in commands:
        for changed in finish(books.apply_in_steps(command, 5)):
            what = changed.what
            key, value = state_codec.key_of(rm_id, what.partition, what), state_codec.encode(what.partition, what)
            await bench.commit(partition, [OutRecord(bench.topics.state, partition, key, value)])


async def json(client: httpx.AsyncClient, path: str, status: int = 200) -> object:
    answer = await client.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_sources_are_shown_with_how_far_they_are_and_what_they_have(bench: Bench) -> None:
    rm = bench.rm()
    offer = ExternalOffer("o", "h/1", {"vcore": 1})
    rm.do(said(NODE, offer, ExternalAllocation("vm", "h/1", {"vcore": 1000})), noted(LIVE))
    rm.do(
        ApplyExternalChanges("default", "vms", "life-1", (ExternalChange(ExternalKind.OFFER, "o", None, stale=True),))
    )
    rm.do(said(ExternalPool("licence", 3), source="pools"), noted(STALE, "pools", "connection refused"))
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        pools, vms = await json(client, "/ws/v1/external")  # type: ignore[misc]
        assert vms == {
            "rmID": "rm1",
            "partition": "default",
            "source": "vms",
            "state": "LIVE",
            "since": vms["since"],
            "reason": "",
            "life": "life-1",
            "lost": False,
            "drains": True,
            "objects": {"allocation": 1, "node": 1, "offer": 1},
            "stale": 1,
            "problems": 0,
        }
        assert (pools["state"], pools["reason"], pools["lost"]) == ("STALE", "connection refused", True)
        assert await json(client, "/ws/v1/partition/default/external") == [pools, vms]
        assert await json(client, "/ws/v1/partition/other/external") == []
        health = await client.get("/ws/v1/scheduler/healthcheck")
        (check,) = [each for each in health.json()["HealthChecks"] if each["Name"] == "External sources"]
        assert check["DiagnosisMessage"] == "source rm1/default/pools (connection refused)"
        # A source that is lost does not make the view a failing service.
        assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize(("state", "problems"), [(OfferState.OFFERED, 1), (OfferState.RETURNED, 0)])
def test_an_offer_that_was_given_back_is_no_problem(state: OfferState, problems: int) -> None:
    books = ExternalReports()
    finish(books.apply_in_steps(said(ExternalOffer("o", "h", {"vcore": 1})), 5))
    (owner,) = books.all_sources()
    (entry,) = owner.entries.values()
    entry.problem, entry.offer_state = "node h is not there", state
    (source,) = loads(b"".join(sources("rm1", [owner])))
    assert (source["objects"], source["problems"]) == ({"offer": 1}, problems)


async def test_an_emptied_and_removed_source_is_not_lost(bench: Bench) -> None:
    rm = bench.rm()
    rm.do(noted(STALE, "emptied", NOT_CONFIGURED), noted(STALE, "never", "no such host"))
    rm.do(said(NODE, source="forgotten"), noted(STALE, "forgotten", NOT_CONFIGURED))
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        health = await client.get("/ws/v1/scheduler/healthcheck")
        (check,) = [each for each in health.json()["HealthChecks"] if each["Name"] == "External sources"]
        assert "rm1/default/never (no such host)" in check["DiagnosisMessage"]
        assert "rm1/default/forgotten" in check["DiagnosisMessage"]
        assert "emptied" not in check["DiagnosisMessage"]


EVERY: list[tuple[ExternalObject, dict[str, object]]] = [
    (
        ExternalAllocation("vm", "h/1", {"vcore": 1}, "app", 3, {"a": "b"}),
        {"nodeID": "h/1", "resource": {"vcore": 1}, "applicationID": "app", "priority": 3, "tags": {"a": "b"}},
    ),
    (
        ExternalApplication("app", "root.a", "u", ("g",)),
        {"queue": "root.a", "user": "u", "groups": ["g"], "tags": {}},
    ),
    (
        ExternalNode("h2"),
        {"capacity": None, "occupied": {}, "attributes": {}, "schedulable": True, "whole": False, "brings": True},
    ),
    (
        ExternalOffer("o", "h2", {"vcore": 2}, {}, 5, True, 7),
        {"nodeID": "h2", "resource": {"vcore": 2}, "attributes": {}, "idle": 5, "revoked": True, "grace": 7},
    ),
    (ExternalPool("licence", 4, 1), {"quantity": 4, "occupied": 1}),
    (ExternalQueue("root.a", {"vcore": 9}), {"max": {"vcore": 9}}),
]


async def test_objects_of_every_kind_are_shown_as_they_were_said(bench: Bench) -> None:
    await unregistered(bench, "rm1", said(*(what for what, _ in EVERY)), noted(LIVE))
    async with bench.view() as view, client_of(view) as client:
        found = await json(client, "/ws/v1/external/vms")
        assert isinstance(found, dict)
        assert [(each["kind"], each["id"], each["said"]) for each in found["objects"]] == [
            (kind_of(what).value, id_of(what), shown) for what, shown in EVERY
        ]
        assert [each["offerState"] for each in found["objects"]] == ["", "", "", "OFFERED", "", ""]
        assert found["next"] == ""


async def test_pages_hold_everything_once(bench: Bench) -> None:
    nodes = [ExternalNode(f"h/{number:03}", {"vcore": 1}) for number in range(25)]
    pools = [ExternalPool(f"p{number}", 1) for number in range(5)]
    await unregistered(bench, "rm1", said(*pools, *reversed(nodes)), noted(LIVE))
    async with bench.view() as view, client_of(view) as client:
        found, after, pages = [], "", 0
        while pages == 0 or after:
            page = (await client.get("/ws/v1/external/vms", params={"limit": 7, "after": after})).json()
            found += [(each["kind"], each["id"]) for each in page["objects"]]
            after, pages = page["next"], pages + 1
        assert found == sorted((kind_of(each).value, id_of(each)) for each in [*nodes, *pools])
        assert pages == 5
        page = (await client.get("/ws/v1/external/vms", params={"kind": "pool", "after": "pool/p2"})).json()
        assert [each["id"] for each in page["objects"]] == ["p3", "p4"]


@pytest.mark.parametrize(
    ("path", "status", "said_why"),
    [
        ("/ws/v1/external/nobody", 404, "Source not found: 'nobody'"),
        ("/ws/v1/external/vms?partition=other", 404, "Source not found: 'vms'"),
        ("/ws/v1/external/vms?limit=0", 400, "Limit '0': expected 1 to 10000"),
        ("/ws/v1/external/vms?limit=ten", 400, "Limit 'ten': expected 1 to 10000"),
        ("/ws/v1/external/vms?kind=vm", 400, "Kind 'vm' is not known: expected one of pool, queue, node"),
        ("/ws/v1/external/vms?after=h1", 400, "After 'h1': expected the value of"),
        ("/ws/v1/external?rm=nobody", 404, "Resource manager not found: 'nobody'"),
    ],
)
async def test_missing_and_invalid_requests_get_an_error(bench: Bench, path: str, status: int, said_why: str) -> None:
    await unregistered(bench, "rm1", said(NODE))
    async with bench.view() as view, client_of(view) as client:
        answer = await json(client, path, status)
        assert isinstance(answer, dict)
        assert answer["message"].startswith(said_why)


async def test_rms_are_distinguished_whether_they_registered_or_not(bench: Bench) -> None:
    rm = bench.rm("rm1")
    rm.do(said(NODE), noted(LIVE))
    await bench.write(rm)
    await unregistered(bench, "rm2", said(ExternalPool("licence", 3), source="a/b"), noted(LIVE, "a/b"))
    async with bench.view() as view, client_of(view) as client:
        answer = await json(client, "/ws/v1/external", 400)
        assert isinstance(answer, dict)
        assert answer["message"] == 'Several resource managers are known, name one with "rm": rm1, rm2'
        (source,) = await json(client, "/ws/v1/external?rm=rm2")  # type: ignore[misc]
        assert (source["rmID"], source["source"]) == ("rm2", "a/b")
        page = await json(client, "/ws/v1/external/a%2Fb?rm=rm2")
        assert isinstance(page, dict)
        assert [each["id"] for each in page["objects"]] == ["licence"]


async def test_a_source_of_two_partitions_is_asked_for_by_partition(bench: Bench) -> None:
    await unregistered(bench, "rm1", said(NODE), said(ExternalPool("p", 1), partition="gpu"))
    async with bench.view() as view, client_of(view) as client:
        answer = await json(client, "/ws/v1/external/vms", 400)
        assert isinstance(answer, dict)
        assert answer["message"] == 'Several partitions have this source, name one with "partition": default, gpu'
        page = await json(client, "/ws/v1/external/vms?partition=gpu")
        assert isinstance(page, dict)
        assert [each["id"] for each in page["objects"]] == ["p"]


async def test_without_sources_there_are_none(bench: Bench) -> None:
    async with bench.view() as view, client_of(view) as client:
        assert await json(client, "/ws/v1/external") == []


# ---- nodes ---------------------------------------------------------------------------------------------------------


async def test_a_node_tells_whose_its_figures_are(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.node("h/1", vcore=9000)
    rm.cluster.node("n2", vcore=10)
    rm.do(said(NODE, ExternalAllocation("vm", "h/1", {"vcore": 1000})), noted(LIVE))
    rm.do(said(ExternalNode("h/1", {"vcore": 7000}), source="other"), noted(STALE, "other", "connection refused"))
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        shared, alone = await json(client, "/ws/v1/partition/default/nodes")  # type: ignore[misc]
        assert shared["capacity"] == {"vcore": 7000}
        assert shared["schedulable"] is False
        assert shared["sources"] == ["other", "vms"]
        assert shared["reported"] == {"created": True, "capacity": {"vcore": 9000}, "schedulable": True}
        (held,) = shared["foreignAllocations"]
        assert held["source"] == "vms"
        assert "preemptable" not in held
        assert not {"sources", "reported"} & set(alone)


async def test_explain_says_which_source_restricts_a_node(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=9000)
    rm.do(said(ExternalNode("n1", {"vcore": 7000}, brings=False)), noted(LIVE))
    rm.do(said(ExternalNode("n2", {"vcore": 5}), source="other"), noted(STALE, "other", "connection refused"))
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        found = await json(client, "/ws/v1/explain/node/n1")
        assert isinstance(found, dict)
        assert found["sources"] == [
            {
                "source": "vms",
                "capacity": {"vcore": 7000},
                "whole": False,
                "occupied": {},
                "schedulable": True,
                "held": "",
                "brings": False,
            }
        ]
        assert found["rm"]["capacity"] == {"vcore": 9000}
        assert found["closed"] == ""
        assert found["message"].startswith(
            "Besides the resource manager, source vms reports it. The reports differ (vcore: the resource manager says "
            "9000, source vms says 7000: the smaller counts). It has no allocation."
        )
        found = await json(client, "/ws/v1/explain/node/n2")
        assert isinstance(found, dict)
        assert found["rm"] is None
        assert found["closed"] == "source other is lost: connection refused"
        assert found["message"].startswith(
            "Only asks that require this node can start on it: source other is lost: connection refused. "
            "Only source other reports it."
        )
