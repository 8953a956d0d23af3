"""Two resource managers send the same items through the gateway, one in one message, one item by item.

They must hear the same and look the same in REST. (Random messages: tests/simulation/messages.py.)
"""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from integration.gateway_rig import Channel, Stream
from muster_bus.clock import SystemClock
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_gateway.service import Gateway
from muster_gateway.sessions.memory import MemorySessions
from muster_gateway.settings import GatewaySettings
from muster_gateway.stream_kind import SI_KINDS, StreamKind
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.service import SchedulerService
from muster_scheduler.settings import SchedulerSettings
from muster_view import ViewService
from muster_view.settings import ViewSettings
from waiting import PATIENCE_S, eventually

CLOCK = SystemClock()
CONFIG = """
partitions:
  - name: default
    queues: [{name: root, submitacl: '*', queues: [{name: a}]}]
  - name: second
    queues: [{name: root, submitacl: '*', queues: [{name: a}]}]
"""
CREATE, CREATE_DRAIN, UPDATE = si.NodeInfo.CREATE, si.NodeInfo.CREATE_DRAIN, si.NodeInfo.UPDATE
DECOMISSION, DRAIN = si.NodeInfo.DECOMISSION, si.NodeInfo.DRAIN_NODE


def node(node_id: str, action: Any = CREATE, partition: str = "", **attributes: str) -> si.NodeInfo:
    attributes |= {"si/node-partition": partition} if partition else {}
    return si.NodeInfo(nodeID=node_id, action=action, attributes=attributes, schedulableResource=vcore(4))


def vcore(value: int) -> si.Resource:
    return si.Resource(resources={"vcore": si.Quantity(value=value)})


def app(app_id: str, queue: str = "root.a", partition: str = "default") -> si.AddApplicationRequest:
    owner = si.UserGroupInformation(user="alice")
    return si.AddApplicationRequest(applicationID=app_id, queueName=queue, partitionName=partition, ugi=owner)


def removal(app_id: str) -> si.RemoveApplicationRequest:
    return si.RemoveApplicationRequest(applicationID=app_id, partitionName="default")


def runs(key: str, size: int, node_id: str = "n1", priority: int = 0) -> si.Allocation:
    return si.Allocation(
        allocationKey=key, applicationID="app", nodeID=node_id, resourcePerAlloc=vcore(size), priority=priority
    )


def release(key: str, **fields: Any) -> si.AllocationRelease:
    return si.AllocationRelease(allocationKey=key, applicationID="app", **fields)


def nodes(*items: si.NodeInfo) -> si.NodeRequest:
    return si.NodeRequest(nodes=items)


GIVEN: list[Any] = [nodes(node("n1")), si.ApplicationRequest(new=[app("app")])]


@dataclass
class Sequence:
    """The items of one message, the state before it, and its expected result.

    :param nodes: that are there then, by partition.
    """

    message: Any
    given: tuple[Any, ...] = ()
    accepted: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ("default/n1",)


SEQUENCES = {
    "CREATE n9, DECOMISSION n9, CREATE n9": Sequence(
        nodes(node("n9"), node("n9", DECOMISSION), node("n9")),
        accepted=("n9", "n9", "n9"),
        nodes=("default/n1", "default/n9"),
    ),
    "node n2 in two partitions": Sequence(
        nodes(node("n2", partition="default"), node("n2", partition="second")),
        accepted=("n2", "n2"),
        nodes=("default/n1", "default/n2", "second/n2"),
    ),
    "the first of two of one id is refused by the core": Sequence(
        nodes(node("n3", CREATE, "nowhere"), node("n3", CREATE, "default"), node("n3", CREATE_DRAIN, "default")),
        accepted=("n3",),
        rejected=("n3", "n3"),
        nodes=("default/n1", "default/n3"),
    ),
    "the first of two of one id is refused by the gateway": Sequence(
        nodes(si.NodeInfo(nodeID="n4", action=CREATE, schedulableResource=vcore(-1)), node("n4")),
        accepted=("n4",),
        rejected=("n4",),
        nodes=("default/n1", "default/n4"),
    ),
    "UPDATE, DRAIN, DECOMISSION, UPDATE of a new node": Sequence(
        nodes(
            node("n5"), node("n5", UPDATE, kind="gpu"), node("n5", DRAIN), node("n5", DECOMISSION), node("n5", UPDATE)
        ),
        accepted=("n5", "n5", "n5", "n5"),
        rejected=("n5",),
    ),
    "an application twice, one of them with no such partition": Sequence(
        si.ApplicationRequest(new=[app("x", partition="nowhere"), app("x"), app("x"), app("x", partition="second")]),
        accepted=("x", "x"),
        rejected=("x", "x"),
    ),
    "an application that is there, removed and not there": Sequence(
        si.ApplicationRequest(
            new=[app("app"), app("y"), app("y")], remove=[removal("y"), removal("y"), removal("app")]
        ),
        accepted=("y",),
        rejected=("app", "y"),
    ),
    "an application that was removed, new and removed": Sequence(
        si.ApplicationRequest(new=[app("app")], remove=[removal("app")]),
        given=(si.ApplicationRequest(remove=[removal("app")]),),
        accepted=("app",),
    ),
    "what runs, reported in three sizes": Sequence(
        si.AllocationRequest(allocations=[runs("k", 1), runs("k", 2, priority=3), runs("k", 2, priority=9)])
    ),
    "released, reported again, and released twice": Sequence(
        si.AllocationRequest(
            allocations=[runs("k", 3)],
            releases=si.AllocationReleasesRequest(allocationsToRelease=[release("k"), release("k")]),
        ),
        given=(si.AllocationRequest(allocations=[runs("k", 1)]),),
    ),
    "of the previous generation, by UUID and key alone": Sequence(
        si.AllocationRequest(
            asks=[si.AllocationAsk(allocationKey="w", applicationID="app", resourceAsk=vcore(9), maxAllocations=2)],
            releases=si.AllocationReleasesRequest(
                allocationsToRelease=[si.AllocationRelease(UUID="u"), si.AllocationRelease(UUID="u")],
                allocationAsksToRelease=[
                    si.AllocationAskRelease(allocationKey="p"),
                    si.AllocationAskRelease(allocationKey="p"),
                ],
            ),
        ),
        given=(
            si.AllocationRequest(
                asks=[si.AllocationAsk(allocationKey="p", applicationID="app", resourceAsk=vcore(8), maxAllocations=1)],
            ),
        ),
    ),
}


