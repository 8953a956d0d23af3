"""The driver on Kafka: ``muster derive`` uses Faust. A plain consumer could replace this module.

A Faust agent reads ``si.events``, with one actor for each partition of this process. The actor takes the waiting
events, up to a batch, and hands them to the fold (``partition_deriver.py``), which the embedded driver shares. It
writes the derived records first, then the states into a Faust table, whose changelog is ``si.usage-state``. Then it
acknowledges the batch, and Faust commits the offset from time to time. At start Faust reads the table before the agent
gets its first event, and the fold begins with those states.

Delivery is at least once: an offset is committed only when all records derived before it are on Kafka. After a crash
the events behind the committed offset are derived again. The fold recognises repeats by the event ids that the states
hold beside the sums (usage_fold.py, ``flush``).

The fold has its own windows: Faust's windows count events, but usage continues between events
(``tests/unit/publisher/test_faust_windows.py`` shows it).

``faust_patches.py`` mends Faust's defects. This module also prevents four actions of Faust:

* Faust continues after an agent has failed and regards the agent's events as done. Here any failure ends the process.
* Faust ignores errors while it reads a table back. Here they end the process.
* Faust creates topics. Here ``topics.py`` has created them, with equal numbers of partitions.
* When a process loses partitions, Faust cleans up and continues with the others. Here the process ends and starts
  again as the same member of the group, which costs no further rebalance.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import faust
import structlog
from faust.auth import SASLCredentials, SSLCredentials
from muster_bus.backends.kafka import KafkaLog
from muster_bus.errors import LogError
from muster_bus.log import Log, LogReader, Record
from muster_bus.settings import LogSettings
from muster_bus.topics import parse_state_key
from muster_runtime.processor_time import own_usage
from muster_runtime.service_lifecycle import ServiceLifecycle
from muster_runtime.watchdog import Reading, Usage, Watchdog, look_every_s

from muster_event_publisher import metrics
from muster_event_publisher.derive.faust_patches import (
    FAUST_LOG,
    PatchedConsumer,
    PatchedStream,
    PatchedTable,
    PatchedTransport,
)
from muster_event_publisher.derive.partition_deriver import PartitionDeriver
from muster_event_publisher.derive.settings import DeriveSettings
from muster_event_publisher.errors import DeriveStalled

log = structlog.get_logger(__name__)

_HEARTBEAT_S = 3.0
_REQUEST_TIMEOUT_S = 90.0
# Chance while the states are read back, in units of stall_s.
_RECOVERY_STALLS = 5
_LAG_INTERVAL_S = 2.0
# Each partition has one batch of records under way, so a batch should be large.
_SEND_BYTES, _LINGER_S = 1_048_576, 0.005


class _App(faust.App):
    logger = FAUST_LOG


class FaustDerive:
    """The deriving service on Kafka; see the module's docstring.

    :param bus: started, so that the topics exist; used to measure the lag.
    :ivar positions: by partition, the offset up to which all derived records are written.
    """

    def __init__(
        self,
        settings: DeriveSettings,
        log_settings: LogSettings,
        bus: Log,
        usage: Callable[[], Usage] = own_usage,
    ) -> None:
        self.settings = settings
        self.positions: dict[int, int] = {}
        self._log_settings, self._bus, self._usage = log_settings, bus, usage
        self._topics = log_settings.topics()
        self._lifecycle = ServiceLifecycle("derive")
        self._app: faust.App | None = None
        self._states: Any = None
        self._derivers: dict[int, PartitionDeriver] = {}
        self._batch_locks: dict[int, asyncio.Lock] = {}
        self._waiting: dict[int, int] = {}  # by partition, the position at which events wait
        self._recovered = False
        self._failed = False

    async def start(self) -> None:
        """Begins to join the group; :meth:`problems` names the states as missing until they are read back."""
        self._lifecycle.start()
        for name in ("faust", "mode"):
            logging.getLogger(name).setLevel(logging.WARNING)
        connection = self._bus.connection() if isinstance(self._bus, KafkaLog) else {}
        self._app = app = faust_app(self.settings, self._log_settings, connection)
        partitions = self._topics.partitions
        raw: Any = {
            "key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw",
            "partitions": partitions, "allow_empty": True,
        }  # fmt: skip
        self._states = app.Table(
            "usage-state", key_type=bytes, value_type=bytes, partitions=partitions, on_recover=self._on_recovered,
            changelog_topic=app.topic(
                self._topics.usage_state, compacting=True, acks=False, internal=True, maxsize=131_072, **raw
            ),
        )  # fmt: skip
        app.agent(app.topic(self._topics.events, **raw), name="derive", isolated_partitions=True)(self._derive)
        revoked: Any = app.on_partitions_revoked
        revoked.connect(self._on_revoked)
        self._lifecycle.spawn(self._run(app), "faust")
        self._lifecycle.spawn(self._measure_lags(), "lag")
        self._lifecycle.spawn(self._watch(), "watchdog")

    async def wait(self) -> None:
        """Returns when the service was stopped."""
        await self._lifecycle.wait()

    async def stop(self) -> None:
        """Leaves the group; the next start derives the events that are not committed."""
        if not self._lifecycle.begin_stop():
            return
        # The batches under way end and are committed; no new batch begins.
        for turn in self._batch_locks.values():
            await turn.acquire()
        if self._app is not None:
            await self._app.stop()
        await self._lifecycle.cancel_tasks()
        self._lifecycle.finish()

    async def healthy(self) -> bool:
        """Whether the service derives."""
        return not await self.problems()

    async def problems(self) -> list[str]:
        """The faults of this moment, one sentence each."""
        if not self._recovered:
            return ["the states are not read back yet"]
        return [] if await self._bus.healthy() else ["the log does not answer"]

    async def _run(self, app: faust.App) -> None:
        try:
            await app.start()
            await app.wait_until_stopped()
        except Exception as error:
            self._fail(error)
        if not self._lifecycle.stopping:
            self._fail(app.crash_reason or DeriveStalled("Faust has stopped"))

    def _fail(self, error: BaseException) -> None:
        """Ends the process at once: an orderly stop could acknowledge events that are not derived."""
        if not self._failed and not self._lifecycle.stopping:
            self._failed = True
            log.error("deriving failed; the process ends, to begin again", exc_info=error)
            os._exit(1)

    # ---- the states ------------------------------------------------------------------------------------------------

    async def _on_recovered(self) -> None:
        # (Faust would ignore an error here and let the agent continue without its states.)
        try:
            self._restore_derivers()
        except Exception as error:
            self._fail(error)

    def _restore_derivers(self) -> None:
        if self._recovered:
            raise DeriveStalled("the group has other members now: this member starts again with its partitions")
        # Faust has read back the states of this process's partitions, and no others.
        states: dict[int, list[tuple[bytes, bytes]]] = {}
        for key, value in self._states.items():
            partition = self._topics.partition_of(parse_state_key(key)[0])
            states.setdefault(partition, []).append((key, value))
        for partition, pairs in states.items():
            self._deriver(partition).restore(pairs)
        self._recovered = True
        log.info("states are read back", states=len(self._states))

    async def _on_revoked(self, _app: Any, revoked: set[Any], **_: Any) -> None:
        # (Another member may take these partitions as soon as this method returns.)
        if revoked and self._recovered:
            self._fail(DeriveStalled("the group changes: this member starts again with its partitions"))

    def _deriver(self, partition: int) -> PartitionDeriver:
        deriver = self._derivers.get(partition)
        if deriver is None:
            settings = self.settings
            deriver = self._derivers[partition] = PartitionDeriver(
                self._topics, partition,
                window_s=settings.window_s, refresh_windows=settings.refresh_windows,
                fan_out=settings.fan_out, usage=settings.usage,
            )  # fmt: skip
        return deriver

    # ---- the agent -------------------------------------------------------------------------------------------------

    async def _derive(self, stream: Any) -> None:
        """An actor: derives from one partition, batch by batch."""
        try:
            enough, wait_s = self.settings.batch_records_max, self.settings.batch_wait_s
            async for batch in stream.batches(enough, max(enough, self.settings.backlog_records_max), wait_s):
                await self._batch(batch)
        except Exception as error:
            self._fail(error)

    async def _batch(self, batch: Sequence[Any]) -> None:
        assert self._app is not None
        producer: Any = self._app.producer
        partition = batch[0].message.partition
        async with self._batch_locks.setdefault(partition, asyncio.Lock()):
            # 1. the fold
            deriver = self._deriver(partition)
            deriver.derive([_record(event.message) for event in batch])
            derived = deriver.flush()
            # 2. the derived records, then the states that cover them
            await producer.send_all(derived.records)
            for state in derived.states:
                if state.value is not None:
                    self._states[state.key] = state.value
                elif state.key in self._states:
                    del self._states[state.key]
            await self._states.written()
            # 3. the offset
            for event in batch:
                event.ack()
            self.positions[partition] = batch[-1].message.offset + 1
            metrics.DERIVED.labels(str(partition)).inc(len(batch))

    # ---- liveness --------------------------------------------------------------------------------------------------

    async def _measure_lags(self) -> None:
        """Measures the lag regularly, and notes where events wait; never returns."""
        readers: dict[int, LogReader] = {}
        measured: dict[int, tuple[int, int, int]] = {}
        while True:
            await asyncio.sleep(min(_LAG_INTERVAL_S, self.settings.stall_s / 4))
            if not self._recovered:
                continue
            for tp, offset in self._start_offsets().items():
                if tp.topic == self._topics.events:
                    self.positions.setdefault(tp.partition, offset)
            for partition, position in list(self.positions.items()):
                if await self._measure(readers, partition, position, measured):
                    self._waiting[partition] = position
                else:
                    self._waiting.pop(partition, None)

    async def _watch(self) -> None:
        """Ends the process when it takes nothing although it has much available time (``muster_runtime.watchdog``)."""
        loop, stall_s = asyncio.get_running_loop(), self.settings.stall_s
        recovery, partitions = Watchdog(), defaultdict[int, Watchdog](Watchdog)
        while True:
            due_s = loop.time() + look_every_s(stall_s)
            await asyncio.sleep(due_s - loop.time())
            now_s = loop.time()
            reading = Reading(now_s, now_s - due_s, self._usage())
            if not recovery.moves(self._recovered) and not self._recovered:
                if recovery.look(reading, stall_s * _RECOVERY_STALLS):
                    self._fail(DeriveStalled(f"the states were not read back in {recovery.available_s:.3g} s"))
                continue
            for partition in [watched for watched in partitions if watched not in self._waiting]:
                del partitions[partition]
            for partition, position in self._waiting.items():
                watchdog = partitions[partition]
                if not watchdog.moves(self.positions.get(partition)) and watchdog.look(reading, stall_s):
                    self._fail(DeriveStalled(f"nothing was taken of partition {partition} from {position} on"))

    def _start_offsets(self) -> Mapping[Any, int]:
        """The offsets at which the agent began: the positions of partitions that have had no event yet."""
        consumer: Any = self._app.consumer if self._app is not None else None
        return consumer.start_offsets if isinstance(consumer, PatchedConsumer) else {}

    async def _measure(
        self, readers: dict[int, LogReader], partition: int, position: int, measured: dict[int, tuple[int, int, int]]
    ) -> int:
        """Sets the lag metric, and returns the lag. Where the log does not answer now, that is 0.

        :param measured: by partition, the last position, end offset and lag.
        """
        try:
            end = await (await self._reader(readers, partition)).end_offset()
            lag = max(end - position, 0)
            before = measured.get(partition)
            if before is not None and before[:2] == (position, end):
                # No position has changed: perhaps only a transaction's marker is left, which no reader ever receives.
                lag = before[2] if before[2] and await self._has_more(readers, partition, position) else 0
        except LogError:
            return 0
        measured[partition] = (position, end, lag)
        metrics.DERIVE_LAG.labels(str(partition)).set(lag)
        return lag

    async def _has_more(self, readers: dict[int, LogReader], partition: int, position: int) -> bool:
        """Whether an event follows at or after the position. (The end offset counts transaction markers, too.)

        Raises: LogError.
        """
        reader = await self._reader(readers, partition)
        reader.seek(max(position, await reader.first_offset()))
        return bool(await reader.read(1, 1.0))

    async def _reader(self, readers: dict[int, LogReader], partition: int) -> LogReader:
        if partition not in readers:
            readers[partition] = await self._bus.reader(self._topics.events, partition)
        return readers[partition]


def _record(message: Any) -> Record:
    """Faust's message as a record of the log."""
    headers = message.headers.items() if isinstance(message.headers, dict) else message.headers or ()
    return Record(
        message.topic, message.partition, message.offset, int((message.timestamp or 0) * 1_000),
        message.key, message.value, tuple(headers),
    )  # fmt: skip


