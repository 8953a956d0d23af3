"""Makes what the embedded log has committed visible in its process: tails, watchers, waiting tasks.

It belongs to the event loop. The units come in the order of their commits. A small one is visible at once. A large one
is prepared in steps, beside other work, and then all of it becomes visible in one: no reader gets only some of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from muster_runtime.disposal import Disposal

from muster_bus.backends.sqlite_work_items import LARGE_RECORDS, AppendRun, CommitUnit, StoredPartition
from muster_bus.backends.tail import PartitionTail, TailPart

_RECORD_MEMORY_BYTES = 250  # memory of a record in the tail besides its content (tuple, bytes objects)
_TRIMMED_BYTES = 1 << 20  # dropped from the tails in one step after a large unit

# The log calls a watcher with a partition's id in the file, its lowest existing offset, and one past its highest
# visible offset.
Watcher = Callable[[int, int, int], None]


class Publisher:
    """See the module's docstring.

    :param tail_bytes: limit of all tails.
    :param count_written: by topic, counts records.
    :param processor_s: see :class:`muster_runtime.disposal.Disposal`.
    """

    def __init__(
        self, tail_bytes: int, count_written: Mapping[str, Callable[[float], None]], processor_s: Callable[[], float]
    ) -> None:
        self._tail_bytes_max, self._count_written = tail_bytes, count_written
        self._tail_order: deque[PartitionTail] = deque()  # of each part in the tails, oldest part first
        self._tail_bytes = 0
        self.watchers: list[Watcher] = []
        # Committed units that become visible in steps, oldest first; their partitions.
        self._waiting: deque[tuple[CommitUnit, BaseException | None]] = deque()
        self._waiting_partition_ids: set[int] = set()
        self._steps: Iterator[None] = iter(())
        self._disposal = Disposal(processor_s)

    @property
    def is_busy(self) -> bool:
        """Whether a committed unit is not visible yet."""
        return bool(self._waiting)

    def publish_queued(self, units: Sequence[CommitUnit], reason: BaseException | None) -> None:
        """Publishes units that the writer's thread has committed, or (``reason``) that it could not commit."""
        if not self._waiting and not any(unit.is_large for unit in units):
            self.publish(units, reason)
            return
        for unit in units:
            self._publish_later(unit, reason)

    def publish(self, units: Sequence[CommitUnit], reason: BaseException | None) -> None:
        """Publishes committed units at once, or raises the error in the waiting tasks."""
        for unit in units:
            if unit.read_by is not None:
                unit.runs[0].partition.staged = ()
            error = unit.error or reason
            if error is None:
                for run in unit.runs:
                    self._publish(run, unit.timestamp_ms)
                _end(unit)
            elif unit.done is not None and not unit.done.done():
                unit.done.set_exception(error)
        if reason is not None:
            for unit in units:
                for run in unit.runs:
                    for waiter in run.done:
                        if not waiter.done():
                            waiter.set_exception(reason)

    def notify_watchers(self, partition: StoredPartition) -> None:
        """Calls the watchers: a partition has a new end or beginning."""
        for watcher in self.watchers:
            watcher(partition.id, partition.first_offset, partition.tail.end)

    async def wait_published(self) -> None:
        """Returns when all that is committed is visible."""
        for _ in self._steps:
            await asyncio.sleep(0)

    def finish(self) -> None:
        """Publishes everything that is committed."""
        for _ in self._steps:
            pass

    def _publish_later(self, unit: CommitUnit, reason: BaseException | None) -> None:
        """Publishes a unit in steps if it is large, or if another one of its partitions is being published."""
        partition_ids = {run.partition.id for run in unit.runs}
        behind = not self._waiting_partition_ids.isdisjoint(partition_ids)
        if not behind and (reason is not None or unit.error is not None or not unit.is_large):
            self.publish((unit,), reason)
            return
        self._waiting.append((unit, reason))
        self._waiting_partition_ids |= partition_ids
        if len(self._waiting) == 1:
            self._steps = self._publish_all()
            asyncio.get_running_loop().call_soon(self._publish_more)

    def _publish_more(self) -> None:
        """One step of the units that are published in steps."""
        if next(self._steps, self) is not self:
            asyncio.get_running_loop().call_soon(self._publish_more)

    def _publish_all(self) -> Iterator[None]:
        while self._waiting:
            unit, reason = self._waiting[0]
            if reason is None and unit.error is None and unit.is_large:
                yield from self._publish_in_steps(unit)
            else:
                self.publish((unit,), reason)
            self._waiting.popleft()
            self._waiting_partition_ids = {run.partition.id for unit, _ in self._waiting for run in unit.runs}
            if self._waiting:
                yield

    def _publish_in_steps(self, unit: CommitUnit) -> Iterator[None]:
        """Makes the parts of the tails step by step, and shows all of them in one step."""
        prepared: list[tuple[AppendRun, list[TailPart]]] = []
        for run in unit.runs:
            parts: list[TailPart] = []
            for start in range(0, len(run.keys) if run.partition.readers else 0, LARGE_RECORDS):
                records = run.records(run.first_offset, unit.timestamp_ms, start, LARGE_RECORDS)
                size = sum(run.sizes[start : start + LARGE_RECORDS]) + len(records) * _RECORD_MEMORY_BYTES
                parts += run.partition.tail.split_records(run.first_offset + start, records, size)
                yield
            prepared.append((run, parts))
        for run, parts in prepared:
            tail = run.partition.tail
            # (A reader that was opened meanwhile reads the file.)
            if run.partition.readers and parts:
                tail.extend_by(parts)
                self._tail_order.extend([tail] * len(parts))
                self._tail_bytes += sum(part.size for part in parts)
            else:
                tail.skip(len(run.keys))
            self._on_run_visible(run)
        _end(unit)
        for run in unit.runs:
            self._disposal.add_lists(run.keys, run.values, run.headers, run.sizes)
        while self._tail_bytes > self._tail_bytes_max:
            self._trim(_TRIMMED_BYTES)
            yield

    def _publish(self, run: AppendRun, timestamp_ms: int) -> None:
        tail, count = run.partition.tail, len(run.keys)
        assert run.first_offset == tail.end, "commits are published in their order"
        size = run.size_bytes + count * _RECORD_MEMORY_BYTES
        if run.partition.readers:
            self._tail_order.extend([tail] * tail.extend(run.records(run.first_offset, timestamp_ms), size))
            self._tail_bytes += size
        else:
            tail.skip(count)
        self._on_run_visible(run)
        self._trim(2 * size)

    def _on_run_visible(self, run: AppendRun) -> None:
        """A run's records are visible."""
        self.notify_watchers(run.partition)
        for index, waiter in enumerate(run.done):
            if not waiter.done():
                waiter.set_result(run.first_offset + index)
        self._count_written[run.partition.topic](len(run.keys))

    def _trim(self, most: int) -> None:
        """Drops the oldest parts of the tails while these have too much, but little more than ``most`` bytes."""
        freed = 0
        while self._tail_bytes - freed > self._tail_bytes_max and freed <= most:
            freed += self._tail_order.popleft().drop_oldest()
        self._tail_bytes -= freed


def _end(unit: CommitUnit) -> None:
    if unit.done is not None and not unit.done.done():
        unit.done.set_result(None)
