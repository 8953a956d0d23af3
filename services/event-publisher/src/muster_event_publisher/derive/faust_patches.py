"""Corrects defects of Faust. Only this module knows them: starts, assignments, writes of tables, offsets, pressure.

    app = faust.App(…, Stream=PatchedStream, Table=PatchedTable)
    app.transport = PatchedTransport(app.conf.broker_consumer, app)

**Starts.** When Faust (0.15.3) has read its tables back, ``on_recovery_completed`` in ``tables/recovery.py``

1. gives the partitions of the streams to the fetcher (``resume_partitions``), which has run since the recovery began;
2. seeks their committed offsets (``perform_seek``), one request to the broker for each partition, while the fetcher
   reads on;
3. empties the queues of the streams (``flow_control.resume``).

The records that the fetcher delivers between 1 and 2 come from the consumer's old position, and come again after the
seek: *repeated*. The records between the seek of a partition and 3 are thrown away with the queue, and the consumer's
position is behind them: *lost*. A partition without a committed offset loses all records between 1 and 3, because
``seek_to_committed`` skips it. A queue that is emptied under pressure never reports that the pressure is gone, so
Faust does not fetch its partition again: *silent*.

Moreover, the fetcher passes its set of active partitions to aiokafka by reference, and aiokafka reads an empty set as
"all". ``pause_partitions`` empties the set after the recovery. A fetch that is under way then delivers records of the
streams, which are dropped, and the position is behind them.

The mend: a stream's partition is fetched only when its offset is sought *and* the queues are emptied, which is when
Faust calls ``resume_flow``. Each fetch gets a set of its own.

**Assignments.** A member computes the group's assignment from its own metadata. Faust leaves out a topic that is not in
them ("Ignoring missing topic"), such as a table's topic that was created a moment before. The agents then continue
without that table, and overwrite it. Nothing repairs this for minutes, and with a static member
(``consumer_group_instance_id``) not even a restart does: the broker returns the stored assignment, so the table is not
read back, and its sums are *lost*. A stream's topic that is left out is *silent*. The mend: an assignment that leaves
out a subscribed topic is not used. The member joins again, which makes the broker ask for a new assignment.

**Writes.** ``table[key] = value`` puts the change into a buffer. A task and every flush send the buffer at the same
time, so not in order, and a flush does not wait for the changes that the task is sending. An offset may be committed
before the last change is on Kafka. The mend: :class:`PatchedTable` sends its changes on request, in order, and reports
when they have arrived.

**Offsets.** Transactions leave holes in the offsets (markers, and aborted records). Faust counts the record behind a
hole as part of the hole, hence twice, and no commit gets past such a record. Each commit gains only one hole, so the
committed offset falls further and further behind. The mend: the hole ends before the record.

**Pressure.** When the queue of a stream is full, its partition is paused. If that was the only active partition, the
fetcher sleeps for a second, although the queue is empty long before. A backlog is read at a tenth of the speed. The
mend: the fetcher continues when a partition is active again.

**New topics.** While the broker creates a table's topic, the consumer's metadata has no partitions for it. The first
write to the table takes 0 for their number, and the program ends. The mend: 0 means *not known yet*.

**Cost.** Faust creates four tasks and one wait for each message that it puts into a queue, runs its loop for each event
that it takes out, and merges all holes again for each new hole. That costs several times what deriving costs. The mend:
calls that need no waiting run at once, an actor takes all waiting events (:meth:`PatchedStream.batches`), holes that do
not touch are not merged, and writes go out in batches (:meth:`PatchedProducer.send_all`).

Two further rules concern the same calls:

* The consumer reads only committed transactions although the program writes at least once. (Faust offers both or
  none.)
* When retention has deleted the group's offset, the group continues at the oldest record. (Faust would list the missing
  offsets one by one to commit past them.)

``tests/integration/test_faust_starts.py`` shows the defects and the mends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine, Generator, Iterable, Sequence
from typing import Any, ClassVar

import faust
from faust.exceptions import ProducerSendError
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Producer, Transport
from faust.types import TP
from mode.services import WaitResults

# Only Faust's warnings concern an operator, so it gets a logger of its own.
FAUST_LOG = logging.getLogger("faust")

# Topic, partition, key, value, headers.
OutMessage = tuple[str, int, bytes | None, bytes | None, Sequence[tuple[str, bytes]]]

# How often an actor that waits for a fuller batch looks for new events.
_COMPANY_LOOKS = 25
# Between two assignments that leave out a topic. Brokers know a new topic within a second.
_REJOIN_S = 0.25


class _SteadyThread(AIOKafkaConsumerThread):
    """A consumer thread that reads only committed transactions, and uses only complete assignments."""

    logger = FAUST_LOG

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reported: set[str] = set()

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Passes a complete assignment on. Otherwise asks for another one; Faust is still rebalancing then."""
        missing = self._missing_topics()
        if not missing:
            self._reported = set()
            await super().on_partitions_assigned(assigned, generation_id)
            return
        if missing != self._reported:
            self._reported = missing
            self.log.warning("The group's assignment has no partition of %s: joining again", ", ".join(sorted(missing)))
        consumer = self._ensure_consumer()
        await consumer._client.force_metadata_update()
        await asyncio.sleep(_REJOIN_S)
        consumer._coordinator.request_rejoin()

    def _missing_topics(self) -> set[str]:
        """The subscribed topics that the member that computed the assignment did not know."""
        if self._assignor is not self.app.assignor:  # without tables Faust uses another one
            return set()
        assignor: Any = self.app.assignor
        subscribed: frozenset[str] = self._ensure_consumer().subscription()
        return {topic for topic in subscribed if topic not in assignor._topic_groups}

    def _create_worker_consumer(self, transport: Any) -> Any:
        before, self.consumer.in_transaction = self.consumer.in_transaction, True
        try:
            return super()._create_worker_consumer(transport)
        finally:
            self.consumer.in_transaction = before


