"""The usage of users and groups, by queue."""

from __future__ import annotations

from muster_rest.shapes.base import Quantities, YuniKornShape


class UsageDao(YuniKornShape, kw_only=True):
    """The usage of one user or group, in one queue and its descendants."""

    queue_path: str
    resource_usage: Quantities = {}
    running_applications: list[str] = []
    max_resources: Quantities = {}
    max_applications: int = 0
    children: list[UsageDao] = []


class UserUsageDao(YuniKornShape, kw_only=True):
    """The usage of one user. ``groups``: application → the group that it counts for."""

    user_name: str
    groups: dict[str, str] = {}
    queues: UsageDao | None = None


class GroupUsageDao(YuniKornShape, kw_only=True):
    """The usage of one group."""

    group_name: str
    applications: list[str] = []
    queues: UsageDao | None = None
