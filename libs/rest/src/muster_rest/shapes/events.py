"""Events, and the streams of them (docs/rest-events.md)."""

from __future__ import annotations

from msgspec import Struct, field

from muster_rest.shapes.base import Quantities, YuniKornShape


class EventStreamDao(Struct, kw_only=True, rename="pascal"):
    """One stream: the address of its client, and since when it is open (RFC 3339)."""

    name: str
    created_at: str


class EventQuantityDao(YuniKornShape, kw_only=True):
    """A quantity."""

    value: int = 0


class EventResourceDao(YuniKornShape, kw_only=True):
    """Quantities by resource type."""

    resources: dict[str, EventQuantityDao] = {}


class EventDao(YuniKornShape, kw_only=True):
    """An event. ``state``: its object's present state, when the request asks for it (docs/history-servers.md)."""

    type: int = 0
    object_id: str = field(default="", name="objectID")
    message: str = ""
    timestamp_nano: int = 0
    event_change_type: int = 0
    event_change_detail: int = 0
    reference_id: str = field(default="", name="referenceID")
    resource: EventResourceDao
    state: str = ""


class EventBatchDao(Struct, kw_only=True, rename="pascal"):
    """Events from an id on. ``LowestID`` and ``HighestID`` are those in memory. ``EventRecords`` null: no events."""

    instance_uuid: str = field(name="InstanceUUID")
    lowest_id: int = field(name="LowestID")
    highest_id: int = field(name="HighestID")
    event_records: list[EventDao] | None


class UsageWindowDao(Struct, kw_only=True):
    """A window. ``final``: nothing can change it any more."""

    start: str
    resource_seconds: dict[str, float | int]
    peak: Quantities
    allocations: int
    final: bool


class NamedUsageDao(Struct, kw_only=True):
    """The windows of one application, queue, user or group."""

    name: str
    windows: list[UsageWindowDao]


class WindowsDao(Struct, omit_defaults=True, kw_only=True):
    """Usage in windows of ``window`` seconds. Without any usage there is ``usage`` alone (docs/usage.md)."""

    rm: str = ""
    kind: str = ""
    from_: str = field(default="", name="from")
    to: str = ""
    window: int = 0
    complete_from: str | None = None
    known_until: str = ""
    usage: list[NamedUsageDao]
