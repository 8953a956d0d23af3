"""Files that only Muster's own user can read (mode 0600), whatever the umask and the directory.

Data files have registrations, events and states of every resource manager. So the mode is part of the file, not of the
directory around it. An older file with another mode is tightened when Muster opens it, with one log entry.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import structlog

log = structlog.get_logger(__name__)

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
# What SQLite puts beside a database. It gives a new one the database's mode; one that a kill left behind keeps its own.
_SQLITE_BESIDE = ("-wal", "-shm", "-journal")


def open_private(path: Path, *, append: bool = False) -> BinaryIO:
    """Opens a file for writing, and creates it if absent; its mode is 0600 in both cases. Raises OSError.

    :param append: keep the content and write behind it; else the content is dropped.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if append else os.O_TRUNC)
    descriptor = os.open(path, flags, FILE_MODE)
    try:
        # A regular file only: the mode of /dev/null or of a pipe is not Muster's.
        if stat.S_ISREG(mode := os.fstat(descriptor).st_mode) and stat.S_IMODE(mode) != FILE_MODE:
            _tighten(path, stat.S_IMODE(mode), descriptor)
        return os.fdopen(descriptor, "ab" if append else "wb")
    except BaseException:
        os.close(descriptor)
        raise


def make_private(path: Path) -> None:
    """Creates an empty file of mode 0600 if there is none, and tightens an existing one. Raises OSError.

    For files that a library opens afterwards, as SQLite does.
    """
    path = Path(os.path.realpath(path))  # a link to a file that does not exist yet counts as existing
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    except FileExistsError:
        tighten([path])


def make_private_database(path: Path) -> None:
    """Does the same for a SQLite database, with the files that SQLite has beside it. Raises OSError."""
    make_private(path)
    path = Path(os.path.realpath(path))
    tighten(path.with_name(path.name + ending) for ending in _SQLITE_BESIDE)


def tighten(paths: Iterable[Path]) -> int:
    """Sets the mode of the existing regular files among the paths to 0600. Returns the number of changed files.

    Writes one log entry for all of them. A file of another user cannot be changed; a warning names the first one.
    """
    changed: list[tuple[Path, int]] = []
    refused: list[tuple[Path, OSError]] = []
    for path in paths:
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(mode) or stat.S_IMODE(mode) == FILE_MODE:
            continue
        try:
            path.chmod(FILE_MODE)
        except OSError as error:
            refused.append((path, error))
        else:
            changed.append((path, stat.S_IMODE(mode)))
    if changed:
        log.warning("mode of data files tightened", **_described(*changed[0]), files=len(changed))
    if refused:
        first, problem = refused[0]
        log.warning(
            "mode of data files cannot be tightened", path=str(first), error=problem.strerror, files=len(refused)
        )
    return len(changed)


def make_private_directory(path: Path) -> None:
    """Creates a directory and the missing ones above it, each of mode 0700. Existing ones keep their mode. Raises
    OSError.
    """
    if path.is_dir():
        return
    make_private_directory(path.parent)
    try:
        path.mkdir(mode=DIRECTORY_MODE)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(DIRECTORY_MODE)  # a umask may have taken some of its own user's bits, too


@contextmanager
def private_umask() -> Iterator[None]:
    """Makes every file private that this process creates within the block, also by libraries. For one thread."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _tighten(path: Path, mode: int, descriptor: int) -> None:
    try:
        os.fchmod(descriptor, FILE_MODE)
    except OSError as error:
        log.warning("mode of data files cannot be tightened", path=str(path), error=error.strerror, files=1)
    else:
        # A strict umask leaves less than 0600 on a new file: that needs no message.
        if mode & 0o077:
            log.warning("mode of data files tightened", **_described(path, mode), files=1)


def _described(path: Path, mode: int) -> dict[str, str]:
    return {"path": str(path), "before": f"{mode:04o}", "now": f"{FILE_MODE:04o}"}
