"""One contract, all kinds of sources: the words of muster_informers.contract, tested on each."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from pathlib import Path

import pytest
from contract.informer_rigs import DEADLINE_S, Key, Rig, RigWithSpoiltWhole, context, key_of, rig_of
from muster_bus.clock import SystemClock
from muster_core.external.errors import BadDocument, CursorExpired, SourceSaysNonsense, SourceUnavailable
from muster_informers.contract import ChangeType, Delta, Document, ListWatch
from muster_informers.documents import read_document
from muster_informers.informer import SharedIndexInformer
from muster_informers.sources import empty
from waiting import eventually

KINDS = [
    "file",
    "http",
    pytest.param("kafka", marks=pytest.mark.kafka),
    pytest.param("redis", marks=pytest.mark.redis),
]
SPOILT_KINDS = ["file", "http", pytest.param("redis", marks=pytest.mark.redis)]


@pytest.fixture(params=KINDS)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_of(request.param, request, tmp_path) as rig:
        yield rig


@pytest.fixture(params=SPOILT_KINDS)
async def spoilt_rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RigWithSpoiltWhole]:
    async with rig_of(request.param, request, tmp_path) as rig:
        yield rig


class Mirror:
    """The objects that a reader of the source knows: a listing, and each change after it."""

    def __init__(self, source: ListWatch) -> None:
        self.source = source
        self.objects: dict[Key, Document] = {}
        self.cursor = ""
        self.told: list[tuple[ChangeType, Key]] = []
        self.heartbeats = 0

    async def list(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            listing = await self.source.list()
        self.objects = {key_of(document): document for document in listing.documents}
        self.cursor = listing.cursor

    async def watch_until(self, is_enough: Callable[[], bool]) -> None:
        """Watches from the current cursor. Raises unexpected errors."""
        async with asyncio.timeout(DEADLINE_S), aclosing(self.source.watch(self.cursor)) as watch:  # type: ignore[type-var]
            async for deltas in watch:
                self.heartbeats += not deltas
                self.take(deltas)
                if is_enough():
                    return
        raise AssertionError("a watch ended by itself")

    def take(self, deltas: Sequence[Delta]) -> None:
        for change, document, cursor in deltas:
            key = key_of(document)
            self.told.append((change, key))
            if change is ChangeType.DELETED:
                self.objects.pop(key, None)
            else:
                self.objects[key] = document
            self.cursor = cursor


def host(name: str, version: int = 1, **fields: object) -> dict[str, object]:
    return {"kind": "node", "id": name, "version": version, "capacity": {"vcore": 4000, "memory": "8Gi"}, **fields}


def vm(name: str, on: str) -> dict[str, object]:
    return {"kind": "allocation", "id": name, "node": on, "resources": {"vcore": 500}}


def by_key(*documents: dict[str, object]) -> dict[Key, Document]:
    return {key_of(document): document for document in documents}


async def fill(rig: Rig, *documents: dict[str, object]) -> None:
    for document in documents:
        await rig.put(document)


async def test_a_listing_has_everything(rig: Rig) -> None:
    documents = [
        *(host(f"host-{n}") for n in range(5)),
        vm("vm/1", "host-1"),
        {"kind": "pool", "id": "tool", "quantity": 3},
    ]
    await fill(rig, *documents)
    mirror = Mirror(rig.make(**rig.patient))
    await mirror.list()
    assert mirror.objects == by_key(*documents)
    assert mirror.cursor


async def test_a_watch_tells_what_is_added_changed_and_deleted(rig: Rig) -> None:
    await fill(rig, host("a"), host("b"), vm("v", "a"))
    mirror = Mirror(rig.make(**rig.patient))
    await mirror.list()
    new, changed = host("c"), host("a", 2, schedulable=False)
    await fill(rig, new, changed)
    await rig.delete(("allocation", "v"))
    await mirror.watch_until(lambda: mirror.objects == by_key(host("b"), changed, new))
    assert (ChangeType.DELETED, ("allocation", "v")) in mirror.told
    # and goes on from its cursor
    mirror.told.clear()
    await rig.delete(("node", "b"))
    await mirror.watch_until(lambda: mirror.objects == by_key(changed, new))
    assert mirror.told == [(ChangeType.DELETED, ("node", "b"))]


async def test_a_watch_without_changes_says_that_the_source_lives(rig: Rig) -> None:
    await rig.put(host("a"))
    mirror = Mirror(rig.make(**rig.patient))
    await mirror.list()
    await mirror.watch_until(lambda: mirror.heartbeats == 2)
    assert mirror.told == []


async def test_a_source_that_is_away_at_the_start_is_listed_when_it_is_there(rig: Rig) -> None:
    await rig.put(host("a"))
    mirror = Mirror(rig.make())
    await rig.down()
    for _ in range(2):
        with pytest.raises(SourceUnavailable):
            await mirror.list()
    await rig.up()
    await mirror.list()
    assert mirror.objects == by_key(host("a"))


async def test_a_source_that_goes_away_takes_nothing_with_it_and_tells_the_rest_when_it_is_back(rig: Rig) -> None:
    await fill(rig, host("a"), host("b"))
    mirror = Mirror(rig.make())
    await mirror.list()
    watching = asyncio.create_task(mirror.watch_until(lambda: False))
    await eventually(lambda: mirror.heartbeats > 0)
    await rig.down()
    with pytest.raises(SourceUnavailable):
        await watching
    with pytest.raises(SourceUnavailable):
        await mirror.watch_until(lambda: False)
    assert mirror.told == []
    await rig.put(host("c"))
    await rig.delete(("node", "a"))
    await rig.up()
    await mirror.watch_until(lambda: mirror.objects == by_key(host("b"), host("c")))
    assert {key: change is ChangeType.DELETED for change, key in mirror.told} == {
        ("node", "a"): True,
        ("node", "c"): False,
    }


async def test_a_document_that_cannot_be_read_is_given_on_under_its_name(rig: Rig) -> None:
    await fill(rig, host("a"), host("b"))
    await rig.put_garbage(("node", "b"))
    mirror = Mirror(rig.make(**rig.patient))
    await mirror.list()
    assert mirror.objects[("node", "a")] == host("a")
    assert refused(mirror.objects[("node", "b")]) == ("node", "b")
    await rig.put_garbage(("allocation", "v"))
    await mirror.watch_until(lambda: ("allocation", "v") in mirror.objects)
    assert refused(mirror.objects[("allocation", "v")]) == ("allocation", "v")
    await rig.put(host("b"))
    await mirror.watch_until(lambda: mirror.objects[("node", "b")] == host("b"))
    assert ChangeType.DELETED not in [change for change, _ in mirror.told]


def refused(document: Document) -> Key:
    """Of whom a refusal of a document speaks."""
    with pytest.raises(BadDocument) as caught:
        read_document(document)
    return caught.value.kind, caught.value.object_id


async def test_nothing_of_an_answer_that_makes_no_sense_is_taken(spoilt_rig: RigWithSpoiltWhole) -> None:
    rig = spoilt_rig
    await fill(rig, host("a"), host("b"))
    mirror = Mirror(rig.make(**rig.patient))
    await mirror.list()
    await rig.spoil()
    with pytest.raises((SourceSaysNonsense, CursorExpired)):
        await mirror.watch_until(lambda: False)
    with pytest.raises(SourceSaysNonsense):
        await mirror.list()
    assert mirror.told == []
    await rig.mend()
    await mirror.list()
    await rig.put(host("c"))
    await mirror.watch_until(lambda: mirror.objects == by_key(host("a"), host("b"), host("c")))


async def test_a_repeated_statement_changes_nothing(rig: Rig) -> None:
    await fill(rig, host("a"), host("b"))
    mirror = Mirror(rig.make(**rig.patient))
    await mirror.list()
    await fill(rig, host("a"), host("a"), host("b", 2), host("c"))
    await mirror.watch_until(lambda: ("node", "c") in mirror.objects)
    assert mirror.objects == by_key(host("a"), host("b", 2), host("c"))
    await mirror.list()
    assert mirror.objects == by_key(host("a"), host("b", 2), host("c"))


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_lost_between_listing_and_watch_while_others_write(rig: Rig, seed: int) -> None:
    chance = random.Random(seed)
    truth: dict[Key, Document] = {}
    written = asyncio.Event()

    async def write() -> None:
        for version in range(1, 151):
            name = f"host-{chance.randrange(12)}"
            if ("node", name) in truth and chance.random() < 0.3:
                del truth["node", name]
                await rig.delete(("node", name))
            else:
                truth["node", name] = host(name, version)
                await rig.put(host(name, version))
            await asyncio.sleep(0.001 if chance.random() < 0.5 else 0)
            if version == 20:
                written.set()
        truth["node", "last"] = host("last")
        await rig.put(host("last"))

    writing = asyncio.create_task(write())
    await written.wait()
    mirror = Versions(rig.make(**rig.patient))
    done = False
    while not done:
        # A file that does not come to rest for a while; an object that slips from one page to the next is there twice.
        with suppress(SourceUnavailable, CursorExpired):
            await mirror.list()
            await mirror.watch_until(lambda: ("node", "last") in truth and mirror.objects == truth)
            done = True
    await writing


class Versions(Mirror):
    """Who minds that no object's version goes back while it is there."""

    def take(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            key = key_of(delta.document)
            if delta.type is not ChangeType.DELETED and key in self.objects:
                assert version_of(delta.document) >= version_of(self.objects[key])
            super().take([delta])


def version_of(document: Document) -> int:
    version = document["version"]
    assert isinstance(version, int)
    return version


async def test_an_expired_cursor_is_reported_and_the_source_lists_again(rig: Rig) -> None:
    await fill(rig, host("a"), host("b"))
    mirror = Mirror(rig.make(**rig.patient))
    await mirror.list()
    await rig.lose_place()
    with pytest.raises(CursorExpired):
        await mirror.watch_until(lambda: False)
    assert ChangeType.DELETED not in [change for change, _ in mirror.told]
    await mirror.list()
    assert set(mirror.objects) == {("node", "a"), ("node", "b")}
    await rig.put(host("c"))
    await mirror.watch_until(lambda: ("node", "c") in mirror.objects)


@pytest.mark.parametrize("cursor", ["", "nonsense", "0:0"])
async def test_a_cursor_of_another_source_is_refused(rig: Rig, cursor: str) -> None:
    await rig.put(host("a"))
    mirror = Mirror(rig.make(**rig.patient))
    await mirror.list()
    mirror.cursor = cursor
    with pytest.raises(CursorExpired):
        await mirror.watch_until(lambda: False)


async def test_a_cancelled_informer_leaves_nothing_open(rig: Rig) -> None:
    await rig.put(host("a"))
    tasks = asyncio.all_tasks()
    source = rig.make(**rig.patient)
    mirror = Mirror(source)
    await mirror.list()
    for _ in range(2):  # a source can be used again after that
        watching = asyncio.create_task(mirror.watch_until(lambda: False))
        await eventually(lambda: mirror.heartbeats > 0)
        mirror.heartbeats = 0
        watching.cancel()
        await asyncio.wait({watching}, timeout=DEADLINE_S)
        assert watching.cancelled()
        await eventually(lambda: not rig.connections())
    listing = asyncio.create_task(source.list())
    await asyncio.sleep(0)
    listing.cancel()
    await asyncio.wait({listing}, timeout=DEADLINE_S)
    await source.close()
    await eventually(lambda: not rig.connections() and all(task.done() for task in asyncio.all_tasks() - tasks))


async def test_an_informer_on_it_knows_the_truth_whatever_happens_to_the_source(rig: Rig) -> None:
    def known() -> dict[Key, int | None]:
        return {(key.kind.value, key.object_id): informer.store.get_stored(key).version for key in informer.store}  # type: ignore[union-attr]

    await fill(rig, host("a"), host("b"))
    await rig.down()
    informer = SharedIndexInformer("hosts", rig.make(), SystemClock(), wait_min_s=0.01, wait_max_s=0.05)
    running = asyncio.create_task(informer.run())
    await eventually(lambda: informer.last_error != "")
    assert not informer.has_synced()
    await rig.up()
    await eventually(lambda: known() == {("node", "a"): 1, ("node", "b"): 1})
    await rig.put_garbage(("node", "a"))
    await eventually(lambda: any(problem.object_id == "a" for problem in informer.problems))
    await rig.put(host("a", 2))
    await eventually(lambda: known() == {("node", "a"): 2, ("node", "b"): 1})
    await rig.down()
    await eventually(lambda: informer.last_error != "")
    await rig.delete(("node", "b"))
    await rig.put(host("c", 3))
    await rig.up()
    await eventually(lambda: known() == {("node", "a"): 2, ("node", "c"): 3})
    running.cancel()
    await asyncio.wait({running}, timeout=DEADLINE_S)
    await eventually(lambda: not rig.connections())


async def test_the_empty_one_lists_nothing_and_lives(tmp_path: Path) -> None:
    mirror = Mirror(empty.make_informer({}, context(tmp_path)))
    await mirror.list()
    await mirror.watch_until(lambda: mirror.heartbeats == 1)
    assert (mirror.objects, mirror.told) == ({}, [])
