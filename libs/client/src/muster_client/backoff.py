"""How long to wait before trying again."""

from __future__ import annotations

import random

from muster_bus.clock import Clock


class Backoff:
    """Doubling waits with jitter, bounded on both sides.

    The n-th failure in a row waits between half of and the whole ``ms_min * 2**(n-1)``, at most ``ms_max``: the jitter
    keeps a thousand clients of a gateway that comes back from knocking at the same moment.

    A try that held for ``settled_after_s`` ends the row by itself, so that a stream which lives for minutes between
    losses reconnects at once, and one that is accepted and dropped at once does not.

    :param ms_min: the first wait, in ms.
    :param ms_max: the longest wait, in ms.
    :param clock: monotonic seconds come from here.
    :param seed: of the jitter; None: from the system.
    """

    def __init__(
        self, ms_min: int, ms_max: int, clock: Clock, *, seed: int | None = None, settled_after_s: float = 5.0
    ) -> None:
        if not 0 < ms_min <= ms_max:
            raise ValueError(f"backoff from {ms_min} to {ms_max} ms: expected 0 < ms_min <= ms_max")
        self._ms_min, self._ms_max = ms_min, ms_max
        self._clock, self._settled_after_s = clock, settled_after_s
        self._random = random.Random(seed)  # noqa: S311 - jitter, not a secret
        self._failures = 0
        self._started_at: float | None = None

    @property
    def failures(self) -> int:
        """How many in a row."""
        return self._failures

    def started(self) -> None:
        """A try begins now."""
        self._started_at = self._clock.monotonic()

    def succeeded(self) -> None:
        """The try was good: the next failure is the first of a new row."""
        self._failures = 0

    def failed(self) -> float:
        """The try failed. How long to wait before the next one, in seconds."""
        if self._started_at is not None and self._clock.monotonic() - self._started_at >= self._settled_after_s:
            self._failures = 0
        self._started_at = None
        ceiling_ms = min(self._ms_max, self._ms_min << min(self._failures, 32))
        self._failures += 1
        return ceiling_ms * (0.5 + 0.5 * self._random.random()) / 1_000
