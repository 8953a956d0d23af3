"""The contract of muster_event_publisher.history.reader, over what each sink with a reader wrote."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import asyncpg
import pytest
from contract.test_sinks import s3_endpoint, s3_location  # noqa: F401
from muster_bus.clock import SystemClock
from muster_bus.topics import Topics
from muster_event_publisher.errors import SinkError
from muster_event_publisher.event_json import event_json
from muster_event_publisher.event_runs import EventBatch, batch_of
from muster_event_publisher.history.file_stores import store_from_location
from muster_event_publisher.history.parquet_reader import ParquetReader
from muster_event_publisher.history.reader import HistoryReader
from muster_event_publisher.history.registry import readers_of, sinks_of
from muster_event_publisher.history.sink import Sink
from muster_event_publisher.settings import PublisherSettings
from unit.publisher.feeding import INSTANCE, event, record

TOPICS = Topics(partitions=2)


class Store(Protocol):
    sink: Sink
    reader: HistoryReader


@pytest.fixture(params=["parquet", "parquet-s3", pytest.param("postgres", marks=pytest.mark.postgres)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A sink and the reader of the same settings."""
    schema = f"t{uuid4().hex}"
    if request.param == "postgres":
        dsn = request.getfixturevalue("postgres_dsn")
        options = {"kind": "postgres", "dsn": dsn, "schema": schema, "transaction_records": 7}
    else:
        location = str(tmp_path) if request.param == "parquet" else request.getfixturevalue("s3_location")
        options = {"kind": "parquet", "location": location}
    settings = PublisherSettings.model_validate({"sinks": {"store": options}})

    class Opened:
        ((sink, _),) = sinks_of(settings, TOPICS, SystemClock())
        (reader,) = readers_of(settings, TOPICS, SystemClock())

    await Opened.sink.start()
    yield Opened()
    await Opened.sink.close()
    await Opened.reader.close()
    if request.param == "postgres":
        connection = await asyncpg.connect(dsn)
        await connection.execute(f"drop schema if exists {schema} cascade")
        await connection.close()


def of(rm_id: str, offset: int, ids: range, instance: str = INSTANCE) -> EventBatch:
    records = [record(offset + n, rm_id, event_id, instance=instance) for n, event_id in enumerate(ids)]
    return batch_of(TOPICS.partition_of(rm_id), records, offset, offset + len(records))


async def found(store: Store, start: int, count: int, rm_id: str = "rm", instance: str = INSTANCE) -> list[str] | None:
    """Object ids of the events read from the given id on."""
    old = await store.reader.read(rm_id, instance, start, count)
    if old is None:
        return None
    return [f"@{old.first_id}", *(event_json(value).decode().split('"')[5] for value in old.values)]


def apps(first: int, ids: range) -> list[str]:
    return [f"@{first}", *(f"app-{n}" for n in ids)]


async def test_nothing_is_there_before_the_first_event(store: Store) -> None:
    assert await found(store, 0, 10) is None


async def test_events_by_id(store: Store) -> None:
    for start in range(0, 100, 10):
        await store.sink.write(of("rm", start, range(start, start + 10)))
    for start, count in [(0, 1), (0, 100), (5, 3), (9, 2), (55, 45), (99, 1), (95, 1_000), (0, 37)]:
        assert await found(store, start, count) == apps(start, range(start, min(start + count, 100)))
    assert await found(store, 100, 5) is None
    assert await found(store, 3, 5, instance="another") is None
    assert await found(store, 3, 5, rm_id="nobody") is None


async def test_a_reader_stops_at_a_gap_and_goes_on_behind_it(store: Store) -> None:
    await store.sink.write(of("rm", 0, range(5)))
    await store.sink.write(of("rm", 5, range(8, 12)))
    assert await found(store, 2, 100) == apps(2, range(2, 5))
    assert await found(store, 6, 100) == apps(8, range(8, 12))


