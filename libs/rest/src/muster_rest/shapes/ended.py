"""What ended: applications, nodes and queues, from their events (docs/ended.md)."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from muster_rest.shapes.base import Count, MusterShape, Name, Quantities, Sentence, Time, YuniKornShape
from muster_rest.shapes.events import EventDao


class EndedStateDao(MusterShape):
    """A state of an application, and when it began."""

    time: Time
    state: Name


class EndedAllocationDao(YuniKornShape, kw_only=True):
    """An allocation of an application, or on a node. ``ended``: how; "": that is not in the events."""

    allocation_key: str
    node_id: str = field(default="", name="nodeID")
    asked: Time = 0
    begin: Time = 0
    end: Time = 0
    ended: str = ""
    message: str = ""
    resource: Quantities = {}


class EndedObjectDao(YuniKornShape, kw_only=True):
    """One life of an object.

    ``end`` 0: the events have no end of it. ``begin`` 0: they were not searched so far back. ``isWhole``: they have its
    beginning. ``resource``: of a node its capacity, of a queue its max. ``allocationLog`` and ``events`` are there for
    one ``name`` only.
    """

    name: Name
    state: Name
    sentence: Sentence
    begin: Time
    end: Time
    is_whole: bool
    instance: str = ""
    message: str = ""
    queue_name: str = ""
    user: str = ""
    group: str = ""
    asks: Count = 0
    allocations: Count = 0
    applications: Count = 0
    resource: Quantities = {}
    guaranteed: Quantities = {}
    state_log: list[EndedStateDao] = []
    allocation_log: list[EndedAllocationDao] = []
    events: list[EventDao] = []


class EndedDao(MusterShape):
    """Lives that ended, the one that ended last first.

    ``source`` is always ``history``. ``stores``: the history stores that are searched behind the events in memory.
    ``next``: the ``before`` of the next answer; "": there is nothing further back. ``note``: what could not be
    searched, and the remedy.
    """

    source: Literal["history"]
    rm_id: str = field(name="rmID")
    kind: Literal["application", "node", "queue"]
    ended: list[EndedObjectDao]
    stores: list[str]
    next: str
    note: str
