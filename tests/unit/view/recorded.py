"""Resource managers whose records are written to a log as the scheduler does, and views that follow the log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import httpx
from builders import Cluster
from contract import openapi
from muster_bus.clock import Clock, SystemClock
from muster_bus.log import Log, OutRecord, PartitionOwner
from muster_bus.topics import Topics, state_key
from muster_core.model.commands import Command
from muster_core.model.outcome import Outcome
from muster_state import state_codec
from muster_state.state_folder import RmInfo, encode_registration, encode_rm
from muster_view import ViewService
from muster_view.settings import ViewSettings

LEAVES = "{name: root, submitacl: '*', queues: [{name: a, resources: {max: {vcore: 4}}}, {name: b}]}"


class Recorded:
    """An RM with a core that the test drives, and its records as the scheduler would write them.

    :ivar cluster: the core; :meth:`Bench.write` writes its changes.
    """

    def __init__(self, topics: Topics, rm_id: str, queues: str = LEAVES, partition: str = "") -> None:
        self.topics, self.rm_id = topics, rm_id
        self.partition = topics.partition_of(rm_id)
        self.cluster = Cluster(queues, partition=partition, rm_id=rm_id)
        self.info = RmInfo(
            rm_id,
            build_info={"buildVersion": "1.0"},
            config=f"partitions: [{{name: default, nodesortpolicy: {{type: fair}}, {partition} queues: [{queues}]}}]",
            life="RUNNING",
            registered_ns=self.cluster.now_ns,
            registrations=1,
        )
        self._written = self._registered = 0

    def do(self, *commands: Command) -> Outcome:
        return self.cluster.do(*commands)

    def record(self, kind: str, *parts: str, value: bytes | None) -> OutRecord:
        return OutRecord(self.topics.state, self.partition, state_key(self.rm_id, kind, *parts), value)

    def own_record(self) -> OutRecord:
        return self.record(state_codec.RM, "-", value=encode_rm(self.info, self.cluster.core.next_submission))

    def records(self) -> list[OutRecord]:
        """Return the changes since the last call as the records of one transaction, the RM's own record first."""
        found = [self.own_record()]
        if self.info.registrations != self._registered:
            self._registered = self.info.registrations
            found.append(self.record(state_codec.REGISTRATION, "-", value=encode_registration(self.info)))
        for outcome in self.cluster.outcomes[self._written :]:
            for partition, what, alive in outcome.objects():
                key = state_codec.key_of(self.rm_id, partition, what)
                value = state_codec.encode(partition, what) if alive else None
                found.append(OutRecord(self.topics.state, self.partition, key, value))
        self._written = len(self.cluster.outcomes)
        return found


class ClockOf(SystemClock):
    """A wall clock that the test sets, so that answers of two moments can be compared."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        super().__init__()
        self._set_ns = now_ns

    def now_ns(self) -> int:
        return self._set_ns()


class Bench:
    """A log with recorded RMs on it."""

    def __init__(self, log: Log, topics: Topics, clock: Clock) -> None:
        self.log, self.topics, self.clock = log, topics, clock
        self._owners: dict[int, PartitionOwner] = {}

    def rm(self, rm_id: str = "rm1", queues: str = LEAVES, partition: str = "") -> Recorded:
        """``partition``: further keys of it, as YAML in a line that ends with a comma."""
        return Recorded(self.topics, rm_id, queues, partition)

    async def write(self, *rms: Recorded) -> None:
        """Write the changes of the RMs, one transaction each."""
        for each in rms:
            await self.commit(each.partition, each.records())

    async def commit(self, partition: int, records: Iterable[OutRecord]) -> None:
        owner = self._owners.get(partition)
        if owner is None:
            owner = self._owners[partition] = await self.log.take_over("test", self.topics.requests, partition)
        await owner.commit(list(records), None)

    @asynccontextmanager
    async def view(self, **settings: object) -> AsyncIterator[ViewService]:
        """A started view. On a busy machine, too, its answers have all that was written before, and of one moment."""
        given = {"http_address": "", "fresh_wait_s": 60.0, "whole_wait_s": 60.0, "snapshot_hold_s": 60.0, **settings}
        service = ViewService(ViewSettings.model_validate(given), self.log, self.topics, self.clock)
        await service.start()
        try:
            yield service
        finally:
            await service.stop()


@asynccontextmanager
async def client_of(view: ViewService) -> AsyncIterator[httpx.AsyncClient]:
    transport, hooks = httpx.ASGITransport(view.asgi), {"response": [openapi.holds]}
    async with httpx.AsyncClient(transport=transport, base_url="http://view", event_hooks=hooks) as client:
        yield client
