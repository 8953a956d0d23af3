"""Work on many events in a thread, beside an event loop: in slices, with a pause after each."""

from __future__ import annotations

import time

# Events of a slice; about a millisecond in which the interpreter is the thread's.
SLICE = 256
# Long enough for a waiting event loop to take over, short against the slice.
_PAUSE_S = 0.0003


def pause() -> None:
    """Behind a slice."""
    time.sleep(_PAUSE_S)
