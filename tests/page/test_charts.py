"""The pointer over charts: what it shows stays while the page redraws itself, and all charts of one axis follow it."""

from __future__ import annotations

import re

from page.conftest import Opened
from playwright.async_api import Locator, Page, expect
from up import Up

PROD = "rm=prod"
# Listeners of the pointer never make a new tree of the whole page. What they write into a node that neither they made
# nor the document has is lost.
STRAYS = """
window.strays = [];
let own = null;
const made = (make) => function (...args) { const one = make.apply(this, args); own?.add(one); return one; };
const lost = (write) => function (...args) {
  if (own && !this.isConnected && ![...own].some((one) => one.contains(this))) window.strays.push(this.outerHTML ?? '');
  return write.apply(this, args);
};
for (const name of ['createElement', 'createElementNS']) Document.prototype[name] = made(Document.prototype[name]);
Element.prototype.setAttribute = lost(Element.prototype.setAttribute);
const text = Object.getOwnPropertyDescriptor(Node.prototype, 'textContent');
Object.defineProperty(Node.prototype, 'textContent', { ...text, set: lost(text.set) });
const add = EventTarget.prototype.addEventListener;
EventTarget.prototype.addEventListener = function (type, listener, options) {
  if (!type.startsWith('pointer')) return add.call(this, type, listener, options);
  return add.call(this, type, function (event) {
    own = new Set();
    try { return listener.call(this, event); } finally { own = null; }
  }, options);
};
"""


async def redrawn(page: Page, chart: Locator) -> None:
    """Wait for a redraw, which takes away what the page did not put there."""
    await chart.evaluate("one => one.setAttribute('data-old', '')")
    await page.clock.fast_forward(3_000)
    await expect(chart).not_to_have_attribute("data-old", "")


async def points(page: Page, chart: Locator, part: float) -> None:
    box = await chart.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] * part, box["y"] + box["height"] / 2)


async def stays(page: Page, charts: Locator, words: re.Pattern[str]) -> None:
    """Point at the first chart, move over it for more than ten seconds, then leave it."""
    chart = charts.first
    await chart.scroll_into_view_if_needed()
    number = await charts.count()
    for step in range(5):
        await points(page, chart, 0.5 + step / 20)
        for _ in range(2):
            await expect(charts.locator(".readout")).to_have_text([words] * number)
            await expect(charts.locator(".cross")).to_have_count(number)
            await redrawn(page, chart)
    # The readout follows the pointer: at both ends of the axis it names another time.
    await points(page, chart, 0.97)
    late = await chart.locator(".readout").text_content() or ""
    await points(page, chart, 0.3)
    await expect(chart.locator(".readout")).not_to_have_text(late)
    await page.mouse.move(2, 2)
    await expect(charts.locator(".readout")).to_have_count(0)
    await expect(charts.locator(".cross")).to_have_count(0)
    await redrawn(page, chart)
    await expect(charts.locator(".cross")).to_have_count(0)
    assert await page.evaluate("() => window.strays") == []


async def test_all_charts_of_the_overview_follow_the_pointer_and_stay(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/overview?{PROD}", init=STRAYS, clock=True, height=1_600)
    charts = page.locator(".plot svg")
    # vcore, memory and GPUs, allocations made, running applications, allocations
    await expect(charts).to_have_count(6)
    await stays(page, charts, re.compile(r"^\d\d:\d\d:\d\d  ?\d"))


async def test_the_timeline_of_an_application_follows_the_pointer_and_stays(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/applications/search?{PROD}", init=STRAYS, clock=True, height=1_600)
    charts = page.locator("svg.timeline")
    await expect(charts.locator("rect.run")).to_have_count(29)
    await stays(page, charts, re.compile(r"^\d\d:\d\d:\d\d  ?\d+ allocated, \d+ pending$"))


async def test_the_heat_map_names_the_node_under_the_pointer_and_stays(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/nodes?rm=large", init=STRAYS, clock=True)
    said = page.locator("#heatsaid")
    canvas = page.get_by_role("application")
    box = await canvas.bounding_box()
    assert box is not None
    for step in range(1, 6):
        await page.mouse.move(box["x"] + 60 * step, box["y"] + 40)
        await expect(said).to_contain_text(re.compile(r"node-\d+ \d+% full"))
        name = (await said.inner_text()).split()[0]
        async with page.expect_response("**/metrics/snapshot**"):
            await page.clock.fast_forward(3_000)
        await expect(said).to_contain_text(name)
    assert await page.evaluate("() => window.strays") == []


async def test_a_redraw_keeps_an_element_with_its_newest_listeners_only(muster: Up, opened: Opened) -> None:
    """(dom.js itself: what one view never does, another one may.)"""
    page = await opened(muster.http)
    heard = await page.evaluate(
        """async () => {
          const { fill, h } = await import('/page/dom.js');
          const heard = [];
          const place = h('div', {});
          const one = (name, types) => h('button', {
            on: Object.fromEntries(types.map((type) => [type, () => heard.push(`${name} ${type}`)])),
          });
          fill(place, one('first', ['click', 'focus']));
          const button = place.firstChild;
          fill(place, one('second', ['click']));
          for (const type of ['click', 'focus']) button.dispatchEvent(new Event(type));
          fill(place, one('third', ['focus']));
          for (const type of ['click', 'focus']) button.dispatchEvent(new Event(type));
          heard.push(place.firstChild === button);
          // An owner's element stays for this owner, and another owner's takes its place.
          const [own, other] = [{}, {}];
          fill(place, h('p', { key: 'map', keep: own }, 'own'));
          const kept = place.firstChild;
          fill(place, h('p', { key: 'map', keep: own }));
          heard.push(place.firstChild === kept, place.textContent);
          fill(place, h('p', { key: 'map', keep: other }, 'other'));
          heard.push(place.firstChild === kept, place.textContent);
          return heard;
        }"""
    )
    assert heard == ["second click", "third focus", True, True, "own", False, "other"]
