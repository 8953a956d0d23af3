"""Nodes, and the use of nodes."""

from __future__ import annotations

from muster_view.errors import HttpError
from muster_view.rest import json_render, utilization
from muster_view.rest.http_messages import HttpAnswer, HttpCall
from muster_view.rest.lookup import Lookup


class NodeEndpoints:
    """Answers about nodes."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    async def nodes(self, call: HttpCall) -> HttpAnswer:
        partition = self._lookup.partition(call)
        nodes = list(partition.nodes.values())
        return HttpAnswer(json_render.listing(nodes, lambda node: json_render.node(partition, node)))

    async def node(self, call: HttpCall) -> HttpAnswer:
        partition = self._lookup.partition(call)
        node = partition.nodes.get(call.path["node"])
        if node is None:
            raise HttpError(404, "Node not found")
        return HttpAnswer(json_render.line(json_render.node(partition, node)))

    async def utilizations(self, call: HttpCall) -> HttpAnswer:
        state = self._lookup.rm(call)
        if state is None:
            return HttpAnswer(json_render.body([]))
        rm_id, partitions = state.info.rm_id, list(state.core.partitions.values())
        return HttpAnswer(json_render.listing(partitions, lambda partition: utilization.pieces(rm_id, partition)))
