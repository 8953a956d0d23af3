"""Who keeps nodes from what is new: the resource manager (RM), an operator, or a source outside of the RM.

A node has at most one who closes it, the first in the order of :class:`ClosedBy`; so that the numbers add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from muster_scheduler.core.words import count, listed


class ClosedBy(StrEnum):
    """Whose word it is."""

    # The RM drains it (DRAIN_NODE, CREATE_DRAIN).
    RM = "RM"
    # An operator drained it (`muster admin drain`).
    OPERATOR = "OPERATOR"
    # The named source says that it takes nothing new.
    SOURCE = "SOURCE"
    # The named source is lost, or what it said of the node cannot be relied on.
    SOURCE_LOST = "SOURCE_LOST"
    # Its attributes say that it is not ready.
    NOT_READY = "NOT_READY"
    # What the named source lent of it is wanted back, or was taken back.
    WANTED_BACK = "WANTED_BACK"


class Closer(NamedTuple):
    """:ivar source: of SOURCE, SOURCE_LOST and WANTED_BACK; else ""."""

    by: ClosedBy
    source: str = ""


class Closed(NamedTuple):
    """So many nodes are closed by this one."""

    by: ClosedBy
    source: str
    nodes: int


_ORDER = {by: place for place, by in enumerate(ClosedBy)}


def told(counts: Mapping[Closer, int]) -> tuple[Closed, ...]:
    """In an order that does not depend on who came first."""
    closers = sorted(counts, key=lambda each: (_ORDER[each.by], each.source))
    return tuple(Closed(each.by, each.source, counts[each]) for each in closers if counts[each])


def words(closed: Iterable[Closed]) -> str:
    """``2 nodes are drained by an operator and 1 is closed by source vms``; "": nobody closes any."""
    parts: list[str] = []
    for by, source, nodes in closed:
        number = f"{nodes:,}" if parts else count(nodes, "node")
        parts.append(f"{number} {'is' if nodes == 1 else 'are'} {_WORDS[by].format(source=source)}")
    return listed(parts)


_WORDS = {
    ClosedBy.RM: "drained by the resource manager",
    ClosedBy.OPERATOR: "drained by an operator",
    ClosedBy.SOURCE: "closed by source {source}",
    ClosedBy.SOURCE_LOST: "closed because source {source} cannot be relied on now",
    ClosedBy.NOT_READY: "not ready",
    ClosedBy.WANTED_BACK: "wanted back by source {source}",
}
