"""Clusters, partitions and their placement rules."""

from __future__ import annotations

from muster_view.rest import dao, json_render, placement_rules
from muster_view.rest.http_messages import Answer, Call
from muster_view.rest.lookup import Lookup


class Partitions:
    """Answers about clusters and partitions."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    async def clusters(self, call: Call) -> Answer:
        state, partitions = self._lookup.partitions(call)
        return Answer(json_render.body([dao.cluster(state.info, each) for each in partitions] if state else []))

    async def partitions(self, call: Call) -> Answer:
        state, partitions = self._lookup.partitions(call)
        return Answer(json_render.body([dao.partition_info(state.info, each) for each in partitions] if state else []))

    async def placement_rules(self, call: Call) -> Answer:
        return Answer(json_render.body(placement_rules.rules(self._lookup.partition(call))))
