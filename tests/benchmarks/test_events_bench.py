"""The benchmark of events uses the event history design's mix, and prints all its figures."""

from __future__ import annotations

import itertools
from collections import Counter

from muster_proto.si.v1.si_pb2 import EventRecord

from bench.events_bench import measure_ring
from bench.events_mix import Mix, events


def test_the_mix_is_the_seeds() -> None:
    found = [EventRecord.FromString(value) for value in itertools.islice(events(Mix()), 60_000)]
    times = [event.timestampNano for event in found]
    assert times == sorted(times)
    # Finished applications have seven events, and six for each pod, with two UUIDs.
    through = {e.objectID for e in found if e.eventChangeDetail == EventRecord.APP_COMPLETED}
    assert len(through) > 50
    references: dict[str, set[str]] = {name: set() for name in through}
    own: Counter[str] = Counter()
    for event in found:
        if event.objectID in through:
            own[event.objectID] += not event.referenceID
            references[event.objectID].add(event.referenceID)
    assert set(own.values()) == {7}
    assert {len(each - {""}) for each in references.values()} == {200}
    keys = set().union(*references.values()) - {""}
    of_pods = Counter(event.referenceID for event in found if event.referenceID in keys)
    assert sorted(of_pods.values()) == [1] * 100 * len(through) + [5] * 100 * len(through)


async def test_the_ring_is_measured_and_compared() -> None:
    found = await measure_ring(60_000, Mix(pods=10))
    assert found["records"] == 60_000
    assert found["lossless"] is True
    assert 0 < found["packed_mib"] < found["record_bytes"] * 60_000 / 2**20
    assert found["append_per_s"] > 0
    assert found["batch_10000_ms"] > 0
