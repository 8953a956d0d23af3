"""What ended is found by page, search, `get`, `explain` and REST: while Muster runs, and after a restart, a restore
into another directory and a migration into another log.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import urllib.error
from pathlib import Path
from typing import Any

import pytest
from muster_client import removal
from muster_proto.si.v1 import si_pb2 as si
from muster_replay.local_process import muster_command
from page import world
from page.conftest import Opened
from page.world import QUEUES, Rm
from playwright.async_api import expect
from up import Up
from waiting import eventually

APP, NODE = "carla-3", "leaves-7"
SAID = "(from the history)"
EVENTS_SHOWN = 5

pytestmark = pytest.mark.timeout(600)


async def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = muster_command(*map(str, arguments))
    return await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=120, check=False)


async def done(*arguments: object) -> str:
    outcome = await command(*arguments)
    assert outcome.returncode == 0, outcome
    return outcome.stdout


async def lived(up: Up) -> None:
    """An application ends and is removed, and so is the node that it ran on; another one stays."""
    async with Rm(up, "rm", QUEUES) as rm:
        await rm.client.send_nodes([world.node(NODE, {"vcore": 8_000, "memory": 8 * world.GI})])
        await rm.app(APP, "root.prod.web", "carla")
        await rm.has(await rm.asks(APP, 2, {"vcore": 2_000, "memory": world.GI}))
        await rm.ends([f"{APP}-0", f"{APP}-1"])
        await rm.client.send_applications(remove=[removal(APP)])
        leaves = si.NodeInfo(nodeID=NODE, action=si.NodeInfo.DECOMISSION)
        await rm.client.send_nodes([leaves])
        await rm.app("stays", "root.prod.web", "ann")
        for query in (f"name={APP}", f"kind=node&name={NODE}"):
            await eventually(lambda query=query: asyncio.to_thread(ended, up, query), query)


async def is_found(up: Up, opened: Opened) -> None:
    """By REST, `get`, `explain`, page and search."""
    await by_rest(up)
    assert (await done("get", "applications", APP, "-o", "name", "--http", up.http)).split() == [APP]
    explained = await done("explain", "application", APP, "--gateway", up.grpc)
    assert f"Application {APP} was in queue root.prod.web" in explained
    assert SAID in explained
    assert "It had 2 allocations: 2 released." in explained
    await by_page(up, opened)


def ended(up: Up, query: str) -> Any:
    try:
        return json.loads(up.get(f"/ws/v1/ended?{query}")[1])["ended"]
    except urllib.error.HTTPError as error:
        if error.code == 404:  # the publisher knows of no RM yet
            return []
        raise


async def by_rest(up: Up) -> None:
    (life,) = await eventually(lambda: asyncio.to_thread(ended, up, f"name={APP}"), "the history has it")
    assert (life["state"], life["queueName"], life["user"]) == ("Removed", "root.prod.web", "carla")
    assert [each["nodeID"] for each in life["allocationLog"]] == [NODE, NODE]
    with pytest.raises(urllib.error.HTTPError, match="404"):  # YuniKorn's answer is YuniKorn's
        await asyncio.to_thread(up.get, f"/ws/v1/partition/default/application/{APP}")


async def is_found_in_every_form(up: Up, opened: Opened) -> None:
    """Lists, nodes, single asks; and what was never there is not found."""
    listed = await done("get", "applications", "--state", "all", "--columns", "application,state", "--http", up.http)
    assert [APP, "Removed"] in [line.split() for line in listed.splitlines()]
    assert (await done("get", "nodes", NODE, "-o", "name", "--http", up.http)).split() == [NODE]
    assert SAID in await done("explain", "node", NODE, "--gateway", up.grpc)
    assert f"{APP}-1: allocated on {NODE}" in await done("explain", "ask", APP, f"{APP}-1", "--gateway", up.grpc)
    refused = await command("explain", "application", "never", "--gateway", up.grpc)
    assert refused.returncode != 0
    assert "the history has none of this name either" in refused.stderr
    page = await opened(f"{up.http}/#/applications?state=all")
    await expect(page.locator("tr", has_text=APP)).to_contain_text("Removed")
    page = await opened(f"{up.http}/#/nodes/{NODE}")
    await expect(page.get_by_role("note")).to_contain_text("From the history.")
    page = await opened(f"{up.http}/#/applications/never")
    await expect(page.locator("main")).to_contain_text("does not exist, and the history has none of this name")


async def by_page(up: Up, opened: Opened) -> None:
    page = await opened(f"{up.http}/#/applications/{APP}")
    await expect(page.locator("main h1")).to_have_text(APP)
    await expect(page.get_by_role("note")).to_contain_text("From the history.")
    past = page.get_by_role("region", name="Allocations")
    await expect(past.locator("tbody tr")).to_have_count(2)
    await expect(past.get_by_role("link", name=NODE).first).to_be_visible()
    await expect(page.locator("svg .run").first).to_be_visible()  # the timeline
    page = await opened(f"{up.http}/#/search?q={APP}")
    found = page.get_by_role("region", name="Applications", exact=True)
    await expect(found.locator("li")).to_contain_text("from the history")
    await found.get_by_role("link", name=APP).click()
    await expect(page.get_by_role("note")).to_contain_text("From the history.")


async def batch_is_whole(up: Up) -> None:
    """The newest events are there, with those from before the restore."""
    newest = await command("events", "batch", "--newest", EVENTS_SHOWN, "--gateway", up.grpc)
    assert newest.returncode == 0, newest
    assert newest.stderr == ""
    assert len(newest.stdout.splitlines()) == 1 + EVENTS_SHOWN
    last = json.loads(up.get("/ws/v1/events/batch?count=1")[1])["HighestID"]
    (whole,) = [json.loads(up.get(f"/ws/v1/events/batch?start=0&count={last + 1}")[1])]
    assert len(whole["EventRecords"]) == last + 1
    assert any(event.get("objectID") == APP for event in whole["EventRecords"])


async def test_it_is_found_before_and_after_a_restart_a_restore_and_a_migration(tmp_path: Path, opened: Opened) -> None:
    first = Up(tmp_path)
    backup, restored, moved = tmp_path / "backup", tmp_path / "restored", tmp_path / "moved"
    others = [Up(restored), Up(moved)]
    for each in (restored, moved):
        each.mkdir()
    try:
        await first.start()
        await lived(first)
        await is_found(first, opened)
        await is_found_in_every_form(first, opened)
        assert first.process.stop() == 0
        await first.start()
        await is_found(first, opened)
        await done("backup", backup, "--data-dir", first.data)
        assert first.process.stop() == 0

        await done("restore", backup, "--data-dir", others[0].data)
        await others[0].start()
        await is_found(others[0], opened)
        await batch_is_whole(others[0])
        assert others[0].process.stop() == 0

        said = await done("migrate", "--data-dir", first.data, "--to-data-dir", others[1].data)
        assert "history: parquet (" in said
        assert f"the old one stays in {first.data / 'history'}" in said
        shutil.copytree(first.data / "history", others[1].data / "history")
        await others[1].start()
        await is_found(others[1], opened)
    finally:
        for each in (first, *others):
            each.process.kill()
