"""What the events add up to: whoever follows them must come to the same cluster (seed 002)."""

from __future__ import annotations

from collections import Counter

from muster_scheduler.core.outcome import Change, Detail, Event, EventType
from muster_scheduler.core.resources import Shape
from simulation.books import Amounts, AuditFailure, Books, must

_GONE = (
    Detail.ALLOC_CANCEL,
    Detail.ALLOC_PREEMPT,
    Detail.ALLOC_TIMEOUT,
    Detail.ALLOC_REPLACED,
    Detail.ALLOC_NODEREMOVED,
)


class EventSums:
    """Sums of everything that events said so far."""

    def __init__(self) -> None:
        self.apps: dict[str, Counter[str]] = {}
        self.keys: dict[str, Counter[str]] = {}
        self.nodes: dict[str, Counter[str]] = {}
        self.capacity: dict[str, Amounts] = {}
        self.occupied: dict[str, Amounts] = {}
        self.schedulable: dict[str, bool] = {}
        self.ready: dict[str, bool] = {}
        self.queues: Counter[str] = Counter()
        self.members: Counter[tuple[str, str]] = Counter()
        self.reservations: Counter[tuple[str, str]] = Counter()
        self.asked: Counter[tuple[str, str]] = Counter()

    def take(self, event: Event) -> None:
        """One more event."""
        sign = {Change.ADD: 1, Change.REMOVE: -1}.get(event.change, 0)
        amounts = amounts_of(event)
        match (event.type, event.detail):
            case (EventType.APP, Detail.APP_ALLOC):
                _add(self.apps, event.object_id, amounts, 1)
                self.keys.setdefault(event.object_id, Counter())[event.reference_id] += 1
            case (EventType.APP, detail) if detail in _GONE:
                _add(self.apps, event.object_id, amounts, -1)
                self.keys[event.object_id][event.reference_id] -= 1
            case (EventType.APP, Detail.APP_REQUEST | Detail.REQUEST_CANCEL):
                self.asked[event.object_id, event.reference_id] += sign
                must(self.asked[event.object_id, event.reference_id] >= 0, "event sum", f"{event}: never asked for")
            case (EventType.NODE, Detail.NODE_ALLOC):
                _add(self.nodes, event.object_id, amounts, sign)
            case (EventType.NODE, Detail.NODE_RESERVATION):
                self.reservations[event.object_id, event.reference_id] += sign
            case (EventType.NODE, Detail.NODE_CAPACITY):
                self.capacity[event.object_id] = amounts
            case (EventType.NODE, Detail.NODE_OCCUPIED):
                self.occupied[event.object_id] = amounts
            case (EventType.NODE, Detail.NODE_SCHEDULABLE):
                self.schedulable[event.object_id] = event.message == "schedulable: true"
            case (EventType.NODE, Detail.NODE_READY):
                self.ready[event.object_id] = event.message == "ready: true"
            case (EventType.NODE, Detail.NONE):
                must(event.change is Change.ADD, "event sum", f"{event}")
                self.capacity[event.object_id] = amounts
                self.occupied[event.object_id] = {}
            case (EventType.NODE, Detail.NODE_DECOMISSION):
                del self.capacity[event.object_id], self.occupied[event.object_id]
                self.schedulable.pop(event.object_id, None)
                self.ready.pop(event.object_id, None)
            case (EventType.QUEUE, Detail.NONE | Detail.QUEUE_DYNAMIC):
                self.queues[event.object_id] += sign
            case (EventType.QUEUE, Detail.QUEUE_APP):
                self.members[event.object_id, event.reference_id] += sign

    def compare(self, books: dict[str, Books]) -> None:
        """Raises AuditFailure where events and books disagree."""
        for each in books.values():
            for app in each.apps.values():
                for key in app.asks:
                    must(self.asked[app.app_id, key] > 0, "event sum", f"no event told of the ask {key}")
        nodes = {node.node_id: node for each in books.values() for node in each.nodes.values()}
        apps = {app.app_id: app for each in books.values() for app in each.apps.values()}
        for app_id, used in self.apps.items():
            holder = apps.get(app_id)
            _same(f"allocated to {app_id}", used, holder.used if holder is not None else Counter())
            keys = Counter(key for key, _ in holder.held) if holder is not None else Counter[str]()
            _same(f"keys of {app_id}", self.keys[app_id], keys)
        for node_id, used in self.nodes.items():
            _same(f"allocated on {node_id}", used, nodes[node_id].used if node_id in nodes else Counter())
        must(self.capacity.keys() == nodes.keys(), "event sum", f"nodes {self.capacity.keys() ^ nodes.keys()}")
        for node_id, node in nodes.items():
            _same(f"capacity of {node_id}", self.capacity[node_id], node.capacity)
            occupied = Counter(node.reported)
            occupied.update(node.occupied)
            _same(f"occupied on {node_id}", self.occupied[node_id], occupied)
            must(self.ready.get(node_id, True) == node.ready, "event sum", f"{node_id}: ready")
            if node_id in self.schedulable:
                must(self.schedulable[node_id] == node.schedulable, "event sum", f"{node_id}: schedulable")
        # (Queues of two partitions may have one path.)
        queues = Counter(path for each in books.values() for path in each.queues)
        _same("queues", self.queues, queues)
        _same("members", self.members, Counter((app.queue, app.app_id) for app in apps.values()))
        kept = Counter((node.node_id, ask.key) for node in nodes.values() for ask in node.reservations)
        _same("reservations", self.reservations, kept)


def _same(what: str, said: Counter[object] | Amounts, known: Counter[object] | Amounts) -> None:
    left, right = ({key: value for key, value in each.items() if value} for each in (said, known))
    if left != right:
        raise AuditFailure("event sum", f"{what}: events add up to {left}, there is {right}")


def _add(sums: dict[str, Counter[str]], key: str, amounts: Amounts, sign: int) -> None:
    found = sums.setdefault(key, Counter())
    for name, value in amounts.items():
        found[name] += sign * value


def amounts_of(event: Event) -> Amounts:
    """The event's resource by type name, zeros included."""
    resource = event.resource
    if isinstance(resource, Shape):
        return dict(resource.quantities)
    return dict(resource or {})