async def test_rms_side_by_side(store: Store) -> None:
    """Several RMs in one file, with separate runs of one of them, and an RM without events for a long time."""
    partition = TOPICS.partition_of("rm")
    others = [name for name in map("rm-{}".format, range(50)) if TOPICS.partition_of(name) == partition][:3]
    offset, next_ids = 0, dict.fromkeys(["rm", *others], 0)
    for turn in range(30):
        records = []
        for rm_id in ["rm", *others] if turn % 10 == 0 else others:
            for _ in range(4):
                records.append(record(offset, rm_id, next_ids[rm_id]))
                next_ids[rm_id] += 1
                offset += 1
        await store.sink.write(batch_of(partition, records, offset - len(records), offset))
    for rm_id, next_id in next_ids.items():
        for start in (0, 3, next_id // 2, next_id - 1):
            assert await found(store, start, 1_000, rm_id) == apps(start, range(start, next_id))


async def test_the_same_ids_of_another_instance_are_apart(store: Store) -> None:
    await store.sink.write(of("rm", 0, range(5)))
    await store.sink.write(of("rm", 5, range(3), instance="another"))
    assert await found(store, 0, 10) == apps(0, range(5))
    assert await found(store, 0, 10, instance="another") == apps(0, range(3))


async def test_another_log_goes_on_where_the_former_ended(store: Store) -> None:
    await store.sink.write(of("rm", 0, range(10)))
    await store.sink.new_log(TOPICS.partition_of("rm"))
    await store.sink.write(of("rm", 0, range(7, 15)))
    for start in range(15):
        assert await found(store, start, 100) == apps(start, range(start, 15))


HARD = [
    b"",
    event(1, message="nul \0 in the middle"),
    b"\xff\xff not a record",
    event(3, message="\u2028 <&> 😀"),
    event(4, at_ns=-(2**63)),
    event(5, at_ns=2**63 - 1),
    b"\x08\x63\x38\x63\x40\xe7\x07",  # numbers of a newer interface
    event(7).replace(b"app-7", b"app\0" + b"7"),
    b"\x4a\x00",  # a resource without quantities
]


async def test_json_is_that_of_the_original(store: Store) -> None:
    long = event(len(HARD)).replace(b"\x12\x05app-9", b"\x12\xa0\x1f" + b"x" * 4_000)
    assert len(long) > 4_000
    values = [*HARD, long]
    records = [record(n, "rm", n, value) for n, value in enumerate(values)]
    await store.sink.write(batch_of(TOPICS.partition_of("rm"), records, 0, len(records)))
    old = await store.reader.read("rm", INSTANCE, 0, 100)
    assert old is not None
    assert [event_json(value) for value in old.values] == [event_json(value) for value in values]


async def test_a_store_that_is_away_is_an_error_not_an_absence(tmp_path: Path) -> None:
    settings = PublisherSettings.model_validate(
        {
            "sinks": {
                "postgres": {"dsn": "postgresql://u:s3cret@127.0.0.1:9/d", "timeout_s": 2},
                "parquet": {"location": "s3://b/p?endpoint=http://127.0.0.1:9&region=r"},
            }
        }
    )
    for reader in readers_of(settings, TOPICS, SystemClock()):
        with pytest.raises(SinkError) as raised:
            await reader.read("rm", INSTANCE, 0, 1)
        assert "s3cret" not in str(raised.value)
        await reader.close()


async def test_ids_are_found_by_footers_and_few_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = PublisherSettings(parquet_dir=tmp_path)
    ((sink, _),) = sinks_of(settings, TOPICS, SystemClock())
    await sink.start()
    for start in range(0, 2_000, 10):
        await sink.write(of("rm", start, range(start, start + 10)))
    await sink.close()
    place = store_from_location(str(tmp_path))
    opened: list[str] = []
    real = place.open
    monkeypatch.setattr(place, "open", lambda path: (opened.append(path), real(path))[1])
    reader = ParquetReader("parquet", place, TOPICS)
    old = await reader.read("rm", INSTANCE, 1_234, 5)
    assert old is not None
    assert (old.first_id, old.values) == (1_234, [event(n) for n in range(1_234, 1_239)])
    assert len(opened) <= 10  # of 200 files
    await asyncio.sleep(0)
    await reader.close()
