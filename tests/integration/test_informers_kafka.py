"""The informer for Kafka: transactions, partitions, topics that come and go, and returned offers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from contract.informer_rigs import DEADLINE_S, KafkaRig, rig_of, told
from muster_core.external.errors import CursorExpired, SourceUnavailable
from muster_informers.contract import ChangeType, ListWatch
from muster_informers.sources import kafka
from muster_informers.sources.kafka import OfferKafkaSource
from waiting import eventually

pytestmark = pytest.mark.kafka


@pytest.fixture
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KafkaRig]:
    async with rig_of("kafka", request, tmp_path) as rig:
        yield rig


@pytest.fixture
async def admin(rig: KafkaRig) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=rig.bootstrap)
    await admin.start()
    yield admin
    await admin.close()


async def test_the_newest_of_each_key_is_listed_and_what_is_not_committed_is_not(rig: KafkaRig) -> None:
    for version in range(3):
        await rig.put({"kind": "node", "id": "a", "version": version})
    await rig.put({"kind": "node", "id": "gone"})
    await rig.delete(("node", "gone"))
    await rig.write("short", b'{"version": 1}')
    source = rig.make()
    producer = AIOKafkaProducer(bootstrap_servers=rig.bootstrap, transactional_id=f"{rig.topic}-writer")
    await producer.start()
    for is_undone in (True, False):
        await producer.begin_transaction()
        await producer.send_and_wait(rig.topic, key=b"node/t", value=json.dumps({"undone": is_undone}).encode())
        listing = await source.list()  # ends before the open transaction
        assert sorted(map(str, listing.documents)) == sorted(
            map(str, [{"kind": "node", "id": "a", "version": 2}, {"version": 1, "kind": "node", "id": "short"}])
        )
        await (producer.abort_transaction() if is_undone else producer.commit_transaction())
    await producer.stop()
    assert await told(source, listing.cursor) == [(ChangeType.MODIFIED, "t")]
    assert {"undone": False, "kind": "node", "id": "t"} in (await source.list()).documents


async def test_a_topic_that_is_not_there_is_not_made_and_an_untouched_one_is_no_empty_list(
    rig: KafkaRig, admin: AIOKafkaAdminClient
) -> None:
    with pytest.raises(SourceUnavailable, match="there is no such topic"):
        await rig.make(topic=f"{rig.topic}-none").list()
    assert f"{rig.topic}-none" not in await admin.list_topics()

    async def is_there() -> bool:
        (found,) = await admin.describe_topics([rig.topic])
        return bool(found["partitions"])

    await eventually(is_there, "every broker knows the new topic")
    with pytest.raises(SourceUnavailable, match="it has never had a record"):
        await rig.make().list()
    assert not (await rig.make(empty_is_valid=True).list()).documents
    await rig.put({"kind": "node", "id": "a"})
    await rig.delete(("node", "a"))
    assert not (await rig.make().list()).documents  # it has had records, so an empty list is valid


async def test_a_topic_counts_as_long_as_its_marker_is_there(rig: KafkaRig) -> None:
    await rig.put({"kind": "node", "id": "a"})
    source = rig.make(marker="whole")
    with pytest.raises(SourceUnavailable, match="no record of the key 'whole'"):
        await source.list()
    await rig.write("whole", b"yes")
    listing = await source.list()
    assert list(listing.documents) == [{"kind": "node", "id": "a"}]
    await rig.write("whole", None)
    with pytest.raises(CursorExpired, match="the marker was removed"):
        await told(source, listing.cursor)
    with pytest.raises(SourceUnavailable):
        await source.list()


async def test_more_partitions_are_listed_anew(
    rig: KafkaRig, admin: AIOKafkaAdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "_METADATA_AGE_MS", 100)
    await rig.put({"kind": "node", "id": "a"})
    source = rig.make()
    listing = await source.list()
    await source.close()
    await admin.create_partitions({rig.topic: NewPartitions(3)})
    with pytest.raises(CursorExpired, match="has 3 partitions now"):
        await until_expired(source, listing.cursor)
    cursor = (await source.list()).cursor
    # in the middle of a watch, too
    async with asyncio.timeout(DEADLINE_S), aclosing(source.watch(cursor)) as watch:  # type: ignore[type-var]
        assert not await anext(watch)
        await admin.create_partitions({rig.topic: NewPartitions(4)})
        with pytest.raises(CursorExpired, match="has 4 partitions now"):
            await drained(watch)
    assert len((await source.list()).documents) == 1


async def drained(watch: AsyncIterator[object]) -> None:
    async for _ in watch:
        pass


async def test_records_after_the_listing_are_reported(rig: KafkaRig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.put({"kind": "node", "id": "a"})
    source = rig.make()
    newest = source._newest  # type: ignore[attr-defined]

    async def slow(*arguments: object) -> object:
        found = await newest(*arguments)
        await rig.put({"kind": "node", "id": "b"})
        return found

    monkeypatch.setattr(source, "_newest", slow)
    listing = await source.list()
    assert [document["id"] for document in listing.documents] == ["a"]
    assert await told(source, listing.cursor) == [(ChangeType.MODIFIED, "b")]


async def test_a_topic_that_was_made_anew_takes_nothing_with_it(rig: KafkaRig, admin: AIOKafkaAdminClient) -> None:
    for name in "abc":
        await rig.put({"kind": "node", "id": name})
    source = rig.make(timeout_s=5)
    listing = await source.list()
    await admin.delete_topics([rig.topic])
    with pytest.raises((SourceUnavailable, CursorExpired)):
        await told(source, listing.cursor)
    async with asyncio.timeout(DEADLINE_S):
        while (await admin.create_topics([NewTopic(rig.topic, 2, 1)])).topic_errors[0][1]:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    with pytest.raises(CursorExpired):
        await until_expired(source, listing.cursor)
    with pytest.raises(SourceUnavailable, match="it has never had a record"):
        await listed(source)


async def until_expired(source: ListWatch, cursor: str) -> None:
    """Retry as an informer does, while brokers exchange the new metadata."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await told(source, cursor)
            except SourceUnavailable:
                await asyncio.sleep(0.05)


async def listed(source: ListWatch) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await source.list()
            except SourceUnavailable as error:
                if "never had a record" in str(error):
                    raise


async def test_offers_are_given_back_to_their_topic(rig: KafkaRig, admin: AIOKafkaAdminClient) -> None:
    back = f"{rig.topic}-back"
    await admin.create_topics([NewTopic(back, 1, 1)])
    source = rig.make(give_back_topic=back)
    assert isinstance(source, OfferKafkaSource)
    await rig.down()
    with pytest.raises(SourceUnavailable, match="giving back"):
        await source.give_back(["o-1"])
    await rig.up()
    await source.give_back(["o-1", "o-2"])
    consumer = AIOKafkaConsumer(back, bootstrap_servers=rig.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    async with asyncio.timeout(DEADLINE_S):
        records = [await consumer.getone() for _ in range(2)]
    await consumer.stop()
    await admin.delete_topics([back])
    assert [record.key for record in records] == [b"o-1", b"o-2"]
    assert json.loads(records[0].value) == {"kind": "offer", "op": "give_back", "id": "o-1"}
    await source.close()
    with pytest.raises(SourceUnavailable):
        await source.give_back(["o-1"])
