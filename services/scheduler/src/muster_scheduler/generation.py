"""Determines the generation of the interface that an RM speaks, from its registration and from its requests.

The key in the RM's extraConfig decides. Otherwise its version decides, until a request shows another generation,
because the version may be the RM's own. The scheduler answers each item in the item's generation. Two matters depend on
the RM's generation, because no item shows them: whether the RM gets a message that an application is starting, and
whether allocations carry a UUID. docs/resource-managers.md explains this to authors of RMs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from muster_core.model.commands import UpdateAllocations, UpdateNodes
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_si.constants import FOREIGN

CURRENT, PREVIOUS = "current", "previous"
KEY = "muster.generation"
_SHOWN_MAX = 256  # characters of a value in a warning
BY_KEY, BY_VERSION = f"extraConfig[{KEY}]", "version"
# With these sources of the generation, a request may still show another one.
TO_BE_SEEN = ("", BY_VERSION)

# Versions of the interface as its releases are numbered: the first one without AllocationAsk. (0.x says nothing,
# because shims send their own versions there.)
_FIRST_CURRENT = (1, 6)
_VERSION = re.compile(r"v?([1-9][0-9]{0,3})\.([0-9]{1,4})\.[0-9]+(?:[-+].*)?", re.ASCII)


def declared_generation(extra: Mapping[str, str], version: str) -> tuple[str, str]:
    """Returns the generation that a registration names, and its source; ("", "") if it names none."""
    named = extra.get(KEY, "").strip().lower()
    if named in (CURRENT, PREVIOUS):
        return named, BY_KEY
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        return "", ""
    return (PREVIOUS if (int(match[1]), int(match[2])) < _FIRST_CURRENT else CURRENT), BY_VERSION


def problems_of(extra: Mapping[str, str]) -> list[pb.ConfigProblem]:
    """Returns a warning if the generation in the registration's extraConfig has no effect."""
    named = extra.get(KEY)
    if named is None or named.strip().lower() in (CURRENT, PREVIOUS):
        return []
    message = f"{named[:_SHOWN_MAX]!r}, expected {CURRENT} or {PREVIOUS}: it is found out otherwise"
    return [pb.ConfigProblem(severity=pb.ConfigProblem.WARNING, path=BY_KEY, message=message)]


class GenerationEvidence(NamedTuple):
    """An item that shows the generation.

    :ivar by: the message or field.
    :ivar at: number of the request's items before it.
    """

    generation: str
    by: str
    at: int


def generation_evidence(command: UpdateAllocations | UpdateNodes) -> GenerationEvidence | None:
    """Returns the first item of a request that shows the generation; None if every item fits both generations."""
    if isinstance(command, UpdateNodes):
        for at, node in enumerate(command.nodes):
            if node.existing:
                return GenerationEvidence(PREVIOUS, "NodeInfo.existingAllocations", at)
        return None
    for at, release in enumerate(command.releases):
        if release.ask_only:
            return GenerationEvidence(PREVIOUS, "AllocationAskRelease", at)
        if release.uuid:
            return GenerationEvidence(PREVIOUS, "AllocationRelease.UUID", at)
    for at, item in enumerate(command.asks, len(command.releases)):
        if item.uuid:
            return GenerationEvidence(PREVIOUS, "Allocation.UUID", at)
        if not item.node_id and item.previous_generation:
            return GenerationEvidence(PREVIOUS, "AllocationAsk", at)
        if not item.node_id and FOREIGN not in item.tags:
            return GenerationEvidence(CURRENT, "Allocation without nodeID", at)
    return None
