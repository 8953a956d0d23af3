"""The deriver with transactions of the log: each event once over crashes, and REST's answers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.log import Log, OutRecord, Record
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics
from muster_event_publisher.derive.settings import DeriveSettings
from muster_event_publisher.derive.transactional_driver import PlainDerive
from muster_event_publisher.derive.usage_fold import S_IN_NS
from muster_event_publisher.derive.usage_rest import UsageRest
from muster_event_publisher.errors import UsageMismatch
from muster_event_publisher.service import PublisherService
from muster_event_publisher.settings import PublisherSettings
from unit.publisher.feeding import START_NS, Feeder
from unit.publisher.using import Life, integrate
from waiting import eventually

TOPICS = Topics(partitions=1, derived=True)
WINDOW_NS = 60 * S_IN_NS
SETTINGS = DeriveSettings(batch_wait_s=0, batch_records_max=40, processor_share=1.0, refresh_windows=5)


async def read_all(log: Log, topic: str) -> list[Record]:
    reader = await log.reader(topic, 0)
    end = await reader.end_offset()
    records: list[Record] = []
    while reader.position < end:
        records += await reader.read(10_000, 5)
    await reader.close()
    return records


async def write(feeder: Feeder, life: Life, records: list[Record]) -> None:
    await feeder.write(life.rm_id, [(record.value or b"", record.headers) for record in records])


def until_ns(usage: UsageRest, life: Life) -> int:
    known = usage.table.covered_period(life.rm_id)
    return known.until_ns if known is not None else 0


def by_kind(records: list[Record]) -> Counter[str]:
    from muster_proto.si.v1.si_pb2 import EventRecord

    return Counter(EventRecord.Type.Name(EventRecord.FromString(r.value or b"").type).lower() for r in records)


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
async def test_everything_is_derived_once_whatever_dies(backend: str, tmp_path: Path) -> None:
    settings = LogSettings.model_validate(
        {"backend": backend, "sqlite_path": tmp_path / "log.db", "partitions": 1, "sqlite_synchronous": "normal"}
    )
    topics = settings.topics()
    life = Life(11).live(300)
    log = make_log(settings, SystemClock())
    await log.start()
    feeder = Feeder(log, topics)
    usage = UsageRest(SETTINGS.model_copy(update={"rest_windows_max": 10**6}), log, topics)
    await usage.start()
    for start in range(0, len(life.records), 150):
        # 1. a deriver crashes in the middle, without loss
        derive = PlainDerive(SETTINGS, log, topics, SystemClock())
        await derive.start()
        await write(feeder, life, life.records[start : start + 150])
        before_ns = until_ns(usage, life)
        await eventually(lambda before_ns=before_ns: until_ns(usage, life) > before_ns)  # type: ignore[misc]
        await derive.stop()
    derive = PlainDerive(SETTINGS, log, topics, SystemClock())
    await derive.start()
    await eventually(lambda: until_ns(usage, life) == life.at_ns)
    await asyncio.sleep(0.05)
    assert await derive.healthy()
    await derive.stop()
    # 2. each event is in its topic once, in order, with its headers and original offset
    kinds = by_kind(life.records)
    for kind in ("app", "node", "queue", "request", "usergroup"):
        routed = await read_all(log, topics.events_of(kind))  # type: ignore[arg-type]
        assert by_kind(routed) == Counter({kind: kinds[kind]})
        origins = [int(dict(record.headers)["origin"].rsplit(b"/", 1)[1]) for record in routed]
        assert origins == sorted(set(origins))
        for record, at in zip(routed, origins, strict=True):
            source = life.records[at]
            assert (record.key, record.value, record.headers[:-1]) == (source.key, source.value, source.headers)
            assert dict(record.headers)["origin"] == f"{topics.events}/0/{at}".encode()
    # 3. and usage is exact
    for subject, changes in life.changes.items():
        expected = integrate(changes, WINDOW_NS, life.at_ns)
        windows = usage.table.windows(life.rm_id, *subject, 0, 1 << 62, WINDOW_NS)
        found = {one.start_ns: (+Counter(one.quantity_ns), one.allocations) for one in windows}
        assert found == {start: (+one.quantity_ns, one.allocations) for start, one in expected.items()}, subject
    await usage.stop()
    await log.close()


async def test_it_rests_while_others_work_is_urgent_but_not_for_ever() -> None:
    log, asked = MemoryLog(TOPICS.specs(), SystemClock()), list[bool]()
    await log.start()
    life = Life(3).live(60)
    await write(Feeder(log, TOPICS), life, life.records)
    usage = UsageRest(SETTINGS, log, TOPICS)

    def is_urgent() -> bool:
        asked.append(True)
        return True

    derive = PlainDerive(SETTINGS, log, TOPICS, SystemClock(), is_urgent=is_urgent)
    for part in (usage, derive):
        await part.start()
    await eventually(lambda: until_ns(usage, life) == life.at_ns)
    assert len(asked) >= 20, "each slice and each flush asks until it has rested for long enough"
    for part in (derive, usage):
        await part.stop()
    await log.close()


async def test_windows_of_another_length_end_the_service_with_a_clear_error() -> None:
    log = MemoryLog(TOPICS.specs(), SystemClock())
    await log.start()
    life = Life(2).live(20)
    await write(Feeder(log, TOPICS), life, life.records)
    first = PlainDerive(SETTINGS, log, TOPICS, SystemClock())
    await first.start()
    usage = UsageRest(SETTINGS, log, TOPICS)
    await usage.start()
    await eventually(lambda: until_ns(usage, life) > 0)
    await usage.stop()
    await first.stop()
    other = PlainDerive(SETTINGS.model_copy(update={"window_s": 30}), log, TOPICS, SystemClock())
    await other.start()
    with pytest.raises(UsageMismatch, match="window_s is 30"):
        await asyncio.wait_for(other.wait(), 60)
    await other.stop()
    await log.close()


# ---- REST ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def asked(lives: list[Life], **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    log = MemoryLog(TOPICS.specs(), SystemClock())
    await log.start()
    wanted = SETTINGS.model_copy(update={"rest_windows_max": 10**6, **settings})
    derive, usage = PlainDerive(wanted, log, TOPICS, SystemClock()), UsageRest(wanted, log, TOPICS)
    service = PublisherService(
        PublisherSettings(http_address="", grpc_address=""),
        log,
        TOPICS,
        SystemClock(),
        sinks=(),
        usage=usage,
    )
    feeder = Feeder(log, TOPICS)
    for part in (derive, usage):
        await part.start()
    for life in lives:
        await write(feeder, life, life.records)
        await eventually(lambda life=life: until_ns(usage, life) == life.at_ns)  # type: ignore[misc]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(service.asgi), base_url="http://p") as http:  # type: ignore[arg-type]
        try:
            yield http
        finally:
            for part in (usage, derive):
                await part.stop()
            await log.close()


async def test_rest_tells_usage_in_windows() -> None:
    life = Life(21).live(400)
    start_s = START_NS // S_IN_NS
    async with asked([life]) as http:
        for kind in ("application", "queue", "user", "group"):
            answer = await http.get(f"/ws/v1/usage?kind={kind}&from={start_s}&window=900")
            assert answer.status_code == 200, answer.text
            assert answer.headers["content-type"] == "application/json; charset=UTF-8"
            body = json.loads(answer.content, parse_float=Decimal)
            assert (body["rm"], body["kind"], body["window"], body["complete_from"]) == (life.rm_id, kind, 900, None)
            assert [one["name"] for one in body["usage"]] == sorted(name for k, name in life.changes if k == kind)
            for one in body["usage"]:
                total: Counter[str] = Counter()
                for window in one["windows"]:
                    total.update({n: int(value * S_IN_NS) for n, value in window["resource_seconds"].items()})
                expected: Counter[str] = Counter()
                for part in integrate(life.changes[kind, one["name"]], WINDOW_NS, life.at_ns).values():
                    expected.update(part.quantity_ns)
                assert +total == +expected, one["name"]
                assert all(window["final"] for window in one["windows"][:-1])
        one = (await http.get(f"/ws/v1/usage?kind=queue&name=root&from={start_s}")).json()
        assert [each["name"] for each in one["usage"]] == ["root"]
        first = one["usage"][0]["windows"][0]
        begin = (
            await http.get(f"/ws/v1/usage?kind=queue&name=root&from={first['start']}&to={first['start'][:-3]}59Z")
        ).json()
        assert begin["usage"][0]["windows"] == [first]
        # A known one that used nothing, and an unknown one.
        before = (await http.get("/ws/v1/usage?kind=queue&name=root&from=0&to=60")).json()
        assert before["usage"] == []
        nobody = await http.get("/ws/v1/usage?kind=queue&name=root.nobody")
        assert nobody.status_code == 404
        assert nobody.json()["message"] == "parameter \"name\": no usage of queue 'root.nobody'"
        assert (await http.get("/ws/v1/usage?kind=application&name=root")).status_code == 404


async def test_without_usage_the_answer_is_empty() -> None:
    async with asked([]) as http:
        answer = await http.get("/ws/v1/usage?kind=queue")
        assert (answer.status_code, answer.json()) == (200, {"usage": []})


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", 'parameter "kind" is needed, expected one of application, queue, user, group'),
        ("kind=pod", "parameter \"kind\": 'pod' is not valid, expected one of application"),
        ("kind=queue&since=3", "parameter 'since' is unknown, expected rm, kind, name, from, to, window"),
        ("kind=queue&from=yesterday", "parameter \"from\": 'yesterday' is not valid, expected seconds since 1970"),
        ("kind=queue&to=-1", "parameter \"to\": '-1' is not valid"),
        ("kind=queue&to=2026-01-31", "parameter \"to\": '2026-01-31' is not valid"),
        ("kind=queue&from=20&to=20", 'parameter "from": 20 is not before "to", which is 20'),
        ("kind=queue&window=90", "parameter \"window\": '90' is not valid, expected seconds, a whole multiple of 60"),
        ("kind=queue&window=0", "parameter \"window\": '0' is not valid"),
        ("kind=queue&window=" + "9" * 5000, 'parameter "window": '),
        ("kind=queue&from=0", "at most 10000 fit in an answer: name one"),
    ],
)
async def test_bad_questions_get_a_clear_error(query: str, said: str) -> None:
    async with asked([Life(1).live(30)]) as http:
        answer = await http.get(f"/ws/v1/usage?{query}")
        assert answer.status_code == 400
        assert said in answer.json()["message"]
        assert answer.json()["message"] == answer.json()["description"]
        assert len(answer.content) < 1000


async def test_the_rm_must_be_named_where_there_are_several() -> None:
    async with asked([Life(1, "rm-a").live(30), Life(2, "rm-b").live(30)]) as http:
        answer = await http.get("/ws/v1/usage?kind=queue")
        assert (answer.status_code, "known RMs: 'rm-a', 'rm-b'" in answer.text) == (400, True)
        answer = await http.get("/ws/v1/usage?kind=queue&rm=rm-c")
        assert (answer.status_code, "no usage of 'rm-c'" in answer.text) == (404, True)
        assert (await http.get("/ws/v1/usage?kind=queue&rm=rm-b")).json()["rm"] == "rm-b"
        assert (await http.post("/ws/v1/usage?kind=queue")).status_code == 405


async def test_a_malformed_usage_record_stops_nothing() -> None:
    life = Life(1).live(30)
    async with asked([life]) as http:
        usage = (await http.get("/ws/v1/usage?kind=queue")).json()
        assert usage["rm"] == life.rm_id
    log = MemoryLog(TOPICS.specs(), SystemClock())
    table = UsageRest(SETTINGS, log, TOPICS)
    await log.start()
    await table.start()
    writer = await log.writer("test")
    for value in (b"", b"[]", b"{}", b'{"rm":1}', b'{"rm":"r","window_s":"x"}', b"\xff", None):
        await writer.append(OutRecord(TOPICS.usage, 0, b"k", value))
    await asyncio.sleep(0.05)
    assert await table.healthy()
    await table.stop()
    await log.close()
