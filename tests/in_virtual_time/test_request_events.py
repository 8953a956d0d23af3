"""Events of asks through the whole of Muster: to the RM over its callback stream and Watch only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.gang_rig import Muster, muster_here
from muster_client import Callbacks, EventFilter, EventsClient, Place, RmClient, application, ask, node

# A test of many waits, on a busy machine.
WHOLE_S = 240.0
pytestmark = pytest.mark.timeout(600)
QUEUES = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: "*"
        queues:
          - name: small
            resources: {max: {vcore: 1}}
          - name: large
"""
SETTINGS = ["log.partitions=1", "publisher.request_push_interval_s=0.1", "gateway.request_push_interval_s=0.1"]


DOES_NOT_FIT = "does not fit in queue 'root.small'"


async def watched(muster: Muster, words: str, **what: Any) -> list[tuple[str, str]]:
    """Objects and messages of request events, up to the one with these words."""
    found: list[tuple[str, str]] = []
    async with EventsClient(muster.gateway) as client, aclosing(client.watch("rm", **what)) as batches:
        async for batch in batches:
            found += [(each.record.objectID, each.record.message) for each in batch.events if each.id is None]
            if any(words in message for _, message in found):
                break
    return found


@pytest.mark.parametrize("enabled", ["true", "false"])
async def test_only_the_rm_gets_the_events_about_its_waiting_asks(tmp_path: Path, enabled: str) -> None:
    heard: list[Any] = []
    told, allocated = asyncio.Event(), asyncio.Event()

    def hear(events: Sequence[Any]) -> None:
        heard.extend(events)
        if any(DOES_NOT_FIT in each.record.message for each in events):
            told.set()

    callbacks = Callbacks(on_events=hear, on_allocated=lambda _: allocated.set(), request_events_only=True)
    extra = {"service.event.requestEventsEnabled": enabled}
    async with (
        asyncio.timeout(WHOLE_S),
        muster_here(tmp_path, SETTINGS) as muster,
        RmClient(muster.gateway, "rm", callbacks=callbacks, config=QUEUES, extra_config=extra) as rm,
    ):
        await rm.register()
        await rm.send_nodes([node("n1", {"vcore": 10_000, "memory": 1 << 30})])
        await rm.send_applications([application("waits", "root.small"), application("runs", "root.large")])
        await rm.applications_answered()
        await rm.send_asks([ask("too-large", "waits", {"vcore": 2_000})])
        if enabled == "true":
            found = await watched(muster, DOES_NOT_FIT, request_events=True, tracked_events=False)
            assert [name for name, message in found if DOES_NOT_FIT in message] == ["too-large"]
            await told.wait()
            assert [each.record.objectID for each in heard if DOES_NOT_FIT in each.record.message] == ["too-large"]
            assert {each.HasField("id") for each in heard} == {False}, "the tracked ones are not wanted"
        await rm.send_asks([ask("fits", "runs", {"vcore": 1_000})])
        await allocated.wait()
        async with EventsClient(muster.gateway) as client:
            tracked: list[Any] = []
            # (Its ask may be an event before its allocation is one.)
            while ("NODE", "ADD", "NODE_ALLOC") not in [each.names for each in tracked]:
                tracked = list((await client.batch("rm", place=Place(id=0))).events)
            assert [each.id for each in tracked] == list(range(len(tracked))), "they have taken no id"
            assert "REQUEST" not in {each.names[0] for each in tracked}
            mine = await client.batch("rm", place=Place(id=0), wanted=EventFilter(application_id="runs"))
            node_events = [each.names for each in mine.events if each.names[0] == "NODE"]
            assert node_events == [("NODE", "ADD", "NODE_ALLOC")]
            below = await client.batch("rm", place=Place(id=0), wanted=EventFilter(queue="root.small"))
            assert {each.record.objectID for each in below.events if each.names[0] == "APP"} == {"waits"}
        async with httpx.AsyncClient(base_url=muster.http, timeout=60) as http:
            rest = await http.get("/ws/v1/events/batch", params={"rm": "rm"})
            kinds = {each["type"] for each in json.loads(rest.text)["EventRecords"]}
            assert 1 not in kinds, "REST shows tracked events only"
        if enabled == "false":
            await asyncio.sleep(0.3)
            assert heard == []


async def test_events_made_with_no_stream_open_arrive_on_it_as_on_watch(tmp_path: Path) -> None:
    """Watch and the callback stream give the same, in the same order, each once: over reconnects and a restart."""
    extra = {"service.event.requestEventsEnabled": "true"}
    on_stream: list[tuple[int, str, str]] = []
    on_watch: list[tuple[int, str, str]] = []

    def named(records: Sequence[Any]) -> list[tuple[int, str, str]]:
        return [(each.timestampNano, each.objectID, each.message) for each in records]

    async def too_large(rm: RmClient, *keys: str) -> None:
        await rm.send_asks([ask(key, "waits", {"vcore": 2_000 + len(key)}) for key in keys])

    async def hear(muster: Muster, until: str) -> None:
        """On both, up to the last event of an ask."""
        there = asyncio.Event()

        def told(events: Sequence[Any]) -> None:
            on_stream.extend(named([each.record for each in events]))
            if any(name == until for _, name, _ in on_stream):
                there.set()

        callbacks = Callbacks(on_events=told, request_events_only=True)
        async with RmClient(muster.gateway, "rm", callbacks=callbacks) as listening:
            await listening.attach()
            await there.wait()
            place = max((at for at, _, _ in on_watch), default=0)
            async with EventsClient(muster.gateway) as client:
                watching = client.watch("rm", request_events=True, tracked_events=False)
                async with aclosing(watching) as batches:
                    async for batch in batches:
                        found = [each.record for each in batch.events if each.record.timestampNano > place]
                        on_watch.extend(named(found))
                        if any(name == until for _, name, _ in on_watch):
                            break
            await asyncio.sleep(0.3)  # (what came twice would come now)

    async with asyncio.timeout(WHOLE_S):
        async with muster_here(tmp_path, SETTINGS) as muster:
            async with RmClient(muster.gateway, "rm", config=QUEUES, extra_config=extra) as rm:
                await rm.register()
                await rm.send_nodes([node("n1", {"vcore": 10_000, "memory": 1 << 30})])
                await rm.send_applications([application("waits", "root.small")])
                await rm.applications_answered()
                await too_large(rm, "a", "bb")
            await hear(muster, "bb")
            first = list(on_stream)
            async with RmClient(muster.gateway, "rm") as rm:
                await rm.attach()
                await too_large(rm, "ccc")
                await asyncio.sleep(0.2)
        async with muster_here(tmp_path, SETTINGS) as muster:
            async with RmClient(muster.gateway, "rm") as rm:
                await rm.attach()
                await too_large(rm, "dddd")
            await hear(muster, "dddd")
    assert first, "they waited for the stream"
    assert [at for at, _, _ in on_stream] == sorted(at for at, _, _ in on_stream), "in order"
    assert len(on_stream) == len(set(on_stream)), "none twice"
    assert on_stream == on_watch
    assert {name for _, name, _ in on_stream} == {"a", "bb", "ccc", "dddd"}
