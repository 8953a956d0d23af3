"""`muster demo` and `muster demo --live`: what they show, the commands that they print, and what they leave behind."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from muster_replay.live import RM_ID, LiveDemo
from muster_replay.local_process import is_serving, muster_command
from up import up
from waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


class Home:
    """A user without any files: a home, a directory for temporary files, and the project's directory to work in."""

    def __init__(self, directory: Path) -> None:
        self.home, self.temporary = directory / "home", directory / "tmp"
        self.home.mkdir()
        self.temporary.mkdir()
        own = {"HOME": str(self.home), "TMPDIR": str(self.temporary)}
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")} | own

    @asynccontextmanager
    async def start(self, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """A command without a terminal. It is killed if it does not end by itself."""
        process = await asyncio.create_subprocess_exec(
            *muster_command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=self.environment,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    def shell(self, command: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, shell=True, capture_output=True, text=True, cwd=ROOT, env=self.environment | more, timeout=300
        )

    def left(self) -> list[str]:
        """Everything that is new in both directories."""
        return [str(path) for folder in (self.home, self.temporary) for path in folder.iterdir()]


async def line_with(process: asyncio.subprocess.Process, text: str) -> str:
    """Reads until a line has the text; returns all until then."""
    assert process.stdout is not None
    shown = ""
    while True:
        line = (await process.stdout.readline()).decode()
        assert line, f"ended without {text!r}:\n{shown}"
        shown += line
        if text in line:
            return shown


def command_after(shown: str, purpose: str) -> str:
    """The command that is printed below its purpose."""
    [command] = re.findall(rf"^  # {re.escape(purpose)}\n  (.*)$", shown, re.MULTILINE)
    return command


async def test_the_demo_ends_and_its_last_commands_work_as_printed(tmp_path: Path) -> None:
    """In the project's directory, without a terminal, with nothing but what it printed."""
    home = Home(tmp_path)
    async with home.start("demo") as process:
        assert process.stdout is not None
        shown = (await process.stdout.read()).decode()
        assert await process.wait() == 0, shown
    assert "Every task is accounted for exactly once." in shown
    data_dir = shlex.split(command_after(shown, "remove the data"))[-1]
    assert home.left() == [data_dir]
    assert "127.0.0.1" not in shown.partition("exactly once.")[2], "an address at which nothing answers any more"
    sql = home.shell(command_after(shown, "SQL over all that happened"))
    assert sql.returncode == 0, sql.stderr
    assert re.search(r"root\.openb\.be +│ +\d", sql.stdout)
    usage = home.shell(command_after(shown, "usage over time"))
    assert usage.returncode == 0, usage.stderr
    assert "vcore" in usage.stdout
    await goes_on_with(home, command_after(shown, "Muster again, with the page"))
    assert home.shell(command_after(shown, "remove the data")).returncode == 0
    assert home.left() == []


async def goes_on_with(home: Home, command: str) -> None:
    """Starts Muster again as printed, on ports that no other test has."""
    ports = {"MUSTER_GATEWAY__GRPC_ADDRESS": "127.0.0.1:0", "MUSTER_GATEWAY__HTTP_ADDRESS": "127.0.0.1:0"}
    process = await asyncio.create_subprocess_exec(
        *shlex.split(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env=home.environment | ports,
    )
    try:
        shown = await line_with(process, "  page   ")
        [page] = re.findall(r"  page   (\S+)/$", shown, re.MULTILINE)
        async with httpx.AsyncClient(timeout=60) as http:
            managers = (await http.get(f"{page}/ws/v1/clusters")).json()
        assert managers
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()


async def test_the_live_demo_goes_on_until_ctrl_c(tmp_path: Path) -> None:
    home = Home(tmp_path)
    async with home.start("demo", "--live") as process:
        shown = await line_with(process, "has room for all")
        [page] = re.findall(r"^Look at it: (\S+)/$", shown, re.MULTILINE)
        [grpc_address] = re.findall(r"^Muster serves on (\S+) ", shown, re.MULTILINE)
        async with httpx.AsyncClient(timeout=60) as http:
            assert "<title>" in (await http.get(page)).text
        looked = await asyncio.to_thread(home.shell, command_after(shown, "asks that wait"))
        assert looked.returncode == 0, looked.stderr
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        rest = (await process.stdout.read()).decode()
        assert await process.wait() == 0, rest
    assert not await is_serving(grpc_address)
    data_dir = shlex.split(command_after(rest, "remove the data"))[-1]
    assert home.left() == [data_dir]
    sql = home.shell(command_after(rest, "SQL over all that happened"))
    assert "root.training" in sql.stdout, sql.stderr


async def test_a_demo_that_is_terminated_stops_its_muster(tmp_path: Path) -> None:
    home = Home(tmp_path)
    async with home.start("demo") as process:
        shown = await line_with(process, "Muster serves on")
        [grpc_address] = re.findall(r"^Muster serves on (\S+) ", shown, re.MULTILINE)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 128 + signal.SIGTERM
    assert not await is_serving(grpc_address)
    assert len(home.left()) == 1


class Quick:
    """A clock of which three seconds pass in one."""

    def monotonic(self) -> float:
        return 3 * asyncio.get_running_loop().time()


async def test_the_live_cluster_shows_gangs_preemption_and_a_drained_node(tmp_path: Path) -> None:
    lines: list[str] = []
    async with up(tmp_path) as muster:
        stop, live = asyncio.Event(), LiveDemo(muster.grpc, lines.append, clock=Quick())
        running = asyncio.create_task(live.run(stop))

        def seen() -> bool:
            if running.done():
                running.result()
            return all(live.counts[what] for what in ("gangs", "preempted", "drained", "undrained", "ended"))

        await eventually(seen, f"all of it: {live.counts}", within_s=240)
        async with httpx.AsyncClient(base_url=muster.http, timeout=60) as http:
            applications = (await http.get(f"/ws/v1/partition/default/applications/active?rm={RM_ID}")).json()
        assert {item["user"] for item in applications} >= {"web", "dora", "emil"}
        stop.set()
        await running
    told = "\n".join(lines)
    assert "all or none" in told
    assert re.search(r"of batch preempted, to begin again later$", told, re.MULTILINE)
    assert re.search(r"an operator drains node \S+: its \d+ tasks stay", told)
    assert "rejected" not in told
