"""Sets up Python's cyclic garbage collector for a scheduler's memory.

A scheduler holds hundreds of thousands of objects for hours, and a full collection walks all of them: 40 to 60 ms with
20,000 allocations, during which nothing is decided. Reference counts free almost everything here. Only removed
applications, nodes and connections leave cycles. So full collections are rare, and they exclude the objects that remain
from the start (modules, settings).
"""

from __future__ import annotations

import gc

# A young collection per 5,000 new objects (under a millisecond). Every third is a middle one, of 15,000 objects (some
# three milliseconds; all wait meanwhile). One of 8,000 middle ones may be full.
_YOUNG, _MIDDLE, _FULL = 5_000, 1, 8_000


def collect_rarely() -> None:
    """Sets the thresholds. Call this at the start of a process."""
    gc.set_threshold(_YOUNG, _MIDDLE, _FULL)


def settle() -> None:
    """Excludes the present objects from later collections. Call this when a process is ready.

    It collects nothing before: a start leaves ten objects in circles, and to find them takes 60 ms.
    """
    gc.freeze()
