"""The tables of docs/rest.md and docs/security-rights.md, made from the routes (``scripts/route-tables``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from muster_rest.grpc_methods import METHODS
from muster_rest.route import READS
from muster_rest.route_table import BELOW, through_the_gateway


def endpoints() -> str:
    """Every route, for docs/rest.md."""
    return _table(
        ("method", "path", "summary", "answer", "parameters", "statuses", "right", "core", "notes"),
        (
            (
                route.method,
                f"`{route.path}`",
                route.summary,
                str(route.media),
                ", ".join(f"`{parameter.name}`" for parameter in route.parameters),
                ", ".join(map(str, route.statuses)),
                str(route.right),
                "yes" if route.core else "no",
                route.notes,
            )
            for route in through_the_gateway()
        ),
    )


def rights() -> str:
    """Returns the table of the rights of routes, for docs/security-rights.md."""
    rows = [
        (f"`{route.path}`", ", ".join(route.methods), str(route.right), route.why) for route in through_the_gateway()
    ]
    rows += [
        (f"`{folder}…`", ", ".join(READS), str(right), "every other path below") for folder, right in BELOW.items()
    ]
    return _table(("path", "methods", "right", "why"), rows)


def methods() -> str:
    """Returns the table of the rights of gRPC methods, for docs/security-rights.md."""
    rows = ((f"`{method.service}`", f"`{method.name}`", str(method.right), method.why) for method in METHODS)
    return _table(("service", "method", "right", "why"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_line(head), "|" + "---|" * len(head), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"
