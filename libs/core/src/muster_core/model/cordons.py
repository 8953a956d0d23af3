"""Closers of nodes, which keep new allocations away: the resource manager (RM), an operator, or an external source.

A node has at most one closer, the first in the order of :class:`CordonKind`, so that the numbers add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from muster_core.model.text_format import join_words, pluralize


class CordonKind(StrEnum):
    """The kinds of closers."""

    # The RM drains it (DRAIN_NODE, CREATE_DRAIN).
    RM = "RM"
    # An operator drained it (`muster admin drain`).
    OPERATOR = "OPERATOR"
    # The named source says that the node takes no new allocations.
    SOURCE = "SOURCE"
    # The named source is lost, or its statements about the node cannot be relied on.
    SOURCE_LOST = "SOURCE_LOST"
    # The node's attributes say that it is not ready.
    NOT_READY = "NOT_READY"
    # The named source wants back an offer of the node, or took it back.
    WANTED_BACK = "WANTED_BACK"


class Cordon(NamedTuple):
    """:ivar source: the source of SOURCE, SOURCE_LOST and WANTED_BACK; else ""."""

    by: CordonKind
    source: str = ""


class CordonCount(NamedTuple):
    """The number of nodes that one closer closes."""

    by: CordonKind
    source: str
    nodes: int


_ORDER = {by: place for place, by in enumerate(CordonKind)}


def closed_counts(counts: Mapping[Cordon, int]) -> tuple[CordonCount, ...]:
    """The counts, sorted by kind, then by source."""
    closers = sorted(counts, key=lambda cordon: (_ORDER[cordon.by], cordon.source))
    return tuple(CordonCount(cordon.by, cordon.source, counts[cordon]) for cordon in closers if counts[cordon])


def describe_cordons(closed: Iterable[CordonCount]) -> str:
    """A text such as ``2 nodes are drained by an operator and 1 is closed by source vms``; "": no node is closed."""
    parts: list[str] = []
    for by, source, nodes in closed:
        number = f"{nodes:,}" if parts else pluralize(nodes, "node")
        parts.append(f"{number} {'is' if nodes == 1 else 'are'} {_WORDS[by].format(source=source)}")
    return join_words(parts)


_WORDS = {
    CordonKind.RM: "drained by the resource manager",
    CordonKind.OPERATOR: "drained by an operator",
    CordonKind.SOURCE: "closed by source {source}",
    CordonKind.SOURCE_LOST: "closed because source {source} is lost or stale",
    CordonKind.NOT_READY: "not ready",
    CordonKind.WANTED_BACK: "revoked by source {source}",
}
