"""Derives by Faust, on Kafka: ``muster derive``. The one module that imports Faust; a plain consumer could replace it.

Faust has the group and the table: which partitions are this process's, from which offset on, and with which states (the
changelog ``si.usage-state``, read back before anything is derived); and it writes. The events themselves are read by
our own reader, from the committed place on, in order and each once: a stream of Faust's loses and repeats events right
after a start, because it fetches before it has sought its place, and may fall silent for good (measured: one start in
five). So its stream is only drained, which the broker takes for a sign of life.

At least once: the place is committed when everything before it is on Kafka, first the derived records, then the states.
What was derived and not committed is derived again, and the fold drops what it knows (usage.py, ``flush``).

What else Faust does by itself, and why it is not wanted here (each line was a defect somewhere):

* it commits what its agents acknowledged, counted wrongly where transactions leave holes, and those of an agent that
  failed, too: nothing is acknowledged, and the place is what was derived;
* it passes over what goes wrong while a table is read back: that ends the process as well, without a word to the
  broker;
* a table's record goes where the event in hand came from: batches say their partition themselves;
* it makes topics as it likes: ours are there already, from topics.py, with equal partitions;
* after a rebalance it reads on into tables that may be stale: the process ends and starts anew, as the same member of
  the group, which costs no further rebalance.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import faust
import structlog
from faust.auth import SASLCredentials, SSLCredentials
from faust.transport.drivers.aiokafka import Consumer, Transport
from muster_bus.backends.kafka import KafkaLog
from muster_bus.clock import Clock
from muster_bus.errors import LogError, LogUnavailable
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
# So long a read waits for the first event, and so long one that found no log for the next try.
_READ_S = 1.0
_AWAY_S = 1.0


# What Faust tells of itself is for its authors; what it warns of is for us.
_faust_log = logging.getLogger("faust")


class _PlacesConsumer(Consumer):
    """Says from where on the group's part is to be read, and commits the places that are said of it."""

    logger = _faust_log

    async def perform_seek(self) -> None:
        """Called when the tables are read back, and now and then."""
        await super().perform_seek()
        app: Any = self.app
        app.begin({tp.partition: self._committed_offset.get(tp) for tp in self._own()})

    async def commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
        """Commits every place that moved. (Faust calls it now and then, and at the end.)"""
        app: Any = self.app
        places: dict[Any, int] = {}
        for tp in self._own():
            position = app.position_of(tp.partition)
            if position is not None and position != self._committed_offset.get(tp):
                places[tp] = position
        if not places or not await self._commit(places):
            return False
        self._committed_offset.update(places)
        return True

    def _own(self) -> list[Any]:
        app: Any = self.app
        return [tp for tp in self.assignment() if tp.topic == app.events]

    async def _add_gap(self, tp: Any, offset_from: int, offset_to: int) -> None:
        """Nothing is counted."""


class _PlacesTransport(Transport):
    Consumer: ClassVar[Any] = _PlacesConsumer


