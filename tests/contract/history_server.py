"""A history server like one written against the ids and states of G-Research's fork: its requests, and its table.

It asks what such a server asks, in its order: one full state dump (through the redirect), the event stream for ever,
the partitions whenever a queue is new, the health check as a probe. It takes answers as a program in Go takes them: no
field is unknown to it, but one value of another type ends it. It stores as in tables with keys: what breaks a
constraint is an error, not overlooked.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import httpx
import msgspec
from msgspec import Meta, Struct

Int = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Quantities = dict[str, Int]
APP, NODE, QUEUE = 2, 3, 4
ADD, REMOVE = 2, 3
# Details of an ADD that mean a new object, not something new of one.
NEW_APPLICATION, NEW_QUEUE, NEW_NODE = (0, 203), (0, 401), (0,)


class GoStruct(Struct, kw_only=True, rename="camel"):
    """Absent fields are zero, unknown fields are ignored."""


class PartitionUse(GoStruct, kw_only=True):
    capacity: Quantities = {}
    used_capacity: Quantities = {}
    utilization: Quantities = {}


class Partition(GoStruct, kw_only=True):
    id: str = ""
    cluster_id: str = ""
    name: str = ""
    capacity: PartitionUse = msgspec.field(default_factory=PartitionUse)
    total_nodes: Int = 0
    applications: dict[str, Int] = {}
    total_containers: Int = 0
    state: str = ""
    last_state_transition_time: Int = 0


class Template(GoStruct, kw_only=True):
    max_applications: Int = 0
    max_resource: Quantities = {}
    guaranteed_resource: Quantities = {}
    properties: dict[str, str] = {}


class Queue(GoStruct, kw_only=True):
    id: str = ""
    partition_id: str = msgspec.field(default="", name="partition_id")
    parent_id: str | None = msgspec.field(default=None, name="parentID")
    queuename: str = ""
    parent: str = ""
    status: str = ""
    is_leaf: bool = False
    is_managed: bool = False
    pending_resource: Quantities = {}
    max_resource: Quantities = {}
    guaranteed_resource: Quantities = {}
    allocated_resource: Quantities = {}
    preempting_resource: Quantities = {}
    headroom: Quantities = {}
    abs_used_capacity: Quantities = {}
    properties: dict[str, str] = {}
    template: Template | None = None
    max_running_apps: Int = 0
    running_apps: Int = 0
    current_priority: Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)] = 0
    allocating_accepted_apps: list[str] = []
    children: list[Queue] = []


class StateEntry(GoStruct, kw_only=True):
    time: Int = 0
    application_state: str = ""


class Placeholders(GoStruct, kw_only=True):
    task_group_name: str = ""
    count: Int = 0
    min_resource: Quantities = {}
    replaced: Int = 0
    timedout: Int = 0


class AskLog(GoStruct, kw_only=True):
    message: str = ""
    last_occurrence: Int = 0
    count: Int = 0


class Held(GoStruct, kw_only=True):
    """An ask or an allocation."""

    allocation_key: str = ""
    allocation_tags: dict[str, str] = {}
    request_time: Int = 0
    allocation_time: Int = 0
    allocation_delay: Int = 0
    resource: Quantities = {}
    priority: str = ""
    node_id: str = ""
    application_id: str = ""
    placeholder: bool = False
    placeholder_used: bool = False
    preempted: bool = False
    originator: bool = False
    task_group_name: str = ""
    required_node_id: str = ""
    allocation_log: list[AskLog] = []
    triggered_preemption: bool = False
    scheduling_attempted: bool = False
    triggered_scale_up: bool = False


class Application(GoStruct, kw_only=True):
    id: str = ""
    partition_id: str = msgspec.field(default="", name="partition_id")
    queue_id: str | None = msgspec.field(default=None, name="queueID")
    application_id: str = msgspec.field(default="", name="applicationID")
    partition: str = ""
    queue_name: str = ""
    application_state: str = ""
    user: str = ""
    groups: list[str] = []
    rejected_message: str = ""
    used_resource: Quantities = {}
    max_used_resource: Quantities = {}
    pending_resource: Quantities = {}
    submission_time: Int = 0
    finished_time: Int = 0
    start_time: Int = 0
    state_log: list[StateEntry] = []
    has_reserved: bool = False
    reservations: list[str] = []
    max_request_priority: Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)] = 0
    placeholder_data: list[Placeholders] = []
    requests: list[Held] = []
    allocations: list[Held] = []


class Node(GoStruct, kw_only=True):
    id: str = ""
    partition_id: str = msgspec.field(default="", name="partition_id")
    node_id: str = msgspec.field(default="", name="nodeID")
    host_name: str = ""
    rack_name: str = ""
    attributes: dict[str, str] = {}
    capacity: Quantities = {}
    allocated: Quantities = {}
    occupied: Quantities = {}
    available: Quantities = {}
    utilized: Quantities = {}
    allocations: list[Held] = []
    schedulable: bool = False
    is_reserved: bool = False
    reservations: list[str] = []


class NodesOfPartition(GoStruct, kw_only=True):
    partition_name: str = ""
    nodes_info: list[Node] = []


class Sample(GoStruct, kw_only=True):
    timestamp: Int = 0
    total_applications: str = ""
    total_containers: str = ""


class Dump(GoStruct, kw_only=True):
    partitions: list[Partition] = []
    queues: list[Queue] = []
    applications: list[Application] = []
    nodes: list[NodesOfPartition] = []
    app_history: list[Sample] = []
    container_history: list[Sample] = []


class Quantity(GoStruct, kw_only=True):
    value: Int = 0


class EventResource(GoStruct, kw_only=True):
    resources: dict[str, Quantity] = {}


class Event(GoStruct, kw_only=True):
    type: Int = 0
    object_id: str = msgspec.field(default="", name="objectID")
    message: str = ""
    timestamp_nano: Int = 0
    event_change_type: Int = 0
    event_change_detail: Int = 0
    reference_id: str = msgspec.field(default="", name="referenceID")
    resource: EventResource | None = None
    state: str = ""


class Broken(Exception):
    """Raised for input that would stop a history server, or make it lose data."""


@dataclass
class Row:
    """An object as stored.

    :ivar deleted_ns: when it was told that the object is gone; None: it is there.
    """

    what: Any
    deleted_ns: int | None = None


@dataclass
class HistoryServer:
    """See the module's words.

    :ivar troubles: what it would have logged as an error: objects that it could not store.
    """

    client: httpx.AsyncClient
    partitions: dict[str, Row] = field(default_factory=dict)
    queues: dict[str, Row] = field(default_factory=dict)
    applications: dict[str, Row] = field(default_factory=dict)
    nodes: dict[str, Row] = field(default_factory=dict)
    samples: list[tuple[str, int, int]] = field(default_factory=list)
    events: int = 0
    partition_polls: int = 0
    troubles: list[str] = field(default_factory=list)
    ended: str = ""

    # ---- at start --------------------------------------------------------------------------------------------------

    async def sync(self) -> None:
        dump = _decoded(await self._get("/ws/v1/fullstatedump"), Dump)
        self._store_partitions(dump.partitions)
        for root in dump.queues:
            self._sync_queue(root)
        for app in dump.applications:
            self._upsert(self.applications, app.id, app)
            self._check_application(app)
        for of_partition in dump.nodes:
            if of_partition.partition_name not in {row.what.name for row in self.partitions.values()}:
                raise Broken(f"nodes of the partition {of_partition.partition_name!r}, which is not there")
            for node in of_partition.nodes_info:
                self._check_node(node)
                self._upsert(self.nodes, node.id, node)
        self.samples += [("application", each.timestamp, int(each.total_applications)) for each in dump.app_history]
        self.samples += [("container", each.timestamp, int(each.total_containers)) for each in dump.container_history]

    def _sync_queue(self, queue: Queue) -> None:
        self._check_queue(queue)
        self._upsert(self.queues, queue.id, queue)
        for child in queue.children:
            self._sync_queue(child)

    def _store_partitions(self, partitions: list[Partition]) -> None:
        for partition in partitions:
            _need(partition.id, "a partition's id")
            namesakes = [
                row for key, row in self.partitions.items() if row.what.name == partition.name and key != partition.id
            ]
            if namesakes:
                raise Broken(f"two partitions are called {partition.name!r}")
            self._upsert(self.partitions, partition.id, partition)

    # ---- for ever --------------------------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Reads the event stream. Raises Broken, or the error that ended the stream."""
        try:
            await self._follow()
            self.ended = "the stream ended"
        except (Broken, httpx.HTTPError) as error:
            self.ended = repr(error)
            raise

    async def _follow(self) -> None:
        async with self.client.stream("GET", "/ws/v1/events/stream") as answer:
            if answer.status_code != 200:
                raise Broken(f"the stream answers {answer.status_code}")
            async for line in _lines(answer):
                event = _decoded(line, Event)
                self.events += 1
                await self._take(event)

    async def ready(self) -> None:
        if not isinstance(json.loads(await self._get("/ws/v1/scheduler/healthcheck")), dict):
            raise Broken("the health check answers no object")

    async def _take(self, event: Event) -> None:
        match event.type:
            case 2:
                self._take_object(event, Application, self.applications, NEW_APPLICATION)
            case 3:
                self._take_object(event, Node, self.nodes, NEW_NODE)
            case 4:
                if self._take_object(event, Queue, self.queues, NEW_QUEUE):
                    self.partition_polls += 1
                    self._store_partitions(_decoded(await self._get("/ws/v1/partitions"), list[Partition]))

    def _take_object(self, event: Event, kind: Any, table: dict[str, Row], new: tuple[int, ...]) -> bool:
        """Stores the object. Returns whether it is new."""
        where = f"{event.type}/{event.event_change_type}/{event.event_change_detail} of {event.object_id}"
        if not event.state:
            self.troubles.append(f"{where}: no state")
            return False
        what = _decoded(event.state.encode(), kind)
        if event.event_change_type == ADD and event.event_change_detail in new:
            if what.id in table:
                self.troubles.append(f"{where}: there is one with its id {what.id}")
                return False
            if kind is Application:
                self._check_application(what)
            elif kind is Queue:
                self._check_queue(what)
            else:
                self._check_node(what)
            table[what.id] = Row(what)
            return True
        row = table.get(what.id)
        if row is None:
            self.troubles.append(f"{where}: nothing is known of its id {what.id}")
            return False
        if kind is Application:
            _merge(row.what.allocations, what.allocations)
            _merge(row.what.requests, what.requests)
            what.allocations, what.requests = row.what.allocations, row.what.requests
        row.what = what
        if event.event_change_type == REMOVE and not event.reference_id:
            row.deleted_ns = event.timestamp_nano
        return False

    # ---- what is stored --------------------------------------------------------------------------------------------

    def _check_queue(self, queue: Queue) -> None:
        _need(queue.id, f"the id of {queue.queuename}")
        # (The partition itself is asked for only after its first queue.)
        _need(queue.partition_id, f"the partition_id of {queue.queuename}")
        if (queue.parent_id is None) != (queue.parent == ""):
            raise Broken(f"queue {queue.queuename} stands below {queue.parent!r}, with the id {queue.parent_id!r}")
        if (
            queue.parent_id is not None
            and self.queues.get(queue.parent_id, Row(Queue())).what.queuename != queue.parent
        ):
            raise Broken(
                f"the parent of {queue.queuename} has the id {queue.parent_id}, which is another's or nobody's"
            )

    def _check_application(self, app: Application) -> None:
        _need(app.id, f"the id of {app.application_id}")
        _need(app.partition_id, f"the partition_id of {app.application_id}")
        if app.queue_id is None or (app.queue_id not in self.queues and app.application_state != "Completed"):
            raise Broken(f"application {app.application_id} is in the queue {app.queue_id!r}, so it is listed nowhere")

    def _check_node(self, node: Node) -> None:
        _need(node.id, f"the id of {node.node_id}")
        _need(node.partition_id, f"the partition_id of {node.node_id}")
        # (Also one that went has its row, for ever.)
        if any(row.what.node_id == node.node_id and key != node.id for key, row in self.nodes.items()):
            raise Broken(f"a second row for the node {node.node_id!r}")

    @staticmethod
    def _upsert(table: dict[str, Row], key: str, what: Any) -> None:
        table[key] = Row(what)

    async def _get(self, path: str) -> bytes:
        answer = await self.client.get(path, follow_redirects=True)
        if answer.status_code != 200:
            raise Broken(f"{path} answers {answer.status_code}: {answer.text}")
        return answer.content


def _need(text: str, what: str) -> None:
    if not text:
        raise Broken(f"{what} is empty")


def _merge(known: list[Held], more: list[Held]) -> None:
    keys = {each.allocation_key for each in known}
    known += [each for each in more if each.allocation_key not in keys]


def _no_float(text: str) -> Any:
    raise Broken(f"{text} is no whole number: it ends a reader in Go")


def _decoded(text: bytes, kind: Any) -> Any:
    try:
        json.loads(text, parse_float=_no_float)
        return msgspec.json.decode(text, type=kind)
    except (ValueError, msgspec.DecodeError) as error:
        raise Broken(f"{error}: {text[:2000]!r}") from error


async def _lines(answer: httpx.Response) -> AsyncIterator[bytes]:
    """(httpx's own take other characters for the end of a line, too.)"""
    rest = b""
    async for chunk in answer.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
