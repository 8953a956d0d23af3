"""Writes events as the scheduler does: through take-over and commit, several in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

from muster_bus.log import Log, OutRecord, PartitionOwner, Record
from muster_bus.topics import HEADER_EVENT_ID, HEADER_INSTANCE, HEADER_RM_ID, HEADER_TRACKING, Topics
from muster_proto.si.v1.si_pb2 import EventRecord, Quantity, Resource

INSTANCE = "3f1d2c8e-0000-4000-8000-000000000001"
START_NS = 1_750_000_000_000_000_000


def event(number: int, *, message: str = "", at_ns: int | None = None) -> bytes:
    """An APP event with its number in objectID: app-<number>."""
    return EventRecord(
        type=EventRecord.APP,
        objectID=f"app-{number}",
        message=message,
        timestampNano=START_NS + number * 1_000_000 if at_ns is None else at_ns,
        eventChangeType=EventRecord.ADD,
        eventChangeDetail=EventRecord.APP_ALLOC,
        referenceID=f"alloc-{number}",
        resource=Resource(resources={"vcore": Quantity(value=number), "memory": Quantity(value=2**33)}),
    ).SerializeToString()


def headers(rm_id: str, event_id: int, instance: str = INSTANCE) -> tuple[tuple[str, bytes], ...]:
    return (
        (HEADER_EVENT_ID, str(event_id).encode()),
        (HEADER_RM_ID, rm_id.encode()),
        (HEADER_INSTANCE, instance.encode()),
        (HEADER_TRACKING, b"1"),
    )


def shim_headers(rm_id: str, instance: str = INSTANCE) -> tuple[tuple[str, bytes], ...]:
    return ((HEADER_RM_ID, rm_id.encode()), (HEADER_INSTANCE, instance.encode()), (HEADER_TRACKING, b"0"))


def record(offset: int, rm_id: str, event_id: int, value: bytes | None = None, instance: str = INSTANCE) -> Record:
    """A record as a reader returns it."""
    value = event(event_id) if value is None else value
    return Record("si.events.v1", 0, offset, 0, rm_id.encode(), value, headers(rm_id, event_id, instance))


class Feeder:
    """The scheduler's side of ``si.events``."""

    def __init__(self, log: Log, topics: Topics) -> None:
        self._log, self.topics = log, topics
        self._owners: dict[int, PartitionOwner] = {}

    async def events(
        self, rm_id: str, ids: Sequence[int], *, instance: str = INSTANCE, per_transaction: int = 1_000
    ) -> None:
        """Writes ``event(id)`` for each id."""
        for start in range(0, len(ids), per_transaction):
            await self.write(
                rm_id, [(event(n), headers(rm_id, n, instance)) for n in ids[start : start + per_transaction]]
            )

    async def shim(self, rm_id: str, count: int) -> None:
        """Writes events that are for the RM's shim only."""
        value = EventRecord(type=EventRecord.REQUEST, objectID="ask", referenceID="app").SerializeToString()
        await self.write(rm_id, [(value, shim_headers(rm_id))] * count)

    async def write(self, rm_id: str, items: Sequence[tuple[bytes, tuple[tuple[str, bytes], ...]]]) -> None:
        """One transaction with these values and headers."""
        partition = self.topics.partition_of(rm_id)
        owner = self._owners.get(partition)
        if owner is None:
            owner = await self._log.take_over("scheduler", self.topics.requests, partition)
            self._owners[partition] = owner
        key = rm_id.encode()
        records = [OutRecord(self.topics.events, partition, key, value, given) for value, given in items]
        await owner.commit(records, None)
