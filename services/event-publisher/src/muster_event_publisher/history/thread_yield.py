"""Works on many events in a thread beside an event loop: in slices, with a pause after each."""

from __future__ import annotations

import time

# Events of a slice: the thread holds the interpreter for about a millisecond.
SLICE = 256
# Long enough for a waiting event loop to continue, short against the slice.
_PAUSE_S = 0.0003


def pause() -> None:
    """Pauses after a slice."""
    time.sleep(_PAUSE_S)
