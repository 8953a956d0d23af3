"""What stands between us and Faust: names that are not ours, settings, and liveness. (Kafka: tests/integration.)"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass, field
from typing import Any

import aiokafka
import faust
import pytest
from faust.transport.consumer import Consumer as BaseConsumer
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import ManualClock, SystemClock
from muster_bus.settings import LogSettings
from muster_event_publisher.derive.faust_app import FaustDerive, faust_app
from muster_event_publisher.derive.settings import DeriveSettings
from unit.publisher.feeding import Feeder

LOG_SETTINGS = LogSettings(backend="memory", partitions=1, kafka_bootstrap_servers="a:1, b:2", topic_prefix="x.")


def test_the_private_names_that_are_used_still_exist() -> None:
    assert "_isolation_level" in aiokafka.AIOKafkaConsumer.__init__.__code__.co_names
    assert "_isolation_level" in aiokafka.AIOKafkaConsumer.start.__code__.co_names
    assert "_new_offset" in BaseConsumer._filter_committable_offsets.__code__.co_names
    assert {"_acked", "_acked_index"} <= set(BaseConsumer._new_offset.__code__.co_names)
    assert "_add_gap" in inspect.getsource(BaseConsumer._drain_messages)
    assert "_new_consumer_thread" in vars(Consumer)
    assert "_create_worker_consumer" in vars(AIOKafkaConsumerThread)
    assert "_new_transport" in vars(faust.App)


def test_the_app_has_no_doors_and_no_topics_of_its_own() -> None:
    connection = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "me", "sasl_plain_password": "s3cret"}
    app = faust_app(DeriveSettings(member="7"), LOG_SETTINGS, connection)
    conf = app.conf
    assert [str(url) for url in conf.broker] == ["kafka://a:1", "kafka://b:2"]
    assert (conf.id, conf.consumer_group_instance_id) == ("x.muster-derive", "x.muster-derive-7")
    assert (conf.web_enabled, conf.topic_allow_declare, conf.topic_disable_leader) == (False, False, True)
    assert (conf.worker_redirect_stdouts, conf.autodiscover) == (False, False)
    assert conf.broker_heartbeat_interval * 3 <= conf.broker_session_timeout + 0.001
    assert conf.broker_credentials.username == "me"
    assert "s3cret" not in repr(conf.broker_credentials)


@dataclass
class Taking:
    """An agent that stands where it stands."""

    name: str = "usage"
    positions: dict[int, int] = field(default_factory=dict)


class Stalled(Exception):
    pass


class Watched(FaustDerive):
    def _fail(self, error: BaseException) -> None:
        raise Stalled(str(error))


async def watched(log: MemoryLog, position: int, clock: Any) -> Watched:
    derive = Watched(DeriveSettings(stall_s=0.05), LOG_SETTINGS, log, clock)
    derive._recovered = True
    derive._work = [Taking(positions={0: position})]  # type: ignore[list-item]
    return derive


@pytest.fixture
async def log() -> MemoryLog:
    topics = LOG_SETTINGS.topics()
    log = MemoryLog(topics.specs(), SystemClock())
    await log.start()
    await Feeder(log, topics).events("rm", range(3))
    return log


async def test_who_takes_nothing_although_there_is_something_ends(log: MemoryLog) -> None:
    derive = await watched(log, 2, SystemClock())
    with pytest.raises(Stalled, match="usage took nothing of partition 0 from 2 on"):
        await asyncio.wait_for(derive._look(), 30)


async def test_who_has_taken_everything_lives_on(log: MemoryLog) -> None:
    derive = await watched(log, 3, SystemClock())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(derive._look(), 0.5)


async def test_states_that_are_never_read_back_end_it(log: MemoryLog) -> None:
    clock = ManualClock()
    derive = await watched(log, 0, clock)
    derive._recovered = False
    look = asyncio.create_task(derive._look())
    await asyncio.sleep(0)
    clock.advance(10)
    with pytest.raises(Stalled, match="not read back in 10 s"):
        await asyncio.wait_for(look, 30)
