"""The flags of ``muster events``; a module of its own, because every command loads them and few call a gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from muster_cli import numbers
from muster_cli.flags import DEFAULT_GATEWAY, NO_ACCESS_FLAGS, AccessFlags, GatewayAddress, RmId

Flags = Annotated[tuple[str, ...], Parameter(negative="")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class EventSelection:
    """The RM, the filter and the first event."""

    gateway: GatewayAddress = DEFAULT_GATEWAY
    """gRPC address of a gateway, or of an event publisher."""
    rm: RmId = ""
    """The RM's id [the only one]."""
    app: str = ""
    """An application: its events, those of its asks, and those of nodes about its allocations."""
    queue: str = ""
    """A queue's full path: its events, those of its descendants, and those of applications in it."""
    object: Flags = ()
    """Events of this object (application, node, queue, user); repeatable."""
    type: Flags = ()
    """APP, NODE, QUEUE, REQUEST or USERGROUP; repeatable."""
    change: Flags = ()
    """ADD, REMOVE, SET or NONE; repeatable."""
    detail: Flags = ()
    """Such as APP_ALLOC or ALLOC_PREEMPT; repeatable."""
    start: numbers.EventId = None
    """The id of the first event."""
    since: str = ""
    """The first event's time: 2026-01-31T12:00:00Z, or 90s, 10m, 2h, 1d ago."""
    newest: numbers.NewestEvents = None
    """Begin this many events before the end."""
    json: Annotated[bool, Parameter(negative="")] = False
    """Print each event as one line of JSON (docs/events-grpc.md)."""
    flags: AccessFlags = NO_ACCESS_FLAGS
    """Token and TLS."""
