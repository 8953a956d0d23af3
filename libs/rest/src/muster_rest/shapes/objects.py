"""The present state of many objects: ``/ws/v1/object-states`` (docs/history-servers.md)."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from muster_rest.shapes.base import MusterShape


class WantedObject(Struct, forbid_unknown_fields=True):
    """One object.

    :ivar kind: rejected: a rejected application. (An accepted one may have the same id.)
    :ivar keys: for an application with many asks and allocations: show only these.
    """

    kind: Literal["application", "rejected", "queue", "node"]
    id: str
    keys: list[str] = []


class ObjectStateDao(MusterShape, kw_only=True):
    """The state of an object.

    :ivar created_nano: when the object was created: older events concern another object with the same name.
    :ivar state: the object's JSON as in REST, as text. (A queue without its children.)
    """

    created_nano: int
    state: str


class ObjectStatesDao(MusterShape, kw_only=True):
    """For each requested object the states of all objects with its name, the latest first.

    Every event before ``nextEventID`` is in them.
    """

    instance_uuid: str = field(name="instanceUUID")
    next_event_id: int = field(name="nextEventID")
    states: list[list[ObjectStateDao]]
