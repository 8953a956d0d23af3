"""When nothing is decided for an RM, and when it was so before: kept on the log, for those who ask why something waits.

=============  =================================================  ====================================
kind           begins                                             ends
=============  =================================================  ====================================
OPERATOR       an operator pauses it                              an operator resumes it
ABSENT         it is registered, or changes its configuration     its callback stream opens, or it
               to ``muster.callbacks.absent: wait``, without      changes that
               a callback stream; or that stream ends
LISTING        the scheduler begins, or the RM registers, and     all of them listed, or were given up
               sources outside of it have not listed
=============  =================================================  ====================================

What lasted for less than a second is not kept (``core/past.py``), and of each kind the last few are: a stream that
comes and goes must not drive an operator's pauses out.
"""

from __future__ import annotations

from muster_scheduler.core.past import PAST_KEPT, counts
from muster_scheduler.follower import Pause, PauseKind, RmInfo


def end(info: RmInfo, kind: PauseKind, since_ns: int, now_ns: int, reason: str = "") -> bool:
    """One is over; whether it is kept: then the registration's record is to be written. ``since_ns`` 0: not known."""
    if not since_ns or not counts(since_ns, now_ns):
        return False
    alike = [each for each in info.pauses if each.kind is kind]
    dropped = alike[0] if len(alike) >= PAST_KEPT else None
    info.pauses = (*(each for each in info.pauses if each is not dropped), Pause(since_ns, now_ns, reason, kind))
    return True


def mark_absence(info: RmInfo, now_ns: int) -> bool:
    """Whether it is absent may have changed; whether a pause is over that is kept."""
    if info.is_absent:
        info.absent_ns = info.absent_ns or now_ns
        return False
    since_ns, info.absent_ns = info.absent_ns, 0
    return end(info, PauseKind.ABSENT, since_ns, now_ns)


def mark_awaited(info: RmInfo, awaited: tuple[str, ...], now_ns: int) -> bool:
    """These sources are waited for; whether a pause is over that is kept. It has the name of the last one."""
    last, info.awaited = info.awaited, awaited
    if awaited:
        info.awaited_ns = info.awaited_ns or now_ns
        return False
    since_ns, info.awaited_ns = info.awaited_ns, 0
    return end(info, PauseKind.LISTING, since_ns, now_ns, last[-1] if last else "")
