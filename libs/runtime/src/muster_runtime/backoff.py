"""Waits before a retry, and waits of work that repeats.

Waits before a retry have no jitter, because there is only one client.
"""

from __future__ import annotations

import asyncio
import math

# A wait that ends in step is shorter by at most this share of a second, and else longer.
_EARLIER_S = 0.25


def backoff_s(failures: int, min_s: float, max_s: float) -> float:
    """Returns the wait after ``failures`` earlier failures: ``min_s``, doubled with each of them, at most ``max_s``."""
    return min(max_s, min_s * 2.0 ** min(failures, 32))


def aligned_s(wait_s: float) -> float:
    """Returns the wait until the whole second of the loop's clock that is next to ``wait_s`` from now.

    Work that repeats so runs at the same moments as other such work: an idle process wakes once a second, not once for
    each of them. A wake-up costs more than the work, because all caches are cold. A wait under a second stays as it is.
    """
    if wait_s < 1.0:
        return wait_s
    now_s = asyncio.get_running_loop().time()
    return math.ceil(now_s + wait_s - _EARLIER_S) - now_s


def before_deadline_s(left_s: float, margin_max_s: float) -> float:
    """Returns how long (seconds) to work on an answer that a client waits ``left_s`` for: it must still arrive.

    :param margin_max_s: the longest time to keep for the way; of a short wait it is a tenth.
    """
    return max(0.0, left_s - min(margin_max_s, left_s / 10))
