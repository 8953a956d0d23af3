"""Everything that is asked over REST, in both forms of Muster: in one process, and as the containers of compose.

A scripted life (queues, limits, a gang, a preemption, applications that are completed, refused, removed and that come
again) is followed by a history server; then every answer is held against its shape, the web UI looks at every page, and
every route is asked. In compose form with a running stack in ``MUSTER_DEPLOYED`` (scripts/compose-test):
the gateway's gRPC address, its HTTP URL, the token of an admin and its name, and whether reading needs it ("closed" or
"open"), with commas between. No RM may have registered there before.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from contract import rest_shapes as shapes
from contract.history_server import HistoryServer, Row
from contract.rest_reader import Reader
from contract.rest_rows import ask_every_row, ask_every_row_of_several
from contract.web_ui import WebUi
from e2e.gang_rig import P, Rm, muster_here
from muster_client import application, ask, existing_allocation, node
from muster_client.access import PLAIN, Access
from muster_proto.si.v1 import si_pb2 as si
from waiting import eventually

DEPLOYED = os.environ.get("MUSTER_DEPLOYED", "")
QUEUES = """
partitions:
  - name: default
    preemption: {enabled: true}
    nodesortpolicy: {type: fair, resourceweights: {vcore: 1.0, memory: 2.0}}
    placementrules:
      - {name: tag, value: team, create: true, filter: {type: allow, users: ['^nobody.*'], groups: ['^none$']},
         parent: {name: fixed, value: root.dynamic}}
      - {name: provided, create: true, filter: {type: deny, users: [mallory], groups: [evil, worse]}}
    limits: [{limit: all, users: ['*'], maxapplications: 50},
             {limit: ops, groups: [ops], maxapplications: 9, maxresources: {vcore: 90}}]
    queues:
      - name: root
        submitacl: '*'
        queues:
          - {name: free, properties: {priority.offset: '3'}}
          - {name: limited, adminacl: ' ops', maxapplications: 2, resources: {max: {vcore: 4}}}
          - name: shared
            properties: {application.sort.policy: fifo}
            queues:
              - {name: rich}
              - {name: poor, resources: {guaranteed: {vcore: 2}}, properties: {preemption.delay: 1s}}
          - {name: dynamic, parent: true, childtemplate: {maxapplications: 5,
             properties: {application.sort.policy: fair}, resources: {max: {vcore: 2}, guaranteed: {vcore: 1}}}}
