"""Python's cyclic garbage collector, told what a scheduler's memory looks like.

A scheduler holds hundreds of thousands of objects for hours, and a full collection walks all of them: 40 to 60 ms with
20,000 allocations, in which nothing is decided. Almost everything here dies by its reference count; cycles are left
behind only when applications, nodes or connections go. So full collections are made rare, and what the start left in
memory (modules, settings) is taken out of them.
"""

from __future__ import annotations

import gc

# A young collection each 10,000 new objects (a millisecond or two), a full one each 10,000 of those.
_YOUNG, _MIDDLE, _FULL = 10_000, 20, 500


def collect_rarely() -> None:
    """Sets the pace; for the start of a process."""
    gc.set_threshold(_YOUNG, _MIDDLE, _FULL)


def settle() -> None:
    """Takes what is in memory now out of later collections; for when a process is ready."""
    gc.collect()
    gc.freeze()
