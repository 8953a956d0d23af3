"""The informer for Redis: detection of lost entries, and lost servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from contract.informer_rigs import RedisRig, next_deltas, rig_of
from muster_core.external.errors import BadDocument, CursorExpired, SourceSaysNonsense, SourceUnavailable
from muster_informers.contract import ChangeType, ListWatch
from muster_informers.documents import read_document
from muster_informers.sources.redis import OfferRedisSource

pytestmark = pytest.mark.redis

Action = Callable[[RedisRig], Awaitable[object]]


@pytest.fixture
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RedisRig]:
    async with rig_of("redis", request, tmp_path) as rig:
        yield rig


async def put(rig: RedisRig, *names: str) -> None:
    for name in names:
        await rig.put({"kind": "node", "id": name})


async def trimmed(rig: RedisRig) -> None:
    await put(rig, "c", "d", "e")
    await rig.redis.xtrim(rig.stream, maxlen=2, approximate=False)


async def trimmed_to_nothing(rig: RedisRig) -> None:
    await put(rig, "c")
    await rig.redis.xtrim(rig.stream, maxlen=0, approximate=False)


async def entry_deleted(rig: RedisRig) -> None:
    await rig.redis.xdel(rig.stream, await rig.redis.xadd(rig.stream, {"id": "c"}))
    await put(rig, "d")


async def begun_anew(rig: RedisRig) -> None:
    """A stream as after FLUSHALL, with the same number of entries."""
    await rig.redis.delete(rig.stream, rig.key)
    await put(rig, "x", "y", "z")


async def begun_anew_and_longer(rig: RedisRig) -> None:
    await rig.redis.delete(rig.stream, rig.key)
    await put(rig, *"abcdefgh")


async def older(rig: RedisRig) -> None:
    """A stream as of a replica that was behind when it took over."""
    await rig.redis.delete(rig.stream)
    for sequence in (1, 2, 3):
        await rig.redis.xadd(rig.stream, {"id": "a"}, id=f"5-{sequence}")


async def begun_anew_earlier(rig: RedisRig) -> None:
    """A new stream with a first entry older than the cursor, so that it does not look trimmed."""
    await rig.redis.delete(rig.stream)
    await rig.redis.xadd(rig.stream, {"id": "a"}, id="5-1")
    await put(rig, "b")


async def hash_gone(rig: RedisRig) -> None:
    await rig.redis.delete(rig.key)


async def both_gone(rig: RedisRig) -> None:
    await rig.redis.delete(rig.key, rig.stream)


@pytest.mark.parametrize(
    "action",
    [
        trimmed,
        trimmed_to_nothing,
        entry_deleted,
        begun_anew,
        begun_anew_and_longer,
        begun_anew_earlier,
        older,
        hash_gone,
        both_gone,
    ],
)
async def test_a_possible_loss_leads_to_a_new_listing(rig: RedisRig, action: Action) -> None:
    await put(rig, "a", "b", "b")
    source = rig.make()
    cursor = (await source.list()).cursor
    await action(rig)
    with pytest.raises(CursorExpired):
        await next_deltas(source, cursor)


async def trimmed_up_to_here(rig: RedisRig) -> None:
    await rig.redis.xtrim(rig.stream, maxlen=0, approximate=False)


async def trimmed_before_here(rig: RedisRig) -> None:
    await rig.redis.xtrim(rig.stream, maxlen=1, approximate=False)


async def earlier_entry_deleted(rig: RedisRig) -> None:
    [(entry_id, _), *_] = await rig.redis.xrange(rig.stream)
    await rig.redis.xdel(rig.stream, entry_id)


@pytest.mark.parametrize("action", [trimmed_up_to_here, trimmed_before_here, earlier_entry_deleted])
async def test_entries_that_were_read_may_be_trimmed(rig: RedisRig, action: Action) -> None:
    await put(rig, "a", "b")
    source = rig.make()
    cursor = (await source.list()).cursor
    await action(rig)
    await put(rig, "c", "d")
    [*_, delta] = deltas = await next_deltas(source, cursor)
    assert [each.document["id"] for each in deltas] == ["c", "d"]
    assert await trim_and_go_on(rig, source, delta.cursor) == ["e"]


async def trim_and_go_on(rig: RedisRig, source: ListWatch, cursor: str) -> list[object]:
    await rig.redis.xtrim(rig.stream, maxlen=0, approximate=False)
    await put(rig, "e")
    return [delta.document["id"] for delta in await next_deltas(source, cursor)]


async def test_a_server_that_lost_its_data_is_away_and_one_that_was_emptied_is_empty(rig: RedisRig) -> None:
    with pytest.raises(SourceUnavailable, match=r"neither .* nor .* is there"):
        await rig.make().list()
    assert not (await rig.make(empty_is_valid=True).list()).documents
    await put(rig, "a")
    source = rig.make()
    cursor = (await source.list()).cursor
    await rig.delete(("node", "a"))  # Redis keeps no empty hash
    assert [(delta.type, delta.document["id"]) for delta in await next_deltas(source, cursor)] == [
        (ChangeType.DELETED, "a")
    ]
    assert not (await source.list()).documents
    await both_gone(rig)
    with pytest.raises(SourceUnavailable):
        await source.list()


async def test_a_hash_counts_as_long_as_its_marker_is_there(rig: RedisRig) -> None:
    await put(rig, "a")
    source = rig.make(marker="whole")
    with pytest.raises(SourceUnavailable, match="no field 'whole'"):
        await source.list()
    await rig.redis.hset(rig.key, "whole", "yes")
    listing = await source.list()
    assert list(listing.documents) == [{"kind": "node", "id": "a"}]
    await rig.redis.hdel(rig.key, "whole")
    with pytest.raises(CursorExpired, match="or its marker"):
        await next_deltas(source, listing.cursor)
    with pytest.raises(SourceUnavailable):
        await source.list()
    # a marked hash without anything else says that there is nothing
    await rig.redis.delete(rig.key)
    await rig.redis.hset(rig.key, "whole", "yes")
    assert not (await source.list()).documents


async def test_a_listing_is_as_new_as_its_cursor(rig: RedisRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes during the read of the hash are in the listing, and are not reported again."""
    await put(rig, "a", "gone")
    source = rig.make()
    scan = source._redis.hscan  # type: ignore[attr-defined]

    async def slow(*arguments: object, **more: object) -> object:
        found = await scan(*arguments, **more)
        await rig.put({"kind": "node", "id": "a", "version": 2})
        await rig.put({"kind": "node", "id": "b"})
        await rig.delete(("node", "gone"))
        return found

    monkeypatch.setattr(source._redis, "hscan", slow)  # type: ignore[attr-defined]
    listing = await source.list()
    assert list(listing.documents) == [{"kind": "node", "id": "a", "version": 2}, {"kind": "node", "id": "b"}]
    await put(rig, "c")
    assert [delta.document["id"] for delta in await next_deltas(source, listing.cursor)] == ["c"]


