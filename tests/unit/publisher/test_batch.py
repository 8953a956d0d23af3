"""GET /ws/v1/events/batch and the common parts of all endpoints, byte for byte."""

from __future__ import annotations

import gzip
import json

import httpx
import pytest
from muster_event_publisher.errors import HttpError, rm_list_clause
from muster_event_publisher.event_json import batch_json, event_json
from muster_event_publisher.rest import answer_json, get_endpoint
from muster_runtime.go_json import error_body
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp
from unit.publisher.feeding import INSTANCE, event, headers
from unit.publisher.running import TOPICS, Running, running, until_next

BATCH = "/ws/v1/events/batch"
STREAM = "/ws/v1/events/stream"
CORE_HEADERS = {
    "content-type": "application/json; charset=UTF-8",
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, OPTIONS",
    "access-control-allow-headers": "X-Requested-With,Content-Type,Accept,Origin",
}


def body(lowest: int, highest: int, ids: range) -> bytes:
    return batch_json(INSTANCE, lowest, highest, [event_json(event(n)) for n in ids])


async def filled(publisher: Running, count: int, rm_id: str = "rm") -> None:
    await publisher.service.start()
    await publisher.feeder.events(rm_id, range(count))
    await until_next(publisher, rm_id, count)


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", range(6)),
        ("?count=4", range(4)),
        ("?count=4&start=", range(4)),
        ("?count=&start=7", range(7, 13)),
        ("?count=18446744073709551615&start=3", range(3, 9)),
        ("?start=19&count=3", range(19, 20)),
        ("?count=2&count=5", range(2)),
        ("?rm=rm&start=00000000000000000000018", range(18, 20)),
        ("?start=" + "0" * 5000, range(6)),
        ("?start=20", range(0)),
        ("?start=18446744073709551615", range(0)),
    ],
)
async def test_answers(query: str, ids: range) -> None:
    async with running(rest_response_size=6) as publisher:
        await filled(publisher, 20)
        answer = await publisher.http.get(BATCH + query)
        assert answer.status_code == 200
        assert answer.content == body(0, 19, ids)
        assert CORE_HEADERS.items() <= dict(answer.headers).items()
        assert answer.headers["x-muster-events-source"] == "ring"
        assert answer.headers["x-muster-next-id"] == str(ids.stop if ids else 20)


@pytest.mark.parametrize("path", [BATCH, STREAM])
@pytest.mark.parametrize(
    "query",
    ["count=abc", "count=-1", "count=1.0", "count=%2B1", "count=18446744073709551616", "start=x", "start=-1",
     "start=99999999999999999999999999", "start=" + "1" * 6000, "start=%C2%B2", "count=1&start=0x10"],
)  # fmt: skip
async def test_bad_numbers(path: str, query: str) -> None:
    async with running() as publisher:
        await filled(publisher, 3)
        answer = await publisher.http.get(f"{path}?{query}")
        assert answer.status_code == 400
        assert CORE_HEADERS.items() <= dict(answer.headers).items()
        error = json.loads(answer.content)
        assert error == {"status_code": 400, "message": error["message"], "description": error["message"]}
        name = query.rsplit("&", maxsplit=1)[-1].split("=", maxsplit=1)[0]
        assert error["message"].startswith(f'parameter "{name}": ')
        assert "expected a whole number" in error["message"]
        assert answer.content == error_body(400, error["message"])
        assert (await publisher.http.get(BATCH)).content == body(0, 2, range(3))


async def test_count_zero_is_refused_in_a_batch() -> None:
    async with running() as publisher:
        await filled(publisher, 3)
        assert (await publisher.http.get(BATCH + "?count=0")).status_code == 400


async def test_older_than_the_ring_is_served_from_the_log() -> None:
    async with running(ring_capacity=10) as publisher:
        await filled(publisher, 50)
        answer = await publisher.http.get(BATCH + "?start=5&count=8")
        assert answer.content == body(40, 49, range(5, 13))
        assert answer.headers["x-muster-events-source"] == "log"
        assert answer.headers["x-muster-next-id"] == "13"
        answer = await publisher.http.get(BATCH + "?start=39")
        assert answer.content == body(40, 49, range(39, 50))


