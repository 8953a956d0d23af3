"""The store of request events keeps the newest, removes sent ones, and counts dropped ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from muster_runtime import request_store
from muster_runtime.request_store import RequestReader, RequestStore, capacity_of

MANY, MUCH = 10_000, 1 << 30


def filled(capacity: int, count: int) -> RequestStore:
    store = RequestStore(capacity)
    for position in range(count):
        store.add(position, b"%d" % position)
    return store


def positions(reader: RequestReader, count: int = MANY, size: int = MUCH) -> list[int]:
    taken = reader.take(count, size)
    reader.sent()
    return [event.position for event in taken]


def test_sent_events_are_removed() -> None:
    store = filled(10, 4)
    reader = store.reader()
    assert reader
    assert positions(reader, 3) == [0, 1, 2]
    assert len(store) == 1
    assert positions(reader) == [3]
    assert len(store) == 0
    assert not reader
    assert positions(store.reader()) == []


@pytest.mark.parametrize(("position", "left"), [(-1, [1, 2, 3, 4]), (1, [2, 3, 4]), (3, [4]), (9, [])])
def test_a_reader_passes_over_events_up_to_a_position(position: int, left: list[int]) -> None:
    store = filled(10, 5)
    reader = store.reader()
    assert positions(reader, 1) == [0]
    reader.skip_to(position)
    assert len(store) == len(left), "what is passed over waits no longer"
    assert bool(reader) == bool(left)
    assert positions(reader) == left
    assert reader.dropped == store.dropped == 0


def test_full_keeps_the_newest_and_counts_the_rest() -> None:
    store = filled(3, 10)
    assert (len(store), store.dropped) == (3, 7)
    assert positions(store.reader()) == [7, 8, 9]


def test_without_a_reader_events_wait() -> None:
    store = filled(10, 2)
    store.reader().close()
    assert len(store) == 2


def test_a_slow_reader_loses_the_oldest_and_gets_their_number() -> None:
    store = RequestStore(2)
    quick, slow = store.reader(), store.reader()
    got: list[int] = []
    for position in range(5):
        store.add(position, b"x")
        got += positions(quick)
    assert got == [0, 1, 2, 3, 4]
    assert positions(slow) == [3, 4]
    assert (quick.dropped, slow.dropped, store.dropped) == (0, 3, 3)


def test_a_reader_that_leaves_holds_nothing() -> None:
    store = RequestStore(10)
    quick, slow = store.reader(), store.reader()
    store.add(0, b"x")
    assert positions(quick) == [0]
    assert len(store) == 1
    slow.close()
    assert len(store) == 0
    slow.close()  # again


def test_taken_but_unsent_events_stay_for_the_next_reader() -> None:
    store = filled(10, 3)
    broken = store.reader()
    assert len(broken.take(2, MUCH)) == 2
    assert len(store) == 3
    broken.close()
    assert positions(store.reader()) == [0, 1, 2]


def test_events_being_sent_are_not_dropped() -> None:
    store = filled(2, 2)
    reader = store.reader()
    reader.take(MANY, MUCH)
    store.add(2, b"x")
    store.add(3, b"x")
    reader.sent()
    assert (positions(reader), reader.dropped, store.dropped) == ([2, 3], 0, 0)


def test_a_reader_goes_on_behind_a_position() -> None:
    assert positions(filled(10, 6).reader(after=2)) == [3, 4, 5]
    assert positions(filled(10, 6).reader(after=99)) == []


@pytest.mark.parametrize("value", [None, b""])
def test_nothing_is_counted_and_passed_over(value: bytes | None) -> None:
    store = RequestStore(2)
    store.add(0, value)
    store.add(1, b"x")
    assert (positions(store.reader()), store.empty) == ([1], 1)


def test_the_same_position_again_is_passed_over() -> None:
    store = filled(10, 3)
    store.add(1, b"again")
    assert positions(store.reader()) == [0, 1, 2]


def test_a_smaller_store_keeps_the_newest() -> None:
    store = filled(10, 6)
    store.resize(2)
    assert (positions(store.reader()), store.dropped) == ([4, 5], 4)


def test_capacity_0_keeps_nothing() -> None:
    store = filled(0, 5)
    assert (len(store), store.dropped) == (0, 5)


def test_bytes_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_store, "BYTES_MAX", 10)
    store = RequestStore(100)
    for position in range(5):
        store.add(position, b"1234")
    assert positions(store.reader()) == [3, 4]
    store.add(9, b"x" * 50)
    assert positions(store.reader()) == [], "larger than the whole store"


def test_the_events_taken_at_once_are_bounded() -> None:
    store = RequestStore(10)
    for position, size in enumerate((3, 3, 30, 3)):
        store.add(position, b"x" * size)
    reader = store.reader()
    assert positions(reader, size=7) == [0, 1]
    assert positions(reader, size=7) == [2], "at least one"
    assert positions(reader, size=7) == [3]


@pytest.mark.parametrize(
    ("header", "capacity"),
    [(b"0", 0), (b"1000", 1000), (b"4294967295", 2**32 - 1), (None, None), (b"", None), (b"-1", None), (b"1e3", None),
     (b"99999999999", None)],
)  # fmt: skip
def test_the_header_of_an_event(header: bytes | None, capacity: int | None) -> None:
    assert capacity_of(header) == capacity


@given(
    st.integers(1, 6),
    st.lists(st.sampled_from(["add", "a", "b", "again", "leave"]), max_size=60),
)
def test_each_reader_gets_each_event_once_or_counts_it(capacity: int, steps: list[str]) -> None:
    store, position = RequestStore(capacity), 0
    readers = {"a": store.reader(), "b": store.reader()}
    got: dict[str, list[int]] = {"a": [], "b": []}
    since = {"a": 0, "b": 0}
    for step in steps:
        if step == "add":
            store.add(position, b"x")
            position += 1
        elif step == "again":
            readers["b"].close()
            readers["b"], got["b"], since["b"] = store.reader(), [], position - len(store)
        elif step == "leave":
            readers["a"].close()
        elif step == "b" or "leave" not in steps:
            got[step] += positions(readers[step], 2)
        assert len(store) <= capacity
    if "leave" in steps:
        return
    for name, reader in readers.items():
        got[name] += positions(reader)
        assert got[name] == sorted(set(got[name]))
        assert len(got[name]) + reader.dropped == position - since[name]
    assert len(store) == 0
