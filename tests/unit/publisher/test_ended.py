"""`/ws/v1/ended`: what ended is found in memory and in every store that can be searched, a bounded piece at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from ended_lives import Cluster, E
from muster_bus.clock import SystemClock
from muster_event_publisher.ended import search
from muster_event_publisher.history.registry import sinks_of
from muster_event_publisher.settings import PublisherSettings
from unit.publisher.feeding import headers
from unit.publisher.running import TOPICS, Running, running, until_next
from waiting import eventually

Found = dict[str, Any]


@pytest.fixture(params=["memory", "parquet", pytest.param("postgres", marks=pytest.mark.postgres)])
async def publisher(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    """With everything in memory; or with the newest 40 events there, and all but less than 30 in a store."""
    settings: dict[str, Any] = {}
    schema = f"t{uuid4().hex}"
    if request.param == "parquet":
        settings = {"ring_capacity": 40, "parquet_dir": tmp_path, "parquet_roll_records": 30}
    elif request.param == "postgres":
        dsn = request.getfixturevalue("postgres_dsn")
        settings = {"ring_capacity": 40, "postgres_dsn": dsn, "postgres_schema": schema, "postgres_flush_s": 0.05}
    plans = sinks_of(PublisherSettings(**settings), TOPICS, SystemClock())
    async with running(sinks=plans, **settings) as one:
        await one.service.start()
        yield one
    if request.param == "postgres":
        connection = await asyncpg.connect(dsn)
        await connection.execute(f"drop schema if exists {schema} cascade")
        await connection.close()


async def happened(publisher: Running, cluster: Cluster, rm_id: str = "rm", first: int = 0) -> None:
    """Writes the cluster's events, and returns when memory and stores have them."""
    values = cluster.values
    await publisher.feeder.write(
        rm_id, [(value, headers(rm_id, event_id)) for event_id, value in enumerate(values, first)]
    )
    await until_next(publisher, rm_id, first + len(values))
    exporters = publisher.service._exports.exporters
    await eventually(lambda: all(each.lag < 30 for each in exporters), "the events are exported")


async def ended(publisher: Running, query: str = "", status: int = 200) -> Found:
    answer = await publisher.http.get(f"/ws/v1/ended?{query}")
    assert answer.status_code == status, answer.text
    found: Found = answer.json()
    return found


def names(found: Found) -> list[str]:
    return [each["name"] for each in found["ended"]]


async def test_a_life_has_its_states_queue_user_and_allocations(publisher: Running) -> None:
    cluster = Cluster()
    cluster.life("other")
    begin_ns = cluster.now_ns
    cluster.life("carla-3", node="n7", user="carla")
    end_ns = cluster.now_ns - 1_000_000_000
    for number in range(10):
        cluster.life(f"later-{number}")
    cluster.submitted("runs")
    await happened(publisher, cluster)

    found = await ended(publisher, "name=carla-3&events=true")
    (life,) = found["ended"]
    assert found["source"] == "history"
    assert (life["name"], life["state"], life["queueName"], life["user"]) == ("carla-3", "Completed", "root.a", "carla")
    assert (life["begin"], life["end"], life["isWhole"]) == (begin_ns, end_ns, True)
    assert [each["state"] for each in life["stateLog"]] == ["New", "Running", "Completing", "Completed"]
    (allocation,) = life["allocationLog"]
    assert (allocation["allocationKey"], allocation["nodeID"], allocation["ended"]) == ("carla-3-1", "n7", "released")
    assert allocation["asked"] < allocation["begin"] < allocation["end"]
    assert allocation["resource"] == {"vcore": 2}
    assert "and ended as Completed (from the history)." in life["sentence"]
    assert {event["objectID"] for event in life["events"] if event["type"] == E.APP} == {"carla-3"}
    assert names(await ended(publisher, "name=nobody")) == []
    # what lives has not ended, as far as anybody asks for lists
    every = await ended(publisher)
    assert names(every) == [*(f"later-{number}" for number in range(9, -1, -1)), "carla-3", "other"]
    assert {life["user"] for life in every["ended"]} == {"ann", "carla"}
    assert all(life["isWhole"] and "allocationLog" not in life for life in every["ended"])


async def test_pages_go_on_where_the_one_before_ended(publisher: Running) -> None:
    cluster = Cluster()
    for number in range(12):
        cluster.submitted(f"long-{number}")
    for number in range(12):
        cluster.life(f"short-{number}")
    for number in range(12):
        cluster.ended(f"long-{number}", completed=False)
    await happened(publisher, cluster)
    read: list[str] = []
    before = ""
    for _ in range(20):
        found = await ended(publisher, f"count=5&before={before}")
        read += names(found)
        before = found["next"]
        if not before:
            break
    assert read == [f"long-{n}" for n in range(11, -1, -1)] + [f"short-{n}" for n in range(11, -1, -1)]
    some = await ended(publisher, "q=SHORT-1")
    assert names(some) == ["short-11", "short-10", "short-1"]
    assert {life["state"] for life in some["ended"]} == {"Completed"}
    assert {life["state"] for life in (await ended(publisher, "q=long"))["ended"]} == {"Removed"}


