"""Commands keep the positions of what they changed, in a context; and take one as a flag."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from e2e.gang_rig import Muster, muster_here
from muster_client import RmClient, node
from muster_si.positions import Position, Stamp, log_digest
from waiting import PATIENCE_S

RM = "rm1"
QUEUES = "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: [{name: a}]}]}]"
# What is not folded when a request comes is not waited for, unless the request says so.
SETTINGS = ("view.fresh_wait_s=0", "view.whole_wait_s=0", f"view.positions.wait_s={PATIENCE_S}")


@pytest.fixture
async def muster(tmp_path: Path) -> AsyncIterator[Muster]:
    async with muster_here(tmp_path, SETTINGS) as it:
        yield it


class Commands:
    """Runs commands, each in a process of its own, in a context or without one."""

    def __init__(self, directory: Path) -> None:
        self.contexts = directory / "contexts.toml"
        given = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        self._environment = {**given, "MUSTER_CONTEXTS": str(self.contexts)}
        self.kept = directory / "contexts.positions.json"

    async def run(self, *arguments: str, code: int = 0) -> str:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "muster_cli",
            *arguments,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await child.communicate()
        assert child.returncode == code, (arguments, out.decode(), err.decode())
        return (out if code == 0 else err).decode()


async def test_commands_of_a_context_show_what_they_changed(muster: Muster, tmp_path: Path) -> None:
    commands = Commands(tmp_path)
    async with RmClient(muster.gateway, RM, config=QUEUES) as client:
        await client.register()
        await client.send_nodes([node("n1", {"vcore": 1000})])
        async with asyncio.timeout(PATIENCE_S):
            await client.nodes_answered()
        where = ("--gateway", muster.gateway, "--http", muster.http)
        # 1. without a context: a flag
        shown = json.loads(await commands.run("get", "nodes", *where[2:], "-o", "json", "--after", client.position))
        assert [each["nodeID"] for each in shown] == ["n1"]
        assert "must be a position that Muster gave" in await commands.run(
            "get", "nodes", *where[2:], "--after", "nonsense", code=2
        )
        assert not commands.kept.exists()
        # 2. in a context: by themselves
        await commands.run("context", "set", "here", *where)
        await commands.run("admin", "drain", "n1")
        position = json.loads(commands.kept.read_text())["here"]
        (shown,) = json.loads(await commands.run("get", "nodes", "-o", "json"))
        assert shown["schedulable"] is False
        await commands.run("admin", "pause", "--reason", "x")
        assert json.loads(commands.kept.read_text())["here"] != position
        (manager,) = json.loads(await commands.run("admin", "rms", "--json"))
        assert manager["held"] is True
        # 3. another log is at the address now
        old = Position(log_digest("another"), {0: Stamp(5)}).text()
        commands.kept.write_text(json.dumps({"here": old}))
        assert json.loads(await commands.run("get", "nodes", "-o", "json"))
        assert json.loads(commands.kept.read_text()) == {}
        commands.kept.write_text(json.dumps({"here": old}))
        assert json.loads(await commands.run("admin", "rms", "--json"))
        assert json.loads(commands.kept.read_text()) == {}
