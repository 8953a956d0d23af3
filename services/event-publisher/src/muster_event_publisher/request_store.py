"""The request events of all RMs: one store for each (``muster_service.request_store`` has the rules)."""

from __future__ import annotations

from collections.abc import Iterable

from muster_service.request_store import RequestStore

from muster_event_publisher import metrics
from muster_event_publisher.events import ShimEvent


class RequestStores:
    """The feed puts shim events in; those who watch take them out.

    :param capacity: of the store of an RM that has not said its own.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._stores: dict[str, RequestStore] = {}

    def get(self, rm_id: str) -> RequestStore | None:
        return self._stores.get(rm_id)

    def store_for(self, rm_id: str) -> RequestStore:
        """The RM's store; a new one for a new RM."""
        store = self._stores.get(rm_id)
        if store is None:
            store = self._stores[rm_id] = RequestStore(self._capacity)
        return store

    def take(self, events: Iterable[ShimEvent]) -> None:
        """Events of one partition, in its order. Never raises for what they hold."""
        for event in events:
            store = self.store_for(event.rm_id)
            dropped, empty = store.dropped, store.empty
            if event.capacity is not None and event.capacity != store.capacity:
                store.resize(event.capacity)
            store.add(event.offset, event.value)
            if store.dropped != dropped:
                metrics.REQUESTS_DROPPED.labels(event.rm_id).inc(store.dropped - dropped)
            if store.empty != empty:
                metrics.REQUESTS_EMPTY.inc()
