"""What a row of the bench is, and the list of all rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules

from muster_bus.settings import LogSettings

import bench.neighbours

QUIET_RM = "quiet"


@dataclass(frozen=True, slots=True)
class Target:
    """Where the attacked Muster is.

    :param gateway: host:port of gRPC.
    :param http: URL of the HTTP front.
    """

    gateway: str
    http: str


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of neighbour. It runs in a process of its own.

    :param name: in the command line and in the JSON.
    :param about: for the table.
    :param attack: calls :func:`begin` when its load begins, and goes on until its process is killed.
    :param environment: settings of the attacked Muster, e.g. ``MUSTER_GATEWAY__…``.
    :param files: the limit of open files of the attacked Muster; 0: as this process has.
    """

    name: str
    about: str
    attack: Callable[[Target], Awaitable[None]]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: int = 0


def begin() -> None:
    """Tell the bench that the load begins. Further calls have no effect."""
    print("begins", flush=True)


def neighbour(number: int = 0) -> str:
    """Return the id of an RM of the quiet RM's log partition: the same machine decides for both."""
    topics = LogSettings().topics()
    shared = topics.partition_of(QUIET_RM)
    names = (name for count in range(100_000) if topics.partition_of(name := f"noisy-{count}") == shared)
    return next(name for place, name in enumerate(names) if place == number)


def all_rows() -> dict[str, Row]:
    """Return the rows of all modules of the package, by name, in the order of modules and rows."""
    modules = sorted(each.name for each in iter_modules(bench.neighbours.__path__) if not each.ispkg)
    rows: dict[str, Row] = {}
    for module in modules:
        for row in getattr(import_module(f"bench.neighbours.{module}"), "ROWS", ()):
            assert row.name not in rows, f"two rows {row.name}"
            rows[row.name] = row
    return rows
