"""Limits how often the log repeats itself."""

from __future__ import annotations

from collections.abc import Callable

from muster_runtime.elapsed import elapsed_s


class LogThrottle:
    """Limits how often a message is logged.

    :param every_s: interval in seconds.
    :param monotonic: a clock in seconds; tests replace it.
    """

    def __init__(self, every_s: float, monotonic: Callable[[], float] = elapsed_s) -> None:
        self._every_s, self._monotonic = every_s, monotonic
        self._next_s, self._left_out = float("-inf"), 0

    def suppressed_if_due(self) -> int | None:
        """Returns the number of suppressed messages if a message is due; None: this one is suppressed, too."""
        now_s = self._monotonic()
        if now_s < self._next_s:
            self._left_out += 1
            return None
        left_out, self._left_out, self._next_s = self._left_out, 0, now_s + self._every_s
        return left_out
