"""The event settings of each RM: the publisher follows the RMs' registrations on ``si.state``.

An RM sends its settings in ``extraConfig`` (``muster_runtime.event_settings`` has the keys), and the scheduler records
them with the RM's registration. For the others the publisher's own settings apply. The same reader notes the queues of
applications (``app_queues``), whose objects are on the same topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import structlog
from muster_bus.damage import Readers
from muster_bus.errors import LogError, LogUnavailable, OffsetOutOfRange
from muster_bus.log import LogReader
from muster_bus.topics import Topics, is_forgotten_state_key, is_rm_state_key, parse_state_key
from muster_runtime import event_settings
from muster_runtime.backoff import aligned_s
from muster_runtime.event_settings import EventSettings
from muster_runtime.service_lifecycle import gather_all

from muster_event_publisher.app_queues import APPLICATION, AppQueues
from muster_event_publisher.event_decoding import forgotten_stamp, recorded_rm, registered_extra_config
from muster_event_publisher.settings import PublisherSettings
from muster_event_publisher.shown import ShownEvents

log = structlog.get_logger(__name__)

# The kind of a registration's record, as the scheduler writes it into the key.
REGISTRATION = "reg"
_MARK, _APPLICATION_MARK = f"/{REGISTRATION}/".encode(), f"/{APPLICATION}/".encode()
_READ_RECORDS = 10_000
_READ_TIMEOUT_S = 5.0
# Pause after a read that gave records: registrations are rare on this topic, and not urgent.
_REST_S = 0.25


class RmSettings:
    """The settings in force, by RM.

    :param changed: called with the id of an RM whose settings have changed since :meth:`start`.
    :ivar event_progress: by partition, gets the RMs' objects; empty: nobody needs them. Set before :meth:`start`.
    """

    def __init__(
        self,
        bus: Readers,
        topics: Topics,
        own: PublisherSettings,
        changed: Callable[[str], None],
    ) -> None:
        self.event_progress: Sequence[ShownEvents] = ()
        self._bus, self._topics, self._changed = bus, topics, changed
        self._retry_s = (own.retry_min_s, own.retry_max_s)
        self._poll_s, self._start_s = own.poll_s, own.rm_settings_timeout_s
        self._own = EventSettings(
            tracking_enabled=own.tracking_enabled,
            request_store_capacity=own.request_store_capacity,
            ring_buffer_capacity=own.ring_capacity,
            rest_response_size=own.rest_response_size,
            max_streams=own.max_streams,
            max_streams_per_host=own.max_streams_per_host,
        )
        self.app_queues = AppQueues()
        self._declared: dict[str, EventSettings] = {}
        self._stopped: set[str] = set()
        self._forgotten: set[str] = set()
        self._reported_problems: dict[str, list[str]] = {}
        self._readers: dict[int, LogReader] = {}
        self._late: set[int] = set()

    def settings_for(self, rm_id: str) -> EventSettings:
        """The RM's settings; the publisher's own for an unknown RM."""
        declared = self._declared.get(rm_id)
        if declared is None:
            return self._own
        names = declared.given
        return replace(self._own, **{name: getattr(declared, name) for name in names}, given=names)

    def tracks(self, rm_id: str) -> bool:
        """Whether the RM's events are collected and given out (the event history design: a ring of size 0 turns it off
        as well).
        """
        settings = self.settings_for(rm_id)
        return settings.tracking_enabled and settings.ring_buffer_capacity > 0

    def ring_capacity(self, rm_id: str) -> int:
        """Events that the RM's ring holds."""
        return self.settings_for(rm_id).ring_buffer_capacity if self.tracks(rm_id) else 0

    def registered(self, partition: int | None = None) -> list[str]:
        """The registered RMs: all, or those of a partition."""
        rm_ids = [rm for rm in self._declared if partition is None or self._topics.partition_of(rm) == partition]
        return sorted(rm_ids)

    def stopped_by_rm(self, rm_ids: Iterable[str]) -> dict[str, bool]:
        """Whether each RM is stopped; without the RMs that an operator made the scheduler forget."""
        return {rm_id: rm_id in self._stopped for rm_id in rm_ids if rm_id not in self._forgotten}

    @property
    def problems(self) -> list[str]:
        """The faults of this moment, one sentence each."""
        return [
            f"the settings of the RMs of partition {partition} are not read yet" for partition in sorted(self._late)
        ]

    async def start(self) -> None:
        """Reads the present registrations, for at most ``rm_settings_timeout_s``; then it warns and goes on."""
        partitions = range(self._topics.partitions)
        self._late = set(partitions)
        for partition in partitions:
            self._readers[partition] = await self._bus.reader(self._topics.state, partition)
        try:
            async with asyncio.timeout(self._start_s):
                # (All reads have ended by then: follow() continues with the same readers.)
                await gather_all(map(self._read_all, partitions))
        except (TimeoutError, LogError) as error:
            log.warning(
                "the RMs' event settings are not read yet; until then the publisher's own hold",
                partitions=sorted(self._late),
                within_s=self._start_s,
                error=str(error) or type(error).__name__,
            )

    async def follow(self, partition: int) -> None:
        """Takes the registrations from now on; never returns."""
        reader, (pause_s, pause_max_s) = self._readers[partition], self._retry_s
        end = await self._end_to_be_read(partition)
        while True:
            try:
                records = await self._read(reader, aligned_s(self._poll_s))
            except LogUnavailable as error:
                log.warning("the log does not answer", partition=partition, error=str(error), retry_s=pause_s)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, pause_max_s)
                continue
            pause_s = self._retry_s[0]
            if reader.position >= end or not records:
                self._late.discard(partition)
            if records and partition in self._late:
                await asyncio.sleep(0)
            elif records:
                await self._rest(partition)

    async def _rest(self, partition: int) -> None:
        """Pauses until a read waits for what the state says."""
        if self.event_progress:
            await self.event_progress[partition].needed.wait(_REST_S)
        else:
            await asyncio.sleep(_REST_S)

    async def close(self) -> None:
        for reader in self._readers.values():
            await reader.close()

    async def _read_all(self, partition: int) -> None:
        reader = self._readers[partition]
        end = await reader.end_offset()
        count = 1
        while reader.position < end and count:
            count = await self._read(reader, _READ_TIMEOUT_S)
        self._late.discard(partition)

    async def _end_to_be_read(self, partition: int) -> int:
        if partition not in self._late:
            return 0
        try:
            return await self._readers[partition].end_offset()
        except LogError:
            return 0

    async def _read(self, reader: LogReader, timeout_s: float) -> int:
        """Takes the registrations among the next records; gives the number of records."""
        position = reader.position
        try:
            records = await reader.read(_READ_RECORDS, timeout_s)
        except OffsetOutOfRange as gone:
            reader.seek(gone.first)  # compacted: the missing records have newer ones, or their objects are gone
            return 1
        except asyncio.CancelledError:
            reader.seek(position)  # the time at start is up: follow() continues here
            raise
        lives: dict[bytes, bytes | None] = {}
        for record in records:
            # Nearly all records here are other objects: the keys tell, without decoding.
            key = record.key
            if is_rm_state_key(key):
                lives[key or b""] = record.value  # (each transaction writes one: the last one counts)
            elif is_forgotten_state_key(key):
                self._apply_forgotten(record.partition, key or b"", record.value)
            elif key is not None and (_MARK in key or _APPLICATION_MARK in key):
                self._apply_object(key, record.value)
        for key, value in lives.items():
            self._apply_rm_state(records[0].partition, key, value)
        if records and self.event_progress:
            self.event_progress[records[0].partition].was_read()
        return len(records) or int(reader.position > position)

    def _apply_object(self, key: bytes, value: bytes | None) -> None:
        try:
            rm_id, kind, parts = parse_state_key(key)
        except ValueError:
            return
        if kind == REGISTRATION:
            self._apply_registration(rm_id, value)
        elif kind == APPLICATION and len(parts) == 2:
            self.app_queues.fold(rm_id, parts[1], value)

    def _apply_rm_state(self, partition: int, key: bytes, value: bytes | None) -> None:
        rm_id = parse_state_key(key)[0]
        recorded = recorded_rm(value) if value is not None else None
        if recorded is not None and recorded.is_stopped:
            self._stopped.add(rm_id)
        else:
            self._stopped.discard(rm_id)
        if not self.event_progress:
            return
        if recorded is None:
            self.event_progress[partition].drop(rm_id)
        else:
            self.event_progress[partition].note(rm_id, recorded.stamp, recorded.instance, recorded.next_event_id)

    def _apply_forgotten(self, partition: int, key: bytes, value: bytes | None) -> None:
        rm_id = parse_state_key(key)[0]
        if value is not None and self.event_progress:
            self.event_progress[partition].note_stamp(forgotten_stamp(value))
        if value is None:
            self._forgotten.discard(rm_id)  # it registers again
        else:
            self._forgotten.add(rm_id)

    def _apply_registration(self, rm_id: str, value: bytes | None) -> None:
        before = self.settings_for(rm_id)
        if value is None:
            self._declared.pop(rm_id, None)
            self._reported_problems.pop(rm_id, None)
        else:
            extra_config = registered_extra_config(value)
            if extra_config is None:
                log.error("a registration cannot be read; the RM's event settings stay as they are", rm=rm_id)
                return
            declared, problems = event_settings.read(extra_config, self._declared.get(rm_id, event_settings.DEFAULT))
            self._declared[rm_id] = declared
            # The scheduler writes the record again with every configuration: a known problem is not logged again.
            for problem in problems:
                if problem not in self._reported_problems.get(rm_id, ()):
                    log.warning("an event setting of an RM is not in force", rm=rm_id, problem=problem)
            self._reported_problems[rm_id] = problems
        if self.settings_for(rm_id) != before:
            log.info("event settings of an RM have changed", rm=rm_id, given=sorted(self.settings_for(rm_id).given))
            self._changed(rm_id)
