"""Which role each HTTP endpoint needs: one table for everything that the front lets through (docs/security.md).

A row is about some methods of a path. ``{name}`` stands for one part of the path, ``/*`` at the end for what is below.
Several rows for one request: the highest role counts. None: GET and HEAD need the role read, all else admin. OPTIONS
needs none anywhere, because a browser asks it before it sends a token; the answer names methods only.
"""

from __future__ import annotations

from typing import NamedTuple

from muster_service.identity import Role

READS = ("GET", "HEAD")
_ASKED_BEFORE = "OPTIONS"


class Row(NamedTuple):
    """One line of the table.

    :ivar why: for people, where it is not plain.
    """

    pattern: str
    role: Role
    methods: tuple[str, ...] = READS
    why: str = ""


_PARTITION = "/ws/v1/partition/{partition}"
_PROBES = "probes hold no token; without the role read they get the first line only"
_OWN_FILES = "the page's own files hold no data; what it shows it asks for with its reader's token"
_INSIDE = "shows the process from inside, and costs it time"

ROWS: tuple[Row, ...] = (
    # The gateway's own.
    Row("/health", Role.NONE, why=_PROBES),
    Row("/health/live", Role.NONE, why=_PROBES),
    Row("/health/ready", Role.NONE, why=_PROBES),
    Row("/metrics", Role.READ, why="names queues, users and nodes"),
    Row("/", Role.NONE, why=_OWN_FILES),
    Row("/favicon.ico", Role.NONE, why=_OWN_FILES),
    Row("/page/*", Role.NONE, why=_OWN_FILES),
    # The view.
    Row("/ws/v1/clusters", Role.READ),
    Row("/ws/v1/partitions", Role.READ),
    Row(f"{_PARTITION}/queues", Role.READ),
    Row(f"{_PARTITION}/queue/{{queue}}", Role.READ),
    Row(f"{_PARTITION}/queue/{{queue}}/applications", Role.READ),
    Row(f"{_PARTITION}/queue/{{queue}}/applications/{{state}}", Role.READ),
    Row(f"{_PARTITION}/queue/{{queue}}/application/{{application}}", Role.READ),
    Row(f"{_PARTITION}/applications/{{state}}", Role.READ),
    Row(f"{_PARTITION}/application/{{application}}", Role.READ),
    Row(f"{_PARTITION}/nodes", Role.READ),
    Row(f"{_PARTITION}/node/{{node}}", Role.READ),
    Row(f"{_PARTITION}/placementrules", Role.READ),
    Row(f"{_PARTITION}/usage/users", Role.READ),
    Row(f"{_PARTITION}/usage/user/{{user}}", Role.READ),
    Row(f"{_PARTITION}/usage/groups", Role.READ),
    Row(f"{_PARTITION}/usage/group/{{group}}", Role.READ),
    Row(f"{_PARTITION}/external", Role.READ),
    Row("/ws/v1/external", Role.READ),
    Row("/ws/v1/external/{source}", Role.READ),
    Row("/ws/v1/scheduler/healthcheck", Role.READ),
    Row("/ws/v1/scheduler/node-utilizations", Role.READ),
    Row("/ws/v1/explain/pending", Role.READ),
    Row("/ws/v1/explain/summary", Role.READ),
    Row("/ws/v1/explain/ask/{application}/{key}", Role.READ),
    Row("/ws/v1/explain/application/{application}", Role.READ),
    Row("/ws/v1/explain/queue/{queue}", Role.READ),
    Row("/ws/v1/explain/node/{node}", Role.READ),
    Row("/ws/v1/explain/preempted", Role.READ),
    Row("/ws/v1/explain/preemption/{application}/{key}", Role.READ),
    Row("/ws/v1/explain/preemption/{allocation}", Role.READ),
    Row("/ws/v1/history/apps", Role.READ),
    Row("/ws/v1/history/containers", Role.READ),
    Row("/ws/v1/config", Role.READ),
    Row("/ws/v1/validate-conf", Role.READ, ("POST",), "judges the text that it is given; changes nothing"),
    Row("/ws/v1/object-states", Role.READ, ("POST",), "asks for many at once; changes nothing"),
    Row("/ws/v1/resource-managers", Role.READ, why="secrets in what they registered with are masked"),
    Row("/ws/v1/resource-manager/configuration", Role.READ, why="likewise"),
    Row("/ws/v1/metrics", Role.READ),
    Row("/ws/v1/metrics/snapshot", Role.READ),
    Row("/ws/v1/loglevel", Role.READ),
    Row("/ws/v1/loglevel", Role.ADMIN, ("POST", "PUT"), "changes what a process does"),
    Row("/ws/v1/loglevel/*", Role.ADMIN, ("POST", "PUT"), "likewise"),
    Row("/ws/v1/stack", Role.ADMIN, why=_INSIDE),
    Row("/ws/v1/fullstatedump", Role.ADMIN, why="everything at once"),
    Row("/debug/*", Role.ADMIN, why=_INSIDE),
    # The event publisher.
    Row("/ws/v1/events/batch", Role.READ),
    Row("/ws/v1/events/stream", Role.READ, why="looked at when the stream begins"),
    Row("/ws/v1/usage", Role.READ),
)


def needed(method: str, path: str) -> Role:
    """The role that a request needs.

    :param path: decoded. Letter case, doubled slashes and one at the end make no difference, as to the router.
    """
    if method == _ASKED_BEFORE:
        return Role.NONE
    parts = _parts(path)
    found = [role for wanted, below, role in _BY_METHOD.get(method, ()) if _fits(wanted, parts, below=below)]
    return max(found or [default(method)], key=lambda role: role.rank)


def default(method: str) -> Role:
    """The role that a path without a row needs."""
    return Role.READ if method in READS else Role.ADMIN


def _parts(path: str) -> list[str]:
    return [part for part in path.lower().split("/") if part]


def _fits(wanted: list[str], parts: list[str], *, below: bool) -> bool:
    if len(parts) < len(wanted) or (len(parts) > len(wanted) and not below):
        return False
    return all(mine == given or mine[0] == "{" for mine, given in zip(wanted, parts, strict=False))


def _by_method() -> dict[str, list[tuple[list[str], bool, Role]]]:
    table: dict[str, list[tuple[list[str], bool, Role]]] = {}
    for row in ROWS:
        for method in row.methods:
            table.setdefault(method, []).append(
                (_parts(row.pattern.removesuffix("/*")), row.pattern.endswith("/*"), row.role)
            )
    return table


_BY_METHOD = _by_method()
