"""Waits before a retry. They have no jitter, because there is only one client."""

from __future__ import annotations


def growing_s(failures: int, min_s: float, max_s: float) -> float:
    """Returns the wait after ``failures`` earlier failures: ``min_s``, doubled with each of them, at most ``max_s``."""
    return min(max_s, min_s * 2.0 ** min(failures, 32))