KIND_OF = {
    si.AllocationRequest: StreamKind.ALLOCATION,
    si.ApplicationRequest: StreamKind.APPLICATION,
    si.NodeRequest: StreamKind.NODE,
}
# Messages that are answered with a "marker", and change nothing.
_MARK = si.AllocationRelease(allocationKey="marker", applicationID="marker")
MARKERS = {
    StreamKind.ALLOCATION: si.AllocationRequest(
        releases=si.AllocationReleasesRequest(allocationsToRelease=[_MARK]),
    ),
    StreamKind.APPLICATION: si.ApplicationRequest(new=[app("marker", partition="nowhere")]),
    StreamKind.NODE: nodes(node("marker", DRAIN)),
}
_INDEX = re.compile(r"\[\d+\]")


def single(message: Any) -> list[Any]:
    """Messages of one item each, in the order of docs/rm-messages.md, "Messages"."""
    if isinstance(message, si.NodeRequest):
        return [si.NodeRequest(nodes=[item]) for item in message.nodes]
    if isinstance(message, si.ApplicationRequest):
        new = [si.ApplicationRequest(new=[item]) for item in message.new]
        return [*new, *(si.ApplicationRequest(remove=[item]) for item in message.remove)]
    ended = [
        *(si.AllocationReleasesRequest(allocationsToRelease=[item]) for item in message.releases.allocationsToRelease),
        *(
            si.AllocationReleasesRequest(allocationAsksToRelease=[item])
            for item in message.releases.allocationAsksToRelease
        ),
    ]
    return [
        *(si.AllocationRequest(releases=releases) for releases in ended),
        *(si.AllocationRequest(allocations=[item]) for item in message.allocations),
        *(si.AllocationRequest(asks=[item]) for item in message.asks),
    ]


class Rm:
    """A resource manager with its three streams."""

    def __init__(self, rm_id: str, channel: Channel) -> None:
        self.rm_id, self._channel = rm_id, channel
        self._streams: dict[StreamKind, Stream] = {}

    async def begin(self) -> None:
        await self._channel.register(self.rm_id, CONFIG)
        self._streams = {kind: self._channel.open(kind, self.rm_id) for kind in SI_KINDS}

    async def say(self, *messages: Any) -> dict[str, list[str]]:
        """Everything that the RM received: each list of the messages, joined over all messages."""
        for message in messages:
            await self._send(KIND_OF[type(message)], message)
        told: dict[str, list[str]] = {}
        # First the stream that was used: what the scheduler answers elsewhere is numbered before the others' markers.
        used = {KIND_OF[type(message)]: None for message in messages}
        for kind in [*used, *(each for each in SI_KINDS if each not in used)]:
            await self._send(kind, MARKERS[kind])
            while not await self._heard(kind, told):
                pass
        return told

    async def _send(self, kind: StreamKind, message: Any) -> None:
        said = type(message)()
        said.CopyFrom(message)
        said.rmID = self.rm_id
        await self._streams[kind].send(said)

    async def _heard(self, kind: StreamKind, told: dict[str, list[str]]) -> bool:
        """Takes one response; returns whether the marker was in it."""
        is_marked = False
        for field, items in (await self._streams[kind].receive()).ListFields():
            for item in items if field.name not in ("responseSequence", "position") else ():
                for name in ("UUID", "stateTransitionTimestamp"):
                    if name in item.DESCRIPTOR.fields_by_name:
                        item.ClearField(name)
                text = _INDEX.sub("[]", str(item), count=1)
                is_marked |= "marker" in text
                if "marker" not in text:
                    told.setdefault(f"{kind.name}.{field.name}", []).append(text)
        return is_marked


