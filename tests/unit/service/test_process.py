"""The reported figures of a process, compared with its real use."""

from __future__ import annotations

import gc
import os
import time

from muster_runtime.process_stats import process_figures


def test_it_is_this_process() -> None:
    found = process_figures()
    assert found.pid == os.getpid()
    assert found.host
    assert 0 < found.cpu_seconds <= time.process_time()


def test_memory_that_is_used_counts() -> None:
    before = process_figures().memory_bytes
    held = b"\x01" * (64 << 20)
    assert process_figures().memory_bytes - before > 32 << 20
    assert len(held) == 64 << 20


def test_collections_count() -> None:
    before = process_figures().garbage_collections
    gc.collect()
    gc.collect()
    assert process_figures().garbage_collections >= before + 2


def test_it_is_up_for_longer_and_longer() -> None:
    before = process_figures()
    time.sleep(0.05)
    after = process_figures()
    assert 0 < before.uptime_seconds < after.uptime_seconds
    assert after.cpu_seconds >= before.cpu_seconds
