"""A log in memory for the view's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.topics import Topics
from unit.view.recorded import Bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    topics, clock = Topics(partitions=2), SystemClock()
    log = MemoryLog(topics.specs(), clock)
    await log.start()
    yield Bench(log, topics, clock)
    await log.close()
