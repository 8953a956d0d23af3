"""The streams that an RM has: SI's three, and the one on which the scheduler asks it (docs/callbacks.md)."""

from __future__ import annotations

from enum import IntEnum


class StreamKind(IntEnum):
    """Same numbers as ``muster.bus.v1.StreamKind``."""

    ALLOCATION = 1
    APPLICATION = 2
    NODE = 3
    CALLBACK = 4


# Those of si.v1.Scheduler.
SI_KINDS = (StreamKind.ALLOCATION, StreamKind.APPLICATION, StreamKind.NODE)