@dataclass
class World:
    channel: Channel
    http: httpx.AsyncClient

    async def shown(self, rm_id: str) -> dict[str, Any]:
        """The cluster as REST shows it, apart from times and ids."""
        found: dict[str, Any] = {}
        for partition in ("default", "second"):
            for each in await self._get(f"partition/{partition}/nodes", rm_id):
                kept = ("attributes", "capacity", "occupied", "allocated", "schedulable")
                held = sorted(
                    (a["allocationKey"], str(a.get("resource")), a.get("priority")) for a in each.get("allocations", ())
                )
                each["attributes"] = {key: text.replace(rm_id, "") for key, text in each["attributes"].items()}
                found[f"{partition}/{each['nodeID']}"] = ({name: each.get(name) for name in kept}, held)
            for state in ("active", "completed", "rejected"):
                apps = await self._get(f"partition/{partition}/applications/{state}", rm_id)
                found[f"{partition} {state}"] = sorted(
                    (
                        _plain(each["applicationID"]),
                        each["applicationState"],
                        str(each.get("usedResource")),
                        str(each.get("pendingResource")),
                    )
                    for each in apps
                    if each["applicationID"] != "marker"
                )
        return found

    async def _get(self, path: str, rm_id: str) -> list[dict[str, Any]]:
        answer = await self.http.get(f"/ws/v1/{path}", params={"rm": rm_id})
        assert answer.status_code == 200, answer.text
        return answer.json() or []


def _plain(app_id: str) -> str:
    """(A removed application's id gets its time as soon as another one takes it.)"""
    return app_id.partition("-")[0]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    settings = LogSettings(backend="memory", topic_prefix=f"{uuid.uuid4()}.", partitions=2)
    topics, log = settings.topics(), make_log(settings, CLOCK)
    await log.start()
    scheduler = SchedulerService(SchedulerSettings(), log, topics, CLOCK)
    view = ViewService(
        ViewSettings(http_address="127.0.0.1:0", fresh_wait_s=PATIENCE_S, whole_wait_s=PATIENCE_S), log, topics, CLOCK
    )
    chosen = GatewaySettings(grpc_address="127.0.0.1:0", http_address="", stop_grace_s=0.05)
    gateway = Gateway(chosen, log, topics, MemorySessions(CLOCK), CLOCK)
    for service in (scheduler, view, gateway):
        await service.start()
    channel = Channel(gateway.grpc_port)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{view.http_port}", timeout=PATIENCE_S) as http:
        yield World(channel, http)
    await channel.close()
    await gateway.stop()
    await view.stop()
    await view.wait()
    await scheduler.stop()
    await log.close()


@pytest.mark.parametrize("name", SEQUENCES)
async def test_one_message_and_single_items_have_the_same_outcome(world: World, name: str) -> None:
    sequence = SEQUENCES[name]
    heard: list[dict[str, list[str]]] = []
    rms = [Rm(f"{rm_id}: {name}", world.channel) for rm_id in ("whole", "cut")]
    for rm, said in zip(rms, ([sequence.message], single(sequence.message)), strict=True):
        await rm.begin()
        for message in (*GIVEN, *sequence.given):
            await rm.say(message)
        heard.append(await rm.say(*said))
    assert heard[0] == heard[1]
    shown: list[dict[str, Any]] = []

    async def are_alike() -> bool:
        shown[:] = [await world.shown(rm.rm_id) for rm in rms]
        there = sorted(place for place in shown[0] if "/" in place)
        return shown[0] == shown[1] and there == sorted(sequence.nodes)

    # (The view follows.)
    await eventually(are_alike, f"both show the same, with the nodes {sequence.nodes}: {shown}")
    for field, ids in (("accepted", sequence.accepted), ("rejected", sequence.rejected)):
        texts = [text for key, items in heard[0].items() for text in items if key in _OF_IDS and key.endswith(field)]
        assert sorted(_ID.findall("".join(texts))) == sorted(ids)


_OF_IDS = {f"{kind}.{field}" for kind in ("NODE", "APPLICATION") for field in ("accepted", "rejected")}
_ID = re.compile(r'(?:nodeID|applicationID): "([^"]*)"')
