"""Finds commits of a write-ahead log that SQLite does not read, because something before them is damaged.

SQLite reads a write-ahead log up to the first frame with a wrong checksum, and takes what follows for the rest of a
commit that a power failure interrupted. But a commit begins only when the one before it is on the disk. So whole
commits behind the place were there once. The last of them may be the interrupted one, unless no power failure came
between.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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


def unread_commits(connection: sqlite3.Connection, *, interrupted: bool) -> Unread | None:
    """Returns what SQLite does not read of a log's write-ahead log; None if it reads all of it.

    :param connection: of the log. Its index must be beside the file; without one nothing is found.
    :param interrupted: a power failure may have interrupted the last commit.

    Raises sqlite3.Error, OSError.
    """
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # reads the write-ahead log
    path = connection.execute("PRAGMA database_list").fetchone()[2]
    ahead, index = Path(f"{path}-wal"), Path(f"{path}-shm")
    if not ahead.exists() or not index.exists():
        return None
    before = _frames_read(index)
    commits = sum(_commits_after(ahead, before))
    if _frames_read(index) != before or commits <= int(interrupted):  # another process writes, or nothing is lost
        return None
    return Unread(before + 1, commits)


def _frames_read(index: Path) -> int:
    with index.open("rb") as file:
        content = file.read(_INDEX_FRAMES_AT + _NATIVE.size)
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
