"""How long to wait before something is tried again. Without jitter: one asks one."""

from __future__ import annotations


def growing_s(failures: int, min_s: float, max_s: float) -> float:
    """The wait after so many failures before this one: ``min_s``, doubled with each of them, up to ``max_s``."""
    return min(max_s, min_s * 2.0 ** min(failures, 32))
