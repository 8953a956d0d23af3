"""The figures of a scheduler's state and of REST, to compare with the sums of events."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

import httpx
from event_books import (
    ASKED,
    BY_GROUP,
    BY_USER,
    CAPACITY,
    HELD,
    KEPT,
    ON_NODE,
    EventBooks,
    Shown,
    UnevenBooks,
    ancestry,
)
from muster_core.model.application import Application
from muster_core.model.outcome import Event
from muster_core.model.resources import Shape
from muster_core.partition import Partition
from muster_core.scheduler import SchedulerCore

# As in e2e/gang_rig.py.
PATIENCE_S = 60.0
TERMINAL = {"Completed", "Failed", "Expired", "Rejected"}


def numbers_of(event: Event) -> tuple[int, int, int, str, str, Mapping[str, int]]:
    """A core's event as :meth:`event_books.EventBooks.take` hears it."""
    resource = event.resource
    amounts = resource.quantities if isinstance(resource, Shape) else resource or {}
    return event.type, event.change, event.detail, event.object_id, event.reference_id, amounts


def of_core(core: SchedulerCore) -> Shown:
    """What a core has; of a follower's this is what REST shows."""
    shown = Shown()
    for partition in core.partitions.values():
        _of_partition(shown, partition)
    return shown


def _of_partition(shown: Shown, partition: Partition) -> None:
    names = partition.types.names

    def named(vector: Iterable[int]) -> dict[str, int]:
        return {name: value for name, value in zip(names, vector, strict=False) if value}

    for node in partition.nodes.values():
        shown.add(ON_NODE, node.node_id, named(node.allocated))
        shown.add(CAPACITY, node.node_id, node.named_capacity())
        for ask in node.reservations:
            shown.add(KEPT, node.node_id, ask.shape.quantities)
        shown.occupied[node.node_id] = Counter(named(node.occupied))
    for queue in partition.queues.values():
        allocated, pending = shown.queues.get(queue.path, (Counter[str](), Counter[str]()))
        allocated.update(named(queue.allocated))
        pending.update(named(queue.pending))
        shown.queues[queue.path] = (allocated, pending)
    for queue in partition.queues.values():
        for app in partition.apps_in(queue):
            shown.members[queue.path, app.app_id] += 1
            shown.add(HELD, app.app_id, named(app.allocated))
            shown.add(ASKED, app.app_id, named(app.pending))
            if app.user:
                shown.add(BY_USER, (app.user, queue.path), named(app.allocated))
            if app.user_group:
                shown.add(BY_GROUP, (app.user_group, queue.path), named(app.allocated))
            if app.proposed:
                _without_proposals(shown, partition, app)


def _without_proposals(shown: Shown, partition: Partition, app: Application) -> None:
    """Subtracts proposals, which count in a scheduler's books but not in a follower's."""
    for ask in app.asks.values():
        for node in [check.booked for check in partition.checks.for_ask(ask) if check.booked is not None]:
            wants = ask.shape.quantities
            shown.figures[ON_NODE][node.node_id].subtract(wants)
            shown.figures[HELD][app.app_id].subtract(wants)
            for figure, who in ((BY_USER, app.user), (BY_GROUP, app.user_group)):
                if who:
                    shown.figures[figure][who, app.queue.path].subtract(wants)
            for path in ancestry(app.queue.path):
                shown.queues[path][0].subtract(wants)


