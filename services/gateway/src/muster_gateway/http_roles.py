"""The role that each HTTP request needs: that of its route (``muster_rest``, docs/security.md).

GET and HEAD of a path without a route need the role read, all other methods admin. OPTIONS needs no role, because a
browser sends it before it sends a token; the answer names methods only.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster_rest.route import READS, Route
from muster_rest.services import BELOW, default_role, through_the_gateway
from muster_runtime.identity import Role

_ASKED_BEFORE = "OPTIONS"


class Roles:
    """The roles of routes. If several routes fit a request, the highest role counts."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._below = [(_parts(folder), role) for folder, role in BELOW.items()]
        self._by_length: dict[tuple[str, int], list[tuple[list[str], Role]]] = {}
        for route in routes:
            parts = _parts(route.path)
            for method in route.methods:
                self._by_length.setdefault((method, len(parts)), []).append((parts, route.role))

    def needed(self, method: str, path: str) -> Role:
        """Returns the role that a request needs.

        :param path: decoded. As in the router, letter case, doubled slashes and one at the end make no difference.
        """
        if method == _ASKED_BEFORE:
            return Role.NONE
        parts = _parts(path)
        found = [role for wanted, role in self._by_length.get((method, len(parts)), ()) if _fits(wanted, parts)]
        if method in READS:
            found += [role for folder, role in self._below if parts[: len(folder)] == folder]
        return max(found or [default_role(method)], key=lambda role: role.rank)


def _parts(path: str) -> list[str]:
    return [part for part in path.lower().split("/") if part]


def _fits(wanted: list[str], parts: list[str]) -> bool:
    return all(mine == given or mine[0] == "{" for mine, given in zip(wanted, parts, strict=True))


needed = Roles(through_the_gateway()).needed
