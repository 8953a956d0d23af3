"""Past reasons of pending asks: the last few reasons that lasted.

They are kept with the present reason: at the waitlist, or at an application that waits as a whole. So 100,000 asks that
wait together cost one entry for each change. An ask that waits unchanged, or is placed at once, costs nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from muster_core.model.reasons import Reason

if TYPE_CHECKING:
    from muster_core.model.resources import Shape

# The number of past reasons that are kept; then the oldest one goes.
PAST_KEPT = 8
# A shorter reason is not kept: in a busy cluster, the first refusal alternates with each release. (No timer is needed.)
_MOMENT_NS = 1_000_000_000


class PastReason(NamedTuple):
    """A reason that is over.

    :ivar until_ns: when another reason replaced it, or it ended. It began at ``reason.since_ns``.
    :ivar shape: for an application's past reason: only its asks of this shape waited for it; None: all its asks did.
    """

    reason: Reason
    until_ns: int
    shape: Shape | None = None


Past = tuple[PastReason, ...]


def is_significant(since_ns: int, until_ns: int) -> bool:
    """Whether a reason with these times lasted long enough to be kept."""
    return until_ns - since_ns >= _MOMENT_NS


def with_ended(past: Past, reason: Reason | None, now_ns: int, shape: Shape | None = None) -> Past:
    """The past after a reason has ended: it includes the reason, if it lasted."""
    if reason is None or not is_significant(reason.since_ns, now_ns):
        return past
    return (*past[1 - PAST_KEPT :], PastReason(reason, now_ns, shape))


def with_begun(past: Past, reason: Reason, now_ns: int) -> tuple[Past, Reason]:
    """The past, and the new reason with its times. A reason that returns after a moment keeps its first beginning."""
    if past:
        last = past[-1]
        if not is_significant(last.until_ns, now_ns) and last.shape is None and reason.same_as(last.reason):
            return past[:-1], replace(reason, since_ns=last.reason.since_ns, as_of_ns=now_ns)
    return past, replace(reason, since_ns=now_ns)


def with_replaced(past: Past, old: Reason | None, new: Reason, now_ns: int) -> tuple[Past, Reason]:
    """One reason replaces another: the past after that, and the new reason with its times."""
    return with_begun(with_ended(past, old, now_ns), new, now_ns)
