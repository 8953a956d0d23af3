"""The request events of all RMs: one store for each (``muster_runtime.request_store`` has the rules)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from muster_runtime.request_store import RequestStore

from muster_event_publisher import metrics
from muster_event_publisher.event_runs import ShimEvent


class RequestStores:
    """The request events of all RMs. The feed adds shim events, and Watch calls take them.

    :param capacity_of: how many events an RM's store holds.
    """

    def __init__(self, capacity_of: Callable[[str], int]) -> None:
        self._capacity_of = capacity_of
        self._stores: dict[str, RequestStore] = {}

    def get(self, rm_id: str) -> RequestStore | None:
        return self._stores.get(rm_id)

    def store_for(self, rm_id: str) -> RequestStore:
        """The RM's store; a new one for a new RM."""
        store = self._stores.get(rm_id)
        if store is None:
            store = self._stores[rm_id] = RequestStore(self._capacity_of(rm_id))
        return store

    def resize(self, rm_id: str) -> None:
        """Applies the RM's present capacity; the newest events stay."""
        store = self._stores.get(rm_id)
        if store is not None:
            before = store.dropped
            store.resize(self._capacity_of(rm_id))
            self._count_dropped(rm_id, store.dropped - before)

    def add(self, events: Iterable[ShimEvent]) -> None:
        """Takes events of one partition, in order. It never raises for their content."""
        for event in events:
            store = self.store_for(event.rm_id)
            dropped, empty = store.dropped, store.empty
            store.add(event.offset, event.value)
            self._count_dropped(event.rm_id, store.dropped - dropped)
            if store.empty != empty:
                metrics.REQUESTS_EMPTY.inc()

    def _count_dropped(self, rm_id: str, count: int) -> None:
        if count:
            metrics.REQUESTS_DROPPED.labels(rm_id).inc(count)
