"""Servers for tests that are Debian's: from PATH, or out of a package that `make test` unpacks into the cache.

(Installed, they would be services of the machine.)
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from muster_replay.local_process import LocalProcess
from servers import NoServer

ANSWER_TIMEOUT_S = 60.0
T = TypeVar("T")


def cache_of(name: str) -> Path:
    """Where `scripts/test-servers` unpacks the package."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster" / name


def program(name: str, path: str) -> Path:
    """Where a program is; ``path`` is its place in the package. Raises NoServer."""
    cached = cache_of(name) / path
    found = shutil.which(name) or (str(cached) if cached.exists() else "")
    if not found:
        raise NoServer(f"no {name}: not in PATH, nor in {cache_of(name)} (scripts/test-servers puts it there)")
    return Path(found)


@contextmanager
def serving(
    command: Sequence[str],
    log: Path,
    ask: Callable[[], T],
    failures: tuple[type[Exception], ...],
    environment: Mapping[str, str] | None = None,
) -> Iterator[T]:
    """Runs a server. Yields what ``ask`` returns as soon as it raises none of these exceptions."""
    process = LocalProcess(command, log, environment)
    process.start()
    try:
        yield _answer(process, ask, failures)
    finally:
        process.stop()


def _answer(process: LocalProcess, ask: Callable[[], T], failures: tuple[type[Exception], ...]) -> T:
    until_s = time.monotonic() + ANSWER_TIMEOUT_S
    while process.running and time.monotonic() < until_s:
        try:
            return ask()
        except failures:
            time.sleep(0.05)
    raise AssertionError(f"{process.command[0]} is not ready: {process.log_tail()}")
