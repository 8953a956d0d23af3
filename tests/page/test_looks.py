"""Each view on a screen and on a phone, light and dark: pictures for people, rules of legibility, and axe-core.

The pictures are in .artefacts/page: git ignores it, continuous integration keeps it.
"""

from __future__ import annotations

import asyncio
import itertools
from importlib.resources import files
from pathlib import Path
from typing import Any

from page.conftest import SHOTS, Opened
from playwright.async_api import Request, Route, expect
from up import Up

# View → a selector that exists once the view is drawn.
VIEWS = {
    "overview": ("#/overview?rm=prod", ".gauge"),
    "queues": ("#/queues?rm=prod", ".tree"),
    "queue": ("#/queues/root.prod.batch?rm=prod", ".detail .prose"),
    "applications": ("#/applications?rm=prod", ".apps"),
    "application": ("#/applications/train-vision?rm=prod", "svg.timeline"),
    "application-search": ("#/applications/search?rm=prod", "svg.timeline"),
    "application-waits": ("#/applications/notebook-ben?rm=prod", "svg.timeline"),
    "users": ("#/users?rm=prod", ".people"),
    "user": ("#/users/ben?rm=prod", ".tree"),
    "group": ("#/groups/ml?rm=pair&partition=accelerated", ".tree"),
    "application-twice": ("#/applications/nightly?rm=pair&partition=accelerated", "svg.timeline"),
    "nodes": ("#/nodes?rm=large", "canvas"),
    "node": ("#/nodes/gpu-00?rm=prod", ".detail .prose"),
    "pending": ("#/pending?rm=prod", ".waits"),
    "events": ("#/events?rm=prod", ".events li"),
    "gangs": ("#/gangs?rm=prod", ".gangs"),
    "configuration": ("#/configuration?rm=prod", ".editor"),
    "futures": ("#/futures?rm=prod", ".prose"),
    "search": ("#/search?rm=prod&q=s", ".hits"),
    "health": ("#/health?rm=prod", ".checks"),
}
LOOKS = {"light": (1400, False), "dark": (1280, True), "phone": (360, False)}
CONTROLS = (Path(__file__).parent / "controls.js").read_text()
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text()
# The rules of WCAG 2.0 to 2.2, levels A and AA. (Of a long list the first rows are enough: all are made alike.)
WCAG = """async () => {
  const exclude = [".events li:nth-child(n + 12)", "tbody tr:nth-child(n + 15)", "svg > g:nth-child(n + 25)"];
  const runOnly = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
  const part = { include: [["html"]], exclude: exclude.map((each) => [each]) };
  const found = await axe.run(part, { resultTypes: ["violations"], iframes: false, runOnly });
  const told = (one) => one.nodes.slice(0, 3).map((node) => `axe: ${one.id}: ${node.html.slice(0, 160)}`);
  return found.violations.flatMap(told);
}"""
SMALL = """() => [...document.querySelectorAll('body *')]
  .filter((one) => [...one.childNodes].some((child) => child.nodeType === 3 && child.data.trim()))
  .filter((one) => parseFloat(getComputedStyle(one).fontSize) < 12).map((one) => one.outerHTML.slice(0, 80))"""


async def test_each_view_can_be_read(muster: Up, opened: Opened) -> None:
    """Each text has a contrast of 4.5 to 1 and 12 pixels, each control has a name, nothing is too wide, and
    axe-core finds no violation of WCAG AA.
    """
    SHOTS.mkdir(parents=True, exist_ok=True)
    found = await asyncio.gather(*(_problems(muster, opened, look) for look in LOOKS))
    assert dict(zip(LOOKS, found, strict=True)) == {look: {} for look in LOOKS}


# Three parts that do not work, one of them with a name and a sentence of anybody's.
FAULTS = {
    "grade": "failed", "part": "scheduler", "since": 1_000 * 10**9, "checked": 1_075 * 10**9,
    "sentence": "no scheduler has answered for partition 3 for 75 s", "remedy": "start one: muster scheduler",
    "parts": [
        {"part": "scheduler", "grade": "failed", "since": 1_000 * 10**9,
         "sentence": "no scheduler has answered for partition 3 for 75 s", "remedy": "start one: muster scheduler"},
        {"part": "certificates", "grade": "degraded", "since": 1_000 * 10**9,
         "sentence": f"{'long-name-' * 30} <img src=x onerror='window.hacked=1'> ends in 3 days", "remedy": ""},
        {"part": "view", "grade": "degraded", "since": 1_000 * 10**9, "sentence": "it lags", "remedy": "wait"},
    ],
}  # fmt: skip


async def test_faults_in_the_header_can_be_read(muster: Up, opened: Opened) -> None:
    for (width, dark), count in itertools.product(LOOKS.values(), (1, 3)):
        found = {**FAULTS, "parts": FAULTS["parts"][-count:], "grade": "failed" if count == 3 else "degraded"}
        page = await opened(f"{muster.http}/#/overview?rm=prod", width=width, dark=dark)

        async def answer(route: Route, _: Request, found: dict[str, Any] = found) -> None:
            await route.fulfill(json=found)

        await page.route("**/ws/v1/health", answer)
        band = page.locator("#whole")
        await expect(band).to_contain_text("for 1 min 15 s" if count == 3 else "it lags")
        if count == 3:
            await band.get_by_text("and 2 more parts").click()
            await expect(band.locator("li").first).to_contain_text("ends in 3 days")
        await page.evaluate(AXE)
        problems = [*await page.evaluate(CONTROLS), *await page.evaluate(WCAG), *await page.evaluate(SMALL)]
        assert problems == []
        assert await page.evaluate("() => document.documentElement.scrollWidth") <= width
        # Its edge is the content's.
        left = "(name) => document.querySelector(name).getBoundingClientRect().left"
        assert await page.evaluate(left, "#whole .inner > *") == await page.evaluate(left, "main h1")
        await page.screenshot(path=SHOTS / f"faults-{count}-{width}.png")


async def _problems(muster: Up, opened: Opened, look: str) -> dict[str, Any]:
    width, dark = LOOKS[look]
    page = await opened(muster.http, width=width, dark=dark)
    await page.evaluate(AXE)
    problems: dict[str, Any] = {}
    for name, (address, drawn) in VIEWS.items():
        await page.evaluate("(address) => { location.hash = address; }", address)
        await expect(
            page.locator(f"main[data-view={address.split('/')[1].split('?')[0]}] {drawn}").first
        ).to_be_visible()
        await page.screenshot(path=SHOTS / f"{name}-{look}.png", full_page=name not in ("events", "nodes"))
        found = await page.evaluate(CONTROLS)
        found += [f"small: {one}" for one in await page.evaluate(SMALL)]
        found += await page.evaluate(WCAG)
        wide = await page.evaluate("() => document.documentElement.scrollWidth")
        if wide > width:
            found.append(f"wide: {wide}")
        if found:
            problems[name] = found
    return problems
