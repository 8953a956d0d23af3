"""The audit trail (docs/security.md)."""

from __future__ import annotations

from muster_rest.shapes.base import Count, MusterShape, Time


class AuditEntryDao(MusterShape, kw_only=True):
    """An entry; ``proto/muster/v1/audit.proto`` describes the fields.

    ``result``: accepted, refused or failed. ``requestOffset``: -1: the call never came to the log of requests.
    ``count``: equal calls in this entry, from ``firstTime`` (0: ``time``) to ``time``; of the action ``lost`` entries.
    """

    id: str
    time: Time
    identity: str
    proof: str
    peer: str
    door: str
    method: str
    action: str
    rm_id: str
    objects: dict[str, str]
    result: str
    reason: str
    gateway_id: str
    request_id: str
    request_partition: int
    request_offset: int
    count: Count
    first_time: Time


class AuditPageDao(MusterShape, kw_only=True):
    """A page of entries, the oldest first. ``next``: the parameter ``after`` of the next page. ``more``: there was more
    to read behind this page. A page with ``more`` may have few entries or none, because few of those read fit.
    """

    entries: list[AuditEntryDao]
    next: str
    more: bool
