"""Nodes, and the use of nodes."""

from __future__ import annotations

from muster_view.errors import RequestRefused
from muster_view.rest import json_render, utilization
from muster_view.rest.http_messages import Answer, Call
from muster_view.rest.lookup import Lookup


class Nodes:
    """Answers about nodes."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    async def nodes(self, call: Call) -> Answer:
        partition = self._lookup.partition(call)
        nodes = list(partition.nodes.values())
        return Answer(json_render.listing(nodes, lambda node: json_render.node(partition, node)))

    async def node(self, call: Call) -> Answer:
        partition = self._lookup.partition(call)
        node = partition.nodes.get(call.path["node"])
        if node is None:
            raise RequestRefused(404, "Node not found")
        return Answer(json_render.line(json_render.node(partition, node)))

    async def utilizations(self, call: Call) -> Answer:
        state = self._lookup.rm(call)
        if state is None:
            return Answer(json_render.body([]))
        rm_id, partitions = state.info.rm_id, list(state.core.partitions.values())
        return Answer(json_render.listing(partitions, lambda each: utilization.pieces(rm_id, each)))
