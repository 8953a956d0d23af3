"""Finds the endpoint of a path, like YuniKorn's router.

Only exact paths match. A path that differs in letter case, doubled slashes or a slash at the end is redirected to the
right one, if that takes the request's method. Any other unknown path is 404, another method 405.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

E = TypeVar("E")


class RouteMatch(NamedTuple, Generic[E]):
    """A path's endpoint.

    :ivar pattern: for metrics.
    :ivar parameters: the path's parameters by name, decoded once.
    """

    pattern: str
    endpoint: E
    parameters: dict[str, str]


class RouteRedirect(NamedTuple, Generic[E]):
    """The redirect of a nearly right path.

    :ivar path: the right one, decoded.
    """

    path: str
    endpoint: E


class Routes(Generic[E]):
    """Patterns such as ``/ws/v1/partition/{partition}/nodes``; a parameter takes one non-empty part."""

    def __init__(self, routes: Iterable[tuple[str, E]]) -> None:
        self._by_length: dict[int, list[tuple[tuple[str, ...], str, E]]] = {}
        for pattern, endpoint in routes:
            parts = tuple(pattern.split("/")[1:])
            self._by_length.setdefault(len(parts), []).append((parts, pattern, endpoint))

    def find(self, path: str, parts: list[str] | None = None) -> RouteMatch[E] | None:
        """The endpoint of a decoded path; None: no route has exactly this path.

        :param parts: the parts between its slashes, if decoding has added slashes.
        """
        path_parts = parts if parts is not None else path.split("/")[1:]
        for route_parts, pattern, endpoint in self._by_length.get(len(path_parts), ()):
            parameters = _parse_parameters(route_parts, path_parts)
            if parameters is not None:
                return RouteMatch(pattern, endpoint, parameters)
        return None

    def canonical(self, path: str) -> RouteRedirect[E] | None:
        """The right path for a nearly right one; None: no path is near."""
        path_parts = [part for part in path.split("/") if part]
        for parts, _, endpoint in self._by_length.get(len(path_parts), ()):
            right = [mine if fixed[:1] == "{" else fixed for mine, fixed in zip(path_parts, parts, strict=True)]
            if all(a.lower() == b.lower() for a, b in zip(right, path_parts, strict=True)):
                right_path = "/" + "/".join(right)
                return RouteRedirect(right_path, endpoint) if right_path != path else None
        return None


def _parse_parameters(parts: tuple[str, ...], path_parts: list[str]) -> dict[str, str] | None:
    parameters: dict[str, str] = {}
    for part, text in zip(parts, path_parts, strict=True):
        if part[:1] == "{":
            if not text:
                return None
            parameters[part[1:-1]] = text
        elif part != text:
            return None
    return parameters
