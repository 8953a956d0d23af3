"""The ring against a list; gaps, repeats, resizing."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from muster_event_publisher import metrics
from muster_event_publisher.ring import BLOCK, EventRing, Rings, Signal, UnpackedBlocks


def value(event_id: int) -> bytes:
    return b"%d" % event_id


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 40)),
        st.tuples(st.just("gap"), st.integers(1, 60)),
        st.tuples(st.just("repeat"), st.integers(1, 20)),
        st.tuples(st.just("gap"), st.integers(1, 4 * BLOCK)),
        st.tuples(st.just("append"), st.integers(1, 4 * BLOCK)),
        st.tuples(st.just("resize"), st.one_of(st.integers(0, 50), st.integers(0, 12 * BLOCK))),
        st.tuples(st.just("pack"), st.integers(1, 5)),
    ),
    max_size=30,
)
# Small sizes, as records and as blocks, so that beginnings, ends and whole blocks all occur.
capacities = st.one_of(st.integers(0, 30), st.integers(0, 12 * BLOCK))


@settings(max_examples=150)
def _sum(ring: EventRing) -> int:
    blocks = [[each] if isinstance(each, bytes) else each for each in ring._blocks.values()]
    return sum(len(each) for block in blocks for each in block if each is not None)


@given(
    capacities,
    st.sampled_from([0, 1, BLOCK - 3, BLOCK, 5 * BLOCK - 1]),
    steps,
    st.one_of(st.integers(0, 120), st.integers(0, 12 * BLOCK)),
    st.one_of(st.integers(0, 60), st.integers(0, 12 * BLOCK)),
)
def test_ring_is_the_end_of_a_list(
    capacity: int, first: int, moves: list[tuple[str, int]], start_back: int, count: int
) -> None:
    ring = EventRing("rm", "instance", capacity)
    model: dict[int, bytes | None] = {}
    next_id = first
    missing: list[tuple[int, int]] = []
    ring.append(first, [value(first)])
    next_id = first + 1
    if capacity:
        model[first] = value(first)
    for what, n in moves:
        if what == "resize":
            # Shrinking forgets; growing does not bring back.
            model = {i: v for i, v in model.items() if i >= next_id - n} if n < capacity else model
            capacity = n
            ring.resize(n)
            continue
        if what == "pack":
            for _ in range(n):
                ring.pack()
            continue
        begin = {"append": next_id, "gap": next_id + n, "repeat": max(next_id - n, 0)}[what]
        ids = list(range(begin, begin + n))
        taken = ring.append(begin, [value(i) for i in ids])
        assert taken.repeated == sum(i < next_id for i in ids)
        assert taken.missing == ((next_id, begin - 1) if begin > next_id else None)
        if taken.missing:
            missing.append(taken.missing)
            model = {} if n >= capacity else model | dict.fromkeys(range(next_id, begin))
        model |= {i: value(i) for i in ids if i >= next_id}
        next_id = max(next_id, begin + n)
        model = {i: v for i, v in model.items() if i >= next_id - capacity}

    assert ring.next_id == next_id
    assert ring.highest == next_id - 1
    assert ring.lowest == min(model, default=next_id)
    assert len(ring) == len(model)
    start = next_id - start_back
    expected = [model[i] for i in range(start, min(start + count, next_id))] if start in model else []
    pieces = ring.pieces(start, count)
    for _ in range(20):
        assert ring.size_bytes == _sum(ring)
        ring.pack()
    assert ring.slice(start, count) == expected
    assert [v for piece in pieces for v in piece.values()] == expected
    assert ring.lowest <= ring.plain_from <= max(ring.next_id, ring.lowest)
    assert ring.gaps(ring.lowest, next_id) == [gap for gap in missing if gap[1] >= ring.lowest][-100:]


def test_blocks_of_old_events_are_let_go() -> None:
    ring = EventRing("rm", "instance", 100)
    for start in range(0, 20 * BLOCK, 64):
        ring.append(start, [value(i) for i in range(start, start + 64)])
    assert len(ring) == 100
    assert len(ring._blocks) <= 2
    assert ring.slice(ring.lowest, 1000) == [value(i) for i in range(20 * BLOCK - 100, 20 * BLOCK)]


def test_a_gap_wider_than_the_ring_costs_no_memory() -> None:
    ring = EventRing("rm", "instance", 10)
    ring.append(0, [b"a"])
    assert ring.append(10**15, [b"b"]).missing == (1, 10**15 - 1)
    assert ring.slice(10**15, 5) == [b"b"]
    assert len(ring._blocks) == 1


def test_a_gap_narrower_than_the_ring_costs_no_memory_either() -> None:
    ring = EventRing("rm", "instance", 2**32 - 1)
    ring.append(0, [b"a"])
    assert ring.append(10**9, [b"b"]).missing == (1, 10**9 - 1)
    assert ring.slice(10**9 - 2, 5) == [None, None, b"b"]
    assert len(ring._blocks) == 2
    ring.append(3 * 10**9, [b"c"])
    ring.resize(2)
    assert ring.slice(3 * 10**9 - 1, 5) == [None, b"c"]
    assert len(ring._blocks) == 1


def test_old_blocks_are_packed_one_by_one_and_the_newest_stay() -> None:
    ring = EventRing("rm", "instance", 100 * BLOCK)
    ring.append(0, [value(i) for i in range(10 * BLOCK + 7)])
    before = ring.size_bytes
    assert [ring.pack() for _ in range(9)] == [True] * 7 + [False] * 2
    assert ring.plain_from == 7 * BLOCK
    assert ring.size_bytes < 0.6 * before
    assert sum(isinstance(block, list) for block in ring._blocks.values()) == 4


def test_a_burst_does_not_stay_unpacked() -> None:
    ring = EventRing("rm", "instance", 1_000 * BLOCK)
    for start in range(0, 200 * BLOCK, 10 * BLOCK):
        ring.append(start, [b"x"] * (10 * BLOCK))
    assert sum(isinstance(block, list) for block in ring._blocks.values()) <= 65


def test_readers_of_the_same_block_unpack_it_once_and_few_are_remembered() -> None:
    unpacked = UnpackedBlocks(3)
    ring = EventRing("rm", "instance", 100 * BLOCK, unpacked)
    ring.append(0, [value(i) for i in range(20 * BLOCK)])
    while ring.pack():
        pass
    before = metrics.RING_UNPACKED._value.get()
    for start in range(0, BLOCK, 256):
        assert ring.slice(start, 256) == [value(i) for i in range(start, start + 256)]
    assert metrics.RING_UNPACKED._value.get() == before + 1
    assert len(ring.slice(0, 17 * BLOCK)) == 17 * BLOCK
    assert len(unpacked) == 3


def test_an_empty_ring_says_zero() -> None:
    ring = EventRing("rm", "instance", 10)
    assert (ring.lowest, ring.highest, ring.next_id, len(ring)) == (0, 0, 0, 0)
    assert ring.slice(0, 10) == []


async def test_signal_wakes_all_and_times_out() -> None:
    signal = Signal()
    waiting = [asyncio.create_task(signal.wait(5)) for _ in range(3)]
    await asyncio.sleep(0)
    signal.notify()
    assert await asyncio.gather(*waiting) == [True, True, True]
    assert await signal.wait(0.001) is False


async def test_a_new_instance_begins_a_new_ring() -> None:
    rings = Rings(10)
    old = rings.ring_for("rm", "one")
    old.append(5, [b"x"])
    assert rings.ring_for("rm", "one") is old
    waiting = asyncio.create_task(old.changed.wait(5))
    await asyncio.sleep(0)
    new = rings.ring_for("rm", "two")
    assert await waiting is True
    assert rings.get("rm") is new
    assert new.next_id == 0
