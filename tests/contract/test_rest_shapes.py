"""Every REST answer has YuniKorn's shape, in any state of a cluster (contract/rest_shapes.py).

Stories go through a real scheduler machine; what it writes goes to a log, transaction by transaction, and in
between a real view on that log is asked everything there is to ask.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from contract import rest_shapes as shapes
from contract.event_stories import STORIES, Stage
from contract.rest_reader import Reader
from contract.rest_whole import hold_together
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import Clock, SystemClock
from muster_bus.log import OutRecord
from muster_bus.topics import HEADER_EVENT_ID
from muster_event_publisher import event_json
from muster_proto.si.v1 import si_pb2 as si
from muster_view import ViewService
from muster_view.settings import ViewSettings
from unit.scheduler_service import rig as make
from unit.scheduler_service.rig import RM
from unit.view.recorded import client_of

COMPANY = """{name: root, submitacl: '*', properties: {team: all}, limits: [
  {limit: everybody, users: ['*'], maxresources: {vcore: 90m}, maxapplications: 50},
  {limit: team, groups: [dev, ops], maxresources: {vcore: 95m}, maxapplications: 60}], queues: [
  {name: batch, maxapplications: 20, resources: {guaranteed: {vcore: 10m}, max: {vcore: 40m}},
   properties: {priority.offset: '5', preemption.delay: 1s, quota.preemption.delay: 5m}},
  {name: web, adminacl: ' ops', resources: {guaranteed: {vcore: 10m}}},
  {name: people, parent: true, childtemplate: {maxapplications: 3, resources: {max: {vcore: 30m}, guaranteed:
   {vcore: 1m}}, properties: {application.sort.policy: fair}}}]}"""
RULES = """placementrules: [{name: user, create: true, filter: {type: allow, users: [carol, dave], groups: ['^none$']},
  parent: {name: fixed, value: root.people}}, {name: tag, value: namespace, filter: {type: deny, users: ['^bob$'],
  groups: [ops, other]}}, {name: provided, create: false}], preemption: {quotapreemptionenabled: true},
  nodesortpolicy: {type: binpacking, resourceweights: {vcore: 1.5}}, usergroupresolver: {type: os},
  limits: [{limit: everybody, users: ['*'], maxresources: {vcore: 90m}, maxapplications: 50},
  {limit: team, groups: [dev, ops], maxresources: {vcore: 95m}, maxapplications: 60}],"""


TESTED_ALONE = (shapes.Validated,)


class Seen(Stage):
    """A stage that keeps what it wrote, by transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.transactions: list[list[OutRecord]] = []
        self.event_records: list[bytes] = []

    def _take(self, outputs: list[OutRecord]) -> list[OutRecord]:
        state = [record for record in outputs if record.topic == self.topics.state]
        if state:
            self.transactions.append(state)
        self.event_records += [
            record.value or b""
            for record in outputs
            if record.topic == self.topics.events and HEADER_EVENT_ID in dict(record.headers)
        ]
        return super()._take(outputs)


def company(stage: Stage) -> None:
    """Queues, limits, a gang, preemption, foreign allocations, applications that are completed and rejected."""
    stage.begin(COMPANY, rest=RULES, extra={"service.event.requestEventsEnabled": "true", "ldap.password": "tiger"})
    labels = {"si/hostname": "host-1", "si/rackname": "rack-1", "zone": "<a&b>"}
    for number in (1, 2):
        node = make.node(f"node-{number}", vcore=20, memory=100)
        node.nodes[0].attributes.update({**labels, "si.io/hostname": "host-1", "si.io/rackname": "rack-1"})
        stage.send(node)
    foreign = make.allocation("", "daemon-1", "node-1", vcore=1)
    foreign.allocationTags.update({"foreign": "default", "kind": "daemon"})
    foreign.priority = 7
    stage.send(si.AllocationRequest(rmID=RM, allocations=[foreign]))
    # One that is over, one that is refused.
    stage.app("app-over", "root.batch")
    stage.ask("app-over", "key-0", 1)
    stage.gone("app-over", "key-0")
    stage.wait(31)
    stage.app("app-bad", "root.nowhere")
    # A gang, of which one placeholder is replaced.
    stage.app("app-gang", "root.web", placeholderAsk=make.resource(vcore=4), gangSchedulingStyle="Soft")
    for number in range(2):
        stage.ask("app-gang", f"holder-{number}", 2, member_of="workers")
    stage.wait(1)
    driver = make.allocation("app-gang", "driver", vcore=1, tags={"kubernetes.io/meta/podName": "driver <1>"})
    driver.originator = True
    waits = make.allocation("app-gang", "waits", vcore=99)
    waits.originator = True
    stage.send(make.asks(driver, waits))
    stage.ask("app-gang", "real-0", 2, task_group="workers")
    stage.gone("app-gang", "holder-0", si.PLACEHOLDER_REPLACED)
    # One takes all there is left; another is entitled to its guarantee.
    stage.app("app-wide", "root.web", user="bob")
    for number in range(1, 9):
        stage.ask("app-wide", f"wide-{number}", 5, may_go=True)
    stage.app("app-poor", "root.batch")
    stage.ask("app-poor", "poor-1", 8, preempts=True)
    stage.wait(31)
    stage.ask("app-poor", "poor-2", 19, on="node-1")
    for item in stage.of("released"):
        stage.gone("app-wide", item.allocationKey, si.PREEMPTED_BY_SCHEDULER)  # type: ignore[attr-defined]
    stage.wait(3)
    stage.send(make.removal("app-wide"))
    stage.wait(900)


