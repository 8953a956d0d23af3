"""Derives by Faust, on Kafka: ``muster derive``. The one module that imports Faust; a plain consumer could replace it.

At least once: a batch is acknowledged when everything that it gave is on Kafka, first the derived records, then the
states. What was not acknowledged comes again, and the fold drops what it knows (usage.py, ``flush``). The states are
a Faust table with the changelog ``si.usage-state``: Faust reads it back before the first event comes.

What Faust does by itself, and why it is not wanted here (each line was a defect somewhere):

* it counts acknowledged offsets wrongly where transactions leave holes: the position is what the agents say;
* it passes over what goes wrong while a table is read back: that ends the process as well;
* it acknowledges the events of an agent that failed or was cancelled: the agents acknowledge themselves, and a failure
  ends the process without a word to the broker;
* it reads uncommitted records, unless it writes transactions: the scheduler's aborted events would be derived from;
* a table's record goes where the event in hand came from: batches say their partition themselves;
* it makes topics as it likes: ours are there already, from topics.py, with equal partitions;
* after a rebalance it reads on into tables that may be stale: the process ends and starts anew, as the same member of
  the group, which costs no further rebalance;
* agents may fall silent for good: who takes nothing although there is something, ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import faust
import structlog
from faust.auth import SASLCredentials, SSLCredentials
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport
from muster_bus.backends.kafka import KafkaLog
from muster_bus.clock import Clock
from muster_bus.errors import LogError
from muster_bus.log import Log, LogReader, OutRecord, Record
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics, parse_state_key
from muster_service.life import Life

from muster_event_publisher import metrics
from muster_event_publisher.derive.batches import PartitionDeriver
from muster_event_publisher.derive.settings import DeriveSettings
from muster_event_publisher.errors import DeriveStalled

log = structlog.get_logger(__name__)

_HEARTBEAT_S = 3.0
_REQUEST_TIMEOUT_S = 90.0
# So long may reading the states back take, in units of stall_s.
_RECOVERY_STALLS = 5
_LOOK_S = 2.0
# So many offsets before the first event after a start are looked at again.
_LOOK_BACK = 1_000


# What Faust tells of itself is for its authors; what it warns of is for us.
_faust_log = logging.getLogger("faust")


class _CommittedThread(AIOKafkaConsumerThread):
    """Reads what is committed only; Faust has no setting for it."""

    logger = _faust_log

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        if not hasattr(consumer, "_isolation_level"):
            raise AttributeError("aiokafka has another name for its consumers' isolation level")
        consumer._isolation_level = "read_committed"
        return consumer


class _CommittedConsumer(Consumer):
    """Commits the positions that the agents say.

    Faust's own count of acknowledged offsets stumbles over the hole that each transaction leaves, and gets past one
    hole a commit: behind a topic with a hundred transactions a second it falls back without end.
    """

    logger = _faust_log

    def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
        return _CommittedThread(self, loop=self.loop, beacon=self.beacon)

    def _new_offset(self, tp: Any) -> int | None:
        self._acked[tp].clear()
        self._acked_index[tp].clear()
        app: Any = self.app
        position: int | None = app.position_of(tp.partition)
        return position

    async def _add_gap(self, tp: Any, offset_from: int, offset_to: int) -> None:
        """Nothing is counted."""


class _CommittedTransport(Transport):
    Consumer: ClassVar[Any] = _CommittedConsumer


class _App(faust.App):
    """:ivar position_of: up to which offset everything of a partition is derived; None: nothing yet."""

    logger = _faust_log
    position_of: Callable[[int], int | None]

    def _new_transport(self) -> Transport:
        return _CommittedTransport(self.conf.broker_consumer, self)


class FaustDerive:
    """The service. See the module's words.

    :param bus: started, so that the topics are there; used to see what is still to come.
    """

    def __init__(self, settings: DeriveSettings, log_settings: LogSettings, bus: Log, clock: Clock) -> None:
        self.settings = settings
        self._log_settings, self._bus, self._clock = log_settings, bus, clock
        self._topics = log_settings.topics()
        self._life = Life("derive")
        self._app: _App | None = None
        self._work: list[_Agent] = []
        self._recovered = False
        self._failed = False

    async def start(self) -> None:
        """Begins to join the group; :meth:`problems` says whether the states are read back."""
        self._life.begin()
        for name in ("faust", "mode"):
            logging.getLogger(name).setLevel(logging.WARNING)
        connection = self._bus.connection() if isinstance(self._bus, KafkaLog) else {}
        self._app = app = faust_app(self.settings, self._log_settings, connection)
        app.position_of = self._position_of
        events = app.topic(
            self._topics.events, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw",
            partitions=self._topics.partitions, allow_empty=True,
        )  # fmt: skip
        states = app.Table(
            "usage-state", key_type=bytes, value_type=bytes, partitions=self._topics.partitions,
            changelog_topic=app.topic(
                self._topics.usage_state, key_type=bytes, value_type=bytes, key_serializer="raw",
                value_serializer="raw", partitions=self._topics.partitions, compacting=True, acks=False, internal=True,
                allow_empty=True, maxsize=131_072,
            ),
            on_recover=self._on_recovered,
        )  # fmt: skip
        self._states = states
        for name, wanted in (("fan-out", self.settings.fan_out), ("usage", self.settings.usage)):
            if wanted:
                work = _Agent(name, self.settings, self._bus, self._topics, app, self._fail)
                self._work.append(work)
                app.agent(events, name=name)(work.run)
        self._life.watch(self._run(app), "faust")
        self._life.watch(self._look(), "liveness")
        for work in self._work:
            self._life.watch(work.flush_now_and_then(), work.name)

    async def wait(self) -> None:
        """Returns when it was stopped."""
        await self._life.wait()

    async def stop(self) -> None:
        """Leaves; what is not acknowledged is derived next time."""
        if not self._life.begin_stop():
            return
        for work in self._work:
            await work.finish()
        if self._app is not None:
            await self._app.stop()
        await self._life.cancel_tasks()
        self._life.end()

    async def healthy(self) -> bool:
        """Whether it derives."""
        return not await self.problems()

    async def problems(self) -> list[str]:
        """What does not work now, one sentence each."""
        if not self._recovered:
            return ["the states are not read back yet"]
        return [] if await self._bus.healthy() else ["the log does not answer"]

    async def _run(self, app: faust.App) -> None:
        try:
            await app.start()
            await app.wait_until_stopped()
        except Exception as error:
            self._fail(error)
        if not self._life.stopping:
            self._fail(app.crash_reason or DeriveStalled("Faust has stopped"))

    def _fail(self, error: BaseException) -> None:
        """Ends the process at once: whatever is done in order now might acknowledge what is not derived."""
        if not self._failed and not self._life.stopping:
            self._failed = True
            log.error("deriving failed; the process ends, to begin again", exc_info=error)
            os._exit(1)

    def _position_of(self, partition: int) -> int | None:
        positions = [work.positions.get(partition) for work in self._work]
        return None if None in positions else min(position for position in positions if position is not None)

    async def _on_recovered(self) -> None:
        # (Faust would pass over an error here, and let the agents go on without their states.)
        try:
            self._take_states()
        except Exception as error:
            self._fail(error)

    def _take_states(self) -> None:
        if self._recovered:
            raise DeriveStalled("the group has other members now: this one begins anew with its part")
        # Which partitions are its own, Faust knows; the states that it read back are of these.
        states: dict[int, list[tuple[bytes, bytes]]] = {}
        for key, value in self._states.data.items():
            partition = self._topics.partition_of(parse_state_key(key)[0])
            states.setdefault(partition, []).append((key, value))
        for work in self._work:
            work.restore(states)
        self._recovered = True
        log.info("states are read back", states=len(self._states.data))

    # ---- liveness --------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        began_s = self._clock.monotonic()
        readers: dict[int, LogReader] = {}
        seen: dict[tuple[str, int], tuple[int, float]] = {}
        measured: dict[int, tuple[int, int, int]] = {}
        while True:
            await asyncio.sleep(min(_LOOK_S, self.settings.stall_s / 4))
            now_s = self._clock.monotonic()
            if not self._recovered:
                if now_s - began_s > self.settings.stall_s * _RECOVERY_STALLS:
                    self._fail(DeriveStalled(f"the states were not read back in {now_s - began_s:.0f} s"))
                continue
            for work in self._work:
                for partition, position in work.positions.items():
                    before = seen.get((work.name, partition))
                    if before is None or before[0] != position:
                        seen[work.name, partition] = (position, now_s)
                    elif now_s - before[1] > self.settings.stall_s:
                        if await self._is_more(readers, partition, position):
                            self._fail(
                                DeriveStalled(f"{work.name} took nothing of partition {partition} from {position} on")
                            )
                        seen[work.name, partition] = (position, now_s)
            for partition in {partition for work in self._work for partition in work.positions}:
                await self._measure(readers, partition, measured)

    async def _measure(
        self, readers: dict[int, LogReader], partition: int, measured: dict[int, tuple[int, int, int]]
    ) -> None:
        """Sets the lag.

        :param measured: what was found last: position, end offset, lag.
        """
        position = self._position_of(partition)
        with contextlib.suppress(LogError):
            if position is None:
                return
            end = await (await self._reader(readers, partition)).end_offset()
            lag = max(end - position, 0)
            before = measured.get(partition)
            if before is not None and before[:2] == (position, end):
                # Nothing moves: then what is left may be a transaction's marker alone, which nobody is ever given.
                lag = before[2] if before[2] and await self._has_more(readers, partition, position) else 0
            measured[partition] = (position, end, lag)
            metrics.DERIVE_LAG.labels(str(partition)).set(lag)

    async def _is_more(self, readers: dict[int, LogReader], partition: int, position: int) -> bool:
        try:
            return await self._has_more(readers, partition, position)
        except LogError:
            return False  # nobody can read now

    async def _has_more(self, readers: dict[int, LogReader], partition: int, position: int) -> bool:
        """Whether there is an event at the position or behind it. (The end offset alone counts markers.)

        Raises: LogError.
        """
        reader = await self._reader(readers, partition)
        reader.seek(max(position, await reader.first_offset()))
        return bool(await reader.read(1, 1.0))

    async def _reader(self, readers: dict[int, LogReader], partition: int) -> LogReader:
        if partition not in readers:
            readers[partition] = await self._bus.reader(self._topics.events, partition)
        return readers[partition]


class _Agent:
    """One agent: batches of events, partition by partition."""

    def __init__(
        self,
        name: str,
        settings: DeriveSettings,
        bus: Log,
        topics: Topics,
        app: faust.App,
        fail: Callable[[BaseException], None],
    ) -> None:
        self.name = name
        self.positions: dict[int, int] = {}
        self._settings, self._topics, self._app, self._fail = settings, topics, app, fail
        self._bus = bus
        self._readers: dict[int, LogReader] = {}
        self._derivers: dict[int, PartitionDeriver] = {}
        self._waiting: list[Any] = []
        self._stream: Any = None
        self._lock = asyncio.Lock()
        self._finishing = False

    def restore(self, states: dict[int, list[tuple[bytes, bytes]]]) -> None:
        """What the fold of each partition begins with."""
        if self.name == "usage":
            for partition, found in states.items():
                self._deriver(partition).restore(found)

    async def run(self, stream: Any) -> None:
        """The agent. Never ends by itself, and acknowledges nothing that is not derived."""
        self._stream = stream
        async for event in stream.noack().events():
            self._waiting.append(event)
            if len(self._waiting) >= self._settings.batch_records_max:
                await self._flush()

    async def flush_now_and_then(self) -> None:
        """Batches that do not become full."""
        while True:
            await asyncio.sleep(self._settings.batch_wait_s)
            if self._waiting:
                await self._flush()

    async def finish(self) -> None:
        """Lets what is under way come to its end, and begins nothing more."""
        self._finishing = True
        async with self._lock:
            for reader in self._readers.values():
                await reader.close()

    async def _flush(self) -> None:
        async with self._lock:
            if self._finishing:
                return
            events, self._waiting = self._waiting, []
            try:
                await self._derive(events)
            except Exception as error:
                self._fail(error)
                return
            for event in events:
                await self._stream.ack(event)

    async def _derive(self, events: Sequence[Any]) -> None:
        # 1. the fold
        delivered: dict[int, list[Record]] = {}
        for event in events:
            message = event.message
            delivered.setdefault(message.partition, []).append(_record(message))
        touched = {partition: await self._whole(partition, found) for partition, found in delivered.items()}
        records: list[OutRecord] = []
        states: list[OutRecord] = []
        for partition, found in touched.items():
            deriver = self._deriver(partition)
            deriver.take(found)
            derived = deriver.flush()
            records += derived.records
            states += derived.states
        # 2. what is derived, then the states that say that it was
        await self._send(records)
        await self._send(states)
        for partition, found in touched.items():
            if not found:
                continue
            self.positions[partition] = found[-1].offset + 1
            if self.name == "usage" or not self._settings.usage:
                metrics.DERIVED.labels(str(partition)).inc(len(found))

    async def _whole(self, partition: int, found: list[Record]) -> list[Record]:
        """What Faust delivered, with what it lost on the way and without what it delivered before.

        Right after a start it seeks while it reads, and now and then passes over events or gives them again. Where
        offsets are missing, the log is asked; mostly it has only the markers of transactions there. What the fold
        knows already, it drops by its id.
        """
        expected = self.positions.get(partition)
        if expected is None:
            # (The fold knows repeats by their ids; those who read fanned-out events have to do it themselves.)
            expected = found[0].offset - (min(_LOOK_BACK, found[0].offset) if self.name == "usage" else 0)
        found = [record for record in found if record.offset >= expected]
        if not found:
            return found
        offsets = [expected - 1, *(record.offset for record in found)]
        if all(after == before + 1 for before, after in pairwise(offsets)):
            return found
        reader = self._readers.get(partition)
        if reader is None:
            reader = self._readers[partition] = await self._bus.reader(self._topics.events, partition)
        reader.seek(max(expected, await reader.first_offset()))
        end, whole = found[-1].offset + 1, list[Record]()
        while reader.position < end:
            records = await reader.read(5_000, 5.0)
            if not records:
                raise DeriveStalled(f"partition {partition} gives nothing from {reader.position} on, though Faust did")
            whole += records
        return [record for record in whole if record.offset < end]

    async def _send(self, records: Sequence[OutRecord]) -> None:
        producer = self._app.producer
        sent: list[Awaitable[Any]] = [
            await producer.send(
                one.topic, one.key, one.value, one.partition, None, list(one.headers) if one.headers else None
            )
            for one in records
        ]
        await asyncio.gather(*sent)

    def _deriver(self, partition: int) -> PartitionDeriver:
        deriver = self._derivers.get(partition)
        if deriver is None:
            usage = self.name == "usage"
            deriver = self._derivers[partition] = PartitionDeriver(
                self._topics, partition,
                window_s=self._settings.window_s, refresh_windows=self._settings.refresh_windows,
                fan_out=not usage, usage=usage,
            )  # fmt: skip
        return deriver


def faust_app(settings: DeriveSettings, log_settings: LogSettings, connection: Mapping[str, Any]) -> _App:
    """An app without web server, leader, commands or files of its own.

    :param connection: as :meth:`KafkaLog.connection` gives it.
    """
    group = f"{log_settings.topic_prefix}{settings.group}"
    return _App(
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
        producer_max_request_size=log_settings.max_record_bytes + 65_536,
        stream_buffer_maxsize=4 * settings.batch_records_max,
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
    )


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


def _record(message: Any) -> Record:
    headers = message.headers
    pairs = headers.items() if isinstance(headers, dict) else headers or ()
    return Record(
        message.topic, message.partition, message.offset, int((message.timestamp or 0) * 1000),
        message.key, message.value, tuple(pairs),
    )  # fmt: skip
