"""The kinds of an RM's streams: SI's three, and the one for the scheduler's questions (docs/callbacks.md)."""

from __future__ import annotations

from enum import IntEnum


class StreamKind(IntEnum):
    """The numbers are those of ``muster.bus.v1.StreamKind``."""

    ALLOCATION = 1
    APPLICATION = 2
    NODE = 3
    CALLBACK = 4


# The kinds of si.v1.Scheduler.
SI_KINDS = (StreamKind.ALLOCATION, StreamKind.APPLICATION, StreamKind.NODE)