def previous(stage: Stage) -> None:
    """The previous generation of the interface: asks with repeats, allocations with UUIDs."""
    stage.begin()
    stage.node(vcore=10)
    stage.app("app-1")
    stage.send(make.old_ask("app-1", "key-1", repeats=5, vcore=4))


STORIES_HERE = {**STORIES, "company": company, "previous": previous}
# The view is asked after each of so many transactions, and at the end: the stories are many.
_EVERY, _EVERY_OF_COMPANY = 5, 2


@pytest.fixture(scope="module", autouse=True)
def _all_fields_are_seen() -> Iterator[None]:
    """When all stories were told: each field of each shape was there once."""
    told.clear()
    shapes.SEEN.clear()
    yield
    if told == set(STORIES_HERE):
        alone = {shape.__name__ for shape in TESTED_ALONE}
        missing = {each for each in shapes.unseen() if each[0] not in alone}
        assert sorted(missing - shapes.NEVER_SEEN) == [], "no scenario of the test has these fields"
        assert sorted(shapes.NEVER_SEEN - missing) == [], "a scenario has these fields, so they are no exceptions"


told: set[str] = set()


@pytest.mark.parametrize("story", STORIES_HERE)
async def test_every_answer_of_a_story(story: str) -> None:
    stage = Seen()
    STORIES_HERE[story](stage)
    async for reader in played(stage, _EVERY_OF_COMPANY if STORIES_HERE[story] is company else _EVERY):
        await reader.everything()
    # (What the event publisher makes of the events is a pure function of each.)
    events = [event_json.event_json(each) for each in stage.event_records]
    batch = shapes.valid(event_json.batch_json("i", 0, len(events) - 1, events), shapes.EventBatch)
    assert len(batch.records) == len(events) > 0
    told.add(story)


def test_a_batch_without_events_says_null() -> None:
    assert shapes.valid(event_json.batch_json("", 0, 0, None), shapes.EventBatch).records is None


# What may be taken away from an answer without being missed: what no other part of it repeats, or follows from.
UNMISSED = {
    "config.Extra",
    "config.Partitions.Limits",
    "config.Partitions.NodeSortPolicy.ResourceWeights",
    "config.Partitions.PlacementRules",
    "config.Partitions.PlacementRules.Parent.Value",
    "config.Partitions.PlacementRules.Value",
    "config.Partitions.Preemption.QuotaPreemptionEnabled",
    "config.Partitions.Queues.Queues",
    "config.Partitions.Queues.Queues.AdminACL",
    "config.Partitions.Queues.Queues.Parent",
    "config.Partitions.Queues.SubmitACL",
    "config.Partitions.UserGroupResolver.type",
    "applications.requests.originator",
    "applications.requests.triggeredScaleUp",
    "applications.requests.triggeredPreemption",
    "applications.resourceHistory.resourceUsage",
    "applications.resourceHistory.resourceUsage.UNKNOWN.vcore",
    "applications.resourceHistory.placeholderResource",
    "applications.resourceHistory.placeholderResource.UNKNOWN.vcore",
    "nodes.nodesInfo.foreignAllocations",
}
# Names of others' choice within them.
MAPS = {"Extra", "properties", "Properties", "attributes", "allocationTags", "resourceWeights", "ResourceWeights"}
# What has no shape here.
SHAPELESS = {"pendingReason", "rmDiagnostics"}
OTHER_TYPES: dict[type, list[Any]] = {
    str: [None, 7, ["text"]],
    int: [None, "7", 1.5],
    float: [None, "7"],
    bool: [None, 1, "true"],
    list: [None, {}, "text"],
    dict: [None, [], "text"],
}


