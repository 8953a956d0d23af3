"""The page's behaviour: keyboard, colours, tokens, and requests to the server."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from page import world
from page.conftest import Opened
from page.test_looks import AXE, CONTROLS, WCAG
from playwright.async_api import Page, Request, expect
from up import Up, up

TOKEN = "page-token-0123456789"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Up]:
    """A `muster up` that needs a token and has no resource manager."""
    tokens = json.dumps({"reader": {"role": "read", "token": TOKEN}})
    settings = ("--set", f"gateway.tokens={tokens}", "--set", "gateway.grpc_open=true")
    async with up(tmp_path_factory.mktemp("guarded"), *settings) as one:
        yield one


async def _quiet(page: Page) -> None:
    await expect(page.locator("main h1").first).to_be_visible()
    await expect(page.locator("main")).not_to_contain_text("Loading")


# ---- accessibility ---------------------------------------------------------------------------------------------------


async def test_the_looking_finds_what_is_wrong(muster: Up, opened: Opened) -> None:
    """(This shows that the check of each view in test_looks.py can fail.)"""
    page = await opened(muster.http)
    await _quiet(page)
    await page.evaluate(
        """() => {
          const pale = document.createElement('p');
          pale.textContent = 'pale';
          pale.style.color = '#9a9a9a';
          document.querySelector('header').append(pale, document.createElement('button'), document.createElement('h4'));
        }"""
    )
    found = await page.evaluate(CONTROLS)
    assert [one.partition(":")[0] for one in found] == ["contrast", "name", "heading"]
    await page.evaluate(AXE)
    assert {one.split(": ")[1] for one in await page.evaluate(WCAG)} == {"color-contrast", "button-name"}


async def test_everything_is_reached_by_tab_in_reading_order(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/applications?rm=prod&user=bat")
    await expect(page.locator(".apps tbody tr")).to_have_count(4)
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_be_focused()
    assert "#/applications" in page.url
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("searchbox", name="Text", exact=True)).to_be_focused()
    reached = 0
    places: list[float] = []
    for _ in range(60):
        box = await page.evaluate(
            """() => {
              const one = document.activeElement;
              if (one === document.body) return null;
              const style = getComputedStyle(one);
              const box = one.getBoundingClientRect();
              return {top: box.top + scrollY, outline: parseFloat(style.outlineWidth), kind: style.outlineStyle};
            }"""
        )
        if box is None:
            break
        # The focus is visible.
        assert box["outline"] >= 2
        assert box["kind"] != "none"
        reached += 1
        places.append(box["top"])
        await page.keyboard.press("Tab")
    controls = await page.evaluate(
        "() => document.querySelectorAll('main a, main button, main input, main select').length"
    )
    assert reached == controls
    assert places == sorted(places, key=lambda top: round(top / 40))


async def test_light_and_dark_follow_the_system_until_switched(muster: Up, opened: Opened) -> None:
    page = await opened(muster.http, dark=True)
    await _quiet(page)
    ground = "() => getComputedStyle(document.body).backgroundColor"
    dark = await page.evaluate(ground)
    switch = page.get_by_role("button", name="Theme")
    await switch.click()
    await expect(switch).to_have_text("Theme: light")
    assert await page.evaluate(ground) != dark
    await page.reload()
    await expect(switch).to_have_text("Theme: light")
    await switch.click()
    assert await page.evaluate(ground) == dark


# ---- towards the server ----------------------------------------------------------------------------------------------


def _asked(page: Page) -> list[str]:
    asked: list[str] = []

    def heard(request: Request) -> None:
        if "/ws/v1/" in request.url:
            asked.append(re.sub(r".*/ws/v1|\?.*", "", request.url))

    page.on("request", heard)
    return asked


async def test_only_what_is_shown_is_asked_for_and_nothing_while_hidden(muster: Up, opened: Opened) -> None:
    hide = "Object.defineProperty(document, 'hidden', {get: () => window.away === true});"
    turn = "(away) => { window.away = away; document.dispatchEvent(new Event('visibilitychange')); }"
    page = await opened(f"{muster.http}/#/overview?rm=prod", init=hide, clock=True)
    await _quiet(page)
    asked = _asked(page)
    await page.evaluate("() => { location.hash = '#/queues?rm=prod'; }")
    asked.clear()  # (the overview may have asked just before)
    await expect(page.locator(".tree")).to_be_visible()
    assert set(asked) <= {"/metrics/snapshot", "/resource-managers", "/partitions", "/whoami", "/health"}
    await page.evaluate(turn, True)
    await expect(page.locator("#status")).to_contain_text("paused while hidden")
    asked.clear()
    await page.clock.fast_forward(60_000)  # longer than the interval of requests
    # (Requests from before the change arrive before this one.)
    await page.evaluate("async () => { await fetch('/page/icon.svg'); }")
    assert asked == []
    async with page.expect_response("**/metrics/snapshot**"):
        await page.evaluate(turn, False)
    await expect(page.locator("#status")).to_contain_text("live")


async def test_the_stream_of_events_ends_while_hidden(muster: Up, opened: Opened) -> None:
    hide = "Object.defineProperty(document, 'hidden', {get: () => window.away === true});"
    turn = "(away) => { window.away = away; document.dispatchEvent(new Event('visibilitychange')); }"
    page = await opened(f"{muster.http}/#/events?rm=prod", init=hide)
    await expect(page.locator(".events li")).to_have_count(200)
    async with page.expect_event("requestfailed", lambda request: "/events/stream" in request.url):
        await page.evaluate(turn, True)
    async with page.expect_request(lambda request: "/events/stream" in request.url and "start=" in request.url):
        await page.evaluate(turn, False)


async def test_a_token_is_asked_for_and_kept_in_the_tab_only(guarded: Up, opened: Opened) -> None:
    page = await opened(guarded.http)
    field = page.get_by_label("Token", exact=True)
    await expect(field).to_be_visible()
    await expect(field).to_have_attribute("type", "password")
    await field.fill("nobodys-token-0123456789")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert").filter(has_text="Refused")).to_contain_text("the token is unknown")
    await field.fill(TOKEN)
    await page.get_by_role("button", name="Show the cluster").click()
    await expect(page.get_by_role("heading", name="No resource manager is registered")).to_be_visible()
    stored = await page.evaluate(
        "() => [JSON.stringify(sessionStorage), JSON.stringify(localStorage), document.cookie]"
    )
    assert TOKEN in stored[0]
    assert TOKEN not in stored[1] + stored[2] + page.url
    await page.reload()
    await expect(page.get_by_role("heading", name="No resource manager is registered")).to_be_visible()
    await page.get_by_role("link", name="Health").click()
    await expect(page.locator("main")).to_contain_text("No resource manager is registered.")
    await page.get_by_role("button", name="Log out").click()
    await expect(field).to_be_visible()
    assert await page.evaluate("() => sessionStorage.length") == 0


async def test_a_gateway_that_is_away_is_said_and_waited_for(guarded: Up, opened: Opened) -> None:
    page = await opened(guarded.http, init=f"sessionStorage.setItem('muster.token', '{TOKEN}')", clock=True)
    async with world.Rm(guarded, "empty", world.LARGE):
        # An empty cluster.
        await page.clock.fast_forward(3000)
        await expect(page.get_by_role("heading", name="The cluster is empty")).to_be_visible()
        await page.get_by_role("link", name="Users").click()
        await expect(page.locator("main")).to_contain_text("No user has an application")
        await page.get_by_role("link", name="Applications", exact=True).click()
        await expect(page.locator("main")).to_contain_text("No application is active.")
        await expect(page).to_have_url(re.compile(r"#/applications$"))
        # The chosen RM stays when others register, and the address names it from then on.
        async with world.Rm(guarded, "above", world.LARGE):
            await page.clock.fast_forward(11_000)
            await expect(page.get_by_role("combobox", name="Resource manager", exact=True)).to_have_value("empty")
            await expect(page).to_have_url(re.compile(r"#/applications\?rm=empty$"))
        await page.context.set_offline(True)
        # From here on the page's time stands still, so that it tries again only when it is told to.
        await page.clock.pause_at(await page.evaluate("() => Date.now() + 3000"))
        notice = page.locator(".notice")
        await expect(page.locator("#whole")).to_contain_text("it does not answer this page")
        await expect(page.locator("#whole")).to_contain_text("The figures below are of")
        await expect(page.locator("main")).to_have_attribute("data-old", "yes")
        asked = _asked(page)
        await page.clock.fast_forward(1000)
        await expect(notice).to_contain_text(re.compile(r"Next try in [2-9] s"))
        tries = len(asked)
        await page.get_by_role("button", name="Try now").click()
        await expect(page.locator("#status")).to_contain_text("away")
        assert len(asked) <= tries + 3
        await page.context.set_offline(False)
        # (A request of the first press may still be under way, and find the gateway back.)
        await page.evaluate("() => document.querySelector('.notice button')?.click()")
        await expect(notice).to_have_count(0)
        await expect(page.locator("#status")).to_contain_text("live")
