"""RMs in virtual time: those of the storm, which also register again, confirm nothing for a while, and answer late."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from chaos.storm.workload import StormRm, configuration, size_of_node
from muster_client import Rejection, application, existing_allocation, node
from muster_client.errors import ReregistrationNeeded
from muster_proto.muster.v1 import callbacks_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si

from virtual.inventory import Inventory


class VirtualRm(StormRm):
    """See the module's docstring.

    :ivar registers_again: it does so before its next step.
    :ivar confirms: False: it drops what it has to confirm; it confirms at a reminder.
    :ivar late_s: its answers to questions take so long.
    """

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.registers_again = self.is_registering = False
        self.registrations = 0
        self.unconfirmed = 0
        self.confirms = True
        self.late_s = 0.0
        self._reported: set[str] = set()
        self._adopted = Counter[str]()  # answers to each report of the last registration
        self._lost_before = 0  # streams, when it reported
        self._sizes: dict[str, dict[str, int]] = {}

    async def _step(self, at_s: float) -> None:
        try:
            if self.registers_again:
                await self._register_again()
            await super()._step(at_s)
        except ReregistrationNeeded:
            self.registers_again = True

    async def _register_again(self) -> None:
        """Drops all that waits, and reports the rest: nodes, applications, and what runs."""
        self.registers_again, self.is_registering = False, True
        self.registrations += 1
        if self._reloading is not None:
            await self._reloading
            self._reloading = None
        for app in self._gangs:
            self._removed.add(app)
        self._gangs.clear()
        while not self._confirm.empty():
            self._confirm.get_nowait()
        await self.client.register()
        self.config, self._in_doubt = configuration(0), None
        kept = {app for app, _ in self._apps}
        self._removed |= {asked.app for asked in self.asked.values() if asked.app not in kept and asked.app != "nobody"}
        for key in [key for key, (app, on) in self.running.items() if app not in kept or on not in self.nodes]:
            del self.running[key]
        for key, asked in self.asked.items():
            if key not in self.running:
                asked.released = asked.dropped = True
        self._ending &= set(self.running)
        self._accepted.clear()
        await self.client.send_nodes([node(name, size_of_node(cores)) for name, cores in self.nodes.items()])
        for name in sorted(self.drained):
            await self._act(name, si.NodeInfo.DRAIN_NODE)
        await self.client.send_applications([application(app, queue, user="ann") for app, queue in self._apps])
        await self.client.nodes_answered()
        await self.client.applications_answered()
        again = [existing_allocation(key, app, on, self._sizes[key]) for key, (app, on) in self.running.items()]
        self._reported |= set(self.running)
        self._adopted.clear()
        self._lost_before = self.client.metrics.streams_lost
        if again:
            await self.client.send_asks(again)
        self.is_registering = False

    @property
    def is_adopting(self) -> bool:
        """Whether Muster may not know yet what runs: the RM registers again, or has just done so."""
        return self.is_registering or self.registers_again or bool(self._reported)

    def still_has(self, keys: Collection[str]) -> set[str]:
        """Those of these allocations that it neither ended nor lost."""
        return {key for key in keys if key in self.running and key not in self._ending}

    async def _send_asks(self, items: Sequence[si.Allocation | si.AllocationAsk]) -> None:
        for item in items:
            wants = item.resourceAsk if isinstance(item, si.AllocationAsk) else item.resourcePerAlloc
            self._sizes[item.allocationKey] = {name: each.value for name, each in wants.resources.items()}
        await super()._send_asks(items)

    def _on_allocated(self, items: Sequence[si.Allocation]) -> None:
        for each in items:
            key = each.allocationKey
            if key in self._reported or self._may_be_repeated(key):
                self._note("adopted", key, each.applicationID, each.nodeID)
                self._reported.discard(key)
                if self._adopted[key]:  # (it may have ended between both)
                    self.running[key] = (each.applicationID, each.nodeID)
                self._adopted[key] += 1
            else:
                super()._on_allocated([each])

    def _may_be_repeated(self, key: str) -> bool:
        """Whether another answer to a report is lawful: reports of many allocations are several records, and a stream
        that is lost between them has the first ones taken twice (decision 202).
        """
        return 0 < self._adopted[key] <= self.client.metrics.streams_lost - self._lost_before

    def _on_rejected(self, items: Sequence[Rejection]) -> None:
        for each in items:
            if each.allocation_key in self._reported:
                self._note("given up", each.allocation_key, each.application_id, each.reason)
                self._reported.discard(each.allocation_key)
                self.running.pop(each.allocation_key, None)
            else:
                super()._on_rejected([each])

    def _publish(self, documents: Sequence[dict[str, object]]) -> None:
        assert isinstance(self.source, Inventory)
        self.source.set(documents)

    async def _predicate(self, question: pb.PredicatesQuestion) -> bool | str:
        if self.late_s:
            await asyncio.sleep(self._dice.uniform(0.0, self.late_s))
        return super()._predicate(question)

    async def _confirming(self) -> None:
        while True:
            item = await self._confirm.get()
            if self.confirms:
                await self.client.send_releases([item])
            else:
                self.unconfirmed += 1
