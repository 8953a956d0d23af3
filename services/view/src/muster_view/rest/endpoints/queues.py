"""Queues."""

from __future__ import annotations

from muster_view.rest import json_render
from muster_view.rest.http_messages import HttpAnswer, HttpCall
from muster_view.rest.lookup import Lookup


class QueueEndpoints:
    """Answers about one queue, or the tree of all queues."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    async def queues(self, call: HttpCall) -> HttpAnswer:
        partition = self._lookup.partition(call)
        tree = json_render.queue(partition, partition.root, tree=True, shown_partition=partition.name)
        return HttpAnswer(json_render.line(tree))

    async def queue(self, call: HttpCall) -> HttpAnswer:
        partition, queue = self._lookup.leaf(call)
        return HttpAnswer(json_render.line(json_render.queue(partition, queue, tree="subtree" in call.query)))
