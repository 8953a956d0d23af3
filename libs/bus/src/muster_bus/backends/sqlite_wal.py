"""Finds commits of a write-ahead log that SQLite does not read, because something before them is damaged.

SQLite reads a write-ahead log up to the first frame with a wrong checksum, and takes what follows for the rest of a
commit that a power failure interrupted. But a commit begins only when the one before it is on the disk. So whole
commits behind the place were there once. The last of them may be the interrupted one, unless no power failure came
between.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from muster_bus.backends.sqlite_schema import PAGE_BYTES

_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
_HEADER = struct.Struct(">4s4sII8s8s")  # magic, version, page size, number of the checkpoint, salts, checksum
_FRAME = struct.Struct(
    ">II8s8s"
)  # page, pages of the database after a commit (0: no commit ends here), salts, checksum
_INDEX_FRAMES_AT = 16  # in the index beside the log (the -shm file): the number of frames that SQLite reads
_NATIVE = struct.Struct("=I")


class Unread(NamedTuple):
    """:param frame: the first frame that is not read.
    :param commits: number of commits from there on.
    """

    frame: int
    commits: int


def unread_commits(path: Path, *, interrupted: bool) -> Unread | None:
    """Returns what SQLite does not read of a log's write-ahead log; None if it reads all of it.

    :param path: of the log.
    :param interrupted: a power failure may have interrupted the last commit.

    Raises sqlite3.Error, OSError.
    """
    ahead = Path(f"{path}-wal")
    if not ahead.exists() or not ahead.stat().st_size:
        return None
    # SQLite says how far it reads in the index beside the file. A copy has an index of its own: to open and close the
    # other one would take the locks from this process's connections.
    with tempfile.TemporaryDirectory(prefix="muster-wal-") as directory:
        alone = Path(directory, "any.db")
        copy = Path(f"{alone}-wal")
        with contextlib.closing(sqlite3.connect(alone, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE any (one)")
        header = _header(ahead)
        shutil.copyfile(ahead, copy)
        if _header(ahead) != header:  # another process writes, and has begun it anew
            return None
        with contextlib.closing(sqlite3.connect(f"file:{alone}?mode=ro", uri=True)) as connection:
            with contextlib.suppress(sqlite3.Error):  # (its pages are of another database)
                connection.execute("SELECT count(*) FROM any").fetchone()
            read = _frames_read(Path(f"{alone}-shm"))
            commits = sum(_commits_after(copy, read))
    return Unread(read + 1, commits) if commits > int(interrupted) else None


def _header(ahead: Path) -> bytes:
    with ahead.open("rb") as file:
        return file.read(_HEADER_BYTES)


def _frames_read(index: Path) -> int:
    try:
        content = index.read_bytes()
    except FileNotFoundError:
        return 0
    if len(content) < _INDEX_FRAMES_AT + _NATIVE.size:
        return 0
    frames: int = _NATIVE.unpack_from(content, _INDEX_FRAMES_AT)[0]
    return frames


def _commits_after(ahead: Path, frames: int) -> Iterator[bool]:
    """Yields for each frame of this write-ahead log after the first ``frames`` whether a commit ends there.

    Frames of the time before the log began anew have other salts.
    """
    with ahead.open("rb") as file:
        header = file.read(_HEADER_BYTES)
        if len(header) < _HEADER_BYTES:
            return
        _, _, page_bytes, _, salts, _ = _HEADER.unpack(header)
        at = _HEADER_BYTES + frames * (_FRAME_HEADER_BYTES + page_bytes)
        while True:
            file.seek(at)
            head = file.read(_FRAME_HEADER_BYTES)
            if len(head) < _FRAME_HEADER_BYTES:
                return
            _, pages, its_salts, _ = _FRAME.unpack(head)
            yield bool(pages) and its_salts == salts
            at += _FRAME_HEADER_BYTES + page_bytes