def faust_app(settings: DeriveSettings, log_settings: LogSettings, connection: Mapping[str, Any]) -> faust.App:
    """A Faust app without a web server, a leader, commands or files of its own.

    :param connection: as :meth:`KafkaLog.connection` gives it.
    """
    group = f"{log_settings.topic_prefix}{settings.group}"
    app = _App(
        group,
        broker=[f"kafka://{server.strip()}" for server in log_settings.kafka_bootstrap_servers.split(",")],
        broker_credentials=_credentials(connection),
        broker_session_timeout=settings.session_timeout_s,
        broker_heartbeat_interval=min(_HEARTBEAT_S, settings.session_timeout_s / 3),
        broker_request_timeout=max(_REQUEST_TIMEOUT_S, settings.session_timeout_s + 10),
        broker_commit_interval=settings.commit_interval_s,
        consumer_group_instance_id=f"{group}-{settings.member}",
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=log_settings.kafka_fetch_max_bytes,
        producer_acks=-1,
        producer_linger=_LINGER_S,
        producer_max_batch_size=_SEND_BYTES,
        producer_max_request_size=log_settings.max_record_bytes + 65_536,
        stream_buffer_maxsize=2 * max(settings.batch_records_max, settings.backlog_records_max),
        stream_wait_empty=False,
        stream_recovery_delay=0.0,
        table_standby_replicas=0,
        topic_allow_declare=False,
        topic_disable_leader=True,
        topic_partitions=log_settings.partitions,
        store="memory://",
        key_serializer="raw",
        value_serializer="raw",
        datadir=str(Path(tempfile.gettempdir()) / f"{group}-{os.getpid()}"),
        autodiscover=False,
        web_enabled=False,
        worker_redirect_stdouts=False,
        Stream=PatchedStream,
        Table=PatchedTable,
    )
    app.transport = PatchedTransport(app.conf.broker_consumer, app)
    return app


def _credentials(connection: Mapping[str, Any]) -> SASLCredentials | SSLCredentials | None:
    context = connection.get("ssl_context")
    if "sasl_mechanism" in connection:
        return SASLCredentials(
            username=connection["sasl_plain_username"],
            password=connection["sasl_plain_password"],
            mechanism=connection["sasl_mechanism"],
            ssl_context=context,
        )
    return SSLCredentials(context) if context is not None else None
