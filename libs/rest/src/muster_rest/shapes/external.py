"""The objects of external sources (docs/external-rest.md). Times are nanoseconds, 0: none."""

from __future__ import annotations

from typing import Any

from msgspec import field

from muster_rest.shapes.base import MusterShape


class SourceDao(MusterShape, kw_only=True):
    """A source. ``lost``: it became STALE and has not been LIVE since; ``drains``: its nodes take nothing new
    meanwhile.

    ``objects``: how many of each kind it has; ``stale``: how many of them are unreliable; ``problems``: how many do not
    count, or count only in part.
    """

    rm_id: str = field(name="rmID")
    partition: str
    source: str
    state: str
    since: int
    reason: str
    life: str
    lost: bool
    drains: bool
    objects: dict[str, int]
    stale: int
    problems: int


class ObjectDao(MusterShape, kw_only=True):
    """The last state of one object. ``problem``: why it does not count, or counts only in part; "": it counts.

    ``offerState``: of an offer; else "". ``withdrawn``: its source no longer reports it, and it stays until it is
    unused. ``idleSince``, ``deadline``: of an offer; 0: it is in use, or not revoked.
    """

    kind: str
    id: str
    said: dict[str, Any]
    since: int
    stale: bool
    problem: str
    offer_state: str
    withdrawn: bool
    idle_since: int
    deadline: int


class ObjectsDao(MusterShape, kw_only=True):
    """A page of objects. ``next``: the parameter ``after`` of the next page; "": there is none."""

    objects: list[ObjectDao]
    next: str
