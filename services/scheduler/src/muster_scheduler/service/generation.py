"""Which generation of the interface an RM speaks: what it says of itself, and what it is seen to say.

The key in its extraConfig decides. Its version does until it is seen to speak otherwise: it may be of its own.

Each item is answered in the words that it came in. The RM's generation decides what no item says: whether an
application is told as starting before it runs, whether its allocations carry a UUID. docs/resource-managers.md has it
for those who write RMs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_si.constants import FOREIGN

from muster_scheduler.core.commands import UpdateAllocations, UpdateApplications, UpdateNodes

CURRENT, PREVIOUS = "current", "previous"
KEY = "muster.generation"
_SHOWN_MAX = 256  # characters of a value in a warning
BY_KEY, BY_VERSION = f"extraConfig[{KEY}]", "version"
# Known by these, what the RM says may still show otherwise.
TO_BE_SEEN = ("", BY_VERSION)

# Versions of the interface as its releases are numbered: the first one without AllocationAsk. (0.x says nothing:
# shims send their own there.)
_FIRST_CURRENT = (1, 6)
_VERSION = re.compile(r"v?([1-9][0-9]{0,3})\.([0-9]{1,4})\.[0-9]+(?:[-+].*)?", re.ASCII)


def said(extra: Mapping[str, str], version: str) -> tuple[str, str]:
    """(generation, what said so) of a registration; ("", ""): nothing in it says so."""
    named = extra.get(KEY, "").strip().lower()
    if named in (CURRENT, PREVIOUS):
        return named, BY_KEY
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        return "", ""
    return (PREVIOUS if (int(match[1]), int(match[2])) < _FIRST_CURRENT else CURRENT), BY_VERSION


def problems_of(extra: Mapping[str, str]) -> list[pb.ConfigProblem]:
    """What of the registration's extraConfig about the generation has no effect: a warning."""
    named = extra.get(KEY)
    if named is None or named.strip().lower() in (CURRENT, PREVIOUS):
        return []
    why = f"{named[:_SHOWN_MAX]!r}, expected {CURRENT} or {PREVIOUS}: it is found out otherwise"
    return [pb.ConfigProblem(severity=pb.ConfigProblem.WARNING, path=BY_KEY, message=why)]


def seen(command: UpdateAllocations | UpdateApplications | UpdateNodes) -> tuple[str, str]:
    """(generation, what shows it) of a request; ("", ""): both generations could say it."""
    match command:
        case UpdateNodes():
            if any(item.existing for item in command.nodes):
                return PREVIOUS, "NodeInfo.existingAllocations"
        case UpdateAllocations():
            for item in command.asks:
                if item.uuid:
                    return PREVIOUS, "Allocation.UUID"
                if not item.node_id and item.previous_generation:
                    return PREVIOUS, "AllocationAsk"
                if not item.node_id and FOREIGN not in item.tags:
                    return CURRENT, "Allocation without nodeID"
            for release in command.releases:
                if release.ask_only:
                    return PREVIOUS, "AllocationAskRelease"
                if release.uuid:
                    return PREVIOUS, "AllocationRelease.UUID"
    return "", ""