class PatchedConsumer(Consumer):
    """A consumer with the mends of the module's docstring.

    :ivar start_offsets: the offsets at which the streams began; empty until the tables are read back.
    """

    logger = FAUST_LOG

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.start_offsets: dict[TP, int] = {}
        self._resumed_unfetched: set[TP] = set()  # resumed by Faust, and not yet fetched
        self._sought: set[TP] = set()
        self._active_again = asyncio.Event()

    def pause_partitions(self, tps: Iterable[TP]) -> None:
        """Pauses partitions; a later resume seeks them again."""
        paused = set(tps)
        self._resumed_unfetched -= paused
        self._sought -= paused
        super().pause_partitions(paused)

    def resume_partitions(self, tps: Iterable[TP]) -> None:
        """Fetches tables' partitions at once, and streams' partitions once they are sought and the queues are empty."""
        tables = self.app.tables.changelog_topics
        streams = {tp for tp in tps if tp.topic not in tables}
        self._resumed_unfetched |= streams
        super().resume_partitions(set(tps) - streams)
        self._active_again.set()

    def topic_partitions(self, topic: str) -> int | None:
        """The number of the topic's partitions; None: not known (yet)."""
        return super().topic_partitions(topic) or None

    def on_buffer_drop(self, tp: TP) -> None:
        """Notes that the queue has room again."""
        super().on_buffer_drop(tp)
        self._active_again.set()

    async def perform_seek(self) -> None:
        """Seeks each partition's committed offset; a stream's oldest record, where retention deleted that offset."""
        resumed = set(self._resumed_unfetched)
        await super().perform_seek()
        if not resumed:
            return
        committed = {tp: self._committed_offset[tp] for tp in resumed}
        oldest = await self.earliest_offsets(*resumed)
        self.start_offsets = {tp: max(offset or 0, oldest[tp]) for tp, offset in committed.items()}
        moved = {tp: offset for tp, offset in self.start_offsets.items() if offset != committed[tp]}
        if moved:
            await self.seek_wait(moved)
            self._committed_offset.update(moved)
        self._sought |= resumed

    def resume_flow(self) -> None:
        """Fetches the partitions that are sought: the queues are empty now."""
        super().resume_flow()
        ready = self._resumed_unfetched & self._sought
        self._resumed_unfetched -= ready
        super().resume_partitions(ready)
        self._active_again.set()

    async def _wait_next_records(self, timeout: float) -> Any:  # noqa: ASYNC109 - Faust's
        if self.flow_active and not self._get_active_partitions():
            self._active_again.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._active_again.wait(), timeout)
            if not self._get_active_partitions():
                return {}, set()
        return await super()._wait_next_records(timeout)

    async def wait_first(self, *coros: Any, timeout: Any = None) -> WaitResults:  # noqa: ASYNC109 - Faust's
        """The first of the coroutines that ends. (A message whose queue has room needs no wait.)"""
        first = coros[0]
        if not asyncio.iscoroutine(first):
            return await super().wait_first(*coros, timeout=timeout)
        others = coros[1:]
        try:
            waits_for = first.send(None)
        except BaseException as end:
            for coro in others:
                if asyncio.iscoroutine(coro):
                    coro.close()
            if not isinstance(end, StopIteration):
                raise
            return WaitResults([], [], True) if self.should_stop else WaitResults([first], [end.value], False)
        return await super().wait_first(_StartedCoroutine(first, waits_for), *others, timeout=timeout)

    async def _add_gap(self, tp: TP, offset_from: int, offset_to: int) -> None:
        gaps, committed = self._gap[tp], self._committed_offset[tp]
        begin = offset_from if committed is None else max(offset_from, committed + 1)
        if gaps.overlaps(begin, offset_to):
            await super()._add_gap(tp, offset_from, offset_to - 1)
        elif begin < offset_to:
            gaps.addi(begin, offset_to)

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> Any:  # noqa: ASYNC109 - Faust's
        return await super()._getmany(None if active_partitions is None else set(active_partitions), timeout)

    def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
        return _SteadyThread(self, loop=self.loop, beacon=self.beacon)