async def of_rest(get: Callable[[str], Awaitable[Any]]) -> Shown:
    """What REST shows of one RM.

    :param get: answers a path as plain data.
    """
    shown = Shown()
    dump = await get("/debug/fullstatedump")
    kept: dict[str, str] = {}  # (no two applications have an ask of one key that is reserved for)
    for nodes in dump.get("nodes") or ():
        for node in nodes.get("nodesInfo") or ():
            _take_node(shown, node)
            kept.update(dict.fromkeys(node.get("reservations") or (), node["nodeID"]))
    for root in dump.get("queues") or ():
        _take_queue(shown, root)
    for app in dump.get("applications") or ():
        if app["applicationState"] not in TERMINAL:
            _take_application(shown, app, kept)
    for partition in dump.get("partitions") or ():
        at = f"/ws/v1/partition/{quote(partition['name'], safe='')}/usage"
        for figure, who, name in ((BY_USER, "users", "userName"), (BY_GROUP, "groups", "groupName")):
            for each in await get(f"{at}/{who}"):
                if each.get("queues"):
                    _take_usage(shown, figure, each[name], each["queues"])
    return shown


async def books_of_rest(get: Callable[[str], Awaitable[Any]]) -> EventBooks:
    """What the events add up to that REST has; all of them, or AssertionError."""
    batch = await get("/ws/v1/events/batch?count=10000")
    assert batch["LowestID"] == 0, batch["LowestID"]
    records = batch.get("EventRecords") or []
    assert len(records) == batch["HighestID"] + 1 or not records, (len(records), batch["HighestID"])
    books = EventBooks()
    for record in records:
        amounts = {name: each.get("value", 0) for name, each in record.get("resource", {}).get("resources", {}).items()}
        numbers = (record.get("type", 0), record.get("eventChangeType", 0), record.get("eventChangeDetail", 0))
        books.take(*numbers, record.get("objectID", ""), record.get("referenceID", ""), amounts)
    return books


async def adds_up(http: httpx.AsyncClient, rm_id: str) -> EventBooks:
    """Waits until the sums of an RM's events are what REST shows: events and views follow the log, each for itself.

    Returns the books. Raises UnevenBooks, with what differs to the last.
    """

    async def get(path: str) -> Any:
        answer = await http.get(path, params={"rm": rm_id} | dict(httpx.URL(path).params))
        if answer.status_code == 404:  # nothing was heard of it yet
            raise UnevenBooks(f"{path}: {answer.text}")
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            books = await books_of_rest(get)
            books.compare(await of_rest(get))
        except UnevenBooks:
            if time.monotonic() > give_up_s:
                raise
            await asyncio.sleep(0.02)
        else:
            return books


def _take_node(shown: Shown, node: Mapping[str, Any]) -> None:
    node_id = node["nodeID"]
    shown.add(ON_NODE, node_id, node.get("allocated", {}))
    shown.add(CAPACITY, node_id, node.get("capacity", {}))
    shown.occupied[node_id] = Counter(node.get("occupied", {}))


def _take_queue(shown: Shown, queue: Mapping[str, Any]) -> None:
    allocated, pending = shown.queues.get(queue["queuename"], (Counter[str](), Counter[str]()))
    allocated.update(queue.get("allocatedResource", {}))
    pending.update(queue.get("pendingResource", {}))
    shown.queues[queue["queuename"]] = (allocated, pending)
    for child in queue.get("children") or ():
        _take_queue(shown, child)


def _take_application(shown: Shown, app: Mapping[str, Any], kept: Mapping[str, str]) -> None:
    app_id = app["applicationID"]
    shown.members[app["queueName"], app_id] += 1
    shown.add(ASKED, app_id, app.get("pendingResource", {}))
    for held in app.get("allocations") or ():  # (usedResource is of those that are no placeholders)
        shown.add(HELD, app_id, held.get("resource", {}))
    for ask in app.get("requests") or ():
        if ask["allocationKey"] in (app.get("reservations") or ()):
            shown.add(KEPT, kept[ask["allocationKey"]], ask["resource"])


def _take_usage(shown: Shown, figure: str, who: str, usage: Mapping[str, Any]) -> None:
    """Each level has what is used in it and below: what is its own are its leaves'."""
    children = usage.get("children") or ()
    if not children:
        shown.add(figure, (who, usage["queuePath"]), usage.get("resourceUsage", {}))
    for child in children:
        _take_usage(shown, figure, who, child)
