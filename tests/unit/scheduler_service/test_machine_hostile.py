"""Requests without admission: the machine continues after any record, and its books stay right.

The requests are well-formed messages of both generations with any value in any field, as a hostile gateway might write
them. The machine may accept or reject each. No request may break an invariant (the rig checks them after each batch),
change another RM, or make memory and log differ.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.deregistration import published_objects
from muster_si.constants import (
    APP_CREATION_TIME_TAG,
    APP_NAMESPACE_TAG,
    APP_TAG_CREATE_FORCE,
    APP_TAG_NAMESPACE_RESOURCE_MAX_APPS,
    APP_TAG_NAMESPACE_RESOURCE_QUOTA,
    CREATION_TIME,
    FOREIGN,
    NODE_PARTITION,
    NODE_READY_ATTRIBUTE,
    REQUIRED_NODE_TAG,
)
from muster_state import state_codec
from unit.scheduler_service.rig import CONFIG, RM, Rig, allocation, application, asks, node, old_ask

OTHER = "rm-2"
LIVES = int(os.environ.get("MUSTER_BAD_INPUT_EXAMPLES", "40"))
INT32, INT64 = 2**31, 2**63

# Names that exist, so that a message is not rejected for its first field only ...
_FITTING = {
    "applicationID": ["a1", "a2"],
    "allocationKey": ["k1", "k2", "k3", "k4", "k5"],
    "nodeID": ["", "n1", "n1", "n2", "n3"],
    "partitionName": ["default", ""],
    "queueName": ["root.a", "root.b.x", "root.c"],
    "taskGroupName": ["", "g"],
    "gangSchedulingStyle": ["Hard", "Soft", ""],
    "user": ["alice"],
    "UUID": ["", "", "u1", "u2"],
    "config": ["", CONFIG, CONFIG.replace("vcore: 12", "vcore: 5")],
}
# ... and names that cannot exist.
_STRANGE = [
    "",
    "\0",
    "a\nb",
    "x" * 5_000,
    "root." + "y." * 40 + "z",
    "k/%2F",
    "🦆",
    "ghost",
    "root",
    "root.b",
    "default",
]
_RESOURCES = ["vcore", "memory"]
_KEYS = ["", "\0", "t" * 3_000, FOREIGN, FOREIGN, NODE_PARTITION, NODE_READY_ATTRIBUTE, REQUIRED_NODE_TAG]
_TAGS = [CREATION_TIME, APP_CREATION_TIME_TAG, APP_TAG_CREATE_FORCE, APP_NAMESPACE_TAG]
_QUOTAS = [APP_TAG_NAMESPACE_RESOURCE_QUOTA, APP_TAG_NAMESPACE_RESOURCE_MAX_APPS]
_VALUES = ["true", "false", "static", "-1", "1", "9" * 30, "1e9", "NaN", "{", "[" * 2_000, "n1", "default"]
_JSON = ['{"resources":{"vcore":{"value":3}}}', '{"resources":{"vcore":{"value":-3}}}']
_EDGES_32 = [0, 1, 2, 3, -1, 100, INT32 - 1, -INT32]
_EDGES_64 = [0, -1, 2**53, INT64 - 1, -INT64]

REQUESTS: list[tuple[type[Message], int]] = [
    (si.AllocationRequest, 12),
    (si.ApplicationRequest, 4),
    (si.NodeRequest, 6),
    (si.UpdateConfigurationRequest, 1),
    (si.RegisterResourceManagerRequest, 1),
]


class Hostile:
    """Makes messages. Most fields are set, mostly to valid values."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def request(self) -> Message:
        kinds, weights = zip(*REQUESTS, strict=True)
        (kind,) = self.dice.choices(kinds, weights)
        return self.message(kind)

    def message(self, kind: type[Message]) -> Message:
        made = kind()
        for field in kind.DESCRIPTOR.fields:
            if self.dice.random() < 0.9:
                self._fill(getattr(made, field.name), made, field)
        return made

    def _fill(self, place: Any, made: Message, field: FieldDescriptor) -> None:
        count = self.dice.randint(0, 2)
        if field.message_type is None:
            if field.is_repeated:
                place.extend(self._scalar(field) for _ in range(count))
            else:
                setattr(made, field.name, self._scalar(field))
        elif field.message_type.GetOptions().map_entry:
            self._fill_map(place, field.message_type.fields_by_name["value"].message_type is not None)
        elif field.is_repeated:
            place.extend(self.message(getattr(si, field.message_type.name)) for _ in range(count))
        else:
            place.CopyFrom(self.message(getattr(si, field.message_type.name)))

    def _fill_map(self, place: Any, quantities: bool) -> None:
        if quantities:
            for key in self.dice.choices([*_RESOURCES * 10, *_KEYS], k=2):
                place[key].value = self._quantity()
        else:
            for key in self.dice.choices([*_KEYS, *_TAGS, *_QUOTAS], k=self.dice.choice([0, 0, 1, 2])):
                place[key] = self.dice.choice([*_VALUES, *_STRANGE, *_JSON])

    def _quantity(self) -> int:
        if self.dice.random() < 0.95:
            return self.dice.randint(1, 4)
        return self.dice.choice([*_EDGES_64, self.dice.randint(-INT64, INT64 - 1)])

    def _scalar(self, field: FieldDescriptor) -> Any:
        dice = self.dice
        if field.enum_type is not None:
            values = [each.number for each in field.enum_type.values]
            return dice.choice(values) if dice.random() < 0.95 else dice.randint(-INT32, INT32 - 1)
        match field.type:
            case FieldDescriptor.TYPE_STRING:
                fitting = _FITTING.get(field.name, _STRANGE)
                return dice.choice(fitting) if dice.random() < 0.95 else dice.choice(_STRANGE)
            case FieldDescriptor.TYPE_BOOL:
                return dice.random() < 0.5
            case FieldDescriptor.TYPE_INT32:
                return dice.choice([*_EDGES_32, dice.randint(-INT32, INT32 - 1)])
        return dice.choice([*_EDGES_64, 1, 2, 5_000, dice.randint(-INT64, INT64 - 1)])


