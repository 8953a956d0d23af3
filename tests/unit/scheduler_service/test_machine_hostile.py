"""Requests that no admission saw: whatever a record says, the machine goes on, and its books stay right.

Well-formed messages of both generations with any value in any field, as a hostile gateway might put them on the log.
Each may be taken or turned away; what it may not do is break an invariant (the rig checks them after each batch),
touch another RM, or leave memory and log in disagreement.
"""

from __future__ import annotations

import os
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler import state_codec
from muster_scheduler.service.machine import _published
from muster_si.constants import (
    APP_CREATION_TIME_TAG,
    APP_TAG_CREATE_FORCE,
    APP_TAG_NAMESPACE_RESOURCE_MAX_APPS,
    APP_TAG_NAMESPACE_RESOURCE_QUOTA,
    CREATION_TIME,
    FOREIGN,
    NODE_PARTITION,
    NODE_READY_ATTRIBUTE,
    REQUIRED_NODE_TAG,
)
from unit.scheduler_service.rig import CONFIG, RM, Rig, allocation, application, asks, node, old_ask

OTHER = "rm-2"
EXAMPLES = int(os.environ.get("MUSTER_BAD_INPUT_EXAMPLES", "120"))
INT32, INT64 = 2**31, 2**63

# Names that mean something to the furnished machine stand beside names that never could.
_KNOWN = ["a1", "a2", "k1", "k2", "k3", "n1", "n2", "g", "default", "root", "root.a", "root.b", "root.b.x", "root.c"]
_STRANGE = ["", "Hard", "Soft", "alice", "\0", "a\nb", "x" * 5_000, "root." + "y." * 40 + "z", "k/%2F", "🦆", "ghost"]
_KEYS = ["vcore", "memory", "", "\0", "t" * 3_000, "namespace", FOREIGN, NODE_PARTITION, NODE_READY_ATTRIBUTE]
_TAGS = [CREATION_TIME, APP_CREATION_TIME_TAG, REQUIRED_NODE_TAG, APP_TAG_CREATE_FORCE]
_QUOTAS = [APP_TAG_NAMESPACE_RESOURCE_QUOTA, APP_TAG_NAMESPACE_RESOURCE_MAX_APPS]
_NUMBERS = ["true", "false", "static", "-1", "1", "9" * 30, "1e9", "NaN", "{", "[" * 2_000]
_JSON = ['{"resources":{"vcore":{"value":3}}}', '{"resources":{"vcore":{"value":-3}}}']
_names = st.sampled_from([*_KNOWN, *_STRANGE])
_keys = st.sampled_from([*_KEYS, *_TAGS, *_QUOTAS])
_values = st.sampled_from([*_KNOWN, *_STRANGE, *_NUMBERS, *_JSON])
_int32 = st.sampled_from([0, 1, 2, 3, -1, 100, INT32 - 1, -INT32]) | st.integers(-INT32, INT32 - 1)
_int64 = st.sampled_from([0, 1, 2, 5, -1, 2**53, INT64 - 1, -INT64]) | st.integers(-INT64, INT64 - 1)


def _scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        return st.sampled_from([each.number for each in field.enum_type.values]) | _int32
    kinds: dict[int, st.SearchStrategy[Any]] = {
        FieldDescriptor.TYPE_STRING: _names,
        FieldDescriptor.TYPE_INT32: _int32,
        FieldDescriptor.TYPE_INT64: _int64,
        FieldDescriptor.TYPE_BOOL: st.booleans(),
    }
    return kinds[field.type]


@st.composite
def anything(draw: st.DrawFn, kind: type[Message]) -> Message:
    """A message of a type: most fields set, to anything."""
    made = kind()
    for field in kind.DESCRIPTOR.fields:
        if draw(st.integers(0, 3)) == 0:
            continue
        place = getattr(made, field.name)
        if field.message_type is None:
            if field.is_repeated:
                place.extend(draw(st.lists(_scalars(field), max_size=3)))
            else:
                setattr(made, field.name, draw(_scalars(field)))
        elif field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            for key in draw(st.lists(_keys, max_size=3)):
                if value.message_type is None:
                    place[key] = draw(_values)
                else:
                    place[key].value = draw(_int64)
        else:
            inner = getattr(si, field.message_type.name)
            if field.is_repeated:
                place.extend(draw(st.lists(anything(inner), max_size=2)))
            else:
                place.CopyFrom(draw(anything(inner)))
    return made


requests = st.one_of(
    anything(si.AllocationRequest),
    anything(si.AllocationRequest),
    anything(si.ApplicationRequest),
    anything(si.NodeRequest),
    anything(si.UpdateConfigurationRequest),
    anything(si.RegisterResourceManagerRequest),
)


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
        for partition, what in _published(rig.machine.rms[rm_id].core)
    }


@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
@given(batches=st.lists(st.lists(requests, min_size=1, max_size=3), min_size=1, max_size=3))
def test_no_request_breaks_the_books_or_touches_another_rm(batches: list[list[Message]]) -> None:
    rig = _furnished()
    others = _state(rig, OTHER)
    for batch in batches:
        rig.send(*batch)
        rig.settle()
    assert _state(rig, OTHER) == others
    rig.wait(40)  # what time does with what is there now
    kept = _state(rig, RM)
    rig.rebuild()
    assert _state(rig, RM) == kept
    assert not rig.dead
