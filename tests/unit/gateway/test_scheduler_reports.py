"""What a gateway knows of the owners of partitions, and of requests that wait, from what schedulers write."""

from __future__ import annotations

import asyncio

from manual_clock import ManualClock
from muster_bus.log import LogWriter, OutRecord, Record
from muster_bus.topics import Topics
from muster_gateway.codec import DecidedReport, Heartbeat, Owned, read_report
from muster_gateway.scheduler_reports import RequestWriter, SchedulerReports
from muster_rest.system_health import OwnerFacts, OwnerState, SchedulerFacts
from muster_scheduler.emit import heartbeat

TOPICS = Topics(partitions=3)
SERVING = Owned(OwnerState.SERVING, 0.0, "")


class Reports(SchedulerReports):
    """With a clock of the test's."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        super().__init__(3, self.clock)

    def states(self) -> list[tuple[OwnerState, float]]:
        return [(each.state, round(each.for_s, 3)) for each in self.facts().owners]


def beat(owned: dict[int, Owned], instance: str = "a", session_s: float = 6.0) -> Heartbeat:
    return Heartbeat(instance, session_s, owned, ("the clock was set",), ("a source is away",))


def test_a_heartbeat_is_read_as_it_was_written() -> None:
    facts = SchedulerFacts(
        [
            OwnerFacts(0, OwnerState.SERVING, 0.0, 8.0),
            OwnerFacts(1, OwnerState.NONE, 3.0, 8.0),
            OwnerFacts(2, OwnerState.STUCK, 20.0, 8.0, "it has not moved"),
        ],
        ["p" * 1000, *(str(number) for number in range(50))],
        ["e"],
    )
    made = heartbeat(TOPICS, 2, "instance", 3.0, facts)
    assert (made.topic, made.partition, made.key) == (TOPICS.responses, 2, None)
    found = read_report(Record(made.topic, 2, 7, 0, made.key, made.value))
    assert isinstance(found, Heartbeat)
    assert (found.instance, found.session_s) == ("instance", 3.0)
    assert found.owned == {0: SERVING, 2: Owned(OwnerState.STUCK, 20.0, "it has not moved")}
    assert (len(found.problems), len(found.problems[0]), found.external) == (20, 400, ("e",))


def test_owners_age_until_somebody_reports() -> None:
    reports = Reports()
    reports.clock.advance(5)
    assert reports.states() == [(OwnerState.NONE, 5.0)] * 3
    reports.on_report(0, beat({0: SERVING, 1: Owned(OwnerState.STARTING, 2.0, "why")}))
    reports.clock.advance(1)
    assert reports.states() == [(OwnerState.SERVING, 1.0), (OwnerState.STARTING, 3.0), (OwnerState.NONE, 6.0)]
    assert {each.limit_s for each in reports.facts().owners} == {11.0}, "the session's time-out and 5 s"
    assert reports.facts().owners[1].problem == "why"
    assert (reports.facts().problems, reports.facts().external) == (["the clock was set"], ["a source is away"])
    reports.clock.advance(30)
    assert reports.states()[0] == (OwnerState.SERVING, 31.0)
    assert reports.states()[1] == (OwnerState.NONE, 31.0), "what it said last is too old"
    assert not reports.facts().problems, "as is this"


def test_a_partition_that_is_handed_over_or_released() -> None:
    reports = Reports()
    reports.on_report(0, beat({0: SERVING, 1: SERVING}))
    reports.on_report(0, beat({0: SERVING}, "b"))
    reports.clock.advance(2)
    reports.on_report(0, beat({}))  # its last one: it takes away what nobody else has reported since
    assert reports.states() == [(OwnerState.SERVING, 2.0), (OwnerState.NONE, 0.0), (OwnerState.NONE, 2.0)]
    reports.on_report(1, DecidedReport(5))
    assert reports.states()[1] == (OwnerState.SERVING, 0.0), "decisions are a sign of life, too"
    reports.on_report(1, beat({7: SERVING}, "c"))  # of a log with more partitions


class Writer(LogWriter):
    """Its appends end as the test says."""

    def __init__(self) -> None:
        self.appended: list[asyncio.Future[int]] = []

    def append(self, record: OutRecord) -> asyncio.Future[int]:
        self.appended.append(asyncio.get_running_loop().create_future())
        return self.appended[-1]

    async def wait_writable(self) -> None:
        pass

    async def close(self) -> None:
        pass


async def test_the_oldest_request_that_is_not_decided() -> None:
    reports, inner = Reports(), Writer()
    writer = RequestWriter(inner, TOPICS.requests, reports, reports.clock)

    async def append(offset: int | None, topic: str = TOPICS.requests) -> None:
        appended = writer.append(OutRecord(topic, 1, b"rm", b""))
        if offset is None:
            inner.appended[-1].set_exception(OSError("no log"))
        else:
            inner.appended[-1].set_result(offset)
        await asyncio.gather(appended, return_exceptions=True)
        await asyncio.sleep(0)

    await append(10)
    reports.clock.advance(0.1)
    await append(11)  # too soon after the one before to be followed
    reports.clock.advance(1.9)
    await append(None)  # the log has not taken it
    await append(3, TOPICS.audit)  # nobody decides it
    reports.clock.advance(1)
    await append(12)
    assert reports.waiting_s() == {1: 3.0}
    reports.on_report(1, DecidedReport(12))
    assert reports.waiting_s() == {1: 0.0}
    reports.clock.advance(2)
    reports.on_report(0, DecidedReport(100))  # of another partition
    assert reports.waiting_s() == {1: 2.0}
    reports.on_report(1, DecidedReport(20))
    assert reports.waiting_s() == {}
    await append(15)  # it was decided before its append was known to be done
    assert reports.waiting_s() == {}


async def test_requests_that_are_followed_are_bounded() -> None:
    reports, inner = Reports(), Writer()
    writer = RequestWriter(inner, TOPICS.requests, reports, reports.clock)
    for number in range(3000):
        writer.append(OutRecord(TOPICS.requests, 0, b"rm", b""))
        inner.appended[-1].set_result(number)
        reports.clock.advance(0.3)
        await asyncio.sleep(0)
    assert len(reports._followed[0]) <= 1024
    assert round(reports.waiting_s()[0]) == 900, "the oldest one stays"