async def test_entries_that_make_no_sense(rig: RedisRig) -> None:
    await put(rig, "a")
    source = rig.make()
    cursor = (await source.list()).cursor
    for entry in (
        {"id": "a", "op": "move"},
        {"id": "a"},
        {"id": "a", "document": '{"id": "b"}'},
        {"id": "a", "kind": "nodes", "document": "{}"},
        {"document": "{}"},
        {"id": b"\xff", "document": "{}"},
    ):
        await rig.redis.xadd(rig.stream, entry)
    await rig.redis.xadd(rig.stream, {"id": "a", "op": "delete", "version": "8"})
    await rig.redis.xadd(rig.stream, {"id": "a", "op": "delete", "version": "many"})
    *wrong, gone, odd = await next_deltas(source, cursor)
    problems = []
    for delta in wrong:
        assert delta.type is ChangeType.MODIFIED
        with pytest.raises(BadDocument) as caught:
            read_document(delta.document)
        problems.append((caught.value.object_id, str(caught.value).partition(" ")[2].partition(": ")[2]))
    assert [object_id for object_id, _ in problems] == ["a", "a", "a", "", "", ""]
    for (_, problem), said in zip(
        problems,
        ["op 'move'", "no document", "kind 'node' and id 'b'", "kind 'nodes'", "kind 'node', id ''", "not UTF-8"],
        strict=True,
    ):
        assert problem.startswith(said)
    assert gone == (ChangeType.DELETED, {"kind": "node", "id": "a", "version": 8}, cursor)
    assert odd.document["version"] == "many"


async def test_keys_of_another_type_are_nonsense(rig: RedisRig) -> None:
    await rig.redis.set(rig.stream, "a text")
    with pytest.raises(SourceSaysNonsense, match="no stream"):
        await rig.make().list()


async def test_a_wrong_password_is_reported_without_showing_it(rig: RedisRig) -> None:
    source = rig.make(url=f"redis://user:hunter2@127.0.0.1:{rig._door.port}/0")
    with pytest.raises(SourceUnavailable) as caught:
        await source.list()
    assert "hunter2" not in str(caught.value)


async def test_offers_are_given_back_to_their_stream(rig: RedisRig) -> None:
    source = rig.make(give_back_stream=rig.back, give_back_entries=1000)
    assert isinstance(source, OfferRedisSource)
    await rig.down()
    with pytest.raises(SourceUnavailable):
        await source.give_back(["o-1"])
    await rig.up()
    await source.give_back(["o-1", "o-2"])
    entries = [entry for _, entry in await rig.redis.xrange(rig.back)]
    assert entries == [{b"kind": b"offer", b"op": b"give_back", b"id": name} for name in (b"o-1", b"o-2")]
    await source.close()
    with pytest.raises(SourceUnavailable):
        await source.give_back(["o-1"])
