"""`muster demo`: starts a Muster in a new directory, and plays the openb trace through it, or lets a cluster live."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from muster_client.errors import ClientError
from muster_runtime.private_files import make_private_directory
from muster_runtime.terminal import Screen, marked

from muster_replay.errors import ReplayFailed
from muster_replay.live import LiveDemo
from muster_replay.local_process import LocalProcess, are_free, muster_command
from muster_replay.replay import is_standard_output, main_replay
from muster_replay.trace import OPENB

# With these, the commands that a user types in another terminal need no address.
_USUAL_PORTS = (9090, 9080)
# What `muster up` prints when it is ready.
_BANNER = re.compile(r"^ +gRPC +(?P<grpc>\S+:\d+) .*\n(?: +REST .*\n)? +page +(?P<http>\S+)/$", re.MULTILINE)
_START_TIMEOUT_S = 60.0
_START_POLL_S = 0.05
_SQL = "select queue, count(*) from applications group by queue"


class _Demo:
    """A Muster of the demo, and what the user is told of it.

    :param data_dir: its directory; None: a new temporary one, which stays.
    """

    def __init__(self, data_dir: Path | None, console: Screen) -> None:
        self.console = console
        self.data_dir = data_dir or Path(tempfile.mkdtemp(prefix="muster-demo-"))
        make_private_directory(self.data_dir)
        self.grpc = self.http = ""
        self._process = LocalProcess([], self.data_dir / "muster.log")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Starts Muster and ends it. Raises ReplayFailed if it does not start."""
        try:
            with self.console.status(marked("Starting muster up in {} …", self.data_dir)):
                began = time.monotonic()
                self._start()
            self.console.print(
                f"Muster serves on {self.grpc} after {time.monotonic() - began:.1f} s, data in {self.data_dir}",
                soft_wrap=True,
            )
            yield
        finally:
            self._process.stop()

    def _start(self) -> None:
        if are_free(_USUAL_PORTS):
            with contextlib.suppress(ReplayFailed):  # another program took a port meanwhile, or the next try says why
                self._start_at(*_USUAL_PORTS)
                return
        self._start_at(0, 0)

    def _start_at(self, grpc_port: int, http_port: int) -> None:
        """Raises ReplayFailed. (What answers at an address may be another Muster: only this one's own text counts.)"""
        log_file = self._process.log_file
        before = log_file.stat().st_size if log_file.exists() else 0
        addresses = ("--grpc-address", f"127.0.0.1:{grpc_port}", "--http-address", f"127.0.0.1:{http_port}")
        self._process.command = muster_command("up", "--data-dir", str(self.data_dir), *addresses)
        self._process.start()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            ended = not self._process.running
            if banner := _BANNER.search(log_file.read_bytes()[before:].decode(errors="replace")):
                self.grpc, self.http = banner["grpc"], banner["http"]
                return
            if ended:
                raise ReplayFailed(f"muster up ended before it was ready:\n{self._process.log_tail()}")
            time.sleep(_START_POLL_S)
        self._process.stop()
        raise ReplayFailed(f"muster up is not ready after {_START_TIMEOUT_S:.0f} s:\n{self._process.log_tail()}")

    def commands(self, *shown: tuple[str, str]) -> None:
        """Prints commands with what they are for. They work as printed, from the present directory."""
        for purpose, command in shown:
            self.console.print(f"  # {purpose}", style="dim", soft_wrap=True)
            self.console.print(f"  {command}", soft_wrap=True)

    def address(self, flag: str) -> str:
        """Returns the flag with which a command finds this Muster; "" if it does without."""
        if self.grpc.endswith(f":{_USUAL_PORTS[0]}"):
            return ""
        return f" --gateway {self.grpc}" if flag == "--gateway" else f" --http {self.http}"

    def say_where_data_are(self) -> None:
        """Prints the commands for the data of the ended Muster, and how to remove them."""
        muster, data_dir = program(), self.data_dir
        self.console.print(f"Its data are in {data_dir}. To go on with them:", soft_wrap=True)
        self.commands(
            ("SQL over all that happened", f'{muster} history "{_SQL}" --data-dir {data_dir}'),
            ("usage over time", f"{muster} history usage --queue root --data-dir {data_dir}"),
            ("Muster again, with the page", f"{muster} up --data-dir {data_dir}"),
            ("a cluster that lives on", f"{muster} demo --live"),
            ("remove the data", f"rm -r {data_dir}"),
        )


