"""The JSON of ``/ws/v1/explain/*`` as types of the test's own: a field that changes in the view must fail here.

Nothing may be absent, and nothing else may be there (docs/explain.md).
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, field

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Amount = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
# After 1970-01-01 00:16: of this scenario, not a duration.
Time = Annotated[int, Meta(ge=1_000 * 1_000_000_000, le=(1 << 63) - 1)]
TimeOrNone = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Quantities = dict[str, Amount]
Prose = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][^\n]*[.]$")]
Name = Annotated[str, Meta(min_length=1)]
Code = Annotated[str, Meta(pattern=r"^[A-Z][A-Z_]+$")]
CodeOrNone = Annotated[str, Meta(pattern=r"^([A-Z][A-Z_]+)?$")]


class Shape(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How all of them are written."""


class Told(Shape, kw_only=True):
    application_id: Name = field(name="applicationID")
    allocation_key: Name
    node: Name
    since: Time


class AskPreemption(Shape, kw_only=True):
    state: Code
    no: CodeOrNone
    may_at: TimeOrNone
    victims: list[Told]


class Kept(Shape, kw_only=True):
    node: Name
    since: Time


class Lacking(Shape, kw_only=True):
    resource_type: Name
    nodes: Count


class Closed(Shape, kw_only=True):
    by: Code
    source: str
    nodes: Annotated[int, Meta(ge=1)]


class Why(Shape, kw_only=True):
    reason: Code
    resource_type: str
    asked: Count
    used: Amount
    limit: Amount
    free: Count
    promised: Amount
    limit_queue: str
    who: str
    node: str
    nodes: Count
    reserved_nodes: Count
    lacking: list[Lacking]
    closed: list[Closed]
    since: Time
    message: Prose


class Awaited(Shape, kw_only=True):
    task_group: str
    placed: Count
    members: Count
    placeholder: str
    because: Why | None


class Refused(Shape, kw_only=True):
    node: Name
    reason: str
    since: Time
    unanswered: bool


class Now(Shape, kw_only=True):
    used: Amount
    limit: Amount
    free: Count
    promised: Amount


class Past(Shape, kw_only=True):
    reason: Code
    resource_type: str
    asked: Count
    used: Amount
    limit: Amount
    free: Count
    promised: Amount
    limit_queue: str
    who: str
    node: str
    nodes: Count
    reserved_nodes: Count
    closed: list[Closed]
    since: Time
    until: Time
    message: Prose


class Episode(Shape, kw_only=True):
    reason: Code
    resource_type: str
    limit_queue: str
    who: str
    since: Time
    until: TimeOrNone
    asks: Count


class Pending(Shape, kw_only=True):
    partition: Name
    application_id: Name = field(name="applicationID")
    allocation_key: Name
    queue: Name
    count: Count
    priority: int
    resource: Quantities
    placeholder: bool
    task_group: str
    reason: Code
    resource_type: str
    asked: Count
    used: Amount
    limit: Amount
    free: Count
    promised: Amount
    limit_queue: str
    who: str
    node: str
    nodes: Count
    reserved_nodes: Count
    lacking: list[Lacking]
    closed: list[Closed]
    since: Time
    as_of: Time
    now: Now | None
    waiting_since: Time
    history: list[Past]
    at: Time
    gang: Awaited | None
    reservation: Kept | None
    preemption: AskPreemption
    refusals: list[Refused]
    refused_until: TimeOrNone
    scaled_up: bool
    sentence: Prose
    message: Prose


class Preempted(Shape, kw_only=True):
    partition: Name
    application_id: Name = field(name="applicationID")
    allocation_key: Name
    queue: Name
    node: Name
    priority: int
    resource: Quantities
    placeholder: bool
    task_group: str
    with_gang: bool
    rule: Code
    since: Time
    for_application_id: str = field(name="forApplicationID")
    for_allocation_key: str
    for_queue: str
    victim_share_before: float
    victim_share_after: float
    asker_share_before: float
    asker_share_after: float
    at: Time
    sentence: Prose
    message: Prose


class TaskGroup(Shape, kw_only=True):
    task_group: str
    resource: Quantities
    asked: Count
    pending: Count
    held: Count
    leaving: Count
    replaced: Count
    timed_out: Count
    lost: Count
    because: Why | None


class Gang(Shape, kw_only=True):
    phase: Code
    style: str
    start: str
    asked: Quantities
    placed: Quantities
    promised: Quantities
    timeout: Count
    deadline: TimeOrNone
    task_groups: list[TaskGroup]
    message: Prose


class Replacement(Shape, kw_only=True):
    allocation_key: Name
    placeholder: Name
    task_group: str
    node: Name
    state: Code
    since: Time
    message: Prose


class Waiting(Shape, kw_only=True):
    reason: Code
    queue: Name
    who: str
    resource_type: str
    asked: Count
    used: Amount
    limit: Amount
    promised: Amount
    since: Time


class Application(Shape, kw_only=True):
    partition: Name
    application_id: Name = field(name="applicationID")
    queue: Name
    state: Name
    since: Time
    user: str
    group: str
    allocations: Count
    pending: Count
    counts: dict[Code, Count]
    waiting: Waiting | None
    gang: Gang | None
    history: list[Episode]
    rejected: str
    at: Time
    sentence: Prose
    message: Prose
    asks: list[Pending]
    preempted: list[Preempted]
    replacements: list[Replacement]


class Guarantee(Shape, kw_only=True):
    queue: Name
    resource_type: Name
    guaranteed: Count
    used: Amount
    preempting: Count
    missing: Count


class Queue(Shape, kw_only=True):
    partition: Name
    queue: Name
    state: Name
    leaf: bool
    managed: bool
    share: float
    allocated: Quantities
    preempting: Quantities
    pending: Quantities
    promised: Quantities
    maximum: Quantities
    sources: list[Name]
    disputed: str
    headroom: Quantities
    guarantees: list[Guarantee]
    applications: Count
    running_applications: Count
    forming_applications: Count
    max_applications: Count
    preemption_fence: Name
    protected_by: str
    preemption_delay: Count
    preempts_by_priority: bool
    priority_fence: bool
    priority_offset: int
    current_priority: int
    quota_at: TimeOrNone
    asks: dict[Code, Count]
    history: list[Episode]
    at: Time
    sentence: Prose
    message: Prose


class PendingAll(Shape, kw_only=True):
    rm: Name
    pending: list[Pending]
    counts: dict[Code, Count]


class PreemptedAll(Shape, kw_only=True):
    rm: Name
    preempted: list[Preempted]


def told_apart(value: dict[str, Any]) -> Any:
    """The type of an explanation, by what it has."""
    if "rule" in value:
        return Preempted
    return Pending if "waitingSince" in value else Queue if "guarantees" in value else Application
