"""The reader's identity and rights on the page, and an operator's actions with their audit lines."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator

import pytest_asyncio
from muster_client import node
from page import world
from page.conftest import Opened
from playwright.async_api import Page, expect
from up import Up, up

ADMIN, READER = "admin-token-0123456789", "reader-token-0123456789"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def operated(chromium: str, browser: object, tmp_path_factory: object) -> AsyncIterator[Up]:
    """A `muster up` with tokens, with the resource manager "shop" and its node "n-1"."""
    tokens = json.dumps({"ops": {"role": "admin", "token": ADMIN}, "reader": {"role": "read", "token": READER}})
    settings = (
        "--set",
        f"gateway.tokens={tokens}",
        "--set",
        "gateway.grpc_open=true",
        "--set",
        "gateway.http_open=true",
    )
    async with (
        up(tmp_path_factory.mktemp("operated"), *settings) as one,  # type: ignore[attr-defined]
        world.Rm(one, "shop", world.LARGE) as rm,
    ):
        await rm.client.send_nodes([node("n-1", {"vcore": 4_000, "memory": 1 << 34})])
        await rm.shows("/ws/v1/partition/default/nodes", lambda found: len(found) == 1)
        yield one


async def _log_in(page: Page, token: str) -> None:
    await page.get_by_role("button", name="Log in").click()
    await page.get_by_label("Token", exact=True).fill(token)
    await page.keyboard.press("Enter")


async def _done(page: Page, action: str, said: str) -> None:
    """Confirm, and read the audit line."""
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name=action).click()
    await expect(dialog.get_by_role("status")).to_contain_text(said)
    await expect(dialog.locator(".audit")).to_have_text(re.compile(rf" ops {action.lower()} shop accepted$"))
    await dialog.get_by_role("button", name="Close").click()
    await expect(dialog).to_have_count(0)


async def test_a_reader_logs_in_and_out_and_sees_whose_rights_these_are(operated: Up, opened: Opened) -> None:
    page = await opened(f"{operated.http}/#/nodes/n-1")
    me = page.locator(".me")
    await expect(me).to_have_text("Identity: anyone read")
    # A reader has no actions.
    await expect(page.locator(".detail .prose")).to_be_visible()
    await expect(page.get_by_role("button", name="Drain")).to_have_count(0)
    await _log_in(page, "unknown-token-0123456789")
    await expect(page.get_by_role("alert").filter(has_text="Refused")).to_contain_text("the token is unknown")
    await page.get_by_label("Token", exact=True).fill(READER)
    await page.keyboard.press("Enter")
    await expect(me).to_have_text("Identity: reader read")
    await expect(me).to_have_attribute("title", re.compile("known by token. Role: read. Operates: none"))
    await expect(page.get_by_role("button", name="Drain")).to_have_count(0)
    await page.get_by_role("button", name="Log out").click()
    await expect(me).to_have_text("Identity: anyone read")
    assert await page.evaluate("() => sessionStorage.length") == 0


async def test_an_operator_drains_a_node_after_a_confirmation(operated: Up, opened: Opened) -> None:
    page = await opened(f"{operated.http}/#/nodes/n-1")
    await _log_in(page, ADMIN)
    await page.get_by_role("button", name="Drain").click()
    # Nothing happens without the confirmation.
    dialog = page.get_by_role("dialog", name="Drain n-1?")
    await expect(dialog).to_contain_text("The audit trail names ops for it.")
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await expect(page.locator(".detail .chip").first).to_have_text("Ready")
    await page.get_by_role("button", name="Drain").click()
    await _done(page, "Drain", "Done.")
    await expect(page.locator(".detail .chip").first).to_have_text("Draining")
    await page.get_by_role("button", name="Undrain").click()
    await _done(page, "Undrain", "Done.")
    await expect(page.locator(".detail .chip").first).to_have_text("Ready")


async def test_an_operator_pauses_and_resumes_a_resource_manager(operated: Up, opened: Opened) -> None:
    page = await opened(f"{operated.http}/#/health")
    await _log_in(page, ADMIN)
    await page.get_by_role("button", name="Pause shop").click()
    await page.get_by_label("Reason").fill("new racks <b>today</b>")
    await _done(page, "Pause", "")
    absence = page.get_by_role("status", name="State of the resource manager")
    await expect(absence).to_contain_text("shop is paused.")
    await page.get_by_role("button", name="Resume shop").click()
    await _done(page, "Resume", "")
    await expect(absence).to_have_count(0)


async def test_an_action_that_fails_says_why_and_stays(operated: Up, opened: Opened) -> None:
    page = await opened(f"{operated.http}/#/nodes/n-1")
    await _log_in(page, ADMIN)
    await page.get_by_role("button", name="Drain").click()
    await page.context.set_offline(True)
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Drain").click()
    await expect(dialog.get_by_role("alert")).to_have_text("No answer came: it may be done.")
    await dialog.get_by_role("button", name="Cancel").click()
    await expect(dialog).to_have_count(0)
