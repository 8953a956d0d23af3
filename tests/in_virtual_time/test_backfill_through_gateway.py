"""What is backfilled ends when it was promised, whatever an RM of either generation says of it later (decision 261)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from e2e.gang_rig import Muster, muster_here
from scenario.through_gateway import DEFAULT, SETTINGS, Played, rest_of
from waiting import eventually

CONFIG = """\
partitions:
- {{name: default, backfill: {}, queues: [{{name: root, submitacl: '*', queues: [{{name: a}}]}}]}}
"""
UPDATE, TAG = "UpdateAllocation", "muster.executionTimeoutMilliSeconds"
# In seconds. (Long enough that a slow machine changes nothing.)
LONG_S, PROMISED_S, LATER_S = 4_000, 1_000, 60_000


@pytest.fixture
async def muster(tmp_path: Path) -> AsyncIterator[Muster]:
    async with muster_here(tmp_path, SETTINGS) as it:
        yield it


def _lasting(rm: Played, seconds: int) -> dict[str, Any]:
    """How an ask declares that it lasts so long at the most."""
    if rm.generation == "previous":
        return {"executionTimeoutMilliSeconds": seconds * 1000}
    return _tag(seconds)


def _tag(seconds: int) -> dict[str, Any]:
    """How a report declares it, in both generations."""
    return {"allocationTags": {TAG: str(seconds * 1000)}}


async def _backfilled(rm: Played, mode: str) -> None:
    """Of 8 cores, 6 are in use; the node is kept for big, which needs all; b has the other 2 until then."""
    await rm.begins(CONFIG.format(mode), {"vcore": 8})
    await rm.application("app", "root.a")
    await rm.hears("UpdateApplication", "accepted", applicationID="app")
    await rm.asks("app", "long", 6, **_lasting(rm, LONG_S))
    await rm.hears(UPDATE, "new", allocationKey="long")
    await rm.asks("app", "big", 8)
    await _waits(rm, "big")
    rm.muster.clock.forward(3)

    async def is_reserved() -> bool:
        return bool((await rm.sees(f"{DEFAULT}/node/n1"))["isReserved"])

    await eventually(is_reserved, "n1 is reserved")
    await rm.asks("app", "b", 2, **_lasting(rm, PROMISED_S))
    await rm.hears(UPDATE, "new", allocationKey="b", nodeID="n1")


async def _waits(rm: Played, key: str) -> None:
    async def shows() -> bool:
        asked = (await rm.sees(f"{DEFAULT}/application/app")).get("requests") or ()
        return key in [each["allocationKey"] for each in asked]

    await eventually(shows, f"{key} waits")


async def _ends(rm: Played, key: str, after_s: int) -> None:
    """Muster ends it after that time, and the RM confirms."""
    rm.muster.clock.forward(after_s)
    told = await rm.hears(UPDATE, "released", allocationKey=key, terminationType="TIMEOUT")
    uuid = {"UUID": told["UUID"]} if told.get("UUID") else {}
    await rm.releases({"applicationID": "app", "allocationKey": key, "terminationType": "TIMEOUT", **uuid})


async def _keeps_its_promise(rm: Played) -> None:
    await _ends(rm, "b", PROMISED_S)
    await _ends(rm, "long", LONG_S - PROMISED_S)
    await rm.hears(UPDATE, "new", allocationKey="big", nodeID="n1")
    assert not [each for each in rm.peer.heard[UPDATE] if each.kind == "rejected"]


@pytest.mark.parametrize("mode", ["conservative", "easy"])
@pytest.mark.parametrize("generation", ["current", "previous"])
async def test_a_later_end_is_answered_with_the_promised_one(muster: Muster, generation: str, mode: str) -> None:
    async with rest_of(muster) as http:
        rm = Played(muster, http, generation)
        try:
            await _backfilled(rm, mode)
            await rm.reports("app", "b", 2, **_tag(LATER_S))
            told = await rm.hears(UPDATE, "new", allocationKey="b", nodeID="n1")
            assert told["allocationTags"] == {TAG: str(PROMISED_S * 1000)}
            await rm.asks("app", "b", 2, **_lasting(rm, LATER_S))
            told = await rm.hears(UPDATE, "new", allocationKey="b", nodeID="n1")
            assert told["allocationTags"][TAG] == str(PROMISED_S * 1000)
            await _keeps_its_promise(rm)
        finally:
            await rm.peer.lose_connection()


@pytest.mark.asyncio
async def test_a_restart_forgets_no_promise(tmp_path: Path) -> None:
    at = tmp_path / "muster"
    async with muster_here(at, SETTINGS) as muster, rest_of(muster) as http:
        rm = Played(muster, http, "current", "rm")
        await _backfilled(rm, "easy")
        await rm.reports("app", "b", 1, **_tag(LATER_S))  # it became smaller, too
        told = await rm.hears(UPDATE, "new", allocationKey="b", resourcePerAlloc={"vcore": 1})
        assert told["allocationTags"] == {TAG: str(PROMISED_S * 1000)}
        await rm.peer.lose_connection()
    async with muster_here(at, SETTINGS) as muster, rest_of(muster) as http:
        muster.clock.forward(3)
        rm = Played(muster, http, "current", "rm")
        await rm.reports("app", "b", 1, **_tag(LATER_S))
        told = await rm.hears(UPDATE, "new", allocationKey="b", nodeID="n1")
        assert told["allocationTags"] == {TAG: str(PROMISED_S * 1000)}
        await _keeps_its_promise(rm)
        await rm.peer.lose_connection()


@pytest.mark.parametrize("generation", ["current", "previous"])
async def test_what_runs_is_adopted_after_a_registration_whatever_it_declares(muster: Muster, generation: str) -> None:
    """The asks to which something was promised are gone with the registration. New ones get their node when due."""
    async with rest_of(muster) as http:
        rm = Played(muster, http, generation)
        await _backfilled(rm, "conservative")
        await rm.peer.lose_connection()
        again = Played(muster, http, generation, rm.rm_id)
        try:
            await again.begins(CONFIG.format("conservative"), {"vcore": 8})
            await again.application("app", "root.a")
            await again.hears("UpdateApplication", "accepted", applicationID="app")
            await again.reports("app", "long", 6, **_tag(LONG_S))
            await again.reports("app", "b", 2, **_tag(PROMISED_S))
            for key, seconds in (("long", LONG_S), ("b", PROMISED_S)):
                told = await again.hears(UPDATE, "new", allocationKey=key, nodeID="n1")
                assert told["allocationTags"] == {TAG: str(seconds * 1000)}
            await again.asks("app", "big", 8)
            await _waits(again, "big")
            await _keeps_its_promise(again)
        finally:
            await again.peer.lose_connection()
