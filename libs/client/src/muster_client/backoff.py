"""The wait before a retry."""

from __future__ import annotations

from random import Random

from muster_client.clock import Clock


class Backoff:
    """Doubling waits with jitter, with a lower and an upper bound.

    The wait after the n-th failure in a row is between half of ``ms_min * 2**(n-1)`` and the whole, at most ``ms_max``.
    When a gateway comes back, the jitter keeps a thousand clients from connecting at the same moment.

    A try that lasted for ``settled_after_s`` ends the row of failures. So a stream that lives for minutes reconnects at
    once, and one that is accepted and dropped at once does not.

    :param ms_min: the first wait, in ms.
    :param ms_max: the longest wait, in ms.
    :param clock: source of monotonic seconds.
    :param chance: draws the jitter.
    """

    def __init__(self, ms_min: int, ms_max: int, clock: Clock, *, chance: Random, settled_after_s: float = 5.0) -> None:
        if not 0 < ms_min <= ms_max:
            raise ValueError(f"backoff from {ms_min} to {ms_max} ms: expected 0 < ms_min <= ms_max")
        self._ms_min, self._ms_max = ms_min, ms_max
        self._clock, self._settled_after_s = clock, settled_after_s
        self._chance = chance
        self._failures = 0
        self._started_at: float | None = None

    @property
    def failures(self) -> int:
        """Number of failures in a row."""
        return self._failures

    def started(self) -> None:
        """Records the start of a try."""
        self._started_at = self._clock.monotonic()

    def succeeded(self) -> None:
        """Records a success: the next failure is the first of a new row."""
        self._failures = 0

    def failed(self) -> float:
        """Records a failure. Returns the wait before the next try, in seconds."""
        if self._started_at is not None and self._clock.monotonic() - self._started_at >= self._settled_after_s:
            self._failures = 0
        self._started_at = None
        ceiling_ms = min(self._ms_max, self._ms_min << min(self._failures, 32))
        self._failures += 1
        return ceiling_ms * (0.5 + 0.5 * self._chance.random()) / 1_000
