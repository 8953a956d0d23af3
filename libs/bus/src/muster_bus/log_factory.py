"""Makes the log that the settings name: one of three engines."""

from __future__ import annotations

from muster_runtime.optional_packages import require

from muster_bus.clock import Clock
from muster_bus.log import Log
from muster_bus.settings import LogSettings


def make_log(settings: LogSettings, clock: Clock) -> Log:
    """Returns the log that the settings name, not yet started. A process has one."""
    specs = settings.topics().specs()
    if settings.backend == "memory":
        from muster_bus.backends.memory import MemoryLog

        return MemoryLog(specs, clock, max_record_bytes=settings.max_record_bytes)
    if settings.backend == "sqlite":
        from muster_bus.backends.sqlite import SqliteLog

        return SqliteLog(specs, settings, clock)
    require("aiokafka", "log.backend = kafka")
    from muster_bus.backends.kafka import KafkaLog

    return KafkaLog(specs, settings, clock)