class _App(faust.App):
    """
    :ivar events: the topic that is derived from.
    :ivar begin: called with the group's place in each partition of it that is this process's; None: it has none yet.
    :ivar position_of: up to which offset everything of a partition is derived; None: it is not known yet.
    """

    logger = _faust_log
    events: str
    begin: Callable[[Mapping[int, int | None]], None]
    position_of: Callable[[int], int | None]

    def _new_transport(self) -> Transport:
        return _PlacesTransport(self.conf.broker_consumer, self)


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
        self._work: list[_Work] = []
        self._recovered = False
        self._begun = False
        self._failed = False

    async def start(self) -> None:
        """Begins to join the group; :meth:`problems` says whether the states are read back."""
        self._life.begin()
        for name in ("faust", "mode"):
            logging.getLogger(name).setLevel(logging.WARNING)
        connection = self._bus.connection() if isinstance(self._bus, KafkaLog) else {}
        self._app = app = faust_app(self.settings, self._log_settings, connection)
        app.events, app.begin, app.position_of = self._topics.events, self._begin, self._position_of
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
        app.agent(events, name="group")(_drain)
        for name, wanted in (("fan-out", self.settings.fan_out), ("usage", self.settings.usage)):
            if wanted:
                self._work.append(_Work(name, self.settings, self._bus, self._topics, app))
        self._life.watch(self._run(app), "faust")
        self._life.watch(self._look(), "liveness")

    async def wait(self) -> None:
        """Returns when it was stopped."""
        await self._life.wait()

    async def stop(self) -> None:
        """Leaves; what is not committed is derived next time."""
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

    def _begin(self, places: Mapping[int, int | None]) -> None:
        """The states are read back, and the group's places are known: the events can come."""
        if self._begun or not self._recovered:
            return  # (Faust seeks again whenever it has thrown away what it had fetched.)
        self._begun = True
        for work in self._work:
            for partition, place in places.items():
                self._life.watch(self._derive(work, partition, place), f"{work.name}-{partition}")

    async def _derive(self, work: _Work, partition: int, place: int | None) -> None:
        try:
            await work.run(partition, place)
        except Exception as error:
            self._fail(error)

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


async def _drain(stream: Any) -> None:
    """Lets Faust see that its stream is read. What comes is not looked at."""
    async for _ in stream.noack().events():
        pass


class _Work:
    """One kind of work: it reads its partitions, batch by batch, and writes what follows.

    :ivar positions: by partition, up to which offset everything is derived and written.
    """

    def __init__(self, name: str, settings: DeriveSettings, bus: Log, topics: Topics, app: faust.App) -> None:
        self.name = name
        self.positions: dict[int, int] = {}
        self._settings, self._topics, self._app, self._bus = settings, topics, app, bus
        self._derivers: dict[int, PartitionDeriver] = {}
        self._lock = asyncio.Lock()
        self._finishing = False

    def restore(self, states: dict[int, list[tuple[bytes, bytes]]]) -> None:
        """What the fold of each partition begins with."""
        if self.name == "usage":
            for partition, found in states.items():
                self._deriver(partition).restore(found)

    async def run(self, partition: int, place: int | None) -> None:
        """Derives a partition, for ever. Raises what ends the process.

        :param place: where to begin; None: with the oldest event that there is.
        """
        while True:
            try:
                await self._follow(partition, place)
            except LogUnavailable as error:
                log.warning("the log does not answer", work=self.name, partition=partition, why=str(error))
                await asyncio.sleep(_AWAY_S)
            place = self.positions.get(partition, place)

    async def _follow(self, partition: int, place: int | None) -> None:
        reader = await self._bus.reader(self._topics.events, partition)
        try:
            first = await reader.first_offset()  # (what retention took is gone)
            reader.seek(first if place is None else max(place, first))
            self.positions[partition] = reader.position
            while True:
                records = await reader.read(self._settings.batch_records_max, _READ_S)
                if records:
                    await self._batch(partition, records)
                if len(records) < self._settings.batch_records_max:
                    await asyncio.sleep(self._settings.batch_wait_s)
        finally:
            await reader.close()

    async def finish(self) -> None:
        """Lets what is under way come to its end, and begins nothing more."""
        self._finishing = True
        async with self._lock:
            pass

    async def _batch(self, partition: int, records: Sequence[Record]) -> None:
        async with self._lock:
            if self._finishing:
                return
            # 1. the fold
            deriver = self._deriver(partition)
            deriver.take(records)
            derived = deriver.flush()
            # 2. what is derived, then the states that say that it was
            await self._send(derived.records)
            await self._send(derived.states)
            self.positions[partition] = records[-1].offset + 1
            if self.name == "usage" or not self._settings.usage:
                metrics.DERIVED.labels(str(partition)).inc(len(records))

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
