"""The handler and the log have the source's state after any order of events between source and informer."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from muster_bus.backends.memory import MemoryLog
from muster_bus.topics import Topics
from muster_core.external.errors import SourceSaysNonsense, SourceUnavailable
from muster_core.external.model import ExternalKind, ExternalObject, SourceState
from muster_informers.contract import ChangeType, HandlerContext
from muster_informers.documents import read_document
from muster_informers.handlers.default import make_handler
from muster_informers.indexer import SourceKey
from muster_informers.log_cache import LogCache
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_state import external_codec as codec
from unit.external.faking import Running, node, settled

EXAMPLES = int(os.environ.get("MUSTER_INFORMER_EXAMPLES", "80"))
TOPICS = Topics(partitions=2)

NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
AMOUNTS = st.integers(0, 3)
STEPS = st.one_of(
    st.tuples(st.just("set"), NAMES, AMOUNTS),
    st.tuples(st.just("set"), NAMES, AMOUNTS),
    st.tuples(st.just("vm"), NAMES, NAMES),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("delete vm"), NAMES),
    st.tuples(st.just("unsaid set"), NAMES, AMOUNTS),
    st.tuples(st.just("unsaid delete"), NAMES),
    st.tuples(st.just("again"), st.integers(0, 20)),
    st.tuples(st.just("garbage"), NAMES),
    st.tuples(st.just("nobody's")),
    st.tuples(st.just("spoil"), NAMES),
    st.tuples(st.just("twice"), NAMES, AMOUNTS),
    st.tuples(st.just("nobody's in the listing")),
    st.tuples(st.just("mend")),
    st.tuples(st.just("list fails")),
    st.tuples(st.just("watch fails"), st.booleans()),
    st.tuples(st.just("expire")),
    st.tuples(st.just("hold"), st.booleans()),
    st.tuples(st.just("time"), st.sampled_from([0.0, 0.3, 5.0, 40.0])),
    st.tuples(st.just("handler fails"), NAMES),
    st.tuples(st.just("log away"), st.booleans()),
)


class Life:
    """One informer with its handlers and its cache, on a log in memory."""

    def __init__(self, *, says_versions: bool) -> None:
        self.running = Running(stale_after_s=30, wait_max_s=5)
        self.manager = self.running.manager
        self.manager.says_versions = says_versions
        self.said: list[tuple[ChangeType, Any]] = []

    async def start(self) -> None:
        time = self.running.time
        self.log = MemoryLog(TOPICS.specs(), time.clock)
        await self.log.start()
        self.writer = await self.log.writer("external")
        self.cache = LogCache(
            rm_id="rm",
            partition="default",
            source="vms",
            life="1",
            topic=TOPICS.requests,
            log_partition=0,
            writer=self.writer,
            clock=time.clock,
            sleep=time.sleep,
        )
        self.writing = asyncio.create_task(self.cache.run())
        informer = self.running.informer
        informer.add_event_handler(
            make_handler(self.cache, None, HandlerContext("fake", time.clock)),
            distrust=self.cache.distrust,
            ready=self.cache.ready,
        )
        informer._on_state = lambda state, reason: self.cache.set_source_state(state, True, reason)
        await self.running.start()

    async def end(self) -> None:
        manager, handler = self.manager, self.running.handler
        manager.list_faults.clear()
        manager.watch_faults.clear()
        manager.spoilt.clear()
        manager.extra.clear()
        manager.holds_list = False
        handler.fails.clear()
        self.away(False)
        for _ in range(2):
            manager.expire()
            await self.running.time.advance(60)

    def away(self, is_away: bool) -> None:
        if is_away:
            self.writer.append = _unavailable  # type: ignore[method-assign]
        else:
            self.writer.__dict__.pop("append", None)

    async def close(self) -> None:
        self.writing.cancel()
        await asyncio.gather(self.writing, return_exceptions=True)
        await self.running.__aexit__()

    async def on_the_log(self) -> tuple[dict[SourceKey, ExternalObject], set[SourceKey], list[SourceState]]:
        """Return the scheduler's view of the records: objects, stale objects, states."""
        known: dict[SourceKey, ExternalObject] = {}
        stale: set[SourceKey] = set()
        states: list[SourceState] = []
        reader = await self.log.reader(TOPICS.requests, 0)
        for record in await reader.read(100_000, 0):
            update, note = codec.decode(pb.RequestEnvelope.FromString(record.value or b"").external)
            for change in update.changes if update is not None else ():
                key = SourceKey(change.kind, change.object_id)
                if change.what is not None:
                    known[key] = change.what
                    stale.discard(key)
                elif not change.stale:
                    known.pop(key, None)
                    stale.discard(key)
                elif key in known:
                    stale.add(key)
            if note is not None:
                states.append(note.state)
        return known, stale, states


