"""Who goes first where the cores do not suffice for all: those that decide, before those that follow."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_AUTOGROUP = Path("/proc/self/autogroup")


def give_way(nice: int) -> None:
    """Lowers this process's priority against others of its cgroup; what the system refuses is left as it is.

    :param nice: added to the niceness that it was started with; at 5 it gets a third of what one at 0 gets, when both
        want more than there is (sched(7)). Between containers a cgroup's weight counts instead: it is the deployment's.
    """
    with suppress(OSError):
        niceness = os.nice(nice)
        # Linux weighs sessions against each other before processes within one: niceness says nothing outside of it, the
        # session's own does. Only where the session is this process's: others in it would be slowed too.
        if os.getsid(0) == os.getpid():
            _AUTOGROUP.write_text(f"{niceness}\n")
