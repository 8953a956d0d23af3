"""The RMs' event settings are read before the rings are filled, then followed. No value is fatal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.errors import LogUnavailable
from muster_bus.log import LogReader, OutRecord, Record
from muster_bus.topics import state_key
from muster_event_publisher.rm_settings import REGISTRATION
from muster_event_publisher.service import PublisherService
from muster_event_publisher.settings import PublisherSettings
from muster_proto.muster.bus.v1.state_pb2 import RegistrationObject
from muster_runtime.go_json import error_body
from muster_state import state_codec
from structlog.testing import capture_logs
from unit.publisher.feeding import INSTANCE, Feeder
from unit.publisher.running import TOPICS, Running, running, until_next
from unit.publisher.test_stream import opened
from virtual.plugin import advance

BATCH, STREAM = "/ws/v1/events/batch", "/ws/v1/events/stream"


async def say(log: MemoryLog, rm_id: str, extra: dict[str, str] | None, value: bytes | None = None) -> None:
    """Register the RM with this extraConfig; None: remove it."""
    partition = TOPICS.partition_of(rm_id)
    if extra is not None:
        value = RegistrationObject(version="1", config="q" * 1000, extra_config=extra).SerializeToString()
    writer = await log.writer("scheduler")
    noise = [OutRecord(TOPICS.state, partition, state_key(rm_id, "ask", "default", "a/reg/b", "k"), b"\xff")] * 3
    registration = OutRecord(TOPICS.state, partition, state_key(rm_id, REGISTRATION, "-"), value)
    for record in [*noise, registration, *noise]:
        await writer.append(record)
    await writer.close()


async def filled(publisher: Running, rm_id: str, count: int) -> None:
    await publisher.feeder.events(rm_id, range(count))
    await until_next(publisher, rm_id, count)


def batch_of(answer: Any) -> tuple[int, int, int]:
    body = json.loads(answer.content)
    return body["LowestID"], body["HighestID"], len(body["EventRecords"] or ())


def test_the_scheduler_writes_what_is_read_here() -> None:
    assert REGISTRATION == state_codec.REGISTRATION


async def test_settings_are_known_before_the_rings_are_filled() -> None:
    async with running(ring_capacity=10, rest_response_size=8) as publisher:
        await say(publisher.log, "small", {"service.event.ringBufferCapacity": "3", "event.RESTResponseSize": "2"})
        await say(publisher.log, "silent", {"log.level": "debug"})
        for rm_id in ("small", "silent", "unknown"):
            await publisher.feeder.events(rm_id, range(20))
        await publisher.service.start()
        rings = publisher.service.rings
        assert {ring.rm_id: ring.capacity for ring in rings.all()} == {"small": 3, "silent": 10, "unknown": 10}
        assert batch_of(await publisher.http.get(f"{BATCH}?rm=small&start=17")) == (17, 19, 2)
        assert batch_of(await publisher.http.get(f"{BATCH}?rm=silent&start=10")) == (10, 19, 8)
        assert batch_of(await publisher.http.get(f"{BATCH}?rm=unknown&start=10")) == (10, 19, 8)


async def test_an_update_resizes_the_ring_and_keeps_the_newest() -> None:
    async with running(poll_s=0.01, ring_capacity=50) as publisher:
        await publisher.service.start()
        await filled(publisher, "rm", 30)
        ring = publisher.service.rings.get("rm")
        assert ring is not None
        settings = publisher.service.rm_settings
        for number, (said, capacity) in enumerate([("5", 5), ("40", 40), ("07", 7), ("-1", 7), ("", 7)]):
            await say(publisher.log, "rm", {"event.ringBufferCapacity": said, "event.maxStreams": str(number)})
            await advance()
            assert settings.settings_for("rm").max_streams == number
            assert (ring.capacity, ring.lowest, ring.next_id) == (capacity, 25, 30)
        await say(publisher.log, "rm", {})
        await advance()
        assert ring.capacity == 50
        await say(publisher.log, "rm", {"event.ringBufferCapacity": "9"})
        await advance()
        assert ring.capacity == 9
        await say(publisher.log, "rm", None)
        await advance()
        assert ring.capacity == 50
        assert batch_of(await publisher.http.get(BATCH + "?start=25")) == (25, 29, 5)


async def test_values_that_cannot_be_read_change_nothing_and_stop_nothing() -> None:
    async with running(poll_s=0.01) as publisher:
        await publisher.service.start()
        await filled(publisher, "rm", 3)
        settings = publisher.service.rm_settings
        await say(publisher.log, "rm", {"event.maxStreams": "7"})
        await advance()
        assert settings.settings_for("rm").max_streams == 7
        await say(publisher.log, "rm", None, b"\xff\xff\xff")
        await say(publisher.log, "rm", {"event.maxStreams": "many", "event.maxStreamsPerHost": "4"})
        await advance()
        assert settings.settings_for("rm").max_streams_per_host == 4
        assert settings.settings_for("rm").max_streams == 7
        assert await publisher.service.healthy()


async def test_a_bad_setting_is_logged_once_for_all_its_records() -> None:
    async with running(poll_s=0.01) as publisher:
        await publisher.service.start()
        settings = publisher.service.rm_settings
        with capture_logs() as logged:
            for streams in range(1, 5):
                await say(publisher.log, "rm", {"event.ringBufferCapacity": "big", "event.maxStreams": str(streams)})
                await advance()
                assert settings.settings_for("rm").max_streams == streams
            await say(publisher.log, "rm", {"event.ringBufferCapacity": "huge", "event.maxStreams": "9"})
            await advance()
            assert settings.settings_for("rm").max_streams == 9
        said = [line["problem"] for line in logged if line["event"] == "an event setting of an RM is not in force"]
        assert ["big" in said[0], "huge" in said[1], len(said)] == [True, True, 2]


async def test_a_limit_of_nothing_is_said() -> None:
    async with running(poll_s=0.01) as publisher:
        await say(publisher.log, "rm", {"service.event.RESTResponseSize": "0"})
        await publisher.service.start()
        await filled(publisher, "rm", 3)
        told = (await publisher.http.get(BATCH)).headers
        mine = {name for name in told if name.startswith("x-muster-")}
        assert mine <= set(told["access-control-expose-headers"].lower().split(","))
        for query in ("", "?count=3", "?start=1"):
            answer = await publisher.http.get(BATCH + query)
            assert batch_of(answer) == (0, 2, 0)
            assert answer.headers["x-muster-events-note"] == "RESTResponseSize is 0: no answer holds events"


@pytest.mark.parametrize("off", [{"event.trackingEnabled": "f"}, {"service.event.ringBufferCapacity": "0"}])
async def test_tracking_off_is_an_error_on_rest_and_ends_streams_and_is_undone(off: dict[str, str]) -> None:
    async with running(poll_s=0.01, listen=True) as publisher:
        await publisher.service.start()
        await filled(publisher, "rm", 5)
        async with opened(publisher) as lines:
            await lines.next()
            await say(publisher.log, "rm", off)
            last = json.loads((await lines.rest())[-1])
            assert last["message"] == "event tracking is disabled; go on with ?start=5"
        for path in (BATCH, STREAM, BATCH + "?rm=rm", BATCH + "?count=x"):
            answer = await publisher.http.get(path)
            assert (answer.status_code, answer.content) == (500, error_body(500, "Event tracking is disabled"))
        # Another RM's events are not affected.
        await filled(publisher, "other", 2)
        assert batch_of(await publisher.http.get(BATCH)) == (0, 1, 2)
        # Tracking is on again: new events are in memory, older ones come from the log.
        await say(publisher.log, "rm", {})
        await advance()
        assert publisher.service.rm_settings.tracks("rm")
        await publisher.feeder.events("rm", range(5, 7))
        await until_next(publisher, "rm", 7)
        assert batch_of(await publisher.http.get(BATCH + "?rm=rm")) == (5, 6, 7)
        assert batch_of(await publisher.http.get(BATCH + "?rm=rm&start=5")) == (5, 6, 2)


async def test_tracking_off_from_the_beginning() -> None:
    async with running() as publisher:
        await say(publisher.log, "rm", {"event.trackingEnabled": "false"})
        await publisher.service.start()
        assert (await publisher.http.get(BATCH)).status_code == 500
        assert (await publisher.http.get(STREAM)).status_code == 500


async def test_tracking_on_for_one_rm_where_it_is_off_by_default() -> None:
    async with running(tracking_enabled=False) as publisher:
        await say(publisher.log, "rm", {"event.trackingEnabled": "TRUE"})
        await publisher.service.start()
        await filled(publisher, "rm", 3)
        await filled(publisher, "other", 3)
        assert batch_of(await publisher.http.get(BATCH)) == (0, 2, 3)
        assert (await publisher.http.get(BATCH + "?rm=other")).status_code == 500


async def test_stream_limits_are_those_of_each_rm() -> None:
    async with running(poll_s=0.01, listen=True, max_streams=5, max_streams_per_host=5) as publisher:
        await say(publisher.log, "few", {"event.maxStreams": "2"})
        await say(publisher.log, "none", {"event.maxStreamsPerHost": "0"})
        await publisher.service.start()
        for rm_id in ("few", "none", "rm"):
            await filled(publisher, rm_id, 1)
        async with (
            opened(publisher, "?rm=few") as one,
            opened(publisher, "?rm=few") as two,
            opened(publisher, "?rm=few") as three,
            opened(publisher, "?rm=none") as none,
            opened(publisher, "?rm=rm") as other,
        ):
            assert [s.response.status_code for s in (one, two, three, none, other)] == [200, 200, 503, 503, 200]
            await say(publisher.log, "few", {"event.maxStreams": "3"})
            await advance()
            assert publisher.service.rm_settings.settings_for("few").max_streams == 3
            async with opened(publisher, "?rm=few") as again:
                assert again.response.status_code == 200


class _Deaf(MemoryLog):
    """A log whose object states cannot be read for a while."""

    deaf = True

    async def reader(self, topic: str, partition: int, start: int | None = None) -> LogReader:
        reader = await super().reader(topic, partition, start)
        if topic == TOPICS.state:
            hear = reader.read

            async def read(max_records: int, timeout_s: float) -> list[Record]:
                if self.deaf:
                    raise LogUnavailable("not now")
                return list(await hear(max_records, timeout_s))

            reader.read = read  # type: ignore[method-assign]
        return reader


@pytest.mark.parametrize(("extra", "status"), [({}, 404), ({"event.trackingEventsEnabled": "false"}, 500)])
async def test_the_default_rm_without_events_is_not_answered_with_those_of_another(
    extra: dict[str, str], status: int
) -> None:
    async with running() as publisher:
        await say(publisher.log, "mine", extra)
        await say(publisher.log, "other", {})
        await publisher.feeder.events("other", range(2))
        await publisher.service.start()
        await until_next(publisher, "other", 2)
        for path in ("batch", "stream"):
            answer = await publisher.http.get(f"/ws/v1/events/{path}", headers={"X-Muster-Default-Rm": "mine"})
            assert answer.status_code == status
        # an RM that does not exist has no effect
        answer = await publisher.http.get("/ws/v1/events/batch", headers={"X-Muster-Default-Rm": "nobody"})
        assert batch_of(answer) == (0, 1, 2)


async def test_a_log_that_does_not_tell_the_settings_does_not_hold_the_start_up() -> None:
    log = _Deaf(TOPICS.specs(), SystemClock())
    await log.start()
    await say(log, "rm", {"event.ringBufferCapacity": "4"})
    await Feeder(log, TOPICS).events("rm", range(9))
    wanted = PublisherSettings(http_address="", ring_capacity=6, retry_min_s=0.01, retry_max_s=0.01, poll_s=0.01)
    service = PublisherService(wanted, log, TOPICS, SystemClock(), sinks=[])
    try:
        await service.start()
        ring = service.rings.get("rm")
        assert ring is not None
        assert (ring.capacity, ring.instance) == (6, INSTANCE)
        assert any("settings of the RMs of partition" in problem for problem in await service.problems())
        log.deaf = False
        await advance()
        assert ring.capacity == 4
        await advance()
        assert not service.rm_settings.problems
        assert await service.healthy()
    finally:
        await service.stop()
        await log.close()
