"""A fault of an embedded log's files is found or changes nothing; ``make fuzz-log`` tries thousands."""

from __future__ import annotations

import collections
from pathlib import Path

import pytest

from fuzz.log_faults import BY_START, BY_VERIFY, FAULTS, HARMLESS, SILENT, Bench
from fuzz.log_life import lived

TRIES = 120


@pytest.mark.timeout(600)
def test_no_fault_is_silent(tmp_path: Path) -> None:
    bench = Bench(lived(tmp_path / "life"), tmp_path)
    results: collections.defaultdict[str, list[str]] = collections.defaultdict(list)
    for seed in range(TRIES):
        result, told, why = bench.attempt(seed)
        results[result].append(f"seed {seed}: {told}: {why}")
    assert results[SILENT] == []
    assert len(results[BY_VERIFY]) + len(results[BY_START]) > TRIES // 4
    assert len(results[HARMLESS]) < TRIES * 3 // 4
    told = {each.split(": ")[1] for some in results.values() for each in some}
    assert told == {fault.__name__ for fault in FAULTS}
