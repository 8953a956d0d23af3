"""A small disk (tmpfs) that tests fill."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from wanting import give_up


class SmallDisk:
    """:param path: the mount point."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Leaves no room, to the last page."""
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(size))

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(path: Path, mib: int) -> Iterator[SmallDisk]:
    """Mounts a disk at a new directory.

    Without the right to mount, the test gives up (wanting.py). tests/unit/bus/test_sqlite.py fills a log without it.
    """
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=700", "tmpfs", str(path)], capture_output=True, text=True
    )
    if mounted.returncode:
        why = f"a tmpfs cannot be mounted: {mounted.stderr.strip()}"
        give_up(why)
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
