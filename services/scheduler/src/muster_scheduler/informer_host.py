"""The informers and event handlers of some partitions, from their first need to their end."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random

import structlog
from muster_bus.clock import Clock
from muster_bus.log import Log
from muster_bus.topics import Topics
from muster_informers.process import ExternalProcess
from muster_informers.service import ExternalService
from muster_informers.settings import ExternalSettings
from muster_informers.sync_gate import SyncGate
from muster_runtime.chance import new_uuid
from muster_runtime.watchdog import Usage

from muster_scheduler.consult import HandlerHost, NativeConsultation, NativeSource

log = structlog.get_logger(__name__)


class InformerHost:
    """The external sources of the RMs in these partitions. Each object is one life of them: it starts once.

    The informers run in this process or in a child. The constructor opens nothing; it raises
    muster_core.external.errors.InvalidExternalSettings if an informer or event handler cannot be made.

    :param chance: makes the id of this life.
    :param usage: of this process, for watchdogs.
    """

    def __init__(
        self,
        settings: ExternalSettings,
        bus: Log,
        topics: Topics,
        clock: Clock,
        partitions: Collection[int],
        chance: Random,
        usage: Callable[[], Usage],
    ) -> None:
        life = new_uuid(chance)
        service = ExternalService(settings, bus, topics, clock, partitions, life, usage=usage)
        self._service: ExternalService | ExternalProcess = service
        self.is_empty = not (service.tables or service.natives)
        if settings.own_process and not self.is_empty:
            if service.is_of_this_process:
                log.info("informers run in this process: one of them, or a handler, was registered here")
            else:
                self._service = ExternalProcess(service, settings, bus, topics, clock, partitions, life)
        self.natives = natives_of(service, self._service, settings.sync_timeout_s, clock, life)

    @property
    def gate(self) -> SyncGate:
        """The sources that the machines of these partitions wait for."""
        return self._service.gate

    @property
    def synced(self) -> bool:
        """Whether every informer has listed or was given up."""
        return self._service.synced

    async def start(self) -> None:
        """Starts the informers. Raises the log's errors."""
        await self._service.start()

    async def wait(self) -> None:
        """Returns when all have listed or were given up. Raises NotSynced."""
        await self._service.wait()

    async def stop(self) -> None:
        """Ends the informers in bounded time."""
        await self._service.stop()

    def problems(self) -> list[str]:
        """Returns the present problems, one sentence each."""
        return [*self._service.problems(), *(self.natives.problems() if self.natives is not None else ())]


def natives_of(
    service: ExternalService, handlers: HandlerHost, sync_timeout_s: float, clock: Clock, life: str
) -> NativeConsultation | None:
    """Returns the bridge to native event handlers; None if no informer of kind ``native`` is configured."""
    sources = [
        NativeSource(
            judge.name, judge.table.rm, judge.table.partition_name, judge.handler_name, judge.drains, judge.timeout_s
        )
        for judge in service.natives.values()
    ]
    return NativeConsultation(sources, handlers, clock, life, sync_timeout_s) if sources else None
