"""What asks waited for before: the reasons that are over, the last few that lasted.

It is kept where the reason itself is: at the list of those who wait for the same, and at an application that waits as
a whole. So an ask that waits unchanged costs nothing, one that is placed at its first look costs nothing, and 100,000
that wait for the same cost one entry when that changes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from muster_scheduler.core.reasons import Reason

if TYPE_CHECKING:
    from muster_scheduler.core.resources import Shape

# So many are kept; of more the oldest goes.
PAST_KEPT = 8
# What lasted for less is not kept: in a busy cluster the first "no" moves to and fro with each release. (No timer.)
_MOMENT_NS = 1_000_000_000


class PastReason(NamedTuple):
    """A reason that is over.

    :ivar until_ns: when another one took its place, or none. It began at ``reason.since_ns``.
    :ivar shape: of an application's: only its asks of this shape waited for it; None: all of them.
    """

    reason: Reason
    until_ns: int
    shape: Shape | None = None


Past = tuple[PastReason, ...]


def counts(since_ns: int, until_ns: int) -> bool:
    """Whether what was from then to then is kept: it lasted."""
    return until_ns - since_ns >= _MOMENT_NS


def ended(past: Past, reason: Reason | None, now_ns: int, shape: Shape | None = None) -> Past:
    """What is past when the reason is over: it too, if it lasted."""
    if reason is None or not counts(reason.since_ns, now_ns):
        return past
    return (*past[1 - PAST_KEPT :], PastReason(reason, now_ns, shape))


def begun(past: Past, reason: Reason, now_ns: int) -> tuple[Past, Reason]:
    """What is past, and the reason that begins. One that is back after a moment began when it did at first."""
    if past:
        last = past[-1]
        if not counts(last.until_ns, now_ns) and last.shape is None and reason.same_as(last.reason):
            return past[:-1], replace(reason, since_ns=last.reason.since_ns, as_of_ns=now_ns)
    return past, replace(reason, since_ns=now_ns)


def followed(past: Past, old: Reason | None, new: Reason, now_ns: int) -> tuple[Past, Reason]:
    """One reason takes another one's place: what is past then, and the new one with its times."""
    return begun(ended(past, old, now_ns), new, now_ns)
