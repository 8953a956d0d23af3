"""The commands and programs of a page, run in the order of the page, as a reader would.

=====================================  ================================================================================
a block                                is
=====================================  ================================================================================
``sh title="terminal 1"``              commands that stay: each ``muster …`` line is started, and serves before the next
``sh``                                 commands that end: run by bash in the page's folder; each has to succeed
``text title="output"``                the output of the ``sh`` blocks before it. ``…`` is any text, alone on a line
                                       any lines. Commands that only look are run again until they print it
``LANGUAGE title="FILE"``              that file
``text``, or another one without       for the reader only
``<!-- stop: terminal 1 -->``          ends the commands of that terminal
=====================================  ================================================================================
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from muster_replay.local_process import LocalProcess, free_ports, muster_command

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]*)\")?\n(?P<text>.*?)^```$|^<!-- stop: (?P<stop>.*?) -->$",
    re.MULTILINE | re.DOTALL,
)
LOOKS = re.compile(r"muster (get|explain|top|history) ")
# A generous limit of one block: nothing here measures speed.
LIMIT_S = 180


class Block(NamedTuple):
    """A block of a page.

    :param line: where it begins.
    """

    language: str
    title: str
    text: str
    line: int

    @property
    def looks(self) -> bool:
        """Whether its commands change nothing."""
        return all(LOOKS.match(line) for line in self.text.splitlines())


def blocks(text: str) -> list[Block]:
    """Returns the blocks of a page in their order; the end of a terminal is a block of the language ``stop``."""
    found = []
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["stop"]:
            found.append(Block("stop", match["stop"], "", line))
        else:
            found.append(Block(match["language"], match["title"] or "", match["text"], line))
    return found


def matches(expected: str, output: str) -> bool:
    """Whether an output is as a page shows it."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "…" else re.escape(line.rstrip()).replace("…", ".*") + r"\n"
        for line in expected.splitlines()
    )
    shown = "".join(f"{line.rstrip()}\n" for line in output.splitlines())
    return re.fullmatch(pattern, shown) is not None


class Reader:
    """Runs pages in a folder, with a gateway on ports of its own.

    :param environment: more variables for all commands.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        grpc, http = free_ports(2)
        self.folder, self.grpc, self.http = folder, f"127.0.0.1:{grpc}", f"http://127.0.0.1:{http}"
        self._for_servers = {
            **(environment or {}),
            "MUSTER_GATEWAY__GRPC_ADDRESS": self.grpc,
            "MUSTER_GATEWAY__HTTP_ADDRESS": f"127.0.0.1:{http}",
        }
        self._for_commands = {
            **os.environ,
            **(environment or {}),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "MUSTER_CONTEXTS": str(folder / "no-contexts.toml"),
            "MUSTER_GATEWAY": self.grpc,
            "MUSTER_HTTP": self.http,
            "COLUMNS": "160",
        }
        self._terminals: dict[str, list[LocalProcess]] = {}
        self._output = ""

    async def read(self, text: str) -> int:
        """Runs a page; returns how many commands it ran. Asserts that each succeeds and prints what the page says."""
        ran, commands = 0, list[Block]()
        for block in blocks(text):
            if block.language == "stop":
                self.stop(block.title)
            elif block.language == "sh" and block.title.startswith("terminal"):
                ran += await self._serve(block)
            elif block.language == "sh":
                self._output += await self._runs(block)
                commands.append(block)
                ran += 1
            elif block.title == "output":
                await self._shows(block, commands)
                commands.clear()
            elif block.title:
                (self.folder / block.title).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / block.title).write_text(block.text, encoding="utf-8")
        return ran

    def stop(self, terminal: str) -> None:
        for process in reversed(self._terminals.pop(terminal, [])):
            assert process.stop() == 0, f"{terminal}: {process.log_tail()}"

    def close(self) -> None:
        """Ends all that still runs."""
        for processes in self._terminals.values():
            for process in processes:
                process.kill()

    async def _serve(self, block: Block) -> int:
        started = self._terminals.setdefault(block.title, [])
        for line in block.text.splitlines():
            program, *arguments = shlex.split(line, comments=True)
            assert program == "muster", f"line {block.line}: {line}"
            log = self.folder / f"{block.title}.log"
            process = LocalProcess(muster_command(*self._absolute(arguments)), log, self._for_servers)
            started.append(process)
            process.start()
        await started[-1].serving(self.grpc, LIMIT_S)
        return len(started)

    def _absolute(self, arguments: list[str]) -> list[str]:
        """The arguments with the folder before each file (a server is started elsewhere)."""
        files = {"--data-dir", "--settings", "--config", "--config-path"}
        return [
            str(self.folder / argument) if before in files else argument
            for before, argument in zip(["", *arguments], arguments, strict=False)
        ]

    async def _shows(self, expected: Block, commands: list[Block]) -> None:
        """What a command shows may be a moment behind; a reader would look again."""
        # (What changes something is not done twice; such a command before the looks prints nothing.)
        looks = [each for each in commands if each.looks]
        until = time.monotonic() + LIMIT_S
        while looks and not matches(expected.text, self._output) and time.monotonic() < until:
            await asyncio.sleep(0.1)
            self._output = "".join([await self._runs(each) for each in looks])
        printed, self._output = self._output, ""
        assert matches(expected.text, printed), f"line {expected.line}: expected\n{expected.text}\nprinted\n{printed}"

    async def _runs(self, block: Block) -> str:
        """Returns the output. Asserts that the commands succeed; those that only look may need another try."""
        until = time.monotonic() + LIMIT_S
        while True:
            done = await asyncio.to_thread(self._run, block)
            if done.returncode == 0:
                return done.stdout
            if not block.looks or time.monotonic() > until:
                logs = "".join(each.log_tail() for all_ in self._terminals.values() for each in all_)
                raise AssertionError(f"line {block.line}: {block.text}\n{done.stdout}\n{done.stderr}\n{logs}")
            await asyncio.sleep(0.1)

    def _run(self, block: Block) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", block.text],
            cwd=self.folder,
            env=self._for_commands,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
