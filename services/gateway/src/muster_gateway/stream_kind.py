"""The three streams that an RM has."""

from __future__ import annotations

from enum import IntEnum


class StreamKind(IntEnum):
    """Same numbers as ``muster.bus.v1.StreamKind``."""

    ALLOCATION = 1
    APPLICATION = 2
    NODE = 3
