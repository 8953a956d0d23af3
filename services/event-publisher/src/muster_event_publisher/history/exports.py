"""Exports of this publisher: an exporter for each sink and each partition that is this publisher's.

On Kafka the publishers of a group share the partitions out (``muster_bus.membership``): each partition is exported by
one of them. A partition that moves needs no hand-over: its next exporter asks the sink how far the last one was. While
two of them believe that a partition is theirs, a sink stores each event once all the same: PostgreSQL by its key, a
folder by a lock for each partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog
from muster_bus.membership import Assignment, Membership

from muster_event_publisher import metrics
from muster_event_publisher.history.exporter import Exporter
from muster_event_publisher.history.sink import LockingSink, Sink

log = structlog.get_logger(__name__)

_CANCEL_AGAIN_S = 1.0


class ExportManager:
    """See the module's docstring.

    :param sinks: those that the exporters write to.
    :param make: makes a partition's exporters, one for each sink.
    """

    def __init__(
        self, membership: Membership, sinks: Sequence[Sink], make: Callable[[int], Sequence[Exporter]]
    ) -> None:
        self._membership, self._sinks, self._make = membership, sinks, make
        self._exporters: dict[int, Sequence[Exporter]] = {}
        self._tasks: dict[int, list[asyncio.Task[None]]] = {}
        self._assignment: Assignment | None = None  # that is taken
        self._assigned = asyncio.Event()
        self._finishing = False

    async def start(self) -> None:
        """Begins to join the group. A publisher without sinks exports nothing, and is no member."""
        if not self._sinks:
            return
        await self._membership.start()
        if self._membership.assignment is not None:
            await self._apply_assignment(self._membership.assignment)

    async def run(self) -> None:
        """Exports what is this publisher's, for ever. Raises an exporter's error."""
        if not self._sinks:
            await asyncio.Event().wait()
        while True:
            changed = asyncio.ensure_future(self._membership.changed(self._assignment))
            try:
                await asyncio.wait({changed, *self._every()}, return_when=asyncio.FIRST_COMPLETED)
                if self._finishing:
                    return  # the exporters end; what they have is written, and new partitions are for others
                for task in self._every():
                    if task.done():
                        task.result()
                        raise RuntimeError(f"{task.get_name()} ended")
                share = changed.result()
            finally:
                changed.cancel()
            await self._apply_assignment(share)

    async def finish(self) -> None:
        """Returns when the events up to the feeds' ends are durable, as far as they are this publisher's. The feeds
        must have stopped. Afterwards the group gives the partitions to others.
        """
        if not self._sinks:
            return
        await self._assigned.wait()  # a publisher may be stopped before it is a member
        self._finishing = True
        for exporter in self.exporters:
            exporter.finish()
        await asyncio.gather(*self._every())
        await self._membership.close()

    async def close(self) -> None:
        """Ends all exporters, in any state, and leaves the group."""
        for partition in list(self._exporters):
            await self._release_partition(partition)
        await self._membership.close()

    @property
    def partitions(self) -> list[int]:
        """Those that are exported here."""
        return sorted(self._exporters)

    @property
    def publishers(self) -> int:
        """Members of the group; 0: it has not shared the partitions out."""
        share = self._membership.assignment if self._sinks else None
        return share.members if share is not None else 0

    @property
    def exporters(self) -> list[Exporter]:
        """Those that run."""
        return [exporter for exporters in self._exporters.values() for exporter in exporters]

    @property
    def problems(self) -> list[str]:
        """The faults of this moment, one sentence each."""
        problems = {exporter.problem for exporter in self.exporters if exporter.problem}
        problem = self._membership.error_text() if self._sinks else ""
        return sorted(problems) + ([problem] if problem else [])

    def _every(self) -> list[asyncio.Task[None]]:
        return [task for tasks in self._tasks.values() for task in tasks]

    async def _apply_assignment(self, share: Assignment) -> None:
        """Takes a share of the group: gives partitions up, then takes new ones."""
        for partition in [exported for exported in self._exporters if exported not in share.owned]:
            await self._release_partition(partition)
        for partition in sorted(share.owned - self._exporters.keys()):
            self._exporters[partition] = exporters = self._make(partition)
            self._tasks[partition] = [
                asyncio.create_task(exporter.run(), name=f"event publisher: export of partition {partition}")
                for exporter in exporters
            ]
        metrics.EXPORT_PARTITIONS.set(len(self._exporters))
        self._assignment = share
        self._assigned.set()

    async def _release_partition(self, partition: int) -> None:
        """Ends a partition's exporters at once: whoever exports it next reads again what they had not written."""
        tasks = self._tasks.pop(partition)
        while pending := [task for task in tasks if not task.done()]:
            for task in pending:
                task.cancel()
            await asyncio.wait(pending, timeout=_CANCEL_AGAIN_S)  # a library may swallow a cancellation
        for exporter in self._exporters.pop(partition):
            await exporter.close()
        for sink in self._sinks:
            if isinstance(sink, LockingSink):
                try:
                    await sink.release(partition)
                except Exception as error:
                    log.warning("could not release", sink=sink.name, partition=partition, error=type(error).__name__)
        metrics.EXPORT_PARTITIONS.set(len(self._exporters))
