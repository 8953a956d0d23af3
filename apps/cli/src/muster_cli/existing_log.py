"""The number of partitions of a log that exists already: it counts, where the settings name none.

So a new default changes no installation, and ``muster topics grow`` needs no new setting.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from muster_bus.backends.sqlite_file_reader import LogFile
from muster_bus.clock import Clock
from muster_bus.errors import LogError, LogUnavailable
from muster_bus.settings import LogSettings

_AGAIN_S = 0.2


async def partitions_of(settings: LogSettings, clock: Clock) -> int:
    """Returns the number of partitions of an existing log; 0: there is none. Raises LogError."""
    topic = settings.topics().requests
    if settings.backend == "kafka":
        from muster_bus.backends.kafka_copy_target import KafkaTopics

        until_s = clock.monotonic() + settings.kafka_start_timeout_s
        while True:
            topics = KafkaTopics(settings, clock)
            try:
                await topics.start()
                return (await topics.partitions()).get(topic, 0)
            except LogUnavailable:  # the brokers may still be starting
                if clock.monotonic() >= until_s or await topics.is_refused():
                    raise
            finally:
                await topics.close()
            await asyncio.sleep(_AGAIN_S)
    if settings.backend == "sqlite" and settings.sqlite_path.exists():
        with LogFile(settings.sqlite_path) as file:
            return len(file.partitions(topic))
    return 0


async def with_existing_partitions(settings: LogSettings, clock: Clock) -> LogSettings:
    """Returns the settings with the number of partitions of the existing log, if they name none.

    Errors are not raised: opening the log says what is wrong with it.
    """
    count = 0
    if "partitions" not in settings.model_fields_set:
        with suppress(LogError):
            count = await partitions_of(settings, clock)
    return settings.model_copy(update={"partitions": count}) if count else settings