def _furnished() -> Rig:
    rig = Rig()
    for rm_id in (OTHER, RM):
        rig.register(CONFIG, rm_id=rm_id)
        rig.send(node("n1", vcore=10, memory=100), node("n2", vcore=10, memory=100), rm_id=rm_id)
        gang = si.Resource(resources={"vcore": si.Quantity(value=2)})
        rig.send(application("a1", "root.a"), application("a2", "root.b.x", placeholderAsk=gang), rm_id=rm_id)
        held = allocation("a2", "k3", vcore=1)
        held.taskGroupName, held.placeholder = "g", True
        waits = allocation("a1", "k2", vcore=1_000)
        rig.send(asks(allocation("a1", "k1", vcore=2), waits, held), old_ask("a1", "k4", 3, vcore=1), rm_id=rm_id)
    rig.settle()
    return rig


def _state(rig: Rig, rm_id: str) -> dict[bytes, bytes]:
    return {
        state_codec.key_of(rm_id, partition, what): state_codec.encode(partition, what)
        for partition, what in published_objects(rig.machine.rms[rm_id].core)
    }


@pytest.mark.parametrize("first", range(0, LIVES, 20))
def test_no_request_breaks_the_books_or_touches_another_rm(first: int) -> None:
    for seed in range(first, first + 20):
        rig, hostile = _furnished(), Hostile(seed)
        others = _state(rig, OTHER)
        for _ in range(hostile.dice.randint(1, 8)):
            rig.send(*[hostile.request() for _ in range(hostile.dice.randint(1, 4))])
            rig.settle()
        assert _state(rig, OTHER) == others
        rig.wait(40)  # deadlines pass
        kept = _state(rig, RM)
        rig.rebuild()
        assert _state(rig, RM) == kept
        assert not rig.dead
