"""The search of the page: all kinds of objects, by keyboard, kept in the address."""

from __future__ import annotations

import re

from page.conftest import Opened
from page.world import HOSTILE, HOSTILE_APP, HOSTILE_NODE
from playwright.async_api import expect
from up import Up


async def test_a_search_by_keyboard_finds_every_kind_and_is_in_the_address(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/overview?rm=prod")
    await expect(page.locator(".gauge").first).to_be_visible()
    await page.keyboard.press("Control+k")
    field = page.get_by_role("searchbox", name="Search the cluster")
    await expect(field).to_be_focused()
    await page.keyboard.type("SEARCH")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(r"#/search\?rm=prod&q=SEARCH$"))
    # The exact name comes first; its allocations name it.
    applications = page.get_by_role("region", name="Applications", exact=True)
    await expect(applications.locator("li").first).to_contain_text("search")
    allocations = page.get_by_role("region", name="Asks and allocations")
    await expect(allocations.get_by_role("link", name="search-again-0")).to_be_visible()
    # A link opens the same results, and the field has the text.
    again = await opened(page.url)
    await expect(again.get_by_role("region", name="Applications", exact=True).locator("li")).to_have_count(1)
    await expect(again.get_by_role("searchbox", name="Search the cluster")).to_have_value("SEARCH")
    # The results follow the text, and the address too.
    for text, kind, name, address in (
        ("cpu-07", "Nodes", "cpu-07", "#/nodes/cpu-07?rm=prod"),
        ("payments", "Queues", "root.prod.payments", "#/queues/root.prod.payments?rm=prod"),
        ("ben", "Users", "ben", "#/users/ben?rm=prod"),
        ("nightly", "Applications", "nightly-report", "#/applications/nightly-report?rm=prod"),
        ("giant-1", "Asks and allocations", "giant-1", "#/applications/giant?rm=prod"),
    ):
        await field.fill(text)
        link = page.get_by_role("region", name=kind, exact=True).get_by_role("link", name=name, exact=True)
        await expect(link).to_have_attribute("href", address)
        await expect(page).to_have_url(re.compile(rf"q={text}$"))
    await expect(page.get_by_role("region", name="Asks and allocations")).to_contain_text("Pending")
    await field.fill("nothing-like-this")
    await expect(page.locator("main")).to_contain_text("Nothing here has this in its name.")
    await field.fill("gpu-0")
    await page.keyboard.press("Tab")
    await page.get_by_role("link", name="gpu-02").press("Enter")
    await expect(page.locator(".detail h2")).to_have_text("gpu-02")
    await page.go_back()
    await expect(field).to_have_value("gpu-0")


async def test_hostile_names_are_found_as_text(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/search?rm=prod")
    await expect(page.locator("main")).to_contain_text("Type a part of a name")
    field = page.get_by_role("searchbox", name="Search the cluster")
    await field.fill(HOSTILE)
    for kind, name in (("Applications", HOSTILE_APP), ("Nodes", HOSTILE_NODE), ("Users", HOSTILE)):
        await expect(page.get_by_role("region", name=kind, exact=True).locator("li a")).to_have_text(name)
    await page.get_by_role("region", name="Applications", exact=True).get_by_role("link").click()
    await expect(page.locator("main h1")).to_have_text(HOSTILE_APP)


async def test_groups_of_the_partition_are_found_and_long_lists_are_cut(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/search?rm=pair&partition=accelerated&q=ml")
    group = page.get_by_role("region", name="Groups", exact=True).get_by_role("link", name="ml")
    await expect(group).to_have_attribute("href", "#/groups/ml?rm=pair&partition=accelerated")
    page = await opened(f"{muster.http}/#/search?rm=large&q=node-1")
    nodes = page.get_by_role("region", name="Nodes", exact=True)
    await expect(nodes.locator("li")).to_have_count(20)
    await nodes.get_by_role("link", name="all in Nodes").click()
    await expect(page.get_by_role("searchbox", name="Text", exact=True)).to_have_value("node-1")
