"""What stands between us and Faust: names that are not ours, settings, and liveness. (Kafka: tests/integration.)"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass, field
from typing import Any

import faust
import pytest
from faust.transport.consumer import Consumer as BaseConsumer
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import ManualClock, SystemClock
from muster_bus.errors import LogUnavailable
from muster_bus.log import LogReader
from muster_bus.settings import LogSettings
from muster_event_publisher.derive import faust_app as faust_module
from muster_event_publisher.derive.faust_app import FaustDerive, _Work, faust_app
from muster_event_publisher.derive.settings import DeriveSettings
from unit.publisher.feeding import Feeder

LOG_SETTINGS = LogSettings(backend="memory", partitions=1, kafka_bootstrap_servers="a:1, b:2", topic_prefix="x.")


def test_the_private_names_that_are_used_still_exist() -> None:
    assert "_committed_offset" in BaseConsumer.perform_seek.__code__.co_names
    assert "_commit" in vars(BaseConsumer)
    assert list(inspect.signature(BaseConsumer.commit).parameters) == ["self", "topics", "start_new_transaction"]
    assert "_add_gap" in inspect.getsource(BaseConsumer._drain_messages)
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


class Written:
    """What stands where Faust's app stands: it keeps what was sent."""

    def __init__(self) -> None:
        self.producer = self
        self.sent: list[tuple[str, bytes | None]] = []

    async def send(self, topic: str, key: bytes | None, value: bytes | None, *_: object) -> asyncio.Future[None]:
        self.sent.append((topic, value))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


class Away(MemoryLog):
    """Does not answer the first time."""

    asked = 0

    async def reader(self, topic: str, partition: int, start: int | None = None) -> LogReader:
        self.asked += 1
        if self.asked == 1:
            raise LogUnavailable("nobody there")
        return await super().reader(topic, partition, start)


@pytest.mark.parametrize(("place", "expected"), [(None, 3), (1, 2), (3, 0)])
async def test_a_partition_is_derived_from_the_groups_place_on(
    place: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faust_module, "_AWAY_S", 0.0)
    topics = LOG_SETTINGS.topics()
    log = Away(topics.specs(), SystemClock())
    await log.start()
    await Feeder(log, topics).events("rm", range(3))
    app = Written()
    work = _Work("fan-out", DeriveSettings(batch_wait_s=0.0), log, topics, app)  # type: ignore[arg-type]
    running = asyncio.create_task(work.run(0, place))
    async with asyncio.timeout(10):
        while work.positions.get(0) != 3:  # noqa: ASYNC110 - a question, not an event
            await asyncio.sleep(0)
    assert len(app.sent) == expected
    assert log.asked == 2
    await work.finish()
    await Feeder(log, topics).events("rm", range(3, 5))
    await asyncio.sleep(0.05)
    assert (len(app.sent), work.positions[0]) == (expected, 3)  # nothing begins behind the end
    running.cancel()
