from __future__ import annotations

import pytest
from contract.log_contract import LogContract
from muster_bus.backends.memory import MemoryLog, MemoryStore
from muster_bus.clock import SystemClock
from muster_bus.settings import LogSettings


class MemoryBench:
    def __init__(self) -> None:
        self.settings = LogSettings(backend="memory", partitions=2)
        self.store = MemoryStore()

    async def open(self, settings: LogSettings | None = None) -> MemoryLog:
        specs = (settings or self.settings).topics().specs()
        log = MemoryLog(specs, SystemClock(), store=self.store)
        await log.start()
        return log

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        self.store.delete_before(topic, partition, offset)


@pytest.fixture
def bench() -> MemoryBench:
    return MemoryBench()


class TestMemoryLog(LogContract):
    pass