async def test_an_id_may_have_several_lives_and_rejections(publisher: Running) -> None:
    cluster = Cluster()
    cluster.rejected("again", "no such queue")
    cluster.life("again")
    cluster.submitted("again")
    cluster.rejected("again", "it is there already")
    cluster.ended("again", completed=False)
    cluster.submitted("alive")
    cluster.rejected("alive", "it is there already")
    for number in range(4):
        cluster.life(f"later-{number}")
    await happened(publisher, cluster)
    lives = (await ended(publisher, "name=again"))["ended"]
    assert [(each["state"], each.get("message", "")) for each in lives] == [
        ("Removed", ""),
        ("Completed", ""),
        ("Rejected", "no such queue"),
    ]
    assert names(await ended(publisher, "q=alive")) == []
    assert [life["state"] for life in (await ended(publisher, "name=alive"))["ended"]] == ["New"]


async def test_nodes_and_queues_that_were_removed(publisher: Running) -> None:
    cluster = Cluster()
    cluster.event(E.QUEUE, "root.old", E.ADD, E.QUEUE_DYNAMIC)
    cluster.event(E.QUEUE, "root.old", E.SET, E.QUEUE_MAX, vcore=9)
    cluster.event(E.NODE, "n7", E.ADD, E.DETAILS_NONE, message="Node added to the scheduler", vcore=8)
    cluster.later()
    cluster.life("app", node="n7")
    cluster.event(E.QUEUE, "root.a", E.NONE, E.DETAILS_NONE, message="a notice")
    cluster.event(E.NODE, "n7", E.REMOVE, E.NODE_DECOMISSION, message="Node removed from the scheduler")
    cluster.event(E.QUEUE, "root.old", E.REMOVE, E.QUEUE_DYNAMIC)
    cluster.later()
    for number in range(4):
        cluster.life(f"later-{number}")
    await happened(publisher, cluster)
    (node,) = (await ended(publisher, "kind=node&name=n7"))["ended"]
    assert (node["state"], node["resource"], node["allocations"]) == ("Removed", {"vcore": 8}, 1)
    assert [each["allocationKey"] for each in node["allocationLog"]] == ["app-1"]
    assert names(await ended(publisher, "kind=node")) == ["n7"]
    (queue,) = (await ended(publisher, "kind=queue"))["ended"]
    assert (queue["name"], queue["resource"]) == ("root.old", {"vcore": 9})


async def test_without_a_store_it_says_what_was_searched_and_the_remedy() -> None:
    cluster = Cluster()
    for number in range(20):
        cluster.life(f"app-{number}")
    async with running(ring_capacity=30) as publisher:
        await publisher.service.start()
        await happened(publisher, cluster)
        found = await ended(publisher, "name=app-0")
        assert found["ended"] == []
        assert found["stores"] == []
        assert found["note"].startswith("No history store is configured, so only the events in memory were searched.")
        assert "publisher.sinks" in found["note"]
        assert names(await ended(publisher, "name=app-19")) == ["app-19"]


async def test_what_is_forgotten_is_found_if_the_rm_is_named(tmp_path: Path) -> None:
    """The events of an RM are in a store only: in memory there are none, as after a long time."""
    cluster = Cluster()
    cluster.life("carla-3")
    settings: dict[str, Any] = {"parquet_dir": tmp_path}
    plans = sinks_of(PublisherSettings(**settings), TOPICS, SystemClock())
    async with running(sinks=plans) as publisher:
        await publisher.service.start()
        await happened(publisher, cluster, "gone")
    async with running(**settings) as publisher:
        await publisher.service.start()
        assert names(await ended(publisher, "rm=gone&name=carla-3")) == ["carla-3"]
        await ended(publisher, "rm=nobody", status=404)


@pytest.mark.parametrize(
    "query", ["kind=rm", "count=0", "count=1001", "before=x", "before=1-2-3", "events=1", "name=a&q=b", "nmae=a"]
)
async def test_wrong_parameters_are_named(query: str) -> None:
    async with running() as publisher:
        await publisher.service.start()
        await happened(publisher, cluster_of("app"))
        assert "parameter" in (await ended(publisher, query, status=400))["message"]


def cluster_of(*apps: str) -> Cluster:
    cluster = Cluster()
    for app in apps:
        cluster.life(app)
    return cluster


async def test_an_answer_looks_at_a_bounded_number_of_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name at the far end is found by going on; each answer reads a bounded part of the store."""
    monkeypatch.setattr(search, "LOOKED_AT_MAX", 60)
    monkeypatch.setattr(search, "_STRETCH", 30)
    cluster = cluster_of("first", *(f"app-{number}" for number in range(40)))
    settings: dict[str, Any] = {"ring_capacity": 20, "parquet_dir": tmp_path, "parquet_roll_records": 30}
    plans = sinks_of(PublisherSettings(**settings), TOPICS, SystemClock())
    async with running(sinks=plans, **settings) as publisher:
        await publisher.service.start()
        for start in range(0, len(cluster.values), 30):
            part = Cluster()
            part.values = cluster.values[start : start + 30]
            await happened(publisher, part, first=start)
    async with running(**settings) as publisher:
        await publisher.service.start()
        answers, before = 0, ""
        while True:
            found = await ended(publisher, f"rm=rm&name=first&before={before}")
            answers, before = answers + 1, found["next"]
            if found["ended"]:
                break
            assert before, "it is there"
        assert answers > 3
        assert names(found) == ["first"]
