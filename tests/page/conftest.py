"""Debian's Chromium, and something for it to look at. One of each for all tests of this folder."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from page import world
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright, expect
from up import Up, up

# A machine that has much else to do: nothing is held against how fast it is.
PATIENCE_MS = 60_000
SHOTS = Path(__file__).parents[2] / ".artefacts" / "page"

Opened = Callable[..., Awaitable[Page]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One event loop for all of them: the browser and the resource managers live in it."""
    for item in items:
        if Path(__file__).parent in item.path.parents and isinstance(item, pytest.Function):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's program. The Debian package is called chromium; scripts/test-servers installs it."""
    found = os.environ.get("MUSTER_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        said = "no chromium here: install Debian's package, or name a program in MUSTER_TEST_CHROMIUM"
        if os.environ.get("MUSTER_REQUIRE_SERVERS") == "1":
            pytest.fail(f"MUSTER_REQUIRE_SERVERS=1, but {said}", pytrace=False)
        pytest.skip(said)
    return found


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    async with async_playwright() as playwright:
        # (A container has neither the rights that the sandbox needs nor much shared memory.)
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb"]
        one = await playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield one
        await one.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def muster(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Up]:
    """A `muster up` in which the resource managers "prod", "large" and "pair" live."""
    directory = tmp_path_factory.mktemp("muster")
    async with (
        up(directory, "--set", "view.history_interval_s=0.5", "--set", "process.log_level=warning") as one,
        world.Rm(one, "prod", world.QUEUES) as prod,
        world.Rm(one, "large", world.LARGE) as large,
        world.Rm(one, "pair", world.PAIR) as pair,
    ):
        await asyncio.gather(world.lives(prod), world.fills(large), world.parts(pair))
        yield one


@pytest_asyncio.fixture(loop_scope="session")
async def opened(browser: Browser) -> AsyncIterator[Opened]:
    """Opens a page of its own context; at the end none of them may have said an error, or been hacked."""
    contexts: list[BrowserContext] = []
    said: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        # (What a server answers with 4xx and 5xx the browser reports by itself.)
        if message.type == "error" and "Failed to load resource" not in message.text:
            said.append(message.text)

    async def open_(
        url: str, *, width: int = 1280, height: int = 900, dark: bool = False, init: str = "", clock: bool = False
    ) -> Page:
        context = await browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            locale="en-GB",
        )
        contexts.append(context)
        if init:
            await context.add_init_script(init)
        page = await context.new_page()
        if clock:  # it goes as ever, and can be put forward
            await page.clock.install()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", heard)
        page.on("pageerror", lambda error: said.append(str(error)))
        await page.goto(url)
        return page

    yield open_
    for context in contexts:
        for page in context.pages:
            assert await page.evaluate("() => window.hacked") is None
        await context.close()
    assert not said
