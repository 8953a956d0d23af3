"""The reader's identity and rights on the page, and an operator's actions with their audit lines."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from muster_client import Access, application, ask, node
from muster_client.admin import AdminClient
from muster_core.model.demand import DURATION_TAG
from page import world
from page.conftest import Opened
from page.test_looks import AXE, WCAG
from playwright.async_api import Page, expect
from up import Up, up
from waiting import eventually

SIMULATED_MS = 300_000
ADMIN, READER = "admin-token-0123456789", "reader-token-0123456789"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def both(chromium: str, browser: object, tmp_path_factory: object) -> AsyncIterator[tuple[Up, world.Rm]]:
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
        yield one, rm


@pytest.fixture
def operated(both: tuple[Up, world.Rm]) -> Up:
    return both[0]


@pytest.fixture
def shop(both: tuple[Up, world.Rm]) -> world.Rm:
    return both[1]


async def _log_in(page: Page, token: str) -> None:
    await page.get_by_role("button", name="Log in").click()
    await page.get_by_label("Token", exact=True).fill(token)
    await page.keyboard.press("Enter")


async def _done(page: Page, action: str, said: str, audited: str = "") -> None:
    """Confirm, and read the audit line."""
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name=action).click()
    await expect(dialog.get_by_role("status")).to_contain_text(said)
    await expect(dialog.locator(".audit")).to_have_text(re.compile(rf" ops {audited or action.lower()} shop accepted$"))
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


async def test_an_operator_ends_an_application_if_its_resource_manager_declared_it(
    operated: Up, shop: world.Rm, opened: Opened
) -> None:
    await shop.app("job", "root.a", "ann")
    await shop.has(await shop.asks("job", 2, {"vcore": 500}))
    page = await opened(f"{operated.http}/#/applications/job")
    await _log_in(page, ADMIN)
    await expect(page.get_by_role("heading", name="job")).to_be_visible()
    end = page.get_by_role("button", name="End", exact=True)
    await expect(end).to_have_count(0)
    async with AdminClient(operated.grpc, access=Access(token=ADMIN)) as admin:
        await admin.update_configuration(
            "shop", world.LARGE, extra_config={"muster.applications.end": "true"}, timeout_s=60
        )
    await page.reload()
    await end.click()
    dialog = page.get_by_role("dialog", name="End job?")
    await expect(dialog).to_contain_text("Its pending asks go, and its resource manager ends what runs.")
    await page.get_by_label("Reason").fill("wrong <b>input</b>")
    await _done(page, "End", "Application job is Failing.", "end-application")
    await expect(page.locator("main .chip").first).to_have_text("Failed")
    await expect(page.locator("main .prose").first).to_contain_text("(ended by an operator: wrong <b>input</b>)")
    await expect(end).to_have_count(0)
    await eventually(lambda: shop.states["job"] == "Failed", "the resource manager gets the state")


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


# ---- the configuration -----------------------------------------------------------------------------------------------

COMMENTED = "# for the shop\n" + world.LARGE.lstrip()


async def _write(page: Page, text: str) -> None:
    await page.get_by_label("Queue configuration").fill(text)


async def test_a_reader_sees_the_configuration_and_cannot_change_it(operated: Up, opened: Opened) -> None:
    page = await opened(f"{operated.http}/#/configuration")
    text = page.get_by_label("Queue configuration")
    await expect(text).to_have_value(re.compile("name: root, submitacl"))
    await expect(text).not_to_be_editable()
    for name in ("Check", "Apply …"):
        await expect(page.get_by_role("button", name=name)).to_have_count(0)


async def test_a_configuration_is_checked_compared_and_applied(operated: Up, opened: Opened) -> None:
    page = await opened(f"{operated.http}/#/configuration")
    await _log_in(page, ADMIN)
    text = page.get_by_label("Queue configuration")
    await expect(text).to_be_editable()
    await expect(text).to_have_value(re.compile("name: root, submitacl"))
    written = await text.input_value()
    check, apply = page.get_by_role("button", name="Check"), page.get_by_role("button", name="Apply …")
    await expect(apply).to_be_disabled()
    # 1. each error has its place beside the text, and Apply applies nothing
    await _write(page, COMMENTED.replace("{name: b}", "{name: b, resources: {max: {vcore: lots}}}"))
    await apply.click()
    verdict = page.locator("#verdict")
    await expect(verdict.get_by_role("status")).to_have_text("✗ It would be refused.")
    error = verdict.locator(".problems li").first
    await expect(error).to_contain_text("invalid quantity 'lots'")
    await expect(error).to_contain_text("resources.max.vcore")
    await expect(error.get_by_role("button")).to_have_text("5:98")
    await expect(page.locator(".gutter b.error")).to_have_text("5")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await error.get_by_role("button").click()
    await expect(text).to_be_focused()
    assert await text.evaluate("one => one.value.slice(one.selectionStart, one.selectionStart + 4)") == "lots"
    # 2. the comparison with the one in force
    await _write(page, COMMENTED.replace("{name: b}", "{name: b, resources: {max: {vcore: 9}}}"))
    await expect(verdict).to_contain_text("before your last change")
    await check.click()
    await expect(verdict.get_by_role("status")).to_have_text("✓ It would be accepted.")
    await expect(verdict.locator(".changes")).to_contain_text("root.b resources.max.vcore")
    # 3. a confirmation, the change, and its audit line
    await page.evaluate("() => { location.hash = '#/overview'; }")
    await expect(page.locator(".gauges")).to_be_visible()
    await page.get_by_role("link", name="Configuration").click()
    await apply.click()
    dialog = page.get_by_role("dialog", name="Apply this configuration to shop?")
    await expect(dialog).to_contain_text("It takes effect as a whole: 1 change.")
    await _done(page, "Apply", "It is in force: 1 change.", "configure")
    await expect(apply).to_be_disabled()
    await expect(text).to_have_value(re.compile("# for the shop.*vcore: 9", re.DOTALL))
    await page.reload()
    await expect(text).to_have_value(re.compile("# for the shop.*vcore: 9", re.DOTALL))
    # 4. back
    await _write(page, written)
    await apply.click()
    await _done(page, "Apply", "It is in force: 1 change.", "configure")


async def test_an_edited_text_stays_until_it_is_discarded_and_others_changes_are_told(
    operated: Up, opened: Opened
) -> None:
    page = await opened(f"{operated.http}/#/configuration", clock=True)
    await _log_in(page, ADMIN)
    text = page.get_by_label("Queue configuration")
    await expect(text).to_be_editable()
    await expect(text).to_have_value(re.compile("name: root, submitacl"))
    written = await text.input_value()
    await _write(page, "partitions: ***")
    await page.get_by_role("button", name="Check").click()
    await expect(page.locator("#verdict")).to_contain_text("line 1: the value is masked")
    async with AdminClient(operated.grpc, access=Access(token=ADMIN)) as admin:
        await admin.update_configuration("shop", COMMENTED, timeout_s=60)
        await page.clock.fast_forward(11_000)
        await expect(page.locator("main")).to_contain_text("Another configuration came into force since you began.")
        await expect(text).to_have_value("partitions: ***")
        await page.get_by_role("button", name="Discard my changes").click()
        await expect(text).to_have_value(COMMENTED)
        await admin.update_configuration("shop", written, timeout_s=60)


# ---- two futures -----------------------------------------------------------------------------------------------------


async def test_an_operator_compares_two_futures(operated: Up, opened: Opened) -> None:
    """One ask waits for the end of another, which has declared an hour. The other queue's max would keep it out."""
    async with world.Rm(operated, "futures", world.LARGE) as rm:
        await rm.client.send_nodes([node("n-1", {"vcore": 4_000})])
        await rm.client.send_applications([application("x", "root.a")])
        await rm.client.send_asks([ask("k1", "x", {"vcore": 4_000}, tags={DURATION_TAG: "3600000"})])
        await rm.client.send_asks([ask("k2", "x", {"vcore": 4_000})])
        await rm.shows("/ws/v1/explain/pending", lambda found: sum(found["counts"].values()) == 1)
        page = await opened(f"{operated.http}/#/futures?rm=futures")
        text = page.get_by_label("Another queue configuration")
        await expect(page.locator("main")).to_contain_text("It needs the right operate.")
        await expect(text).to_have_count(0)
        await _log_in(page, ADMIN)
        simulate, status = (
            page.get_by_role("button", name="Simulate both futures"),
            page.locator(".writing [role=status]"),
        )
        await text.fill(world.LARGE.replace("name: root,", "name: root, fast: 1,"))
        await simulate.click()
        # (The simulations have the lowest priority: a busy machine may take a while for them.)
        await expect(status).to_contain_text("It would be refused: 1 problem.", timeout=SIMULATED_MS)
        await page.get_by_role("button", name="Back to the one in force").click()
        await expect(text).to_have_value(re.compile("name: root, submitacl"))
        await text.fill(world.LARGE.replace("{name: a}", "{name: a, resources: {max: {vcore: 1}}}"))
        await simulate.click()
        await expect(status).to_contain_text("1 waiting ask, 9 simulations", timeout=SIMULATED_MS)
        for name in ("As it is", "With this configuration"):
            await expect(page.get_by_role("figure").filter(has_text=name).get_by_role("img")).to_be_visible()
        row = page.get_by_role("row", name="root.a")
        await expect(row).to_contain_text(re.compile(r"(\d+ min|1 h).*not in 30 d"))
        # The pointer over one future shows both at the same time, also after a redraw.
        charts = page.locator(".futures svg")
        await charts.first.hover()
        for _ in range(2):
            await expect(charts.locator(".readout")).to_have_text([re.compile(r"^in .+  ?\d+ %$")] * 2)
            await charts.first.evaluate("one => one.setAttribute('data-old', '')")
            await page.set_viewport_size({"width": 1_300, "height": 900})
            await expect(charts.first).not_to_have_attribute("data-old", "")
            await page.set_viewport_size({"width": 1_280, "height": 900})
        await page.evaluate(AXE)
        assert await page.evaluate(WCAG) == []