def _unavailable(record: object) -> asyncio.Future[int]:
    from muster_bus.errors import LogUnavailable

    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    done.set_exception(LogUnavailable("away"))
    return done


async def step(life: Life, what: tuple[Any, ...]) -> None:
    manager = life.manager
    match what:
        case "set", name, amount:
            manager.set(node(name, amount))
        case "vm", name, on:
            manager.set({"kind": "allocation", "id": name, "node_id": on, "quantities": {"vcore": "1m"}})
        case "delete", name:
            manager.delete("node", name)
        case "delete vm", name:
            manager.delete("allocation", name)
        case "unsaid set", name, amount:  # a change that no watch reports, only a listing
            history = manager.history
            manager.history = list(history)
            manager.set(node(name, amount))
            manager.history = history
        case "unsaid delete", name:
            manager.objects.pop(("node", name), None)
        case "again", number if manager.history:
            delta = manager.history[number % len(manager.history)]
            if manager.says_versions:  # (without versions a repeat looks like a change)
                manager.tell(delta.type, delta.document)
        case "garbage", name:
            manager.tell(ChangeType.MODIFIED, {"id": name, "capacity": [name]})
        case ("nobody's",):
            manager.tell(ChangeType.MODIFIED, {"kind": "horse", "id": "x"})
        case "spoil", name:
            manager.spoilt["node", name] = {"id": name, "capacity": {"vcore": "many"}}
        case "twice", name, amount:
            manager.extra.append(node(name, amount))
        case ("nobody's in the listing",):
            manager.extra.append({"capacity": {}})
        case ("mend",):
            manager.spoilt.clear()
            manager.extra.clear()
        case ("list fails",):
            manager.list_faults.append(SourceUnavailable("away"))
        case "watch fails", is_nonsense:
            manager.watch_faults.append(SourceSaysNonsense("?") if is_nonsense else SourceUnavailable("away"))
        case ("expire",):
            manager.expire()
        case "hold", is_held:
            manager.holds_list = is_held
        case "time", seconds:
            await life.running.time.advance(seconds)
        case "handler fails", name:
            life.running.handler.fails[name] = ValueError("no")
        case "log away", is_away:
            life.away(is_away)
    manager.wake()
    for _ in range(3):
        await asyncio.sleep(0)


async def live(steps: list[tuple[Any, ...]], says_versions: bool) -> None:
    life = Life(says_versions=says_versions)
    await life.start()
    try:
        for each in steps:
            await step(life, each)
        await life.end()
        expected = {}
        for document in life.manager.objects.values():
            kind, object_id, _, what = read_document(document)
            expected[SourceKey(kind, object_id)] = what
        informer = life.running.informer
        assert {key: informer.store.get(*key) for key in informer.store} == expected
        assert life.running.handler.known == expected
        known, stale, states = await life.on_the_log()
        assert known == expected
        assert not stale
        assert states[0] is SourceState.LISTING
        assert states[-1] is SourceState.LIVE is informer.state
        assert informer.has_synced()
        assert informer.last_error == ""
        assert life.cache.pending == 0
    finally:
        await life.close()


@settings(max_examples=EXAMPLES, derandomize=True)
@given(steps=st.lists(STEPS, max_size=40), says_versions=st.booleans())
def test_in_the_end_everybody_knows_what_the_source_knows(steps: list[tuple[Any, ...]], says_versions: bool) -> None:
    asyncio.run(live(steps, says_versions))


async def test_an_object_that_moves_between_kinds_of_faults() -> None:
    """A fixed sequence shows that the steps above have effects."""
    life = Life(says_versions=True)
    await life.start()
    try:
        await step(life, ("set", "a", 1))
        await settled()
        assert life.running.ids == ["a"]
        await step(life, ("garbage", "a"))
        await step(life, ("unsaid set", "a", 2))
        await step(life, ("unsaid set", "b", 2))
        await life.running.time.advance(1)
        known, stale, _ = await life.on_the_log()
        assert list(known) == [SourceKey(ExternalKind.NODE, "a")]
        assert stale == set(known)
        await step(life, ("expire",))
        await life.running.time.advance(1)
        known, stale, _ = await life.on_the_log()
        assert len(known) == 2
        assert not stale
    finally:
        await life.close()