async def test_older_than_the_log_is_null_and_says_where_to_go_on() -> None:
    async with running(ring_capacity=10) as publisher:
        await filled(publisher, 50)
        publisher.log.store.delete_before(TOPICS.events, TOPICS.partition_of("rm"), 20)
        answer = await publisher.http.get(BATCH + "?start=5")
        assert answer.content == body(40, 49, range(0))
        assert answer.headers["x-muster-next-id"] == "20"
        publisher.log.store.delete_before(TOPICS.events, TOPICS.partition_of("rm"), 45)
        answer = await publisher.http.get(BATCH + "?start=5")
        assert answer.content == body(40, 49, range(0))
        assert answer.headers["x-muster-next-id"] == "40"


async def test_older_than_the_ring_is_null_when_the_log_is_not_to_be_asked() -> None:
    async with running(ring_capacity=10, serve_from_log=False) as publisher:
        await filled(publisher, 50)
        answer = await publisher.http.get(BATCH)
        assert answer.content == body(40, 49, range(0))
        assert answer.headers["x-muster-next-id"] == "40"


async def test_a_search_that_is_too_long_is_refused() -> None:
    async with running(ring_capacity=10, log_search_records_max=1) as publisher:
        await filled(publisher, 5_000)
        answer = await publisher.http.get(BATCH)
        assert answer.status_code == 503
        assert "older events cannot be read now" in answer.json()["message"]


async def test_a_gap_is_said_and_keeps_its_places() -> None:
    async with running() as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", [0, 1, 5, 6])
        await until_next(publisher, "rm", 7)
        answer = await publisher.http.get(BATCH + "?start=1")
        assert answer.headers["x-muster-events-missing"] == "2-4"
        records = answer.json()["EventRecords"]
        assert [r["message"] for r in records[1:4]] == [f"event {n} is missing from the log" for n in (2, 3, 4)]
        assert [r.get("objectID") for r in records] == ["app-1", None, None, None, "app-5", "app-6"]
        assert "x-muster-events-missing" not in (await publisher.http.get(BATCH + "?start=5")).headers


async def test_several_rms_are_kept_apart() -> None:
    async with running() as publisher:
        await filled(publisher, 3, "one")
        assert (await publisher.http.get(BATCH)).content == body(0, 2, range(3))
        await publisher.feeder.events("two & more", range(2))
        await until_next(publisher, "two & more", 2)
        answer = await publisher.http.get(BATCH)
        assert answer.status_code == 400
        known = "; known RMs: 'one', 'two & more'"
        assert answer.content == error_body(400, f'parameter "rm" is needed{known}')
        assert (await publisher.http.get(BATCH, params={"rm": "one"})).content == body(0, 2, range(3))
        assert (await publisher.http.get(BATCH, params={"rm": "two & more"})).content == body(0, 1, range(2))
        answer = await publisher.http.get(BATCH, params={"rm": "three"})
        assert answer.status_code == 404
        assert answer.content == error_body(404, f'parameter "rm": no events of {"three"!r}{known}')
        answer = await publisher.http.get(BATCH, params={"rm": "ä" * 1_000})
        assert answer.json()["message"].endswith(rf"\xe4\xe4'… (1000 characters){known}")


def test_of_many_rms_the_first_are_named() -> None:
    assert rm_list_clause([f"rm-{number}" for number in range(12)]).endswith(", 'rm-8', 'rm-9' and 2 more")
    assert rm_list_clause([]) == "; no RM has events yet"


async def test_before_the_first_event_the_answer_is_empty() -> None:
    async with running() as publisher:
        await publisher.service.start()
        answer = await publisher.http.get(BATCH)
        assert answer.status_code == 200
        assert answer.content == b'{"InstanceUUID":"","LowestID":0,"HighestID":0,"EventRecords":null}\n'
        assert answer.headers["x-muster-next-id"] == "0"


@pytest.mark.parametrize("settings", [{"tracking_enabled": False}, {"ring_capacity": 0}])
async def test_tracking_off(settings: dict[str, object]) -> None:
    async with running(**settings) as publisher:
        await publisher.service.start()
        for path in (BATCH, STREAM):
            answer = await publisher.http.get(path)
            assert answer.status_code == 500
            assert answer.content == error_body(500, "Event tracking is disabled")


