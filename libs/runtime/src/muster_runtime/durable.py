"""Writes that survive a loss of power."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def sync(path: Path) -> None:
    """Returns when a file's content, or a directory's entries, are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(path: Path, content: bytes) -> None:
    """Gives a small file a new content: durable, and whole or not at all. Raises OSError."""
    beside = Path(f"{path}.new")
    try:
        write(beside, content)
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # on a full disk it may be empty
            beside.unlink()
        raise
    sync(path.parent)


def write(path: Path, content: bytes) -> None:
    """Writes a file for this user only. Returns when it is on the disk; its entry in the directory may not be yet."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
