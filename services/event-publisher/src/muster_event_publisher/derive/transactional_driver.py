"""The driver in transactions of the log: a batch's derived records and the position behind it are committed together.

``muster up`` uses it on the embedded log. After a crash the driver continues exactly at the committed position and
repeats no record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from muster_bus.clock import Clock
from muster_bus.damage import DamagedParts, PassingReaders, Readers
from muster_bus.errors import LogUnavailable, OffsetOutOfRange, TransactionFailed
from muster_bus.log import Log, LogReader, PartitionOwner, Record
from muster_bus.topics import Topics
from muster_runtime.backoff import aligned_s
from muster_runtime.service_lifecycle import ServiceLifecycle

from muster_event_publisher import metrics
from muster_event_publisher.derive.partition_deriver import PartitionDeriver
from muster_event_publisher.derive.settings import DeriveSettings

log = structlog.get_logger(__name__)

# Records between two pauses: about a millisecond of work.
_SLICE = 50
# Pauses while others' work is urgent, so that it gets the processor; it may be urgent all the time.
_URGENT_PAUSES, _URGENT_PAUSE_S = 10, 0.01
_POLL_S = 1.0
_READ_TIMEOUT_S = 5.0
_RESTORE_RECORDS = 5_000


class PlainDerive:
    """Derives from every partition; see the module's docstring.

    :param bus: started by the caller, who also closes it.
    :param is_urgent: whether others in this process have work that somebody waits for.
    """

    def __init__(
        self,
        settings: DeriveSettings,
        bus: Log,
        topics: Topics,
        clock: Clock,
        *,
        is_urgent: Callable[[], bool] = lambda: False,
    ) -> None:
        self.settings, self._is_urgent = settings, is_urgent
        self._bus, self._topics, self._clock = bus, topics, clock
        self._damage = DamagedParts("nothing is derived from the records in them: usage lacks it")
        self._readers = PassingReaders(bus, self._damage)
        self._lifecycle = ServiceLifecycle("derive")
        self._troubles: dict[int, str] = {}

    async def start(self) -> None:
        """Starts one task for each partition; returns at once."""
        self._lifecycle.start()
        for partition in range(self._topics.partitions):
            self._lifecycle.spawn(self._derive(partition), f"partition-{partition}")

    async def wait(self) -> None:
        """Returns when the service was stopped; raises the error that ended it."""
        await self._lifecycle.wait()

    async def stop(self) -> None:
        """Ends at once; the next start derives the rest."""
        if self._lifecycle.begin_stop():
            await self._lifecycle.cancel_tasks()
            self._lifecycle.finish()

    async def healthy(self) -> bool:
        """Whether every partition works, if only behind a damaged part of the log."""
        return not self._troubles

    async def problems(self) -> list[str]:
        """The faults of this moment, one sentence each."""
        problems = [f"partition {partition}: {text}" for partition, text in sorted(self._troubles.items())]
        return problems + self._damage.problems()

    async def _derive(self, partition: int) -> None:
        pause_s = self.settings.retry_min_s
        while True:
            parts: list[LogReader | PartitionOwner] = []
            began_s = self._clock.monotonic()
            try:
                await self._derive_until_it_fails(partition, parts)
            except (LogUnavailable, TransactionFailed) as error:
                # The state in memory may be ahead of the log: it is dropped and folded again from the log.
                self._troubles[partition] = f"the log does not accept derived records: {error}"
                log.warning("deriving begins again", partition=partition, error=str(error), retry_s=pause_s)
            finally:
                for part in parts:
                    await part.close()
            if self._clock.monotonic() - began_s > self.settings.retry_max_s:
                pause_s = self.settings.retry_min_s
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, self.settings.retry_max_s)

    async def _derive_until_it_fails(self, partition: int, parts: list[LogReader | PartitionOwner]) -> None:
        settings, topics = self.settings, self._topics
        # 1. take over: fence the old owner, find the committed offset, seek, fold the states, read
        owner = await self._bus.take_over("derive", topics.events, partition)
        parts.append(owner)
        committed = await owner.committed()
        reader = await self._readers.reader(topics.events, partition, committed)
        parts.append(reader)
        deriver = PartitionDeriver(
            topics, partition,
            window_s=settings.window_s, refresh_windows=settings.refresh_windows,
            fan_out=settings.fan_out, usage=settings.usage,
        )  # fmt: skip
        deriver.restore(await _states(self._readers, topics, partition, parts))
        self._troubles.pop(partition, None)
        # 2. batch by batch
        while True:
            try:
                records = await reader.read(settings.batch_records_max, aligned_s(_POLL_S))
            except OffsetOutOfRange as gone:
                metrics.DERIVE_MISSING.inc(gone.first - gone.position)
                log.error("events were deleted before anything was derived from them", error=str(gone))
                reader.seek(gone.first)
                continue
            if not records:
                continue
            for start in range(0, len(records), _SLICE):
                began_s = self._clock.monotonic()
                deriver.derive(records[start : start + _SLICE])
                await self._rest(self._clock.monotonic() - began_s)
            began_s = self._clock.monotonic()
            derived = deriver.flush()
            await self._rest(self._clock.monotonic() - began_s)
            await owner.commit([*derived.records, *derived.states], reader.position)
            metrics.DERIVED.labels(str(partition)).inc(len(records))
            metrics.DERIVE_LAG.labels(str(partition)).set(max(await reader.end_offset() - reader.position, 0))
            # 3. wait for more: few large transactions cost less than many small ones
            if len(records) < settings.batch_records_max:
                await asyncio.sleep(settings.batch_wait_s)

    async def _rest(self, worked_s: float) -> None:
        """Pauses so long that deriving uses only its share of the processor; longer while others' work is urgent."""
        await asyncio.sleep(worked_s * (1 / self.settings.processor_share - 1))
        for _ in range(_URGENT_PAUSES):
            if not self._is_urgent():
                break
            await asyncio.sleep(_URGENT_PAUSE_S)


async def _states(
    bus: Readers, topics: Topics, partition: int, parts: list[LogReader | PartitionOwner]
) -> list[tuple[bytes, bytes]]:
    """The newest state of each key."""
    reader = await bus.reader(topics.usage_state, partition)
    parts.append(reader)
    end = await reader.end_offset()
    newest: dict[bytes, bytes] = {}
    while (before := reader.position) < end:
        records = await reader.read(_RESTORE_RECORDS, _READ_TIMEOUT_S)
        if not records and reader.position == before:
            raise LogUnavailable(f"{topics.usage_state}[{partition}] gives no records before its end {end}")
        for record in records:
            _apply_record(newest, record)
    return list(newest.items())


def _apply_record(newest: dict[bytes, bytes], record: Record) -> None:
    assert record.key is not None, "a compacted topic takes no record without a key"
    if record.value is None:
        newest.pop(record.key, None)
    else:
        newest[record.key] = record.value
