"""Lives of applications, nodes and queues as events, for the tests of what ended."""

from __future__ import annotations

from muster_proto.si.v1.si_pb2 import EventRecord, Quantity, Resource

START_NS = 1_750_000_000_000_000_000
STEP_NS = 1_000_000_000
E = EventRecord


class Cluster:
    """Events of one RM, a second apart.

    :ivar values: all of them, by id.
    """

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self._now_ns = START_NS

    def event(
        self, kind: int, name: str, change: int, detail: int, reference: str = "", message: str = "", vcore: int = 0
    ) -> None:
        resource = Resource(resources={"vcore": Quantity(value=vcore)}) if vcore else None
        record = E(
            type=kind,  # type: ignore[arg-type]
            objectID=name,
            eventChangeType=change,  # type: ignore[arg-type]
            eventChangeDetail=detail,  # type: ignore[arg-type]
            referenceID=reference,
            message=message,
            timestampNano=self._now_ns,
            resource=resource,
        )
        self.values.append(record.SerializeToString())

    def later(self) -> None:
        self._now_ns += STEP_NS

    @property
    def now_ns(self) -> int:
        return self._now_ns

    def submitted(self, name: str, queue: str = "root.a") -> None:
        self.event(E.QUEUE, queue, E.ADD, E.QUEUE_APP, name)
        self.event(E.APP, name, E.ADD, E.DETAILS_NONE)
        self.event(E.APP, name, E.SET, E.APP_NEW)
        self.later()

    def allocated(self, name: str, key: str, node: str = "n1", user: str = "ann", queue: str = "root.a") -> None:
        self.event(E.APP, name, E.ADD, E.APP_REQUEST, key, vcore=2)
        self.later()
        self.event(E.APP, name, E.ADD, E.APP_ALLOC, key, vcore=2)
        self.event(E.NODE, node, E.ADD, E.NODE_ALLOC, key, vcore=2)
        self.event(E.USERGROUP, user, E.ADD, E.UG_USER_RESOURCE, queue, vcore=2)
        self.event(E.APP, name, E.SET, E.APP_RUNNING)
        self.later()

    def released(self, name: str, key: str, node: str = "n1", user: str = "ann", queue: str = "root.a") -> None:
        self.event(E.APP, name, E.REMOVE, E.ALLOC_CANCEL, key, vcore=2)
        self.event(E.NODE, node, E.REMOVE, E.NODE_ALLOC, key, vcore=2)
        self.event(E.USERGROUP, user, E.REMOVE, E.UG_USER_RESOURCE, queue, vcore=2)
        self.later()

    def ended(self, name: str, queue: str = "root.a", *, completed: bool = True) -> None:
        if completed:
            self.event(E.APP, name, E.SET, E.APP_COMPLETING)
            self.later()
            self.event(E.APP, name, E.SET, E.APP_COMPLETED)
        self.event(E.APP, name, E.REMOVE, E.DETAILS_NONE)
        self.event(E.QUEUE, queue, E.REMOVE, E.QUEUE_APP, name)
        self.later()

    def life(self, name: str, **more: str) -> None:
        """A whole one, with one allocation."""
        self.submitted(name)
        self.allocated(name, f"{name}-1", **more)
        self.released(name, f"{name}-1", **more)
        self.ended(name)

    def rejected(self, name: str, message: str) -> None:
        self.event(E.APP, name, E.REMOVE, E.APP_REJECT, message=message)
        self.later()
