"""An RM at a gateway: after each step, the sums of its events equal what REST shows.

The ledger is docs/events.md, "Sums"; ``tests/contract/test_events_add_up.py`` names where else it is compared.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from e2e.gang_rig import Muster, muster_here
from event_books_shown import adds_up
from muster_cli.main import run
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.service import SchedulerService
from muster_scheduler.settings import SchedulerSettings
from scenario.through_gateway import SETTINGS, Played, rest_of
from waiting import eventually

QUEUES = """
partitions:
- name: default
  queues:
  - name: root
    submitacl: '*'
    limits: [{limit: all, users: [ann], groups: [ann], maxresources: {vcore: 100}}]
    queues: [{name: a}, {name: b}]
"""
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def muster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Muster]:
    async with muster_here(Path(tmp_path_factory.mktemp("history")), SETTINGS) as it:
        yield it
        await it.services["scheduler"].stop()  # a test may have put another one there


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(muster: Muster) -> AsyncIterator[httpx.AsyncClient]:
    async with rest_of(muster) as it:
        yield it


class Told(Played):
    """An RM whose history is checked after each of its steps."""

    async def wants(self, key: str, wants: int, size: int) -> None:
        """Sends an ask of the previous generation, with repeats."""
        item = {"allocationKey": key, "applicationID": "app", "partitionName": "default", "maxAllocations": wants}
        await self.peer.send("UpdateAllocation", {"asks": [{**item, "resourceAsk": {"vcore": size}}]})

    async def takes_back(self, key: str) -> None:
        """Releases an ask in the form of its generation. Returns after the answer."""
        item = {"partitionName": "default", "applicationID": "app", "allocationKey": key}
        if self.generation == "previous":
            await self.peer.send("UpdateAllocation", {"releases": {"allocationAsksToRelease": [item]}})
            await self.hears("UpdateAllocation", "releasedAsks", allocationKey=key)
        else:
            await self.releases(item)
            await self.hears("UpdateAllocation", "released", allocationKey=key)

    async def requested(self, key: str, *expected: tuple[str, int]) -> None:
        """Waits until these are the (change, vcore) of all APP_REQUESTs of a key; then all sums must be right."""
        found: list[tuple[str, int]] = []

        async def same() -> bool:
            answer = await self.http.get("/ws/v1/events/batch", params={"rm": self.rm_id, "count": "10000"})
            # (404: nothing was heard of it yet.)
            told = answer.json()["EventRecords"] if answer.status_code == 200 else []
            found[:] = [
                (si.EventRecord.ChangeType.Name(each["eventChangeType"]), _vcore(each))  # type: ignore[arg-type]
                for each in told or []
                if each.get("eventChangeDetail") == si.EventRecord.APP_REQUEST and each["referenceID"] == key
            ]
            return found == list(expected)

        try:
            await eventually(same, f"APP_REQUEST of {key}: {expected}")
        except AssertionError as error:
            raise AssertionError(f"{error}; they are {found}") from None
        await adds_up(self.http, self.rm_id)


def _vcore(event: dict[str, Any]) -> int:
    return int(event["resource"]["resources"]["vcore"]["value"])


async def test_a_pending_ask_that_changes_is_removed_and_added(muster: Muster, http: httpx.AsyncClient) -> None:
    rm = Told(muster, http, "current")
    await rm.begins(QUEUES, {"vcore": 10})
    await rm.application("app", "root.a")
    await rm.hears("UpdateApplication", "accepted", applicationID="app")
    await rm.asks("app", "k", 5000)
    await rm.requested("k", ("ADD", 5000))
    await rm.asks("app", "k", 3000)
    await rm.requested("k", ("ADD", 5000), ("REMOVE", 5000), ("ADD", 3000))
    await rm.takes_back("k")
    await rm.requested("k", ("ADD", 5000), ("REMOVE", 5000), ("ADD", 3000), ("REMOVE", 3000))


async def test_repeats_are_counted_and_fewer_of_them_are_no_secret(muster: Muster, http: httpx.AsyncClient) -> None:
    rm = Told(muster, http, "previous")
    await rm.begins(QUEUES, {"vcore": 10})
    await rm.application("app", "root.a")
    await rm.hears("UpdateApplication", "accepted", applicationID="app")
    await rm.wants("k", 3, 20)
    await rm.requested("k", ("ADD", 60))
    await rm.wants("k", 1, 20)
    await rm.requested("k", ("ADD", 60), ("REMOVE", 60), ("ADD", 20))
    await rm.takes_back("k")
    await rm.requested("k", ("ADD", 60), ("REMOVE", 60), ("ADD", 20), ("REMOVE", 20))


async def test_a_placeholder_ask_that_changes_is_removed_and_added(muster: Muster, http: httpx.AsyncClient) -> None:
    rm = Told(muster, http, "current")
    await rm.begins(QUEUES, {"vcore": 10})
    await rm.application("app", "root.a")
    await rm.hears("UpdateApplication", "accepted", applicationID="app")
    for size in (40, 30):
        await rm.asks("app", "k", size, placeholder=True, taskGroupName="workers")
    await rm.requested("k", ("ADD", 40), ("REMOVE", 40), ("ADD", 30))


async def test_history_adds_up_over_a_restart_and_a_registration(muster: Muster, http: httpx.AsyncClient) -> None:
    rm = Told(muster, http, "previous")
    await rm.begins(QUEUES, {"vcore": 10})
    await rm.application("app", "root.a")
    await rm.hears("UpdateApplication", "accepted", applicationID="app")
    await rm.wants("k", 3, 4)  # two of them fit
    for _ in range(2):
        await rm.hears("UpdateAllocation", "new", allocationKey="k")
    await rm.requested("k", ("ADD", 12))
    await muster.services["scheduler"].stop()
    another = SchedulerService(SchedulerSettings(), muster.log, muster.topics, muster.clock)
    await another.start()
    try:
        await rm.wants("k", 4, 4)
        await rm.requested("k", ("ADD", 12), ("REMOVE", 4), ("ADD", 8))
        before = await adds_up(http, rm.rm_id)
        assert before.figures["pending"]["app"]["vcore"] == before.figures["allocated"]["app"]["vcore"] == 8
        assert before.figures["used by user"]["ann", "root.a"]["vcore"] == 8
        assert before.figures["used by group"]["ann", "root.a"]["vcore"] == 8
        assert not await rm.peer.register(config=QUEUES)

        async def is_empty() -> bool:
            books = await adds_up(http, rm.rm_id)
            return not any(sum(each.values()) for kind in books.figures.values() for each in kind.values())

        await eventually(is_empty, "the registration takes everything off")
    finally:
        await another.stop()
        last = SchedulerService(SchedulerSettings(), muster.log, muster.topics, muster.clock)
        muster.services["scheduler"] = last
        await last.start()


# ---- the counts that people see --------------------------------------------------------------------------------------


async def test_counts_add_up_after_a_registration(
    muster: Muster, http: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """Begun minus ended equals running, in `muster top`, gRPC, REST and Prometheus."""
    rm = Told(muster, http, "current")

    async def counts(running: int, **expected: int) -> None:
        found: dict[str, Any] = {}

        async def so() -> bool:
            found.update((await rm.sees("/ws/v1/metrics/snapshot"))["scheduler"])
            tally = found["tally"]
            right = all(tally[name] == count for name, count in expected.items())
            return right and tally["allocated"] + tally["reported"] - tally["ended"] == found["allocations"] == running

        await eventually(so, f"{running} run, {expected}; found {found}")
        text = (await http.get("/ws/v1/metrics", params={"rm": rm.rm_id})).text
        attempts = _attempts(text)
        assert attempts["allocated"] - attempts["released"] == running, attempts

    async def top() -> str:
        arguments = ["top", "--once", "--gateway", muster.gateway, "--rm", rm.rm_id]
        assert await asyncio.to_thread(run, arguments) == 0
        return capsys.readouterr().out

    # 1. three are allocated, one is reported, one is released
    await rm.begins(QUEUES, {"vcore": 10})
    await rm.application("app", "root.a")
    await rm.hears("UpdateApplication", "accepted", applicationID="app")
    for key in ("k1", "k2", "k3"):
        await rm.asks("app", key, 1)
        await rm.hears("UpdateAllocation", "new", allocationKey=key)
    await rm.reports("app", "theirs", 1)
    await rm.releases({"applicationID": "app", "allocationKey": "k1"})
    await counts(3, allocated=3, reported=1, ended=1, released=1, dropped=0)
    assert "so far        3 allocated, 1 reported, 1 ended\n" in await top()
    # 2. it registers again, which drops them, and reports what runs
    assert not await rm.peer.register(config=QUEUES)
    await counts(0, allocated=3, reported=1, ended=4, released=1, dropped=3)
    await rm.begins(QUEUES, {"vcore": 10})
    await rm.application("app", "root.a")
    for key in ("k2", "k3", "theirs"):
        await rm.reports("app", key, 1)
    await counts(3, allocated=3, reported=4, ended=4, released=1, dropped=3)
    shown = await top()
    assert "allocations   3, 0 asks pending\n" in shown
    assert "so far        3 allocated, 4 reported, 4 ended\n" in shown
    assert "1 released by the RM, 3 dropped when it registered again, 0 released by Muster\n" in shown


def _attempts(text: str) -> dict[str, int]:
    line = r'^yunikorn_scheduler_container_allocation_attempt_total{state="(\w+)"} (\S+)$'
    return {state: int(float(value)) for state, value in re.findall(line, text, re.MULTILINE)}
