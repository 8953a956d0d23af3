"""MetricsClient: snapshots, every field of them as JSON, and its errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from muster_client.errors import AdminFailed, AdminRefused
from muster_client.metrics_client import MetricsClient, MetricsSnapshot, Section, as_json
from muster_proto.muster.v1 import metrics_pb2 as pb
from unit.client.metrics_gateway import GIB, MetricsGateway, running, snapshot

Code = grpc.StatusCode
GONE = (Code.UNAVAILABLE, "this gateway is stopping")


@pytest.fixture
def gateway() -> Iterator[MetricsGateway]:
    with running() as gateway:
        yield gateway


async def all_of(client: MetricsClient, **what: Any) -> list[MetricsSnapshot]:
    return [found async for found in client.watch(**what)]


async def test_a_snapshot(gateway: MetricsGateway) -> None:
    async with MetricsClient(gateway.address) as client:
        found = await client.get()
    assert found.rm_id == "rm-1"
    assert found.scheduler.pending_by_reason == {"QUEUE_MAX": 5, "NO_NODE_HAS_ROOM": 2}
    assert (found.scheduler.tally.allocated, found.scheduler.tally.events) == (950, 77)
    assert [queue.path for queue in found.queues] == ["root", "root.a", "root.b"]
    assert found.nodes[0].available == {"vcore": 23_000, "memory": 2 * GIB}
    assert found.runtime.processes[0].uptime_seconds == 3_700


async def test_every_field_is_there_under_its_own_name(gateway: MetricsGateway) -> None:
    async with MetricsClient(gateway.address) as client:
        shown = json.loads(json.dumps(as_json(await client.get())))
    assert json_format.ParseDict(shown, pb.MetricsSnapshot()) == snapshot()


def test_no_section_of_the_interface_is_forgotten() -> None:
    assert [section.value for section in Section] == list(pb.MetricsRequest.Section.keys())[1:]


async def test_sections_that_were_not_requested_are_absent(gateway: MetricsGateway) -> None:
    gateway.answers = [pb.MetricsSnapshot(taken_ns=1, rm_id="rm-1")]
    async with MetricsClient(gateway.address) as client:
        found = await client.get()
    assert found == MetricsSnapshot(taken_ns=1, rm_id="rm-1")
    assert (as_json(found)["scheduler"], as_json(found)["queues"]) == (None, [])


async def test_the_request_has_the_parameters(gateway: MetricsGateway) -> None:
    async with MetricsClient(gateway.address, metadata=[("token", "t")]) as client:
        what: dict[str, Any] = {"partition": "p", "queue": "root.a", "nodes_max": 3, "sections": [Section.NODES]}
        await client.get("rm-1", **what)
        await all_of(client, rm_id="rm-1", interval_s=0.25, **what)
        await all_of(client)
    request = pb.MetricsRequest(rm_id="rm-1", sections=[3], partition="p", queue="root.a", nodes_max=3)
    assert [asked for asked, _ in gateway.asked] == [
        request,
        pb.WatchMetricsRequest(what=request, interval_ms=250),
        pb.WatchMetricsRequest(what=pb.MetricsRequest(), interval_ms=1_000),
    ]
    assert gateway.asked[0][1]["token"] == "t"


async def test_watching_gives_one_after_the_other(gateway: MetricsGateway) -> None:
    gateway.answers = [snapshot(second) for second in range(3)]
    async with MetricsClient(gateway.address) as client:
        found = await all_of(client)
    assert [(each.taken_ns - found[0].taken_ns) // 10**9 for each in found] == [0, 1, 2]


async def test_leaving_the_loop_ends_the_call(gateway: MetricsGateway) -> None:
    gateway.answers = [snapshot(second) for second in range(1_000)]
    async with MetricsClient(gateway.address) as client:
        watching = client.watch()
        await anext(watching)
        await watching.aclose()
        assert (await client.get()).rm_id == "rm-1"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Code.NOT_FOUND, AdminRefused),
        (Code.INVALID_ARGUMENT, AdminRefused),
        (Code.RESOURCE_EXHAUSTED, AdminRefused),
        (Code.UNAVAILABLE, AdminFailed),
        (Code.DEADLINE_EXCEEDED, AdminFailed),
    ],
)
async def test_refused_or_not_now(gateway: MetricsGateway, code: Code, kind: type[AdminFailed | AdminRefused]) -> None:
    gateway.answers = [(code, "why")]
    async with MetricsClient(gateway.address) as client:
        with pytest.raises(kind) as caught:
            await client.get()
        assert (caught.value.code, caught.value.details) == (code, "why")
        with pytest.raises(kind):
            await all_of(client)


async def test_a_watch_that_breaks_off_says_so(gateway: MetricsGateway) -> None:
    gateway.answers = [snapshot(), GONE]
    async with MetricsClient(gateway.address) as client:
        watching = client.watch()
        assert (await anext(watching)).rm_id == "rm-1"
        with pytest.raises(AdminFailed) as caught:
            await anext(watching)
    assert (caught.value.code, caught.value.details) == GONE


async def test_no_gateway_is_a_failure() -> None:
    async with MetricsClient("127.0.0.1:1") as client:
        with pytest.raises(AdminFailed):
            await client.get(timeout_s=2.0)
