"""The history of a running Muster is found by its address, in a /proc of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from muster_cli.history.local_instance import data_dir_of

USUAL = "127.0.0.1:9080"


class Proc:
    def __init__(self, directory: Path) -> None:
        self.path, self.work = directory / "proc", directory / "work"
        for made in (self.path, self.work / "data", self.work / "other"):
            made.mkdir(parents=True)
        self._count = 0

    def run(self, *command: str) -> None:
        self._count += 1
        process = self.path / str(self._count)
        process.mkdir()
        (process / "cmdline").write_bytes("\0".join((*command, "")).encode())
        (process / "cwd").symlink_to(self.work)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        "/x/bin/python /x/bin/muster up --data-dir data",
        "/x/bin/python /x/bin/muster up --data-dir=data --http-address 127.0.0.1:9080",
        "muster up --set process.log_level=debug --data-dir data",
        "python -m muster_cli up --data-dir data",
    ],
)
def test_a_relative_directory_is_that_of_the_process(proc: Proc, command: str) -> None:
    proc.run("bash")
    proc.run(*command.split())
    assert data_dir_of(USUAL, USUAL, proc.path) == proc.work / "data"


def test_the_address_decides_between_several(proc: Proc) -> None:
    proc.run("muster", "up", "--data-dir", "data")
    proc.run("muster", "up", "--data-dir", str(proc.work / "other"), "--http-address", "127.0.0.1:7")
    assert data_dir_of(USUAL, USUAL, proc.path) == proc.work / "data"
    assert data_dir_of("127.0.0.1:7", USUAL, proc.path) == proc.work / "other"
    assert data_dir_of("127.0.0.1:8", USUAL, proc.path) is None


@pytest.mark.parametrize(
    "command",
    [
        "muster gateway --http-address 127.0.0.1:9080",
        "muster up --data-dir absent",
        "muster up --data-dir",
        "vagrant up --data-dir data",
        "up --data-dir data",
        "",
    ],
)
def test_other_commands_are_none(proc: Proc, command: str) -> None:
    proc.run(*command.split())
    assert data_dir_of(USUAL, USUAL, proc.path) is None


def test_a_process_that_ends_meanwhile_is_passed_over(proc: Proc) -> None:
    (proc.path / "999").mkdir()
    proc.run("muster", "up", "--data-dir", "data")
    assert data_dir_of(USUAL, USUAL, proc.path) == proc.work / "data"


def test_without_a_proc_there_is_none(tmp_path: Path) -> None:
    assert data_dir_of(USUAL, USUAL, tmp_path / "absent") is None
