"""Usage: the fold compared with a brute-force integrator, with repeats and crashes at any place."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from muster_bus.backends.record_limits import size_of
from muster_bus.log import OutRecord, Record
from muster_bus.topics import Topics, parse_state_key
from muster_event_publisher import metrics
from muster_event_publisher.derive import usage_table
from muster_event_publisher.derive.partition_deriver import PartitionDeriver
from muster_event_publisher.derive.usage_fold import S_IN_NS, SubjectKind, ancestry, seconds
from muster_event_publisher.derive.usage_table import UsageTable
from muster_event_publisher.errors import UsageMismatch
from muster_proto.si.v1.si_pb2 import EventRecord
from unit.publisher.feeding import START_NS, headers
from unit.publisher.using import Life, Subject, integrate, usage_event

TOPICS = Topics(partitions=1, derived=True)
WINDOW_S = 60
WINDOW_NS = WINDOW_S * S_IN_NS
ALL = 1 << 62


class Driver:
    """Runs a deriver like a driver without transactions: records, then states, then the position.

    A crash may happen between any two writes; earlier writes stay.
    """

    def __init__(self, events: list[Record], seed: int) -> None:
        self.table = UsageTable(windows_max=10**9, records_max=10**9)
        self.states: dict[bytes, bytes] = {}
        self._events, self._chance = events, random.Random(seed)
        self._committed = 0
        self._deriver = self._restored()

    def run(self, crashes: float) -> None:
        chance = self._chance
        position = 0
        while self._committed < len(self._events):
            count = chance.choice((1, 3, 40, 200))
            self._deriver.derive(self._events[position : position + count])
            derived = self._deriver.flush()
            writes = [*derived.records, *derived.states]
            if chance.random() < crashes:
                # 1. it dies in the middle; the next one begins at the committed position
                for write in writes[: chance.randrange(len(writes) + 1)]:
                    self._write(write)
                self._deriver = self._restored()
                position = self._committed
                continue
            for write in writes:
                self._write(write)
            position += count
            # 2. positions are committed now and then; a rebalance begins earlier without a crash
            if chance.random() < 0.5 or position >= len(self._events):
                self._committed = position
            elif chance.random() < 0.1:
                position = self._committed

    def _restored(self) -> PartitionDeriver:
        deriver = PartitionDeriver(TOPICS, 0, window_s=WINDOW_S, refresh_windows=5)
        deriver.restore(self.states.items())
        return deriver

    def _write(self, record: OutRecord) -> None:
        if record.topic == TOPICS.usage:
            self.table.fold(Record(record.topic, 0, 0, 0, record.key, record.value, record.headers))
        elif record.topic == TOPICS.usage_state:
            assert record.key is not None
            if record.value is None:
                self.states.pop(record.key, None)
            else:
                self.states[record.key] = record.value


def told(table: UsageTable, life: Life, subject: Subject) -> dict[int, tuple[Counter[str], Counter[str], int]]:
    windows = table.windows(life.rm_id, *subject, 0, ALL, WINDOW_NS)
    return {one.start_ns: (Counter(one.quantity_ns), Counter(one.peak), one.allocations) for one in windows}


@pytest.mark.parametrize("seed", range(20))
def test_windows_are_what_a_brute_force_integrator_finds(seed: int) -> None:
    life = Life(seed).live(150)
    if seed % 4 == 0:
        life.renew()
        life.live(100)
    driver = Driver(life.records, seed)
    driver.run(crashes=0.0 if seed % 5 == 0 else 0.4)
    known = driver.table.covered_period(life.rm_id)
    assert known is not None
    for subject, changes in life.changes.items():
        expected = integrate(changes, WINDOW_NS, known.until_ns)
        found = told(driver.table, life, subject)
        assert found.keys() == expected.keys(), f"{subject}: windows"
        for start_ns, (quantity_ns, peak, allocations) in found.items():
            wanted = expected[start_ns]
            assert +quantity_ns == +wanted.quantity_ns, f"{subject} in {start_ns}"
            assert (peak, allocations) == (+wanted.peak, wanted.allocations), f"{subject} in {start_ns}"
    named = {(kind, name) for kind in SubjectKind for name in driver.table.names(life.rm_id, kind)}
    assert named == life.changes.keys()


def test_books_that_hold_nothing_are_dropped() -> None:
    life = Life(3).live(3_000)
    for _ in range(500):  # more than a batch
        life.wait(1)
    driver = Driver(life.records, 3)
    driver.run(crashes=0.1)
    applications = {parse_state_key(key)[2][0] for key in driver.states if parse_state_key(key)[1] == "application"}
    assert applications == life.live_applications
    assert len(applications) < len([kind for kind, _ in life.changes if kind == "application"])


def test_unchanged_usage_costs_only_a_refresh() -> None:
    deriver = PartitionDeriver(TOPICS, 0, window_s=WINDOW_S, refresh_windows=60)
    at = iter(range(10**9))

    def event(value: bytes) -> Record:
        number = next(at)
        return Record("si.events.v1", 0, number, 0, b"rm", value, headers("rm", number))

    def alloc(app: str, at_ns: int) -> bytes:
        return usage_event(EventRecord.APP, EventRecord.ADD, EventRecord.APP_ALLOC, app, "k", at_ns, {"vcore": 1})

    deriver.derive([event(alloc(f"app-{n}", START_NS)) for n in range(100)])
    deriver.flush()
    # A week later one application changes. The others are written once each, not in 10,080 windows.
    deriver.derive([event(alloc("app-0", START_NS + 7 * 86_400 * S_IN_NS))])
    derived = deriver.flush()
    shown = [record for record in derived.records if record.topic == TOPICS.usage]
    assert len(shown) == 100 + 1, "one for each application, and the mark"
    # A window later, only the one that changes is written.
    deriver.derive([event(alloc("app-1", START_NS + 7 * 86_400 * S_IN_NS + WINDOW_NS))])
    assert len([record for record in deriver.flush().records if record.topic == TOPICS.usage]) == 2


def test_a_release_of_what_was_never_seen_leaves_nothing_below_zero() -> None:
    deriver = PartitionDeriver(TOPICS, 0, window_s=WINDOW_S, refresh_windows=60)
    value = usage_event(
        EventRecord.APP, EventRecord.REMOVE, EventRecord.ALLOC_CANCEL, "app", "k", START_NS, {"vcore": 7}
    )
    deriver.derive([Record("si.events.v1", 0, 0, 0, b"rm", value, headers("rm", 17))])
    rm = deriver.usage_of("rm")
    assert rm is not None
    assert (rm.current_usage(SubjectKind.APPLICATION, "app"), rm.unmatched) == ({}, 1)


def test_a_record_that_is_not_an_event_stops_nothing() -> None:
    deriver = PartitionDeriver(TOPICS, 0, window_s=WINDOW_S, refresh_windows=60)
    bad = [
        (b"\xff\xff", headers("rm", 0)),
        (b"", ()),
        (None, headers("rm", 1)),
        (b"", (("id", b"1" * 5000), ("rm", b"rm"), ("instance", b"i"))),
        (b"", (("id", b"3"), ("rm", b"\xff"), ("instance", b"i"))),
    ]
    deriver.derive([Record("si.events.v1", 0, n, 0, b"rm", *one) for n, one in enumerate(bad)])
    derived = deriver.flush()
    assert [record.topic for record in derived.records if record.topic != TOPICS.usage] == []


def test_windows_of_another_length_are_refused_by_name() -> None:
    life = Life(1).live(20)
    driver = Driver(life.records, 1)
    driver.run(crashes=0)
    with pytest.raises(UsageMismatch, match=r"window_s is 30, .* of 60 s: set 60, or delete the topics si\.usage\.v1"):
        PartitionDeriver(TOPICS, 0, window_s=30, refresh_windows=5).restore(driver.states.items())


@pytest.mark.parametrize(
    ("quantity_ns", "text"),
    [(0, "0"), (1, "0.000000001"), (1_500_000_000, "1.5"), (10**9, "1"), (10**30 + 10, f"{10**21}.00000001")],
)
def test_integrals_are_written_exactly(quantity_ns: int, text: str) -> None:
    assert seconds(quantity_ns) == text


def test_ancestry() -> None:
    assert list(ancestry("root.a.b")) == ["root.a.b", "root.a", "root"]
    assert list(ancestry("")) == []


def test_the_table_is_bounded_and_says_from_when_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_table, "_SLICE", 1)
    life = Life(5).live(4_000)
    driver = Driver(life.records, 5)
    driver.run(crashes=0)
    whole = driver.table
    rooted = UsageTable(windows_max=100, records_max=10**9, root_windows_max=10**9)
    bounded = [UsageTable(windows_max=100, records_max=10**9), UsageTable(windows_max=10**9, records_max=500), rooted]
    for table in bounded:
        again = PartitionDeriver(TOPICS, 0, window_s=WINDOW_S, refresh_windows=5)
        steps, tidying = 0, table.evict()
        for start in range(0, len(life.records), 50):
            again.derive(life.records[start : start + 50])
            for record in again.flush().records:
                if record.topic == TOPICS.usage:
                    table.fold(Record(record.topic, 0, 0, 0, record.key, record.value, record.headers))
                    if next(tidying, "done") is None:
                        steps += 1
                        assert list(table.evict()) == [], "one at a time"
                    else:
                        tidying = table.evict()
        assert steps > 50
        known = table.covered_period(life.rm_id)
        assert known is not None
        assert START_NS < known.from_ns < known.until_ns
        assert len(table) < len(whole) / (4 if table is not rooted else 2)
        for kind in SubjectKind:
            for name in whole.names(life.rm_id, kind):
                asked = (life.rm_id, kind, name, known.from_ns, ALL, WINDOW_NS)
                assert table.windows(*asked) == whole.windows(*asked), f"{kind} {name}"
    # The root queue stays longer.
    root = (life.rm_id, SubjectKind.QUEUE, "root", 0, ALL, WINDOW_NS)
    assert rooted.windows(*root) == whole.windows(*root)
    assert len(bounded[0].windows(*root)) < len(whole.windows(*root)) / 2


def test_larger_windows_are_sums_of_smaller_ones() -> None:
    life = Life(7).live(400)
    driver = Driver(life.records, 7)
    driver.run(crashes=0.2)
    for subject in life.changes:
        small = driver.table.windows(life.rm_id, *subject, 0, ALL, WINDOW_NS)
        for large in driver.table.windows(life.rm_id, *subject, 0, ALL, 15 * WINDOW_NS):
            parts = [one for one in small if large.start_ns <= one.start_ns < large.start_ns + 15 * WINDOW_NS]
            total: Counter[str] = Counter()
            for part in parts:
                total.update(part.quantity_ns)
            assert total == Counter(large.quantity_ns)
            assert large.allocations == sum(part.allocations for part in parts)
            assert large.peak == {name: max(p.peak.get(name, 0) for p in parts) for name in large.peak}


def test_names_without_end_are_left_out_and_every_record_fits_into_the_log() -> None:
    deriver = PartitionDeriver(TOPICS, 0, window_s=WINDOW_S, refresh_windows=5)
    usual = {"memory": 7, "vcore": 3}

    def gain(number: int, amounts: dict[str, int]) -> Record:
        value = usage_event(
            EventRecord.APP, EventRecord.ADD, EventRecord.APP_ALLOC, "app", f"k{number}", START_NS + number, amounts
        )
        return Record(TOPICS.events, 0, number, 0, b"rm", value, headers("rm", number))

    before = metrics.USAGE_OMITTED._value.get()
    deriver.derive([gain(0, usual)])
    for number in range(1, 200):
        odd = {f"\U0001f600{'x' * 200}/{number}/{index}": 2**53 for index in range(128)}
        deriver.derive([gain(number, usual | odd)])
        derived = deriver.flush()
        assert max(size_of(record) for record in (*derived.records, *derived.states)) < 1 << 20
    assert metrics.USAGE_OMITTED._value.get() > before
    rm = deriver.usage_of("rm")
    assert rm is not None
    held = rm.current_usage(SubjectKind.APPLICATION, "app")
    assert {name: held[name] for name in usual} == {"memory": 1400, "vcore": 600}, "the other types keep their counts"
    assert len(held) > 32
