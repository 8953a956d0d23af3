"""Queues."""

from __future__ import annotations

from muster_view.rest import json_render
from muster_view.rest.http_messages import Answer, Call
from muster_view.rest.lookup import Lookup


class Queues:
    """Answers about one queue, or the tree of all queues."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    async def queues(self, call: Call) -> Answer:
        partition = self._lookup.partition(call)
        tree = json_render.queue(partition, partition.root, tree=True, shown_partition=partition.name)
        return Answer(json_render.line(tree))

    async def queue(self, call: Call) -> Answer:
        partition, queue = self._lookup.leaf(call)
        return Answer(json_render.line(json_render.queue(partition, queue, tree="subtree" in call.query)))