"""


# What this life does not show, and who does.
NOT_LIVED = {
    *shapes.NEVER_SEEN,
    ("Validated", "reason"),
    ("Allocation", "preempted"),  # these are over too soon, or come too late: contract/test_rest_shapes.py
    ("Allocation", "allocation_delay"),
    ("Ask", "triggered_preemption"),
    ("Queue", "preempting_resource"),
    ("Placeholders", "timed_out"),
    ("ResourceHistory", "placeholder_resource"),
    ("Allocation", "uuid"),  # the previous generation's: in_virtual_time/test_rest_shapes.py
    ("Ask", "pending_count"),
    ("Config", "extra"),  # an RM's of its own
    ("ConfigResolver", "type"),
    ("ApplicationSample", "timestamp"),  # once a minute
    ("ApplicationSample", "total_applications"),
    ("ContainerSample", "timestamp"),
    ("ContainerSample", "total_containers"),
}


class Place(NamedTuple):
    """Where Muster is.

    :ivar as_admin: the same, with what lets an admin in: all that a history server can be given.
    :ivar pass_s: lets so many seconds pass.
    :ivar access: lets an RM in.
    :ivar not_lived: (model, field) of ``contract.rest_shapes`` that it may be too young for.
    """

    gateway: str
    http: str
    as_admin: str
    pass_s: Callable[[float], Awaitable[None]]
    not_lived: frozenset[tuple[str, str]] = frozenset()
    access: Access = PLAIN


@asynccontextmanager
async def embedded(directory: Path) -> AsyncIterator[Place]:
    async with muster_here(directory, ["view.history_interval_s=0.5"]) as muster:

        async def forward(seconds: float) -> None:
            muster.clock.forward(seconds)

        yield Place(muster.gateway, muster.http, muster.http, forward)


@asynccontextmanager
async def deployed(_directory: Path) -> AsyncIterator[Place]:
    gateway, http, token, name, reading = DEPLOYED.split(",")
    as_admin = http.replace("://", f"://{name}:{token}@")
    # (A sample is taken each minute; the first was before there was an RM.)
    history = frozenset({("StateDump", "app_history"), ("StateDump", "container_history")})
    if reading == "closed":  # gRPC wants the token, too
        yield Place(gateway, as_admin, as_admin, asyncio.sleep, history, Access(token=token))
    else:
        yield Place(gateway, http, as_admin, asyncio.sleep, history)


FORMS = [pytest.param(embedded, id="embedded"), *([pytest.param(deployed, id="deployed")] if DEPLOYED else [])]


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("logs_as_before")
@pytest.mark.parametrize("form", FORMS)
async def test_every_request_has_its_form(form: Any, tmp_path: Path) -> None:
    shapes.SEEN.clear()
    async with (
        form(tmp_path) as place,
        # (An idle stream has a line every 30 s.)
        httpx.AsyncClient(base_url=place.as_admin, timeout=60) as client,
    ):
        # 1. a history server that was there first
        server = HistoryServer(client)
        await server.sync()
        await server.ready()
        async with followed_by(server), Rm(place.gateway, place.http, "rm", QUEUES, access=place.access) as rm:
            # 2. the life, which it follows
            await life(rm, place)
            # 3. every answer has its shape
            reader = Reader(client)
            await reader.everything()
            await events(reader)
            await config(reader)
            await WebUi(client).every_page()
            # 4. every row of the table answers
            await ask_every_row(client)
            unseen = shapes.unseen() - NOT_LIVED - place.not_lived
            assert sorted(unseen) == [], "the life has no such object, or a form loses it"
            # 5. it knows what one knows that comes only now
            await knows_the_same(server, client)
            # 6. a node that went comes again, and the server starts anew, with what it stored
            await rm.nodes(n3=1_000)
            await server.sync()
            # 7. a second RM: now each request says whose
            async with Rm(place.gateway, place.http, "other", QUEUES, access=place.access) as other:
                await other.nodes(n1=1_000)
                await ask_every_row_of_several(client)


@asynccontextmanager
async def followed_by(server: HistoryServer) -> AsyncIterator[None]:
    """It follows the events meanwhile; raises what ended it."""
    following = asyncio.create_task(server.follow())
    try:
        yield
        if following.done():
            following.result()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def life(rm: Rm, place: Place) -> None:
    """Queues, limits, a gang, a preemption; applications that run, wait, are over, refused, removed and come again."""
    await rm.nodes(n1=9_000, n2=4_000, n3=1_000)
    rm.confirms = True
    # 1. a gang, one of whose placeholders is replaced; it ends, and is completed
    await rm.application("gang", "root.free", 1_500)
    await rm.placeholders("gang", 2, 750)
    reals = [await rm.real("gang", f"gang-{number}", 700) for number in range(2)]
    await eventually(lambda: all(name in rm.runs for name in reals), f"the gang works; heard {rm.heard}")
    await rm.ends(*reals)
    # 2. refused, for each of two reasons; and one that is in nobody's way
    assert (await rm.application("refused", "root.nowhere.else", 3_000, user="mallory")).how == "Rejected"
    await rm.application("dynamic", "root.dynamic.team")
    await rm.real("dynamic", "dynamic-1", 500, group="")
    # 3. over a queue's max: one runs, one waits; a third application may not run
    for app in ("first", "second", "third"):
        await rm.application(app, "root.limited")
        await rm.real(app, f"{app}-1", 2_500, group="")
    await rm.hears("new", "first-1")
    # 4. removed, and it comes again: another one of the same name
    for _ in range(2):
        await rm.application("again", "root.free")
        await rm.hears("new", await rm.real("again", "again-1", 100, group=""))
        await rm.client.send_applications(
            remove=[si.RemoveApplicationRequest(applicationID="again", partitionName="default")]
        )
        await eventually(lambda: "again-1" not in rm.runs, f"again-1 is over; heard {rm.heard}")
    # 5. a preemption: all there is is taken, by who may have to give it back
    await rm.application("rich", "root.shared.rich")
    policy = si.PreemptionPolicy(allowPreemptSelf=True, allowPreemptOther=True)
    asks = [ask(f"rich-{n}", "rich", {"vcore": 1_000}, preemption_policy=policy) for n in range(12)]
    await rm.client.send_asks(asks)
    await eventually(lambda: sum(name.startswith("rich") for name in rm.runs) >= 8, f"rich; heard {rm.heard}")
    await rm.application("poor", "root.shared.poor")
    await rm.client.send_asks([ask("poor-1", "poor", {"vcore": 2_000}, preemption_policy=policy)])
    await rm.hears("new", "poor-1")
    # 6. on a node of its own kind: what others hold, tags, a daemon, a gang that forms and one whose members came
    await cards(rm)
    # 7. nodes go and are drained
    await rm.node_action("n3", si.NodeInfo.DECOMISSION)
    await rm.node_action("n2", si.NodeInfo.DRAIN_NODE)
    await rm.barrier()
    # 8. what is over is completed
    await place.pass_s(31)
    await rm.shows(f"{P}/applications/completed", lambda found: [app["applicationID"] for app in found] == ["gang"])
    await rm.shows(f"{P}/application/second", lambda app: "pendingReason" in app["requests"][0])
    await rm.shows(f"{P}/node/n2", lambda node: not node["schedulable"])
    gang = (await rm.get(f"{P}/applications/completed"))[0]
    assert gang["maxUsedResource"] == {"vcore": 1_500}, gang
    rich = await rm.get(f"{P}/application/rich")
    assert rich["maxUsedResource"]["vcore"] > rich["usedResource"]["vcore"], rich


async def cards(rm: Rm) -> None:
    """Asks for cards do not compete with others."""
    labels = {"si/hostname": "host-4", "si/rackname": "rack-4", "zone": "<a&b>"}
    await rm.client.send_nodes([node("n4", {"card": 20}, attributes=labels)])
    async with asyncio.timeout(60):
        await rm.client.nodes_answered()
    foreign = existing_allocation("elsewhere", "", "n4", {"card": 1})
    foreign.allocationTags["foreign"] = "default"
    await rm.client.send_asks([foreign])
    apps = ["daemon", "forming", "replaced"]
    await rm.client.send_applications(
        [
            application("daemon", "root.free", user="dora", groups=["ops"]),
            application("forming", "root.free", placeholder_ask={"card": 40}),
            application("replaced", "root.free", placeholder_ask={"card": 2}),
        ]
    )
    for app in apps:
        await rm.hears("application", app, "accepted")
    tags = {"kubernetes.io/meta/podName": "daemon <1>", "yunikorn.apache.org/requiredNode": "n4"}
    await rm.client.send_asks(
        [
            ask("daemon-1", "daemon", {"card": 1}, tags=tags, originator=True),
            ask("daemon-2", "daemon", {"card": 99}, tags=tags, originator=True),
            ask("forming-1", "forming", {"card": 2}, task_group="workers", placeholder=True),
            ask("forming-2", "forming", {"card": 38}, task_group="workers", placeholder=True),
            ask("holds-1", "replaced", {"card": 1}, task_group="workers", placeholder=True),
            ask("holds-2", "replaced", {"card": 1}, task_group="workers", placeholder=True),
        ]
    )
    for key in ("daemon-1", "forming-1", "holds-1", "holds-2"):
        await rm.hears("new", key)
    await rm.client.send_asks([ask("replaced-1", "replaced", {"card": 1}, task_group="workers")])
    await rm.hears("new", "replaced-1")


async def events(reader: Reader) -> None:
    async def both() -> tuple[shapes.EventBatch, shapes.EventBatch] | None:
        batch = await reader.get("/ws/v1/events/batch", shapes.EventBatch)
        full = await reader.get("/ws/v1/events/batch?state=true", shapes.EventBatch)
        return (batch, full) if batch.highest == full.highest else None  # (else an event came between them)

    batch, full = await eventually(both, "two batches with the same events")
    assert len(batch.records) == batch.highest - batch.lowest + 1
    assert all(not each.state for each in batch.records), "nobody asked for states"
    assert [each.timestamp_nano for each in full.records] == [each.timestamp_nano for each in batch.records]
    assert any(each.state for each in full.records)
    for state, expected in (("", True), ("&state=true", True), ("&state=false", False)):
        async with reader.client.stream("GET", f"/ws/v1/events/stream?count=5{state}") as stream:
            lines = stream.aiter_lines()
            assert json.loads(await anext(lines)) == {"InstanceUUID": batch.instance}
            found = [shapes.valid((await anext(lines)).encode() + b"\n", shapes.Event) for _ in range(5)]
        assert any(each.state for each in found) is expected, state
    wrong = await reader.client.get("/ws/v1/events/stream?state=perhaps")
    assert shapes.valid(wrong.content, shapes.Error).status_code == 400


async def config(reader: Reader) -> None:
    await reader.get("/ws/v1/config", shapes.Config)
    text = await reader.client.get("/ws/v1/config", headers={"Accept": "*/*"})
    assert text.headers["content-type"] == "application/x-yaml; charset=UTF-8"
    judged = await reader.client.post("/ws/v1/validate-conf", content=QUEUES)
    assert shapes.valid(judged.content, shapes.Validated).allowed


async def knows_the_same(server: HistoryServer, client: httpx.AsyncClient) -> None:
    late = HistoryServer(client)
    await late.sync()

    def rows(of: HistoryServer) -> dict[str, Any]:
        # (Of an application that is over such a server says that it is gone, because it left its queue.)
        there = {row.what.id for row in of.applications.values() if row.what.application_state == "Completed"}
        tables = (of.partitions, of.queues, of.applications, of.nodes)
        rows = {key: row for table in tables for key, row in table.items()}
        return {key: known(row) for key, row in rows.items() if row.deleted_ns is None or key in there}

    # One that was refused has no event that says it is new, in YuniKorn neither: only who comes later has it.
    (refused,) = [key for key, row in late.applications.items() if row.what.application_state == "Rejected"]
    wanted = {key: row for key, row in rows(late).items() if key != refused}

    def heard() -> bool:
        assert not server.ended, server.ended
        return rows(server) == wanted

    try:
        await eventually(heard, "the history server knows what there is")
    except AssertionError as error:
        raise AssertionError(f"{error}: {difference(rows(server), wanted)}; {server.troubles}") from error
    assert server.troubles == [f"2/3/202 of refused: nothing is known of its id {refused}"]
    assert server.partition_polls > 0
    again = [row for row in server.applications.values() if row.what.application_id == "again"]
    assert len({row.what.id for row in again}) == 2, "the two objects have different ids"
    assert all(row.deleted_ns is not None for row in again)
    assert [row.what.node_id for row in server.nodes.values() if row.deleted_ns is not None] == ["n3"]
    (partition,) = server.partitions
    everything = [*server.queues.values(), *server.applications.values(), *server.nodes.values()]
    assert {row.what.partition_id for row in everything} == {partition}
    queues = {row.what.queuename: key for key, row in server.queues.items()}
    for row in server.applications.values():
        assert row.what.queue_id == queues.get(row.what.queue_name, queues["root"]), row.what


def known(row: Row) -> tuple[str, ...]:
    """What tells objects apart, and does not move by itself."""
    what = row.what
    names = ("id", "partition_id", "queue_id", "parent_id", "name", "queuename", "node_id", "application_id")
    also = ("application_state", "user", "schedulable", "is_leaf", "rejected_message", "max_used_resource")
    return tuple(f"{name}={getattr(what, name)}" for name in (*names, *also) if hasattr(what, name))


def difference(one: dict[str, Any], other: dict[str, Any]) -> list[Any]:
    keys = one.keys() | other.keys()
    return [(one.get(key), other.get(key)) for key in sorted(keys) if one.get(key) != other.get(key)]
