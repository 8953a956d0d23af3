"""How fluent the page is with long lists: 10,000 applications with four allocations each, and 5,000 nodes.

A real Chromium scrolls through each list while the page refreshes as usual. Prints, for each list: the time between
two frames (p50, p99, max), tasks over 50 ms that hold the browser's thread, elements in the document, and the time
from a letter in the text filter to the filtered list. Run from the root of the repository:

    PYTHONPATH=tests python bench/page_bench.py [APPLICATIONS NODES]

The applications need the room of about 1,000 nodes, however many they are.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path

from page import world
from playwright.async_api import async_playwright
from up import up

SCROLL = """async () => {
  const frames = [], long = [];
  const heard = (list) => long.push(...list.getEntries().map((each) => Math.round(each.duration)));
  const watch = new PerformanceObserver(heard);
  watch.observe({ type: "longtask" });
  const began = performance.now();
  let last = began, most = 0, answers = performance.getEntriesByType("resource").length;
  while (performance.now() - began < 15000) {
    const now = await new Promise(requestAnimationFrame);
    frames.push(now - last);
    last = now;
    most = Math.max(most, document.querySelectorAll("*").length);
    // A fast wheel: the whole list in about 12 s.
    scrollBy(0, Math.max(60, document.documentElement.scrollHeight / 720));
    if (scrollY + innerHeight >= document.documentElement.scrollHeight - 2) scrollTo(0, 0);
  }
  watch.disconnect();
  frames.sort((a, b) => a - b);
  const at = (part) => Math.round(10 * frames[Math.min(frames.length - 1, Math.floor(frames.length * part))]) / 10;
  return { frames: frames.length, p50: at(0.5), p99: at(0.99), max: at(1), long, elements: most,
           answers: performance.getEntriesByType("resource").length - answers };
}"""
TYPE = """async (text) => {
  const field = [...document.querySelectorAll("main input[type=search]")].pop();
  const began = performance.now();
  field.value = text;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  await new Promise(requestAnimationFrame);
  return Math.round(10 * (performance.now() - began)) / 10;
}"""


async def main(applications: int, nodes: int) -> None:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as directory:
        async with (
            up(Path(directory), "--set", "process.log_level=warning") as muster,
            world.Rm(muster, "large", world.LARGE) as rm,
            async_playwright() as playwright,
        ):
            await world.fills(rm, applications, nodes)
            arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
            browser = await playwright.chromium.launch(executable_path=program, args=arguments)
            for view, drawn in (("applications", ".apps tbody tr"), ("nodes", "main > table tbody tr")):
                page = await browser.new_page(viewport={"width": 1280, "height": 900})
                await page.goto(f"{muster.http}/#/{view}")
                await page.wait_for_selector(drawn, timeout=120_000)
                found = await page.evaluate(SCROLL)
                found["filter_ms"] = await page.evaluate(TYPE, "77")
                print(view, json.dumps(found))
                await page.close()
            await browser.close()


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]] or [10_000, 5_000]
    asyncio.run(main(*given))