class _StartedCoroutine:
    """The rest of a coroutine that was begun outside of a task.

    :param waits_for: the future that the coroutine waits for first.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        self._coroutine, self._waits_for = coroutine, waits_for

    def __await__(self) -> Generator[Any, Any, Any]:
        waits_for = self._waits_for
        while True:
            try:
                try:
                    value = yield waits_for
                except BaseException as error:  # (cancellation, too)
                    waits_for = self._coroutine.throw(error)
                else:
                    waits_for = self._coroutine.send(value)
            except StopIteration as end:
                return end.value


class PatchedProducer(Producer):
    """Sends many at once, without a task or a future for each."""

    logger = FAUST_LOG

    async def send_all(self, messages: Iterable[OutMessage]) -> None:
        """Sends the messages, in order within each partition; returns when all are on Kafka.

        Raises: KafkaError, ProducerSendError.
        """
        kafka = self._ensure_producer()
        batches: dict[tuple[str, int], list[Any]] = {}
        for topic, partition, key, value, headers in messages:
            of_place = batches.setdefault((topic, partition), [])
            message = {"timestamp": None, "key": key, "value": value, "headers": list(headers)}
            if not of_place or of_place[-1].append(**message) is None:
                of_place.append(kafka.create_batch())
                if of_place[-1].append(**message) is None:
                    raise ProducerSendError(f"{topic}: a message that is larger than a batch")
        sent: list[Any] = []
        for (topic, partition), of_place in batches.items():
            for batch in of_place:
                batch.close()
                sent.append(await kafka.send_batch(batch, topic, partition=partition))
        await asyncio.gather(*sent)


class PatchedTransport(Transport):
    """For ``app.transport``."""

    Consumer: ClassVar[Any] = PatchedConsumer
    Producer: ClassVar[Any] = PatchedProducer


class PatchedStream(faust.Stream[Any]):
    """For the setting ``Stream`` of the app."""

    logger = FAUST_LOG

    async def batches(self, enough: int, most: int, wait_s: float) -> AsyncIterator[list[Any]]:
        """Batches of waiting events; the caller acknowledges each event.

        :param enough: a batch with so many events does not wait for more.
        :param most: events in one batch, at most.
        :param wait_s: how long a smaller batch waits for more events.
        """
        channel: Any = self.channel
        queue = channel.queue
        now_s = asyncio.get_running_loop().time
        async for event in self.noack().events():
            batch = [event]
            self._drain_queue(queue, batch, most)
            until_s = now_s() + wait_s
            while len(batch) < enough and now_s() < until_s:
                await asyncio.sleep(wait_s / _COMPANY_LOOKS)
                self._drain_queue(queue, batch, most)
            yield batch

    def _drain_queue(self, queue: Any, batch: list[Any], most: int) -> None:
        """Takes events from the queue like Faust's iterator, without running the loop for each."""
        generation = self.app.consumer_generation_id
        while len(batch) < most and not queue.empty():
            event = queue.get_nowait()
            if self.app.flow_control.is_active() and event.message.generation_id == generation:
                batch.append(event)


class PatchedTable(faust.Table[Any, Any]):
    """For the setting ``Table`` of the app. Changes are sent only when :meth:`written` is called."""

    logger = FAUST_LOG

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unsent: list[Any] = []

    def send_changelog(
        self, partition: int | None, key: Any, value: Any, key_serializer: Any = None, value_serializer: Any = None
    ) -> Any:
        """Notes a change."""
        change = self.changelog_topic.as_future_message(
            key, value, partition, None, None, None,
            key_serializer or self.key_serializer, value_serializer or self.value_serializer, eager_partitioning=True,
        )  # fmt: skip
        self._unsent.append(change)
        return change

    async def written(self) -> None:
        """Sends the changes in order; returns when they are on Kafka. Raises KafkaError, ProducerSendError."""
        unsent, self._unsent = self._unsent, []
        topic, producer = self.changelog_topic.get_topic_name(), await self.app.maybe_start_producer()
        changes = (change.message for change in unsent)
        await producer.send_all((topic, message.partition, message.key, message.value, ()) for message in changes)
