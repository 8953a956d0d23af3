"""Resource managers of one policy group, such as Kubernetes clusters: the usage of one queue in each of them."""

from __future__ import annotations

import asyncio
import re

from muster_client import node
from muster_client.admin import AdminClient
from page.conftest import Opened
from page.world import LARGE, Rm
from playwright.async_api import expect
from up import Up

GI = 1 << 30
RMS = ("twin-east", "twin-west")


async def test_queues_of_a_policy_group_show_each_resource_managers_share(muster: Up, opened: Opened) -> None:
    async with AdminClient(muster.grpc) as admin:
        try:
            east, west = (Rm(muster, each, LARGE, policy_group="company") for each in RMS)
            async with east, west:
                await asyncio.gather(_works(east, 3), _works(west, 5))
                page = await opened(f"{muster.http}/#/queues?rm=twin-east")
                group = page.get_by_role("region", name="root in the policy group company")
                rows = group.locator("tbody tr")
                await expect(rows).to_have_count(2)
                await expect(rows.filter(has_text="twin-east")).to_contain_text("3 of 8 cores")
                await expect(rows.filter(has_text="twin-west")).to_contain_text("5 of 8 cores")
                # One queue; the link of the other one leads to the same queue there, with its nodes.
                await page.get_by_role("link", name="b", exact=True).click()
                group = page.get_by_role("region", name="root.b in the policy group company")
                await group.get_by_role("link", name="twin-west").click()
                await expect(page.get_by_role("combobox", name="Resource manager", exact=True)).to_have_value(
                    "twin-west"
                )
                await expect(page).to_have_url(re.compile(r"#/queues/root\.b\?rm=twin-west$"))
                await expect(group.locator("tr.chosen")).to_contain_text("5 of 8 cores")
                await page.get_by_role("link", name="Nodes", exact=True).click()
                await expect(page.locator("main")).to_contain_text("1 node")
                # Others have no part in it.
                alone = await opened(f"{muster.http}/#/queues?rm=prod")
                await expect(alone.locator(".tree")).to_have_count(1)
        finally:
            for each in RMS:
                await admin.forget(each, force=True)


async def _works(rm: Rm, cores: int) -> None:
    await rm.client.send_nodes([node(f"{rm.rm_id}-1", {"vcore": 8_000, "memory": 8 * GI})])
    await rm.app("work", "root.b", "ann")
    await rm.has(await rm.asks("work", cores, {"vcore": 1_000}))
