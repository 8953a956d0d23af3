"""A small deterministic machine and its expected outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from muster_bus.errors import LogUnavailable, TransactionFailed
from muster_bus.log import InlineCommitOwner, Log, LogWriter, OutRecord, PartitionOwner, Record
from muster_bus.topics import Topics


class CountingMachine:
    """Counts the inputs of each key. For each input, a response ``key:count``, and the count as the key's state.

    Each response depends on all inputs before, so the responses show an input that was applied twice or not at all.
    """

    def __init__(self, topics: Topics, partition: int = 0) -> None:
        self.topics, self.partition = topics, partition
        self.counts: dict[bytes, int] = {}
        self.batches: list[int] = []
        self.is_folded = False

    def fold(self, record: Record) -> None:
        assert record.key is not None
        assert record.value is not None
        self.counts[record.key] = int(record.value)

    def finish_fold(self, now_ns: int) -> None:
        self.is_folded = True

    def apply(self, records: Sequence[Record], now_ns: int) -> list[OutRecord]:
        assert self.is_folded
        self.batches.append(len(records))
        outputs = []
        for record in records:
            assert record.key is not None
            count = self.counts[record.key] = self.counts.get(record.key, 0) + 1
            text = str(count).encode()
            outputs.append(OutRecord(self.topics.responses, self.partition, record.key, record.value + b":" + text))
            outputs.append(OutRecord(self.topics.state, self.partition, record.key, text))
        return outputs

    def tick(self, now_ns: int) -> list[OutRecord]:
        return []

    def flush(self, now_ns: int) -> list[list[OutRecord]]:
        return []

    def pending_records(self) -> int:
        return 0

    def next_deadline_ns(self) -> int | None:
        return None


def expected_responses(inputs: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    """CountingMachine's answers to inputs (key, value) if each is applied exactly once, in order."""
    counts: dict[bytes, int] = {}
    answers = []
    for key, value in inputs:
        counts[key] = counts.get(key, 0) + 1
        answers.append(value + b":" + str(counts[key]).encode())
    return answers


async def read_all(log: Log, topic: str, partition: int = 0) -> list[Record]:
    reader = await log.reader(topic, partition)
    end = await reader.end_offset()
    records: list[Record] = []
    async with asyncio.timeout(60):
        while reader.position < end:
            records += await reader.read(1000, 0.5)
    await reader.close()
    return records


async def write_inputs(writer: LogWriter, topics: Topics, inputs: Sequence[tuple[bytes, bytes]]) -> None:
    """Appends inputs to partition 0 of the requests; all are durable at the end."""
    waiting: list[Awaitable[int]] = []
    for key, value in inputs:
        await writer.wait_writable()
        waiting.append(writer.append(OutRecord(topics.requests, 0, key, value)))
    await asyncio.gather(*waiting)


class FaultyLog:
    """A log whose commits fail on demand: before they reach the log, or after it took them.

    :param faults: called before each commit; gives "", "before", "after" or an error to raise.
    """

    def __init__(self, log: Log, faults: Callable[[], str]) -> None:
        self._log, self._faults = log, faults
        self.in_flight = self.most_in_flight = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)

    async def take_over(self, group: str, topic: str, partition: int) -> PartitionOwner:
        return FaultyOwner(self, await self._log.take_over(group, topic, partition), self._faults)


class FaultyOwner:
    def __init__(self, log: FaultyLog, owner: PartitionOwner, faults: Callable[[], str]) -> None:
        self._log, self._owner, self._faults = log, owner, faults
        self.committed, self.close = owner.committed, owner.close
        # (None: the owner has no such method, as a log without it.)
        self.commit_at_once = self._commit_at_once if isinstance(owner, InlineCommitOwner) else None

    def __getattr__(self, name: str) -> object:
        return getattr(self._owner, name)

    async def commit(self, records: Sequence[OutRecord], input_position: int | None) -> None:
        self._begin()
        fault = self._faults()
        try:
            self._break(fault, "before")
            await self._owner.commit(records, input_position)
            self._break(fault, "after")
        finally:
            self._log.in_flight -= 1

    def _commit_at_once(self, records: Sequence[OutRecord], input_position: int | None) -> Awaitable[None] | None:
        assert isinstance(self._owner, InlineCommitOwner)
        self._begin()
        fault = self._faults()
        waiting: Awaitable[None] | None = None
        try:
            self._break(fault, "before")
            waiting = self._owner.commit_at_once(records, input_position)
            if waiting is None:
                self._break(fault, "after")
        finally:
            if waiting is None:
                self._log.in_flight -= 1
        return None if waiting is None else self._rest(waiting, fault)

    async def _rest(self, waiting: Awaitable[None], fault: str) -> None:
        try:
            await waiting
            self._break(fault, "after")
        finally:
            self._log.in_flight -= 1

    def _begin(self) -> None:
        self._log.in_flight += 1
        self._log.most_in_flight = max(self._log.most_in_flight, self._log.in_flight)

    @staticmethod
    def _break(fault: str, moment: str) -> None:
        if fault == "away" and moment == "before":
            raise LogUnavailable("the test takes the log away")
        if fault == moment:
            raise TransactionFailed(f"the test breaks the commit {moment} the log")
