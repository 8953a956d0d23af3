"""The usage of users and groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster_core.config.acl import GROUP_NAME, USER_NAME
from muster_core.partition import Partition
from muster_runtime.go_json import go_json

from muster_view.errors import HttpError
from muster_view.rest import json_render, usage
from muster_view.rest.http_messages import HttpAnswer, HttpCall
from muster_view.rest.lookup import Lookup
from muster_view.rest.parameters import name

ByName = Callable[[Partition], usage.ByName]
Of = Callable[[Partition, str, usage.SubjectUsage], Any]


class UsageEndpoints:
    """Answers with the usage of users and groups."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    async def users(self, call: HttpCall) -> HttpAnswer:
        return self._all(call, usage.by_user, usage.of_user)

    async def groups(self, call: HttpCall) -> HttpAnswer:
        return self._all(call, usage.by_group, usage.of_group)

    async def user(self, call: HttpCall) -> HttpAnswer:
        user = name(call.path["user"], USER_NAME, "user")
        return self._one(call, user, usage.by_user, usage.of_user, "User not found")

    async def group(self, call: HttpCall) -> HttpAnswer:
        group = name(call.path["group"], GROUP_NAME, "group")
        return self._one(call, group, usage.by_group, usage.of_group, "Group not found")

    def _all(self, call: HttpCall, by_name: ByName, of: Of) -> HttpAnswer:
        partition = self._lookup.partition_or_none(call)
        if partition is None:
            return HttpAnswer(json_render.body([]))
        subjects = by_name(partition)
        return HttpAnswer(
            json_render.listing(sorted(subjects), lambda who: iter([go_json(of(partition, who, subjects[who]))]))
        )

    def _one(self, call: HttpCall, who: str, by_name: ByName, of: Of, unknown: str) -> HttpAnswer:
        partition = self._lookup.partition_or_none(call)
        apps = by_name(partition).get(who) if partition is not None else None
        if partition is None or apps is None:
            raise HttpError(404, unknown)
        return HttpAnswer(json_render.body(of(partition, who, apps)))
