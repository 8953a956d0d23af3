"""The cache writes the newest state of each object to the log, without loss, in an order without over-commitment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import Any

import pytest
from muster_bus.backends.memory import MemoryLog
from muster_bus.errors import LogClosed, LogError, LogUnavailable, RecordTooLarge
from muster_bus.log import OutRecord
from muster_bus.topics import Topics
from muster_core.external.errors import BadDocument
from muster_core.external.model import (
    ExternalAllocation,
    ExternalApplication,
    ExternalChange,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
    SourceState,
    id_of,
)
from muster_informers.log_cache import CHANGES_MAX, RECORD_BYTES_MAX, SEGMENTS_MAX, LogCache
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_state import external_codec as codec
from unit.external.faking import ManualTime, settled

TOPICS = Topics(partitions=4)
NODE, ALLOCATION = ExternalKind.NODE, ExternalKind.ALLOCATION
LISTING, LIVE, STALE = SourceState.LISTING, SourceState.LIVE, SourceState.STALE


class Rig:
    """A cache that writes to a log in memory, with a manual clock.

    :ivar errors: errors that the next appends raise; None: the append succeeds.
    """

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.time = ManualTime()
        self.errors: list[LogError | None] = []
        self.is_away = False
        self.problems: list[tuple[str, str, str]] = []

    async def __aenter__(self) -> Rig:
        self.log = MemoryLog(TOPICS.specs(), self.time.clock)
        await self.log.start()
        self.writer = await self.log.writer("external")
        self._append = self.writer.append
        self.writer.append = self.append  # type: ignore[method-assign]
        self.cache = LogCache(
            rm_id="rm",
            partition="default",
            source="vms",
            life="7",
            topic=TOPICS.requests,
            log_partition=2,
            writer=self.writer,
            clock=self.time.clock,
            sleep=self.time.sleep,
            on_problem=lambda *problem: self.problems.append(problem),
            **self.arguments,
        )
        self.task = asyncio.create_task(self.cache.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def append(self, record: OutRecord) -> Awaitable[int]:
        error = LogUnavailable("away") if self.is_away else self.errors.pop(0) if self.errors else None
        if error is None:
            return self._append(record)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.set_exception(error)
        return done

    async def records(self) -> list[tuple[list[ExternalChange], codec.SourceStateNote | None, int]]:
        """Changes, note and bytes of each record."""
        reader = await self.log.reader(TOPICS.requests, 2)
        found = []
        for record in await reader.read(100_000, 0):
            assert record.key == b"rm"
            assert record.value is not None
            envelope = pb.RequestEnvelope.FromString(record.value)
            assert envelope.rm_id == "rm"
            update, note = codec.decode(envelope.external)
            for command in (update, note):
                assert command is None or (command.partition, command.source, command.life) == ("default", "vms", "7")
            said = None if note is None else codec.SourceStateNote(note.state, note.drains, note.reason)
            found.append((list(update.changes) if update else [], said, len(record.value)))
        return found

    async def changes(self) -> list[ExternalChange]:
        return [change for changes, _, _ in await self.records() for change in changes]


def vm(key: str, node_id: str = "h1", vcore: int = 1) -> ExternalAllocation:
    return ExternalAllocation(key, node_id, {"vcore": vcore})


def told(changes: list[ExternalChange]) -> list[str]:
    return [f"{'+' if each.what else '?' if each.stale else '-'}{each.object_id}" for each in changes]


async def test_the_newest_of_each_object_is_written_at_most_20_ms_later() -> None:
    async with Rig() as rig:
        for vcore in range(1000):
            rig.cache.put(vm("a", vcore=vcore))
        rig.cache.put(vm("b"))
        assert rig.cache.pending == 2
        await settled()
        assert await rig.records() == []
        await rig.time.advance(0.02)
        assert [change.what for change in await rig.changes()] == [vm("a", vcore=999), vm("b")]
        assert rig.cache.pending == 0
        rig.cache.put(vm("a", vcore=5))
        await rig.time.advance(0.02)
        assert len(await rig.records()) == 2


async def test_a_waiting_caller_gets_its_write_at_once() -> None:
    async with Rig() as rig:
        await rig.cache.wait_flushed()
        rig.cache.put(vm("a"))
        waiting = asyncio.create_task(rig.cache.wait_flushed())
        await settled()
        assert waiting.done()
        rig.cache.set_source_state(LIVE)
        await settled()
        assert [note for _, note, _ in await rig.records()] == [None, codec.SourceStateNote(LIVE)]
        for number in range(CHANGES_MAX):
            rig.cache.put(vm(f"n{number}"))
        await settled()
        assert len(await rig.changes()) == 1 + CHANGES_MAX


async def test_parents_first_and_deletions_in_reverse() -> None:
    every: list[ExternalObject] = [
        vm("vm"),
        ExternalApplication("app", "root.a"),
        ExternalOffer("offer", "h1", {}),
        ExternalNode("h1"),
        ExternalQueue("root.a", {}),
        ExternalPool("licence", 1),
    ]
    async with Rig() as rig:
        for what in every:
            rig.cache.put(what)
        await rig.cache.wait_flushed()
        assert told(await rig.changes()) == ["+licence", "+root.a", "+h1", "+offer", "+app", "+vm"]
        rig.cache.put(vm("vm-2", "h2"))
        for change in await rig.changes():
            rig.cache.delete(change.kind, change.object_id)
        rig.cache.distrust(NODE, "h2")
        rig.cache.put(ExternalNode("h3"))
        await rig.cache.wait_flushed()
        second = ["+h3", "+vm-2", "?h2", "-vm", "-app", "-offer", "-h1", "-root.a", "-licence"]
        assert told(await rig.changes())[6:] == second


async def test_a_note_is_behind_what_was_put_before_and_before_what_comes_after() -> None:
    async with Rig() as rig:
        rig.cache.set_source_state(LISTING)
        rig.cache.put(vm("a", vcore=1))
        rig.cache.set_source_state(LIVE)
        rig.cache.put(vm("a", vcore=2))
        rig.cache.set_source_state(STALE, False, "lost\nfor good")
        await rig.cache.wait_flushed()
        assert [(told(changes), note) for changes, note, _ in await rig.records()] == [
            ([], codec.SourceStateNote(LISTING)),
            (["+a"], None),
            ([], codec.SourceStateNote(LIVE)),
            (["+a"], None),
            ([], codec.SourceStateNote(STALE, False, "lost for good")),
        ]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("+", "+"),
        ("-", "-"),
        ("?", "?"),
        ("?+", "+"),
        ("?-", "-"),
        ("+?", "+?"),
        ("+??", "+?"),
        ("+?+", "+"),
        ("+-", ""),
        ("+-+", "+"),
        ("+-?", "?"),
        ("-?", "-"),
        ("-+", "+"),
    ],
)
async def test_changes_of_an_unwritten_object_are_merged(said: str, expected: str) -> None:
    async with Rig() as rig:
        for letter in said:
            match letter:
                case "+":
                    rig.cache.put(vm("a"))
                case "-":
                    rig.cache.delete(ALLOCATION, "a")
                case "?":
                    rig.cache.distrust(ALLOCATION, "a")
        await rig.cache.wait_flushed()
        await rig.time.advance(1)
        assert "".join(told(await rig.changes())).replace("a", "") == expected


async def test_a_written_object_is_deleted_on_the_log() -> None:
    async with Rig() as rig:
        rig.is_away = True
        rig.cache.put(vm("sent"))
        await rig.time.advance(0.02)
        rig.cache.put(vm("sent", vcore=2))
        rig.cache.delete(ALLOCATION, "sent")
        rig.cache.put(vm("noted"))
        rig.cache.set_source_state(LIVE)
        rig.cache.put(vm("noted", vcore=2))
        rig.cache.delete(ALLOCATION, "noted")
        rig.is_away = False
        await rig.time.advance(10)
        assert told(await rig.changes()) == ["+sent", "+noted", "-sent", "-noted"]


async def test_records_are_cut_by_number_and_by_size() -> None:
    async with Rig() as rig:
        for number in range(3 * CHANGES_MAX + 1):
            rig.cache.put(vm(f"vm-{number}"))
        await rig.cache.wait_flushed()
        assert [len(changes) for changes, _, _ in await rig.records()] == [CHANGES_MAX] * 3 + [1]
        before = len(await rig.records())
        for number in range(50):
            rig.cache.put(ExternalNode(f"h{number}", attributes={"x": "y" * 20_000}))
        rig.cache.put(ExternalNode("huge", attributes={"x": "y" * 500_000}))
        await rig.cache.wait_flushed()
        records = (await rig.records())[before:]
        assert sum(len(changes) for changes, _, _ in records) == 51
        for changes, _, size in records:
            assert size <= RECORD_BYTES_MAX or told(changes) == ["+huge"]


async def test_a_handlers_mistake_is_raised_in_its_call() -> None:
    async with Rig() as rig:
        with pytest.raises(BadDocument, match="quantities"):
            rig.cache.put(vm("a", vcore=-1))
        with pytest.raises(BadDocument, match="id"):
            rig.cache.delete(NODE, "")
        with pytest.raises(BadDocument, match="id"):
            rig.cache.distrust(NODE, "\n")
        assert rig.cache.pending == 0


async def test_an_object_that_is_spoilt_behind_our_back_costs_only_itself() -> None:
    async with Rig() as rig:
        quantities = {"vcore": 1}
        rig.cache.put(ExternalAllocation("spoilt", "h1", quantities))
        rig.cache.put(vm("good"))
        quantities["vcore"] = -1
        await rig.cache.wait_flushed()
        assert told(await rig.changes()) == ["+good"]
        assert [problem[:2] for problem in rig.problems] == [("allocation", "spoilt")]


# ---- the log is away ------------------------------------------------------------------------------------------------


async def test_nothing_is_lost_while_the_log_is_away_and_the_order_stays() -> None:
    async with Rig() as rig:
        rig.cache.set_source_state(LISTING)
        await settled()
        away = [LogUnavailable(str(number)) for number in range(5)]
        rig.errors = [None, away[1], None, away[2], away[3], None, away[4]]
        for number in range(3 * CHANGES_MAX):
            rig.cache.put(vm(f"vm-{number:04}"))
        rig.cache.set_source_state(LIVE)
        flushed = asyncio.create_task(rig.cache.wait_flushed())
        await settled()
        assert not flushed.done()
        assert rig.cache.last_error in {"1", "2", "3"}
        await rig.time.advance(30)
        assert flushed.done()
        assert rig.cache.last_error == ""
        records = await rig.records()
        assert {change.object_id for changes, _, _ in records for change in changes} == {
            f"vm-{number:04}" for number in range(3 * CHANGES_MAX)
        }
        assert [note for _, note, _ in records if note] == [codec.SourceStateNote(LISTING), codec.SourceStateNote(LIVE)]
        assert records[-1][1] == codec.SourceStateNote(LIVE), "the note comes after all records, also repeated ones"


async def test_a_log_that_is_away_for_long_costs_an_entry_for_each_object() -> None:
    async with Rig() as rig:
        rig.cache.set_source_state(LISTING)
        await settled()
        rig.is_away = True
        for life in range(300):
            for number in range(10):
                rig.cache.put(vm(f"stays-{number}", vcore=life))
            rig.cache.put(vm(f"came-and-went-{life}"))
            rig.cache.delete(ALLOCATION, f"came-and-went-{life}")
            rig.cache.set_source_state(STALE if life % 2 else LIVE, True, str(life))
            await rig.time.advance(0.1)
        assert rig.cache.pending <= 10 * (SEGMENTS_MAX + 2)
        rig.is_away = False
        await rig.time.advance(10)
        changes = {change.object_id: change.what for change in await rig.changes()}
        assert changes == {f"stays-{number}": vm(f"stays-{number}", vcore=299) for number in range(10)}
        assert (await rig.records())[-1][1] == codec.SourceStateNote(STALE, True, "299")


async def test_the_beginning_of_a_life_stays_in_front() -> None:
    async with Rig() as rig:
        rig.is_away = True
        rig.cache.put(vm("first"))
        await rig.time.advance(0.02)
        rig.cache.set_source_state(LISTING)
        for number in range(2 * SEGMENTS_MAX):
            rig.cache.put(vm(f"a{number}"))
            rig.cache.set_source_state(LIVE)
        rig.is_away = False
        await rig.time.advance(10)
        records = await rig.records()
        states = [note.state for _, note, _ in records if note]
        assert states[0] is LISTING
        assert set(states[1:]) == {LIVE}
        assert len(states) <= SEGMENTS_MAX
        assert records[1][1] == codec.SourceStateNote(LISTING)
        assert len(await rig.changes()) == 1 + 2 * SEGMENTS_MAX


async def test_merged_parts_keep_what_is_distrusted() -> None:
    async with Rig() as rig:
        rig.is_away = True
        rig.cache.put(vm("first"))
        await rig.time.advance(0.02)
        rig.cache.put(vm("doubted"))
        rig.cache.put(vm("gone"))
        rig.cache.put(vm("good"))
        rig.cache.set_source_state(LIVE)
        rig.cache.distrust(ALLOCATION, "doubted")
        rig.cache.delete(ALLOCATION, "gone")
        rig.cache.distrust(ALLOCATION, "good")
        rig.cache.set_source_state(STALE)
        rig.cache.distrust(ALLOCATION, "gone")
        rig.cache.put(vm("good", vcore=2))
        for _ in range(SEGMENTS_MAX):
            rig.cache.set_source_state(LIVE)
        rig.is_away = False
        await rig.time.advance(10)
        assert told(await rig.changes()) == ["+first", "+doubted", "+good", "?doubted", "-gone"]


async def test_a_record_that_the_log_never_takes_is_cut_until_it_does() -> None:
    async with Rig() as rig:
        large = RecordTooLarge("t", 2, 1)
        rig.errors = [large, large, None, None, large]
        for name in "abcd":
            rig.cache.put(vm(name))
        rig.cache.set_source_state(LIVE)
        await rig.time.advance(10)
        written = {change.object_id for change in await rig.changes()}
        lost = {object_id for _, object_id, _ in rig.problems}
        assert written | lost == set("abcd")
        assert not written & lost
        assert lost
        assert (await rig.records())[-1][1] == codec.SourceStateNote(LIVE)


async def test_a_handler_that_puts_much_waits_for_room() -> None:
    async with Rig(pending_max=100) as rig:
        rig.is_away = True

        async def put_all() -> None:
            for number in range(1000):
                await rig.cache.ready()
                rig.cache.put(vm(f"vm-{number}"))

        putting = asyncio.create_task(put_all())
        await rig.time.advance(20)
        assert rig.cache.pending == 100
        assert not putting.done()
        rig.is_away = False
        for _ in range(100):
            await rig.time.advance(1)
        assert putting.done()
        assert len(await rig.changes()) == 1000


async def test_a_closed_log_ends_the_cache_and_all_waiting_callers() -> None:
    async with Rig(pending_max=1) as rig:
        rig.cache.put(vm("a"))
        flushed, ready = asyncio.create_task(rig.cache.wait_flushed()), asyncio.create_task(rig.cache.ready())
        await rig.log.close()
        await settled()
        assert isinstance(rig.task.exception(), LogClosed)
        assert ready.done()
        with pytest.raises(LogClosed):
            await flushed
        rig.cache.put(vm("b"))
        with pytest.raises(LogClosed):
            await rig.cache.wait_flushed()


@pytest.mark.parametrize("seed", range(20))
async def test_random_ways_end_with_what_was_said(seed: int) -> None:
    chance = random.Random(seed)
    async with Rig() as rig:
        expected: dict[tuple[ExternalKind, str], ExternalObject] = {}
        doubted: set[tuple[ExternalKind, str]] = set()
        for _ in range(400):
            name = f"x{chance.randrange(12)}"
            kind = chance.choice([NODE, ALLOCATION])
            what = (
                ExternalNode(name, {"vcore": chance.randrange(9)})
                if kind is NODE
                else vm(name, "h", chance.randrange(9))
            )
            match chance.randrange(12):
                case 0 | 1 | 2 | 3:
                    rig.cache.put(what)
                    expected[kind, id_of(what)] = what
                    doubted.discard((kind, name))
                case 4 | 5:
                    rig.cache.delete(kind, name)
                    expected.pop((kind, name), None)
                    doubted.discard((kind, name))
                case 6:
                    rig.cache.distrust(kind, name)
                    if (kind, name) in expected:
                        doubted.add((kind, name))
                case 7:
                    rig.cache.set_source_state(chance.choice([LIVE, STALE]))
                case 8:
                    rig.is_away = chance.random() < 0.5
                case 9:
                    rig.errors = chance.choices([None, LogUnavailable("x")], k=5)
                case _:
                    await rig.time.advance(chance.choice([0.001, 0.02, 1.0]))
        rig.is_away, rig.errors = False, []
        await rig.time.advance(60)
        assert rig.cache.pending == 0
        known: dict[tuple[ExternalKind, str], ExternalObject] = {}
        stale: set[tuple[ExternalKind, str]] = set()
        for change in await rig.changes():
            key = (change.kind, change.object_id)
            if change.what is not None:
                known[key] = change.what
                stale.discard(key)
            elif change.stale:
                stale |= {key} & known.keys()
            else:
                known.pop(key, None)
                stale.discard(key)
        assert known == expected
        assert stale == doubted


async def test_only_so_many_changes_a_second_go_on_and_the_newest_counts() -> None:
    async with Rig(changes_per_s_max=20) as rig:
        for number in range(6):
            rig.cache.put(vm(f"listed-{number}"))
        rig.cache.set_source_state(SourceState.LIVE)
        await rig.time.advance(0.02)
        assert rig.cache.pending == 0, "a listing goes as it comes"
        for number in range(6):
            rig.cache.put(vm(f"vm-{number}", vcore=1))
        await rig.time.advance(0.02)
        assert rig.cache.pending == 4, "two in a tenth of a second"
        rig.cache.put(vm("vm-0", vcore=2))
        rig.cache.put(vm("vm-3", vcore=2))
        await rig.time.advance(0.1)
        rig.cache.put(vm("vm-3", vcore=3))
        await rig.time.advance(0.3)
        assert rig.cache.pending == 0
        said = [
            (each.object_id, each.what.quantities["vcore"])
            for each in await rig.changes()
            if isinstance(each.what, ExternalAllocation) and each.object_id.startswith("vm")
        ]
        assert said == [
            ("vm-0", 1), ("vm-1", 1), ("vm-2", 1), ("vm-3", 2), ("vm-4", 1), ("vm-5", 1), ("vm-0", 2), ("vm-3", 3)
        ]  # fmt: skip


async def test_a_waiting_caller_gets_paced_changes_written_at_once() -> None:
    async with Rig(changes_per_s_max=10) as rig:
        rig.cache.set_source_state(SourceState.LIVE)
        for number in range(50):
            rig.cache.put(vm(f"vm-{number}"))
        flushed = asyncio.create_task(rig.cache.wait_flushed())
        await rig.time.advance(0.02)
        assert flushed.done()
        for number in range(50):
            rig.cache.put(vm(f"vm-{number}", vcore=2))
        rig.cache.set_source_state(SourceState.STALE, reason="gone")
        await rig.time.advance(0.02)
        assert rig.cache.pending == 0, "the note of a loss is written with all pending changes"