def main_demo(
    directory: Path = OPENB,
    *,
    data_dir: Path | None = None,
    json_file: Path | None = None,
    keep: bool = False,
    timeout_s: float = 120.0,
) -> int:
    """Runs `muster demo`. Returns the exit code: the replay's, or 2 if Muster does not start.

    :param directory: of the trace.
    :param data_dir: directory of Muster's log and history; None: a new temporary directory, which stays.
    :param json_file: as :func:`~muster_replay.replay.main_replay` takes it.
    :param keep: keep Muster running until interrupted.
    """
    console = Screen(stderr=is_standard_output(json_file))
    demo = _Demo(data_dir, console)

    def replay() -> int:
        return main_replay(
            directory,
            demo.grpc,
            demo.http,
            timeout_s=timeout_s,
            json_file=json_file,
            keep=keep,
            next_places={"page": f"{demo.http}/", "REST": f"{demo.http}/ws/v1/partition/default/queues"}
            if keep
            else {},
            console=console,
        )

    return _run(demo, replay)


def main_live(*, data_dir: Path | None = None, seed: int = 1) -> int:
    """Runs `muster demo --live` until SIGINT or SIGTERM. Returns the exit code: 0, or 2 if Muster does not start.

    :param data_dir: as for :func:`main_demo`.
    :param seed: of what the users do.
    """
    console = Screen()
    demo = _Demo(data_dir, console)

    async def live() -> int:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        await LiveDemo(demo.grpc, lambda line: console.print(line, soft_wrap=True), seed=seed).run(stop)
        console.print("Stopping …")
        return 0

    def show() -> int:
        muster = program()
        console.print(f"Look at it: {demo.http}/", style="bold", soft_wrap=True)
        console.print("Or in another terminal, from this directory:")
        demo.commands(
            ("queues, nodes, why asks are pending", f"{muster} top{demo.address('--gateway')}"),
            ("asks that wait", f"{muster} get asks{demo.address('--http')}"),
            ("a queue in sentences", f"{muster} explain queue root.batch{demo.address('--gateway')}"),
            ("events", f"{muster} events watch{demo.address('--gateway')}"),
        )
        console.print("Ctrl-C ends it.")
        return asyncio.run(live())

    return _run(demo, show)


def _run(demo: _Demo, work: Callable[[], int]) -> int:
    try:
        with _ended_like_by_ctrl_c(), demo.running():
            code = work()
    except ClientError as error:
        prefix = "demo failed:" if isinstance(error, ReplayFailed) else "the client failed:"
        demo.console.print(marked("[bold red]{}[/] {}", prefix, error), soft_wrap=True)
        return 2
    demo.say_where_data_are()
    return code


@contextlib.contextmanager
def _ended_like_by_ctrl_c() -> Iterator[None]:
    """SIGTERM, and the end of the terminal, stop Muster too: a process that nobody knows of would stay."""

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def program() -> str:
    """Returns how a shell in the present directory starts this Muster's command."""
    command = Path(muster_command()[0])
    script = shutil.which("muster")
    if script is not None and Path(script).resolve() == command.resolve():
        return "muster"
    if command.name != "muster":  # no script beside this Python
        return f"{sys.executable} -m muster_cli"
    relative = os.path.relpath(command)
    return str(command) if relative.startswith("..") else relative
