"""Clusters, partitions and their placement rules."""

from __future__ import annotations

from muster_view.rest import dao, json_render, placement_rules
from muster_view.rest.http_messages import HttpAnswer, HttpCall
from muster_view.rest.lookup import Lookup


class PartitionEndpoints:
    """Answers about clusters and partitions."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    async def clusters(self, call: HttpCall) -> HttpAnswer:
        state, partitions = self._lookup.partitions(call)
        return HttpAnswer(
            json_render.body([dao.cluster(state.info, partition) for partition in partitions] if state else [])
        )

    async def partitions(self, call: HttpCall) -> HttpAnswer:
        state, partitions = self._lookup.partitions(call)
        return HttpAnswer(
            json_render.body([dao.partition_info(state.info, partition) for partition in partitions] if state else [])
        )

    async def placement_rules(self, call: HttpCall) -> HttpAnswer:
        return HttpAnswer(json_render.body(placement_rules.rules(self._lookup.partition(call))))
