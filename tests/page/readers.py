"""Everything that tells people or programs the state of the whole Muster, asked as they ask it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from muster_client import ClientSettings, RmClient
from muster_client.access import PLAIN, Access
from muster_client.errors import ClientError
from muster_replay.local_process import muster_command
from playwright.async_api import Page
from waiting import eventually

VIEWS = (
    "overview", "queues", "applications", "users", "groups", "nodes", "pending", "gangs", "events", "configuration",
    "futures", "health", "search",
)  # fmt: skip
# What no view says while a part does not work.
GREEN = re.compile(r"Health\s*good|up to date|still placed|has sent no nodes yet|All parts", re.IGNORECASE)
# A reader gives up after so long, and is asked again.
ASKED_S = 10.0


@dataclass(frozen=True)
class Fault:
    """A part that does not work, as the gateway has it.

    :ivar sentence: the beginning of the sentence, up to the word before its first figure: of several partitions, one
        may be known to have no scheduler a moment before the others.
    """

    part: str
    grade: str
    sentence: str
    remedy: str

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Fault:
        return cls(found["part"], found["grade"], re.split(r"\s\S*\s?\d", found["sentence"])[0], found["remedy"])


class Times:
    """How long after a change of a part each reader tells of it: figures for people, which no test judges.

    They go into ``out`` (JSON): change, reader, seconds.
    """

    def __init__(self, out: Path) -> None:
        self._out, self._change, self._began_s = out, "", 0.0
        self._found: dict[str, dict[str, float]] = {}

    def begin(self, change: str) -> None:
        """Notes that a part ends or comes back now."""
        self._change, self._began_s = change, asyncio.get_running_loop().time()
        self._found[change] = {}

    async def of(self, reader: str, waiting: Awaitable[Any]) -> Any:
        """Waits, and notes how long after the change the wait ended."""
        result = await waiting
        if self._change:
            self._found[self._change][reader] = round(asyncio.get_running_loop().time() - self._began_s, 1)
            self._out.parent.mkdir(parents=True, exist_ok=True)
            self._out.write_text(json.dumps(self._found, indent=1))
        return result


TIMES = Times(Path(__file__).parents[2] / ".artefacts" / "page" / "health-seconds.json")


@dataclass
class Readers:
    """The readers of one Muster.

    :param logs: the log of the gateway's process.
    :param flags: of the command line, for TLS.
    :param rm: whose figures the page shows; "": there is no RM.
    """

    gateway: str
    http: str
    logs: Path
    page: Page
    flags: tuple[str, ...] = ()
    access: Access = PLAIN
    rm: str = ""

    # ---- what each says ----------------------------------------------------------------------------------------------

    async def state(self) -> dict[str, Any]:
        """REST's; {} without an answer."""
        answer = await self._get("/ws/v1/health")
        return dict(answer.json()) if answer is not None and answer.status_code == 200 else {}

    async def _get(self, path: str) -> httpx.Response | None:
        async with httpx.AsyncClient(base_url=self.http, timeout=ASKED_S) as http:
            try:
                return await http.get(path)
            except httpx.HTTPError:
                return None

    async def text(self, path: str) -> str:
        answer = await self._get(path)
        return answer.text if answer is not None else ""

    async def command(self, *arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *muster_command(*arguments), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env={"PATH": "/usr/bin:/bin", "COLUMNS": "400"},
        )  # fmt: skip
        said, _ = await process.communicate()
        return process.returncode or 0, " ".join(said.decode().split())

    async def rm_error(self) -> str:
        """The text of the error that an RM gets that registers."""
        settings = ClientSettings(backoff_min_ms=50, backoff_max_ms=200, register_timeout_s=ASKED_S, close_timeout_s=1)
        async with RmClient(self.gateway, "late", settings=settings, access=self.access) as rm:
            try:
                await rm.register()
            except ClientError as error:
                return str(error)
        return ""

    # ---- the page ----------------------------------------------------------------------------------------------------

    async def show(self, view: str) -> None:
        address = f"#/{view}?rm={self.rm}" if self.rm else f"#/{view}"
        await self.page.evaluate("(address) => { location.hash = address; }", address)

    async def header(self) -> str:
        return await self.page.locator("#whole").inner_text()

    async def page_tells(self, fault: Fault, view: str) -> None:
        """The view's header tells the fault; nothing in the view contradicts it."""
        await self.show(view)

        async def told() -> bool:
            header, status = await self.header(), await self.page.locator("#status").inner_text()
            shown = await self.page.locator("main").inner_text()
            texts = (fault.grade, fault.part, fault.sentence, fault.remedy)
            named = all(each.lower() in header.lower() for each in texts)
            aged = re.search(r"for \d+ (s|min|h|d)", header) is not None
            return named and aged and "live" not in status and not GREEN.search(shown)

        try:
            await eventually(told, f"the view {view} tells of {fault}", every_s=0.05)
        except AssertionError as error:
            shown = await self.page.locator("body").inner_text()
            raise AssertionError(f"{error}: {shown!r}") from None

    async def page_is_green(self, view: str) -> None:
        await self.show(view)

        async def green() -> bool:
            status = await self.page.locator("#status").inner_text()
            return "live" in status and await self.page.locator("#whole").inner_text() == ""

        await eventually(green, f"the view {view} is green", every_s=0.05)
