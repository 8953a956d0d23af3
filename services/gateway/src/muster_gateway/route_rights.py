"""The right that each HTTP request needs: that of its route (``muster_rest``, docs/security.md).

GET and HEAD of a path without a route need the right inspect, all other methods admin. OPTIONS needs none, because a
browser sends it before it sends a token; the answer names methods only.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster_rest.route import READS, Media, Route
from muster_rest.route_table import BELOW, default_right, through_the_gateway
from muster_runtime.identity import Right

_PREFLIGHT = "OPTIONS"


class RouteRights:
    """The rights of routes. If several routes fit a request, the strongest right counts."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._below = [(_split_path(folder), right) for folder, right in BELOW.items()]
        self._by_length: dict[tuple[str, int], list[tuple[list[str], Right]]] = {}
        for route in routes:
            parts = _split_path(route.path)
            for method in route.methods:
                self._by_length.setdefault((method, len(parts)), []).append((parts, route.right))

    def needed(self, method: str, path: str) -> Right:
        """Returns the right that a request needs.

        :param path: decoded. As in the router, letter case, doubled slashes and one at the end make no difference.
        """
        if method == _PREFLIGHT:
            return Right.NONE
        parts = _split_path(path)
        rights = [right for pattern, right in self._by_length.get((method, len(parts)), ()) if _fits(pattern, parts)]
        if not rights and method in READS:
            rights = [right for folder, right in self._below if parts[: len(folder)] == folder]
        return max(rights or [default_right(method)], key=lambda right: right.rank)


def _split_path(path: str) -> list[str]:
    return [part for part in path.lower().split("/") if part]


def _fits(pattern: list[str], parts: list[str]) -> bool:
    return all(segment == part or segment[0] == "{" for segment, part in zip(pattern, parts, strict=True))


needed = RouteRights(through_the_gateway()).needed

_STREAMS = frozenset(route.path for route in through_the_gateway() if route.media is Media.JSON_LINES)


def is_stream(method: str, path: str) -> bool:
    """Tells whether an answer may take hours, so that its caller may lose the right meanwhile."""
    return method == "GET" and f"/{'/'.join(_split_path(path))}" in _STREAMS
