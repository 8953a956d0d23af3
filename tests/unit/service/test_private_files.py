"""Only the owner can read data files, for any umask, directory and mode of an older file."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from muster_runtime.private_files import (
    make_private,
    make_private_database,
    make_private_directory,
    open_private,
    private_umask,
    tighten,
)
from structlog.testing import capture_logs


@pytest.fixture(autouse=True, params=[0o000, 0o022, 0o077], ids=lambda mask: f"umask {mask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o777)
    return tmp_path


@pytest.mark.parametrize("append", [False, True])
def test_a_new_file(folder: Path, append: bool) -> None:
    with capture_logs() as logged, open_private(folder / "a", append=append) as file:
        file.write(b"x")
    assert (mode(folder / "a"), (folder / "a").read_bytes(), logged) == (0o600, b"x", [])


def test_an_older_file_is_tightened_and_that_is_logged_once(folder: Path) -> None:
    path = folder / "a"
    path.write_bytes(b"x")
    path.chmod(0o644)
    with capture_logs() as logged:
        for _ in range(2):
            with open_private(path, append=True) as file:
                file.write(b"y")
    assert (mode(path), path.read_bytes()) == (0o600, b"xyy")
    assert [(each["event"], each["before"], each["path"]) for each in logged] == [
        ("mode of data files tightened", "0644", str(path))
    ]


def test_a_device_keeps_its_mode() -> None:
    before = mode(Path("/dev/null"))
    with open_private(Path("/dev/null")) as file:
        file.write(b"x")
    assert mode(Path("/dev/null")) == before


def test_many_older_files_are_one_entry(folder: Path) -> None:
    paths = [folder / name for name in "abc"]
    for path in paths:
        path.touch()
        path.chmod(0o660)
    with capture_logs() as logged:
        assert tighten([*paths, folder / "absent", folder]) == 3
        assert tighten(paths) == 0
    assert [mode(path) for path in paths] == [0o600] * 3
    assert [each["files"] for each in logged] == [3]
    assert mode(folder) == 0o777


def test_a_database_and_what_a_kill_left_beside_it(folder: Path) -> None:
    path = folder / "a.db"
    for older in (False, True):
        if older:
            for one in folder.iterdir():
                one.chmod(0o666)
        make_private_database(path)
        database = sqlite3.connect(path)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE IF NOT EXISTS a (b)")
        found = {one.name: mode(one) for one in folder.iterdir()}
        assert found == dict.fromkeys(("a.db", "a.db-wal", "a.db-shm"), 0o600), older
        if older:
            database.close()


def test_a_link_to_a_file_that_is_not_there_yet(folder: Path) -> None:
    (folder / "link").symlink_to(folder / "file")
    make_private(folder / "link")
    assert mode(folder / "file") == 0o600


def test_directories_that_are_created_are_private(folder: Path) -> None:
    make_private_directory(folder / "a" / "b")
    make_private_directory(folder / "a" / "b")
    assert [mode(folder / "a"), mode(folder / "a" / "b"), mode(folder)] == [0o700, 0o700, 0o777]
    (folder / "file").touch()
    with pytest.raises(FileExistsError):
        make_private_directory(folder / "file")


def test_what_a_library_creates(folder: Path, umask: int) -> None:
    with private_umask():
        (folder / "a").touch()
    assert mode(folder / "a") == 0o600
    assert os.umask(umask) == umask
