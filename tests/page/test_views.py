"""The content of each view of a real Muster, and links to a view's state."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import documents
import pytest
from muster_client import node
from muster_client.admin import AdminClient
from muster_core.model.reasons import ReasonCode
from muster_proto.si.v1 import si_pb2 as si
from page.conftest import Opened
from page.world import APPLICATIONS, GI, HOSTILE, HOSTILE_APP, LARGE, NODES, PREEMPTING, Rm
from playwright.async_api import Page, Route, expect
from up import Up
from waiting import eventually

PROD = "rm=prod"


async def _meters(page: Page, where: str) -> dict[str, int]:
    found = page.locator(f"{where} [role=meter]")
    return {
        await one.get_attribute("aria-label") or "": int(await one.get_attribute("aria-valuenow") or -1)
        for one in await found.all()
    }


async def test_the_overview_has_gauges_states_reasons_and_plots(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/overview?{PROD}")
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    await expect(page.locator(".gauge")).to_have_count(3)
    await expect(page.locator(".gauge", has_text="vcore")).to_contain_text("299 of 753 cores +270 pending")
    meters = await _meters(page, ".gauges")
    assert meters == {"vcore allocated": 39, "memory allocated": 23, "nvidia.com/gpu allocated": 66}
    figures = page.locator(".figures")
    await expect(figures).to_contain_text(re.compile(r"Nodes\s*26\s*1 draining"))
    await expect(figures).to_contain_text(re.compile(r"Pending asks\s*42"))
    await expect(page.locator(".states")).to_contain_text("Running9")
    await expect(page.locator(".reasons li").first).to_contain_text("A queue is at its max33")
    plots = page.locator(".plot svg")
    await expect(plots).to_have_count(6)
    await expect(plots.nth(4)).to_have_attribute("aria-label", re.compile(r"Running applications: 9 now; least \d+"))

    async def drawn() -> bool:  # (a line needs two samples)
        return await page.locator(".plot path.line").count() >= 5

    await eventually(drawn, "five lines are drawn")


# Every object of JavaScript has these, so no table may be asked for them without care.
OF_EVERY_OBJECT = ("constructor", "__proto__", "toString", "hasOwnProperty", "valueOf")


async def test_an_address_with_a_name_of_every_object_is_an_unknown_one(muster: Up, opened: Opened) -> None:
    for name in OF_EVERY_OBJECT:
        page = await opened(f"{muster.http}/#/{name}?{PROD}")
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        await expect(page.locator(".gauge")).to_have_count(3)
    # (A queue whose applications stay; the one that was submitted first is not the first by its id.)
    web = "queue=root.prod.web"
    for view, rows, first in (
        (f"applications?{PROD}&{web}", ".apps tbody tr", "storefront"),
        (f"users?{PROD}", ".people tbody tr", "cleo"),  # by share, which is known once the nodes are: she uses nothing
    ):
        for name in ("nothing", *OF_EVERY_OBJECT):
            page = await opened(f"{muster.http}/#/{view}&sort={name}")
            await expect(page.locator(rows).first.locator("th, td").first).to_have_text(first, use_inner_text=True)


async def test_the_history_is_that_of_the_log_over_hours_and_days(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/overview?{PROD}")
    cores = page.locator(".plot svg").first
    await expect(cores).to_have_attribute("aria-label", re.compile("In use: cores: 299 now"))
    made = page.get_by_role("figure").filter(has_text="Allocations made in 1 min")
    await expect(made).to_be_visible()
    await page.get_by_role("link", name="7 d").click()
    await expect(page).to_have_url(re.compile(r"#/overview\?.*span=7\+d"))
    await expect(page.get_by_role("figure").filter(has_text="Allocations made in 2 h")).to_be_visible()
    await expect(cores).to_have_attribute("aria-label", re.compile("In use: cores: 299 now"))
    # The axis has days.
    days = cores.locator("text.axis", has_text=re.compile(r"^\d\d-\d\d$"))
    await expect(days.nth(1)).to_be_visible()


async def test_queues_are_a_tree_that_closes_and_opens(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/queues?{PROD}")
    rows = page.locator(".tree tbody tr")
    await expect(rows).to_have_count(9)
    batch = rows.filter(has=page.get_by_role("link", name="batch", exact=True))
    await expect(batch).to_contain_text("96 of 96")
    await expect(batch).to_contain_text("3 of 3 run")
    web = rows.filter(has=page.get_by_role("link", name="web", exact=True))
    await expect(web).to_contain_text("guaranteed 120")
    await expect(web.locator(".meter .mark")).to_have_count(2)
    fold = page.get_by_role("button", name="Queues below root.prod")
    await fold.focus()
    await page.keyboard.press("ArrowLeft")
    await expect(rows).to_have_count(6)
    await expect(fold).to_have_attribute("aria-expanded", "false")
    await expect(fold).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(rows).to_have_count(9)
    await batch.get_by_role("link").click()
    await expect(page.locator(".detail .prose")).to_contain_text("It runs its maximum of 3 applications.")
    await expect(page).to_have_url(re.compile(r"#/queues/root\.prod\.batch\?rm=prod$"))


async def test_applications_are_found_by_queue_state_user_and_text(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/applications?{PROD}")
    rows = page.locator(".apps tbody tr")
    await expect(rows.filter(has_text="storefront")).to_have_count(1)
    await page.get_by_role("combobox", name="State", exact=True).select_option("Running")
    await expect(rows).to_have_count(9)
    await page.get_by_role("combobox", name="Queue", exact=True).select_option("root.prod")
    await expect(rows).to_have_count(6)
    await page.get_by_role("combobox", name="State", exact=True).select_option("")
    await page.get_by_role("combobox", name="User", exact=True).select_option("bat")
    await expect(rows).to_have_count(4)
    await page.get_by_role("searchbox", name="Text", exact=True).fill("BATCH-3")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("Accepted")
    await expect(page).to_have_url(re.compile("q=BATCH-3"))
    again = await opened(page.url)
    await expect(again.locator(".apps tbody tr")).to_have_count(1)
    await expect(again.get_by_role("searchbox", name="Text", exact=True)).to_have_value("BATCH-3")
    await expect(again.get_by_role("combobox", name="User", exact=True)).to_have_value("bat")
    await page.get_by_role("button", name="Clear").click()
    await page.get_by_role("combobox", name="State", exact=True).select_option("Rejected")
    await expect(rows).to_have_count(1)
    await rows.get_by_role("link", name="lost").click()
    await expect(page.locator("main")).to_contain_text("Rejected: ")
    await page.go_back()
    await page.get_by_role("combobox", name="State", exact=True).select_option("Failed")
    await expect(rows).to_contain_text("etl-gang")
    await page.get_by_role("combobox", name="State", exact=True).select_option("all")
    await expect(rows).to_have_count(15)
    await page.get_by_role("combobox", name="State", exact=True).select_option("")
    await page.get_by_role("button", name="Asks").click()
    await expect(rows.first).to_contain_text("batch-3")
    await expect(page.get_by_role("columnheader", name="Asks")).to_have_attribute("aria-sort", "descending")


async def test_an_answer_to_an_older_question_is_not_shown(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/applications?{PROD}")
    active = page.locator(".apps tbody tr", has_text="storefront")
    await expect(active).to_have_count(1)
    go = asyncio.Event()

    async def late(route: Route) -> None:
        await go.wait()
        await route.continue_()

    await page.route("**/applications/rejected**", late)
    state = page.get_by_role("combobox", name="State", exact=True)
    async with page.expect_request("**/applications/rejected**"):
        await state.select_option("Rejected")
    await state.select_option("")
    await expect(active).to_have_count(1)
    await page.evaluate(
        """() => {
          const ids = () => [...document.querySelectorAll(".apps tbody th a")].map((each) => each.textContent);
          window.shown = [];
          const watch = new MutationObserver(() => window.shown.push(ids()));
          watch.observe(document.getElementById("main"), {childList: true, subtree: true});
        }"""
    )
    async with page.expect_response("**/applications/active**"):
        go.set()
    async with page.expect_response("**/applications/active**"):  # the one before was drawn
        await state.select_option("all")
    shown = await page.evaluate("() => window.shown.filter((each) => !each.includes('storefront'))")
    assert shown == [], "the refused application is not an active one"


async def test_fields_are_found_by_their_names_while_muster_is_degraded(muster: Up, opened: Opened) -> None:
    """The band above a view is named State of Muster; a busy machine shows it now and then."""
    page = await opened("about:blank")

    async def degraded(route: Route) -> None:
        found = await (await route.fetch()).json()
        found["parts"][0].update(grade="degraded", sentence="it is a test's", remedy="wait")
        await route.fulfill(json={**found, "grade": "degraded", "part": found["parts"][0]["part"]})

    await page.route("**/ws/v1/health", degraded)
    await page.goto(f"{muster.http}/#/applications?{PROD}")
    await expect(page.get_by_role("region", name="State of Muster")).to_be_visible()
    await page.get_by_role("combobox", name="State", exact=True).select_option("Running")
    await expect(page.locator(".apps tbody tr")).to_have_count(9)


async def test_an_application_has_its_life_drawn(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/applications/search?{PROD}")
    drawing = page.locator("svg.timeline")
    await expect(drawing).to_have_attribute(
        "aria-label", re.compile(r"New, Accepted, Running. 29 asks in all, 21 alloc")
    )
    # 24 at first; 8 of them have ended, which only events show; 5 came later.
    await expect(drawing.locator("rect.run")).to_have_count(29)
    await expect(drawing.locator("rect.run.released")).to_have_count(8)
    await expect(drawing.locator("rect.state.running")).to_have_count(1)
    await page.locator("summary", has_text="States").click()
    await expect(page.get_by_role("table", name="States of the application")).to_contain_text("Accepted")
    await expect(page.get_by_role("table", name="Allocations of the application").locator("tbody tr")).to_have_count(21)


async def test_a_gang_is_shown_with_its_replacements(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/applications/train-vision?{PROD}")
    await expect(page.locator("section", has=page.get_by_role("heading", name="Gang"))).to_contain_text(
        "4 of 4 placed, 4 of them replaced"
    )
    await expect(page.locator("svg.timeline rect.run.replaced")).to_have_count(4)


async def test_why_it_waits_is_said_in_sentences(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/pending?{PROD}")
    cards = page.locator(".waits")
    await expect(cards).to_have_count(6)
    ben = cards.filter(has_text="notebook-ben").locator(".prose")
    # One sentence for both asks.
    await expect(ben).to_have_count(1)
    await expect(ben).to_contain_text(re.compile(r"User ben uses .* of .*limit of .* in queue root.research"))
    await page.get_by_role("combobox", name="Reason", exact=True).select_option("LARGER_THAN_ANY_NODE")
    await expect(cards).to_have_count(1)
    await expect(cards).to_contain_text("giant")
    await cards.get_by_role("link", name="giant").click()
    await expect(page.get_by_role("heading", name="Why asks are pending")).to_be_visible()


async def test_an_ask_says_when_it_will_run(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/pending?{PROD}")
    card = page.locator(".waits", has_text="giant")
    await card.get_by_role("button", name="When will it run?").click()
    # (The simulations have the lowest priority: a busy machine may take minutes for them.)
    await expect(card.get_by_role("status")).to_contain_text(re.compile("Simulating|start"))


async def test_why_there_is_no_forecast_yet_is_said(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/pending?{PROD}")

    async def refused(route: Route) -> None:
        await route.fulfill(status=503, json={"message": "8 forecasts are being made already: try again"})

    await page.route("**/explain/when/**", refused)
    card = page.locator(".waits", has_text="giant")
    await card.get_by_role("button", name="When will it run?").click()
    await expect(card.get_by_role("status")).to_contain_text("8 forecasts are being made already")
    await page.unroute("**/explain/when/**")
    # (The simulations have the lowest priority: a busy machine may take minutes for them.)
    await expect(card.get_by_role("status")).to_contain_text(re.compile(r"Simulating …$|start"))


async def test_the_heat_map_is_for_the_keyboard_too(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/nodes?rm=large", clock=True)
    canvas = page.get_by_role("application")
    await expect(canvas).to_have_attribute("aria-label", f"{NODES:,} nodes by how full they are")
    said = page.locator("#heatsaid")
    await canvas.focus()
    await expect(said).to_contain_text("node-0000")
    for key, name in (("ArrowRight", "node-0001"), ("End", f"node-{NODES - 1:04}"), ("Home", "node-0000")):
        await page.keyboard.press(key)
        await expect(said).to_contain_text(name)
    await page.keyboard.press("ArrowDown")
    await expect(said).not_to_contain_text("node-0000")
    down = (await said.inner_text()).split()[0]
    # An update of the figures changes neither place nor focus.
    async with page.expect_response("**/metrics/snapshot**"):
        await page.clock.fast_forward(5000)
    await expect(said).to_contain_text(down)
    await expect(canvas).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("region", name=f"Node {down}")).to_be_visible()
    await expect(page).to_have_url(re.compile(re.escape(f"#/nodes/{down}?")))
    await page.get_by_role("combobox", name="Colour by", exact=True).select_option("memory")
    await expect(canvas).to_have_attribute("aria-label", re.compile("of memory"))
    await page.get_by_role("searchbox", name="Text", exact=True).fill("node-01")
    await expect(page.locator(".count")).to_contain_text(f"100 of {NODES:,} nodes")


async def test_many_nodes_stay_fluent(muster: Up, opened: Opened) -> None:
    """The document does not grow with the number of nodes. So the test needs no measurement of time."""
    page = await opened(f"{muster.http}/#/nodes?rm=large")
    last = f"node-{NODES - 1:04}"
    await _scrolls_to_the_end(page, "main > table.list", last, NODES)
    await page.get_by_role("link", name=last).click()
    await expect(page.get_by_role("region", name=f"Node {last}")).to_be_visible()


async def test_many_applications_stay_fluent(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/applications?rm=large&sort=id")
    await _scrolls_to_the_end(page, "table.apps", f"job-{APPLICATIONS - 1:05}", APPLICATIONS)
    await page.get_by_role("searchbox", name="Text", exact=True).fill("job-00777")
    await expect(page.locator(".apps tbody tr:not(.gap)")).to_have_count(1)


async def test_a_row_keeps_the_focus_far_from_the_screen(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/applications?rm=large&sort=id", clock=True)
    first = page.get_by_role("link", name="job-00000")
    await first.focus()
    end = page.get_by_role("link", name=f"job-{APPLICATIONS - 1:05}")
    await _scrolled(page, "document.documentElement.scrollHeight")
    await expect(end).to_be_visible()
    await expect(first).to_be_focused()
    async with page.expect_response("**/applications/active**"):
        await page.clock.fast_forward(60_000)
    await expect(first).to_be_focused()


async def _scrolled(page: Page, to: str) -> None:
    await page.evaluate(f"() => window.scrollTo(0, {to})")


async def _scrolls_to_the_end(page: Page, table: str, last: str, number: int) -> None:
    """A reader reaches the last row; on the way the document has few rows, and no gap is on the screen."""
    rows = page.locator(f"{table} tbody.rows > tr:not(.gap)")
    await expect(rows.first).to_be_visible()
    await expect(page.locator(table)).to_have_attribute("aria-rowcount", str(number + 1))
    for part in (0.3, 0.6, 1):
        # (The rows' heights are known only when they are drawn: the end may move.)
        await page.wait_for_function(
            """([table, part]) => {
              const goal = (document.documentElement.scrollHeight - innerHeight) * part;
              if (Math.abs(scrollY - goal) > 2) { scrollTo(0, goal); return false; }
              const gaps = [...document.querySelectorAll(`${table} tr.gap`)].map((one) => one.getBoundingClientRect());
              return gaps.every((box) => box.bottom <= 0 || box.top >= innerHeight);
            }""",
            arg=[table, part],
        )
        assert await rows.count() < 120
    await expect(rows.last).to_contain_text(last)
    await expect(rows.last).to_have_attribute("aria-rowindex", str(number + 1))
    assert await page.evaluate("() => document.querySelectorAll('*').length") < 4000


async def test_events_come_live_and_can_be_held(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/events?{PROD}")
    lines = page.locator(".events li")
    await expect(lines).to_have_count(200)
    await page.get_by_role("combobox", name="About", exact=True).select_option("2")
    await expect(lines.first).to_contain_text("Application")
    await page.get_by_role("searchbox", name="Text", exact=True).fill("batch-2-7")
    await expect(lines.filter(has_text="got batch-2-7: 2 cores, 8Gi memory")).to_have_count(1)
    async with page.expect_request("**/events/stream**") as asked:
        hold = page.get_by_role("button", name="Pause")
        await hold.click()
        await page.get_by_role("button", name="Resume").click()
    # It continues from its last event.
    assert re.search(r"start=\d+", (await asked.value).url)


async def test_health_names_checks_and_resource_managers(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/health?{PROD}")
    checks = page.get_by_role("table", name="Health checks").locator("tbody tr")
    await expect(checks).to_have_count(13)
    await expect(checks.filter(has_text="✓ yes")).to_have_count(13)
    await expect(page.get_by_role("table", name="Registered resource managers")).to_contain_text("large")
    parts = page.get_by_role("table", name="Parts of Muster")
    for part in ("gateway", "log", "disk", "scheduler", "requests", "view", "publisher"):
        row = parts.locator("tr", has=page.get_by_role("rowheader", name=part, exact=True))
        await expect(row).to_contain_text(re.compile(r"ok.*\d"))


async def test_another_resource_manager_is_chosen(muster: Up, opened: Opened) -> None:
    page = await opened(muster.http)
    chooser = page.get_by_role("combobox", name="Resource manager", exact=True)
    await expect(chooser).to_have_value("large")  # the first by name
    await chooser.select_option("prod")
    await expect(page.locator(".gauge")).to_have_count(3)
    await expect(page).to_have_url(re.compile(r"#/overview\?rm=prod$"))
    await page.get_by_role("link", name="Queues", exact=True).click()
    await expect(page).to_have_url(re.compile(r"#/queues\?rm=prod$"))
    unknown = await opened(f"{muster.http}/#/overview?rm=nobody")
    await expect(unknown.locator("main")).to_contain_text("nobody")
    await unknown.locator("main").get_by_role("link", name="prod").click()
    await expect(unknown.locator(".gauge")).to_have_count(3)


async def test_users_and_groups_are_measured_against_their_limits(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/users?{PROD}")
    rows = page.locator(".people tbody tr")
    await expect(rows).to_have_count(8)
    # The largest share of the cluster (of any type) comes first, then the user nearest to a limit.
    await expect(rows.first).to_contain_text("66% nvidia.com/gpu")
    await page.get_by_role("button", name="Nearest limit").click()
    await expect(rows.first).to_contain_text(re.compile("ben.*32 of 32 cores in root.research"))
    await expect(rows.first.get_by_role("meter", name="nearest limit")).to_have_attribute("aria-valuenow", "100")
    await page.get_by_role("searchbox", name="Text", exact=True).fill("BE")
    await expect(rows).to_have_count(1)
    await rows.get_by_role("link", name="ben").click()
    await expect(page.locator("main .prose")).to_contain_text("The limit is reached: 32 of 32 cores in root.research.")
    queues = page.locator(".tree tbody tr")
    await expect(queues).to_have_text(
        [re.compile("root.*1 of 200"), re.compile("research.*1 of 50"), re.compile("notebooks")]
    )
    # There is no bar without a limit, and a parent's limit holds for its children.
    meters = [await one.get_attribute("aria-label") for one in await queues.get_by_role("meter").all()]
    assert meters == ["root.research: cores", "root.research.notebooks: cores, of the max above"]
    await expect(queues.first).to_contain_text("64Gi · no limit")
    await queues.last.get_by_role("link", name="notebook-ben").click()
    await page.get_by_role("link", name="ben", exact=True).click()
    await page.get_by_role("link", name="Show all of the user's applications").click()
    await expect(page.locator(".apps tbody tr")).to_have_count(1)
    # The navigation marks "users" for groups, too.
    await page.goto(f"{muster.http}/#/groups?{PROD}")
    await expect(page.locator("main")).to_contain_text("No group has a limit")
    await expect(page.get_by_role("navigation", name="Views").get_by_role("link", name="Users")).to_have_attribute(
        "aria-current", "page"
    )
    # If there are many applications, some are named.
    await page.goto(f"{muster.http}/#/users/user-1?rm=large")
    await queues.nth(1).get_by_role("link", name=re.compile(r"\d+ more")).click()
    await expect(page.get_by_role("combobox", name="User", exact=True)).to_have_value("user-1")
    await expect(page.get_by_role("combobox", name="Queue", exact=True)).to_have_value("root.a")


async def test_partitions_are_kept_apart(muster: Up, opened: Opened) -> None:
    page = await opened(f"{muster.http}/#/groups/ml?rm=pair&partition=accelerated")
    queues = page.locator(".tree tbody tr")
    await expect(queues).to_have_text(
        [re.compile("root.*2 of 3"), re.compile("gpu.*only-gpu"), re.compile("shared.*nightly")]
    )
    await expect(queues.first).to_contain_text("24Gi of 48Gi")
    await queues.last.get_by_role("link", name="nightly").click()
    # The life of this application shows nothing of the one with the same id in the other partition.
    await expect(page.locator("main")).to_contain_text("Another application has this id, in partition default.")
    await expect(page.locator("svg.timeline rect.run")).to_have_count(3)
    await expect(page.locator("main")).to_contain_text(re.compile("ann.*counts in group ml"))
    await page.get_by_role("link", name="Show that one").click()
    await expect(page.locator("svg.timeline rect.run")).to_have_count(10)
    await expect(page.get_by_role("combobox", name="Partition", exact=True)).to_have_value("default")
    # The objects of the other partition are shown there.
    for view, name in (("applications", "only-gpu"), ("nodes", "n-3"), ("queues", "root.gpu")):
        await page.goto(f"{muster.http}/#/{view}/{name}?rm=pair")
        await page.get_by_role("link", name="It is in partition accelerated.").click()
        await expect(page.get_by_role("combobox", name="Partition", exact=True)).to_have_value("accelerated")
        await expect(page.locator("main")).not_to_contain_text("no such")
    # The chooser changes what is shown, and the address says it.
    await page.goto(f"{muster.http}/#/nodes?rm=pair")
    await expect(page.locator(".list tbody tr")).to_have_count(3)
    await expect(page).to_have_url(re.compile(r"#/nodes\?rm=pair&partition=default$"))
    await page.get_by_role("combobox", name="Partition", exact=True).select_option("accelerated")
    await expect(page.locator(".list tbody tr")).to_have_count(2)
    await page.get_by_role("link", name="Overview", exact=True).click()
    await expect(page.locator(".gauge")).to_have_count(3)
    await expect(page.locator("main")).to_contain_text("of all 2 partitions")
    # Another RM has other partitions.
    await page.get_by_role("combobox", name="Resource manager", exact=True).select_option("prod")
    await expect(page.get_by_role("combobox", name="Partition", exact=True)).to_have_count(0)
    await expect(page.locator(".gauge", has_text="vcore")).to_contain_text("299 of 753 cores")


@pytest.mark.parametrize("view", ["applications", "users", "pending", "nodes", "events"])
async def test_hostile_names_are_text(muster: Up, opened: Opened, view: str) -> None:
    """(`opened` checks that no script of theirs ran, and that the browser had nothing to refuse.)"""
    page = await opened(f"{muster.http}/#/{view}?{PROD}&q=onerror")
    await expect(page.locator("main")).to_contain_text(HOSTILE)
    assert await page.locator("main img").count() == 0
    if view in ("applications", "pending"):
        await page.locator("main").get_by_role("link", name=HOSTILE_APP, exact=True).click()
        await expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE_APP)
        await expect(page.locator("svg.timeline rect.run")).to_have_count(1)
        await page.reload()
        await expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE_APP)


async def test_a_missing_object_is_reported(muster: Up, opened: Opened) -> None:
    page = await opened(muster.http)
    for view, said in (("applications", "This application"), ("queues", "This queue"), ("nodes", "This node")):
        await page.goto(f"{muster.http}/#/{view}/g/one?{PROD}")
        await expect(page.locator("main")).to_contain_text(f"{said} does not exist")
        await expect(page.locator("main")).to_contain_text("g/one")


async def test_every_reason_has_a_heading_and_every_event_a_sentence(muster: Up, opened: Opened) -> None:
    page = await opened(muster.http)
    codes = [code.value for code in ReasonCode]
    headings = await page.evaluate(
        "async (codes) => { const words = await import('/page/words.js'); return codes.map(words.reason); }", codes
    )
    assert [code for code, heading in zip(codes, headings, strict=True) if code == heading] == []
    rows = documents.table(documents.page("events.md"), "## Every event")
    events = [
        {
            "type": si.EventRecord.Type.Value(row[0]),
            "eventChangeType": si.EventRecord.ChangeType.Value(row[1]),
            "eventChangeDetail": int(row[3]),
            "objectID": "it",
            "referenceID": "that",
        }
        for row in rows
        if row[0] != "REQUEST"  # these events go to the RM only
    ]
    assert len(events) > 50
    sentences = await page.evaluate(
        "async (events) => { const words = await import('/page/words.js'); return events.map(words.sentence); }", events
    )
    unsaid = [row for row, said in zip(rows, sentences, strict=False) if re.match(r"event \d", said)]
    assert unsaid == []


async def test_a_completed_application_is_found_and_drawn(muster: Up, opened: Opened) -> None:
    """(Completion takes 30 s; most of it has passed during the other tests.)"""
    page = await opened(f"{muster.http}/#/applications?{PROD}&state=Completed")
    row = page.locator(".apps tbody tr")
    await expect(row).to_contain_text("nightly-report", timeout=120_000)
    await row.get_by_role("link", name="nightly-report").click()
    await expect(page.locator("svg.timeline rect.run.released")).to_have_count(6)
    await expect(page.locator("svg.timeline rect.state.completed")).to_have_count(1)


async def test_an_rm_that_is_away_says_so_and_what_to_do(muster: Up, opened: Opened) -> None:
    async with AdminClient(muster.grpc) as admin:
        async with Rm(muster, "away", LARGE):
            page = await opened(f"{muster.http}/#/overview?rm=away")
            await expect(page.locator("#status")).to_contain_text("live")
            await expect(page.locator(".absence")).to_have_count(0)
        try:
            await expect(page.locator("#status")).to_contain_text("disconnected")
            notice = page.locator(".absence")
            # Old figures have no colour.
            await expect(page.locator("main > dl, main > section:not(.absence)").first).to_have_css(
                "filter", "grayscale(1)"
            )
            await expect(notice).to_contain_text("away is DISCONNECTED.")
            await expect(notice).to_contain_text("Start the resource manager, or repair its connection")
            await expect(notice).to_contain_text(re.compile(r"it is stopped in \d+ min"))
            figures = page.locator(".figures")
            await expect(figures).to_contain_text("DISCONNECTED")
            await expect(figures.locator(".figure", has_text="Health")).to_contain_text("good")
            await expect(
                page.get_by_role("combobox", name="Resource manager", exact=True).locator("option", has_text="away (")
            ).to_have_count(1)
            await admin.pause("away", "racks")
            health = await opened(f"{muster.http}/#/health?rm=away")
            table = health.get_by_role("table", name="Registered resource managers")
            row = table.locator("tr", has_text="away")
            await expect(row).to_contain_text("Disconnected")
            await expect(row).to_contain_text("An operator paused it")
        finally:
            assert (await admin.forget("away", force=True)).changed
        await expect(health.get_by_role("table", name="Registered resource managers")).not_to_contain_text("away")


async def test_a_replay_that_ended_keeps_its_colours_and_says_what_becomes_of_it(muster: Up, opened: Opened) -> None:
    async with Rm(muster, "played", LARGE, extra_config={"muster.replay": "true"}) as rm:
        await rm.client.send_nodes([node("n1", {"vcore": 1_000})])
        page = await opened(f"{muster.http}/#/overview?rm=played")
        await expect(page.locator(".gauge")).to_have_count(1)
        await expect(page.locator(".absence")).to_have_count(0)
    try:
        await expect(page.locator("#status")).to_contain_text("replay ended")
        notice = page.locator(".absence")
        await expect(notice).to_contain_text("played (replay). The replay ended")
        await expect(notice).to_contain_text(re.compile(r"Its cluster is kept.*It is stopped in \d+ min"))
        await expect(notice).not_to_contain_text("DISCONNECTED")
        await expect(page.locator("main > section.gauges")).to_have_css("filter", "none")
        await expect(
            page.get_by_role("combobox", name="Resource manager", exact=True).locator("option", has_text="played (")
        ).to_have_text("played (replay ended)")
    finally:
        async with AdminClient(muster.grpc) as admin:
            assert (await admin.forget("played", force=True)).changed


BOTH = si.PreemptionPolicy(allowPreemptSelf=True, allowPreemptOther=True)


class Slow(Rm):
    """An RM that confirms releases when it may."""

    def __init__(self, muster: Up) -> None:
        super().__init__(muster, "preempting", PREEMPTING)
        self.may_confirm = asyncio.Event()

    async def _released(self, items: Sequence[si.AllocationRelease]) -> None:
        await self.may_confirm.wait()
        await super()._released(items)


async def test_a_forming_gang_and_a_preemption_are_followed(muster: Up, opened: Opened) -> None:
    async with AdminClient(muster.grpc) as admin, Slow(muster) as rm:
        await rm.client.send_nodes([node("n-1", {"vcore": 8_000, "memory": GI})])
        await rm.app("rich", "root.rich", "ann")
        await rm.has(await rm.asks("rich", 8, {"vcore": 1_000}, preemption_policy=BOTH))
        # 1. a gang of which nothing has room: its placeholders preempt
        page = await opened(f"{muster.http}/#/gangs?rm=preempting")
        await expect(page.locator("main")).to_contain_text("No gang has placeholders now.")
        await rm.app("poor", "root.poor", "bob", placeholder_ask={"vcore": 4_000})
        await rm.asks("poor", 2, {"vcore": 2_000}, "ph", placeholder=True, task_group="workers", preemption_policy=BOTH)
        gang = page.get_by_role("article", name="Gang of poor")
        await expect(gang.get_by_role("img", name="workers: 2 pending of 2")).to_be_visible()
        await expect(gang).to_contain_text(re.compile(r"Since \d\d:\d\d:\d\d"))
        await expect(gang).to_contain_text("time-out")
        # 2. who, for whom, and why
        going = page.get_by_role("table", name="Allocations that are being preempted").locator("tbody tr")
        await expect(going.first).to_contain_text(re.compile("rich.*for ph-[01] of application poor", re.DOTALL))
        await expect(going.first.get_by_role("link", name="poor")).to_be_visible()
        loser = await opened(f"{muster.http}/#/applications/rich?rm=preempting")
        await expect(loser.get_by_role("region", name="Preemption")).to_contain_text("of application poor")
        winner = await opened(f"{muster.http}/#/applications/poor?rm=preempting")
        await expect(winner.get_by_role("region", name="Preemption")).to_contain_text("must end for it:")
        # 3. the victims end, the placeholders are placed, a real ask replaces one
        rm.may_confirm.set()
        await expect(gang.get_by_role("img", name="workers: 2 placed of 2")).to_be_visible()
        before = page.get_by_role("table", name="Allocations that were preempted and have ended").locator("tbody tr")
        await expect(before.first).to_contain_text("of application poor")

        async def told() -> bool:
            # (Those of about the same time are one row. The two decisions need not be of the same time.)
            return await before.count() + await before.locator("details li").count() == 4

        await eventually(told, "all four are told")
        await expect(page.locator("main")).to_contain_text("No allocation is being preempted now.")
        await rm.has(await rm.asks("poor", 1, {"vcore": 2_000}, "real", task_group="workers"))
        await expect(gang.get_by_role("img", name="workers: 1 replaced, 1 placed of 2")).to_be_visible()
        await expect(gang).to_contain_text(re.compile(r"time-out in \d+ min"))
        await rm.client.close()
        assert (await admin.forget("preempting", force=True)).changed
