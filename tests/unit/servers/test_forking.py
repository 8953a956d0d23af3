"""Processes by forks are like processes that are started: arguments, environment, output, signals, exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forking
import pytest
from muster_replay.local_process import LocalProcess, muster_command
from up import Up
from waiting import eventually


@pytest.fixture(scope="module")
def server() -> Iterator[forking.ForkServer]:
    with forking.forks() as one:
        yield one


def _run(server: forking.ForkServer, folder: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    with (folder / "out").open("wb") as out:
        process = server.start(["muster", *arguments], {**os.environ, **environment}, out.fileno(), session=True)
        code = process.wait(60)
    return code, (folder / "out").read_text()


def test_a_command_gets_its_arguments_and_its_environment_and_its_exit_code_is_told(
    server: forking.ForkServer, tmp_path: Path
) -> None:
    assert _run(server, tmp_path, "version", "--json")[0] == 0
    assert '"muster"' in (tmp_path / "out").read_text()
    code, said = _run(server, tmp_path, "get", "nodes", MUSTER_HTTP="http://127.0.0.1:1")
    assert (code != 0, "127.0.0.1:1" in said) == (True, True)
    assert _run(server, tmp_path, "no-such-command")[0] != 0


async def test_a_whole_muster_lives_and_ends_as_if_started(
    server: forking.ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalProcess, "popen", staticmethod(forking.popen_by(server, subprocess.Popen)))
    up = Up(tmp_path)
    # 1. it serves, with its followers, in a session of its own
    await up.start()
    assert isinstance(up.process._process, forking.ForkedProcess)
    assert up.get("/ws/v1/partitions")[0] == 200
    assert os.getsid(up.process.pid) == up.process.pid
    # 2. it can be killed and started again, and its followers end with it
    pid = up.process.pid
    (followers,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()  # noqa: ASYNC240
    up.process.kill()
    assert (up.process.running, up.process._process.poll()) == (False, -signal.SIGKILL)
    await eventually(lambda: not _is_there(int(followers)))
    # 3. it ends when it is asked to
    await up.start()
    assert up.process.stop() == 0


def _is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_wait_has_its_limit(server: forking.ForkServer, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        process = server.start(["muster", *Up(tmp_path).arguments], os.environ, out.fileno(), session=True)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("command", "changed"),
    [(muster_command("version"), {"LD_PRELOAD": "nothing.so"}), ([sys.executable, "-c", "pass"], {})],
)
def test_what_a_fork_cannot_stand_for_is_started(
    server: forking.ForkServer, tmp_path: Path, command: list[str], changed: dict[str, str]
) -> None:
    started: list[Any] = []
    popen = forking.popen_by(server, lambda command, **more: started.append((command, more["env"])))
    with (tmp_path / "out").open("wb") as out:
        popen(command, stdout=out, env={**os.environ, **changed})
    assert started == [(command, {**os.environ, **changed})]
