"""When will it run? asked on a cluster that lives: the asks of the row start while their forecast is made."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest_asyncio
from muster_client import node, removal
from page import world
from page.conftest import Opened
from playwright.async_api import Route, expect
from up import Up, up
from waiting import eventually

SIMULATED_MS = 300_000
RUNNING, PENDING = 4, 6
ONE = {"vcore": 1_000}
ANSWERED = re.compile(r"will start|have started|has started|may start late|starts in none")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def living(chromium: str, browser: object, tmp_path_factory: object) -> AsyncIterator[Up]:
    """A `muster up` for clusters that live."""
    async with up(tmp_path_factory.mktemp("living")) as one:  # type: ignore[attr-defined]
        yield one


@asynccontextmanager
async def flowing(rm: world.Rm, app: str) -> AsyncIterator[None]:
    """Tasks that run for a moment each: those that wait at any time have all started soon after."""
    await rm.client.send_nodes([node(f"{app}-n", {"vcore": 1_000 * RUNNING})])
    await rm.app(app, "root.a", "ann")
    asked = await rm.asks(app, RUNNING + PENDING, ONE)

    async def flows() -> None:
        number = 0
        while True:
            await eventually(lambda: any(key in rm.runs for key in asked), "one runs")
            (oldest, *_) = [key for key in asked if key in rm.runs]
            await rm.ends([oldest])
            asked.remove(oldest)
            number += 1
            asked.extend(await rm.asks(app, 1, ONE, f"{app}-more-{number}"))

    task = asyncio.create_task(flows())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await rm.has([key for key in asked if key in rm.runs])


async def test_a_row_is_answered_although_its_asks_start_meanwhile(living: Up, opened: Opened) -> None:
    async with world.Rm(living, "flow", world.LARGE) as rm, flowing(rm, "stream"):
        page = await opened(f"{living.http}/#/pending?rm=flow")
        # (An ask that has just come waits for its turn, which is another row.)
        row = page.locator(".waits", has_text="stream").locator(".when[data-reason=NO_NODE_HAS_ROOM]")
        button, status = row.get_by_role("button", name="When will it run?"), row.get_by_role("status")
        for _ in range(3):
            await button.click()
            # (A forecast that is new enough answers before anybody can see that it was asked for.)
            await expect(status).to_contain_text(re.compile(f"Simulating|{ANSWERED.pattern}"))
            # (The simulations have the lowest priority: a busy machine may take a while for them.)
            await expect(status).to_contain_text(ANSWERED, timeout=SIMULATED_MS)
            await expect(status).not_to_contain_text(re.compile("do not wait any more|not found"))
        # The answer stays while the view is drawn anew.
        said = await status.inner_text()
        async with page.expect_response("**/explain/pending**"):
            pass
        await expect(status).to_have_text(said)


async def test_what_has_started_meanwhile_is_said_as_such_and_the_row_stays(living: Up, opened: Opened) -> None:
    async with world.Rm(living, "drain", world.LARGE) as rm:
        await rm.client.send_nodes([node("drain-n", {"vcore": 2_000})])
        await rm.app("few", "root.a", "ann")
        first = await rm.asks("few", 2, ONE, "first")
        await rm.has(first)
        later = await rm.asks("few", 2, ONE, "later")
        await rm.shows("/ws/v1/explain/pending", lambda found: found["counts"] == {"NO_NODE_HAS_ROOM": 2})

        one_at_a_time = asyncio.Lock()  # (on a busy machine the page gives up, and asks again)

        # All of them start between the click and the server's look at them.
        async def starts(route: Route) -> None:
            async with one_at_a_time:
                if not rm.runs.keys() >= set(later):
                    await rm.ends(first)
                    await rm.has(later)
                    await rm.shows("/ws/v1/explain/pending", lambda found: not found["counts"])
            await route.continue_()

        page = await opened(f"{living.http}/#/pending?rm=drain")
        await page.route("**/explain/when/**", starts)
        card = page.locator(".waits", has_text="few")
        await card.get_by_role("button", name="When will it run?").click()
        status = card.get_by_role("status")
        await expect(status).to_contain_text("No ask of application few was pending any more", timeout=SIMULATED_MS)
        await expect(card).to_contain_text("no ask of it is listed any more")
        await expect(card.get_by_role("button")).to_have_count(0)


async def test_an_application_that_has_gone_meanwhile_is_answered_too(living: Up, opened: Opened) -> None:
    async with world.Rm(living, "gone", world.LARGE) as rm:
        await rm.app("brief", "root.a", "ann")
        await rm.asks("brief", 2, ONE)
        await rm.shows("/ws/v1/explain/pending", lambda found: sum(found["counts"].values()) == 2)

        async def removed(route: Route) -> None:
            await rm.client.send_applications(remove=[removal("brief")])
            await rm.shows("/ws/v1/explain/pending", lambda found: not found["pending"])
            await route.continue_()

        page = await opened(f"{living.http}/#/pending?rm=gone")
        await page.route("**/explain/when/**", removed)
        card = page.locator(".waits", has_text="brief")
        await card.get_by_role("button", name="When will it run?").click()
        await expect(card.get_by_role("status")).to_contain_text(
            re.compile("pending any more|do not wait any more"), timeout=SIMULATED_MS
        )
