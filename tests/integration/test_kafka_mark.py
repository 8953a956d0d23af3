"""The sessions know where the topics ended, and so detect topics that were deleted and created again."""

from __future__ import annotations

import secrets

import pytest
from muster_bus.backends.kafka import KafkaLog
from muster_bus.backends.kafka_copy_target import delete_topics
from muster_bus.clock import SystemClock
from muster_bus.errors import LogBehind
from muster_bus.log import OutRecord
from muster_bus.log_mark import MarkedLog
from muster_bus.settings import LogSettings
from muster_gateway.log_loss import LogLossDetector
from muster_gateway.sessions.memory import MemorySessions

pytestmark = pytest.mark.kafka


async def test_recreated_topics_are_a_lost_log(kafka_bootstrap: str) -> None:
    settings = LogSettings(
        backend="kafka",
        partitions=1,
        kafka_bootstrap_servers=kafka_bootstrap,
        topic_prefix=f"mark-{secrets.token_hex(4)}.",
    )
    topics, sessions = settings.topics(), MemorySessions(SystemClock())

    async def opened(given: LogSettings) -> KafkaLog:
        log = KafkaLog(topics.specs(), given, SystemClock())
        await log.start()
        return log

    log = await opened(settings)
    assert isinstance(log, MarkedLog)
    owner = await log.take_over("scheduler", topics.requests, 0)
    await owner.commit([OutRecord(topics.responses, 0, b"k", b"first")], 1)
    before = await log.mark()
    await owner.commit([OutRecord(topics.responses, 0, b"k", b"second")], 2)
    mark = await log.mark()
    assert mark.log_id.startswith("kafka:")
    assert mark.log_id == before.log_id
    assert mark.ends[f"{topics.responses}/0"] > before.ends[f"{topics.responses}/0"] > 0
    watch = LogLossDetector(log, sessions)
    await watch.check()
    await watch.store_mark()
    await LogLossDetector(log, sessions).check()
    assert log.admin is not None
    # Returns when the broker shows the topic no longer. A log that starts before that finds the topic, does not create
    # it, and then waits for the end of a topic that is gone.
    await delete_topics(log.admin, [topics.responses])
    await log.close()

    log = await opened(settings.model_copy(update={"topic_prefix": settings.topic_prefix}))
    with pytest.raises(LogBehind, match=f"{topics.responses}/0 ends at 0 instead of") as refused:
        await LogLossDetector(log, sessions).check()
    await log.close()

    await sessions.begin_fill("one")
    await sessions.end_fill("one")
    log = await opened(settings.model_copy(update={"accept_loss": refused.value.token}))
    watch = LogLossDetector(log, sessions)
    await watch.check()
    assert "is older than the session store" in watch.loss
    assert not await sessions.filled()
    await watch.store_mark()
    again = LogLossDetector(log, sessions)
    await again.check()
    assert not again.loss
    await log.close()
