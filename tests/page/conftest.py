"""One Chromium and one `muster up` for all tests of this folder."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from pathlib import Path

import pytest
import pytest_asyncio
from page import world
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright, expect
from up import Up, up

# A generous limit: the tests do not measure speed.
PATIENCE_MS = 120_000
SHOTS = Path(__file__).parents[2] / ".artefacts" / "page"

Opened = Callable[..., Awaitable[Page]]
_FAILED = pytest.StashKey[bool]()
_SHOWN_CHARS = 3_000


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_FAILED] = report.failed
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give all tests one event loop, in which browser and resource managers live, and the time-out of those that
    start processes.
    """
    for item in items:
        if Path(__file__).parent in item.path.parents and isinstance(item, pytest.Function):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            item.add_marker(pytest.mark.timeout(600))


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
        # (A container lacks the sandbox's rights and has little shared memory.)
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
async def opened(browser: Browser, request: pytest.FixtureRequest) -> AsyncIterator[Opened]:
    """Open pages, each in a context of its own. At the end, no page may have logged an error or run hostile text.

    When the test failed, its report has what the pages showed, and which requests had failed.
    """
    contexts: list[BrowserContext] = []
    said: list[str] = []
    refused: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        # (The browser itself reports answers of 4xx and 5xx.)
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
        if clock:  # it advances as usual, and tests can move it forward
            await page.clock.install()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", heard)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("requestfailed", lambda asked: refused.append(f"{asked.url}: {asked.failure}"))
        page.on(
            "response",
            lambda answer: refused.append(f"{answer.url}: {answer.status}") if answer.status >= 400 else None,
        )
        await page.goto(url)
        return page

    yield open_
    if request.node.stash.get(_FAILED, False):
        for page in (page for context in contexts for page in context.pages):
            shown = await page.locator("body").inner_text()
            request.node.add_report_section("teardown", "page", f"{page.url}\n{shown[:_SHOWN_CHARS]}")
        request.node.add_report_section("teardown", "requests that failed", "\n".join(refused))
    for context in contexts:
        for page in context.pages:
            assert await page.evaluate("() => window.hacked") is None
        await context.close()
    assert not said
