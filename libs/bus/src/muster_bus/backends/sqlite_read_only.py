"""Opens a SQLite file for reading, also where nothing can be written, such as on a read-only mount."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from pathlib import Path
from urllib.parse import quote

_BUSY_S = 10.0
# Where SQLite can create no file beside a database with a write-ahead log, it reports one of these.
_NOT_WRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


def open_read_only(path: Path, *, any_thread: bool = False) -> sqlite3.Connection:
    """Returns a connection that reads the file's last commit, and changes nothing. Raises sqlite3.Error, OSError.

    Readers of a write-ahead log share an index of it, in a file beside it. Where that file neither exists nor can be
    created, a log of which nothing is outside of the main file is read as one that nobody changes. Otherwise the main
    file and the write-ahead log are copied to a private temporary directory, which lasts as long as the connection.
    """
    try:
        return _opened(path, "mode=ro", any_thread=any_thread)
    except sqlite3.OperationalError as error:
        if not path.is_file() or error.sqlite_errorcode & 0xFF not in _NOT_WRITABLE:
            raise
    ahead = Path(f"{path}-wal")
    if not ahead.exists() or not ahead.stat().st_size:
        return _opened(path, "mode=ro&immutable=1", any_thread=any_thread)
    directory = tempfile.TemporaryDirectory(prefix="muster-read-")
    try:
        shutil.copyfile(ahead, Path(directory.name, f"{path.name}-wal"))
        shutil.copyfile(path, copy := Path(directory.name, path.name))
        connection = _opened(copy, "mode=rw", any_thread=any_thread)
    except BaseException:
        directory.cleanup()
        raise
    connection.directory = directory
    return connection


class _Connection(sqlite3.Connection):
    """:ivar directory: of the copy that this connection reads; None: it reads no copy."""

    directory: tempfile.TemporaryDirectory[str] | None = None

    def close(self) -> None:
        super().close()
        if self.directory is not None:
            self.directory.cleanup()
            self.directory = None


def _opened(path: Path, mode: str, *, any_thread: bool) -> _Connection:
    connection = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?{mode}",
        uri=True,
        timeout=_BUSY_S,
        isolation_level=None,
        check_same_thread=not any_thread,
        factory=_Connection,
    )
    try:
        connection.execute("PRAGMA query_only = 1")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # opens the file
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.close()
        raise
    return connection
