"""Process priority: if there are too few cores, the deciding processes go before the followers."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_AUTOGROUP = Path("/proc/self/autogroup")


def lower_priority(nice: int) -> None:
    """Lowers this process's priority against others of its cgroup. Ignores a refusal of the system.

    :param nice: added to the niceness that it was started with. At 5 a process gets a third of the time of one at 0, if
        both want more than there is (sched(7)). Between containers the cgroups' weights count, which the deployment
        sets.
    """
    with suppress(OSError):
        niceness = os.nice(nice)
        # Linux weighs sessions against each other before processes within one. Niceness has no effect outside of a
        # session; the session's own value has. It is set only if the session is this process's, so that no other
        # process slows down.
        if os.getsid(0) == os.getpid():
            _AUTOGROUP.write_text(f"{niceness}\n")
