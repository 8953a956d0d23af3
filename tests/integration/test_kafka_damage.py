"""A batch in a broker's file that is not as it was written: the readers' error names its place, and followers go on."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from muster_bus.backends.kafka import KafkaLog
from muster_bus.clock import SystemClock
from muster_bus.damage import DamagedParts, PassingReader
from muster_bus.errors import LogDamaged
from muster_bus.log import OutRecord, Record
from muster_bus.settings import LogSettings
from own_kafka import OwnKafka, own_kafka
from waiting import PATIENCE_S

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def broker() -> Iterator[OwnKafka]:
    """The session's broker may be a container, whose files are out of reach."""
    with own_kafka() as it:
        yield it


def _flip(segment: Path, offset: int) -> tuple[int, int]:
    """Flips a bit in the batch that holds an offset. Returns its first offset, and the one behind it."""
    content, at = bytearray(segment.read_bytes()), 0
    while True:
        base, size = int.from_bytes(content[at : at + 8]), 12 + int.from_bytes(content[at + 8 : at + 12])
        last = base + int.from_bytes(content[at + 23 : at + 27])
        if base <= offset <= last:
            break
        at += size
    with segment.open("r+b") as file:
        file.seek(at + size - 4)
        file.write(bytes([content[at + size - 4] ^ 4]))
    return base, last + 1


async def test_a_damaged_batch_has_a_place_and_followers_go_on(broker: OwnKafka) -> None:
    settings = LogSettings(
        backend="kafka",
        partitions=1,
        kafka_bootstrap_servers=broker.address,
        topic_prefix=f"damage-{secrets.token_hex(4)}.",
    )
    topics = settings.topics()
    log = KafkaLog(topics.specs(), settings, SystemClock())
    await log.start()
    try:
        owner = await log.take_over("scheduler", topics.requests, 0)
        for number in range(6):
            values = [b"%d" % value for value in range(number * 3, number * 3 + 3)]
            await owner.commit([OutRecord(topics.events, 0, b"k", value) for value in values], number)
        whole: list[Record] = []
        reader = await log.reader(topics.events, 0)
        async with asyncio.timeout(PATIENCE_S):
            while len(whole) < 18:  # (a transaction may be visible a moment after its commit)
                whole += await reader.read(100, 1.0)
        end = reader.position
        await reader.close()
        assert len(whole) == 18
        first, after = _flip(broker.segment(topics.events), whole[7].offset)

        # what decides gets all records before it, and then the place
        reader, found = await log.reader(topics.events, 0), list[Record]()
        with pytest.raises(LogDamaged, match=rf"{topics.events}\[0\] from {first} to {first + 1}"):  # noqa: PT012
            while True:
                found += await reader.read(100, 1.0)
        assert found == [each for each in whole if each.offset < first]
        await reader.close()

        # what follows goes on behind it
        damage = DamagedParts("they are not shown")
        passing = PassingReader(await log.reader(topics.events, 0), damage)
        found.clear()
        async with asyncio.timeout(PATIENCE_S):
            while passing.position < end:
                found += await passing.read(100, 1.0)
        assert found == [each for each in whole if not first <= each.offset < after]
        assert damage.at(topics.events, 0, first) == after
        assert len(damage.problems()) == 1
        await passing.close()
        await owner.close()
    finally:
        await log.close()