async def test_a_field_that_is_missing_or_has_another_type_is_found() -> None:
    stage = Seen()
    company(stage)
    seen: set[str] = set()
    unmissed: set[str] = set()
    async for reader in played(stage, 6):
        dump = json.loads((await reader.client.get("/debug/fullstatedump")).content)
        assert _holds(dump)
        for path, holder, key in _fields(dump):
            if path in seen and path not in unmissed:
                continue
            value = holder.pop(key)
            for other in OTHER_TYPES[type(value)] if path not in seen else ():
                holder[key] = other
                assert not _holds(dump), f"{path}: {other!r} instead of {value!r}"
            holder.pop(key, None)
            # (Where nothing follows from it, it is tried again with the next one.)
            (unmissed.add if _holds(dump) else unmissed.discard)(path)
            seen.add(path)
            holder[key] = value
    assert len(seen) > 200
    assert unmissed == UNMISSED


def _fields(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any], str]]:
    """Each field with the object that it is in; its path has no numbers of lists."""
    if isinstance(value, list):
        for each in value:
            yield from _fields(each, path)
    elif isinstance(value, dict):
        for key in list(value):
            below = f"{path}.{key}".lstrip(".")
            yield below, value, key
            if key not in SHAPELESS | MAPS:
                yield from _fields(value[key], below)


def _holds(dump: Any) -> bool:
    text = json.dumps(dump, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    try:
        hold_together(shapes.valid(f"{text}\n".encode(), shapes.StateDump))
    except (msgspec.ValidationError, ValueError, AssertionError):
        return False
    return True


async def played(
    stage: Seen, every: int = 1, clock: Clock | None = None, history_interval_s: float = 0.02
) -> AsyncIterator[Reader]:
    """What a stage wrote, transaction by transaction, on a log that a view follows."""
    clock = clock if clock is not None else SystemClock()
    log = MemoryLog(stage.topics.specs(), clock)
    await log.start()
    owner = await log.take_over("test", stage.topics.requests, 0)
    settings = ViewSettings(
        http_address="", health_interval_s=0, fresh_wait_s=10, history_interval_s=history_interval_s
    )
    view = ViewService(settings, log, stage.topics, clock)
    await view.start()
    try:
        async with client_of(view) as client:
            yield Reader(client)
            for number, records in enumerate(stage.transactions, 1):
                await owner.commit(records, None)
                if number % every == 0 or number == len(stage.transactions):
                    yield Reader(client)
    finally:
        await view.stop()
        await log.close()


@pytest.mark.parametrize("body", [b"", b"partitions: 5", b"partitions: [{name: default, queues: [{name: <&>}]}]"])
async def test_a_judged_configuration(body: bytes) -> None:
    stage = Seen()
    async for reader in played(stage):
        answer = await reader.client.post("/ws/v1/validate-conf", content=body)
        assert shapes.valid(answer.content, shapes.Validated).allowed is (body == b"")


@pytest.mark.parametrize(
    ("body", "shape", "words"),
    [
        (b'{"allowed":true,"reason":""}\n', shapes.Validated, "reason is there though it is ''"),
        (b'{"allowed":true,"reason":null}\n', shapes.Validated, "Expected `str`, got `null`"),
        (b'{"allowed":true,"more":1}\n', shapes.Validated, "unknown field `more`"),
        (b'{"allowed":1}\n', shapes.Validated, "Expected `bool`, got `int`"),
        (b'{"timestamp":1.0}\n', shapes.ApplicationSample, "fraction"),
        (b'{"timestamp":1,"totalApplications":5}\n', shapes.ApplicationSample, "Expected `str`, got `int`"),
        (b'{"name":"a<b"}\n', shapes.Rule, "< is escaped"),
        (b"[]", list[shapes.Rule], "line feed"),
    ],
)
def test_shapes_that_a_go_reader_cannot_read_are_found(body: bytes, shape: Any, words: str) -> None:
    with pytest.raises((msgspec.ValidationError, ValueError), match=words):
        shapes.valid(body, shape)