async def test_shim_events_are_nowhere() -> None:
    async with running() as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", range(2))
        await publisher.feeder.shim("rm", 5)
        await publisher.feeder.events("rm", range(2, 4))
        await until_next(publisher, "rm", 4)
        assert (await publisher.http.get(BATCH)).content == body(0, 3, range(4))


async def test_hostile_records_change_nothing() -> None:
    async with running() as publisher:
        await publisher.service.start()
        junk = [(b"", ()), (b"\xff", (("id", b"x"),)), (event(0), headers("rm", 0)[:2])]
        await publisher.feeder.write("rm", junk)
        await publisher.feeder.write("rm", [(b"\xff\xff", headers("rm", 0)), (event(1), headers("rm", 1))])
        await until_next(publisher, "rm", 2)
        records = (await publisher.http.get(BATCH)).json()["EventRecords"]
        assert records[0] == {"message": "the event record cannot be read", "resource": {}}
        assert records[1]["objectID"] == "app-1"
        assert await publisher.service.healthy()


async def test_compression_from_1400_bytes_on() -> None:
    async with running() as publisher:
        await filled(publisher, 500)
        for count in (1, 20, 500):
            plain = body(0, 499, range(count))
            for accept in ("gzip", "identity"):
                request = publisher.http.build_request(
                    "GET", f"{BATCH}?count={count}", headers={"accept-encoding": accept}
                )
                answer = await publisher.http.send(request, stream=True)
                raw = b"".join([part async for part in answer.aiter_raw()])
                packed = accept == "gzip" and len(plain) >= 1400
                assert answer.headers.get("content-encoding") == ("gzip" if packed else None)
                assert ("vary" in answer.headers) == (len(plain) >= 1400)
                assert (gzip.decompress(raw) if packed else raw) == plain


@pytest.mark.parametrize("path", [BATCH, STREAM])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "PATCH"])
async def test_other_methods(path: str, method: str) -> None:
    async with running() as publisher:
        answer = await publisher.http.request(method, path)
        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET, OPTIONS"
        assert answer.content in (b"Method Not Allowed\n", b"")


async def test_options_has_no_cors_headers() -> None:
    async with running() as publisher:
        answer = await publisher.http.options(BATCH)
        assert (answer.status_code, answer.content, answer.headers["allow"]) == (200, b"", "GET, OPTIONS")
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("path", "status", "location"),
    [
        ("/ws/v1/events/batch/", 301, BATCH),
        ("/WS/v1/Events/BATCH?count=1&start=2", 301, f"{BATCH}?count=1&start=2"),
        ("/ws/v1/events/stream/", 301, STREAM),
        ("/ws/v1/events", 404, None),
        ("/", 404, None),
    ],
)
async def test_paths(path: str, status: int, location: str | None) -> None:
    async with running() as publisher:
        answer: httpx.Response = await publisher.http.get(path)
        assert answer.status_code == status
        assert answer.headers.get("location") == location
        if status == 404:
            assert answer.content == b"404 page not found\n"


async def test_health_says_what_is_wrong() -> None:
    async with running() as publisher:
        await publisher.service.start()
        assert (await publisher.http.get("/health")).json() == {"healthy": True, "problems": []}
        publisher.log.closed = True
        answer = await publisher.http.get("/health")
        assert answer.status_code == 503
        assert "the log does not answer" in answer.json()["problems"]


async def test_metrics_are_there() -> None:
    async with running() as publisher:
        await filled(publisher, 3, "rm-of-metrics")
        text = (await publisher.http.get("/metrics")).text
        assert 'muster_publisher_events_total{rm="rm-of-metrics"} 3.0' in text


async def test_further_routes_have_the_same_manners() -> None:
    async def usage(request: Request) -> ASGIApp:
        if request.query_params.get("window"):
            raise HttpError(400, 'parameter "window": not known')
        return await answer_json(request, b"[]\n")

    async with running(extra_routes=[Route("/ws/v1/usage", get_endpoint(usage))]) as publisher:
        answer = await publisher.http.get("/ws/v1/usage")
        assert (answer.status_code, answer.content) == (200, b"[]\n")
        assert CORE_HEADERS.items() <= dict(answer.headers).items()
        assert (await publisher.http.get("/ws/v1/usage?window=1")).status_code == 400
        assert (await publisher.http.post("/ws/v1/usage")).status_code == 405
