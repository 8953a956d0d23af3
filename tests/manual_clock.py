"""A clock that tests and simulations advance."""

from __future__ import annotations

# What each reading of processor time adds: work goes on, but not so that a test depends on the machine.
_PROCESSOR_NS = 10_000


class ManualClock:
    """A clock for tests and simulation. Its time moves only with :meth:`advance`.

    Processor time is as much more at each reading as some work takes.

    :param start_ns: first value of ``now_ns``; by default 2024-01-01T00:00:00Z.
    """

    def __init__(self, start_ns: int = 1_704_067_200_000_000_000) -> None:
        self._now_ns = start_ns
        self._elapsed_ns = self._processor_ns = 0

    def now_ns(self) -> int:
        return self._now_ns

    def monotonic(self) -> float:
        return self._elapsed_ns / 1e9

    def processor_s(self) -> float:
        self._processor_ns += _PROCESSOR_NS
        return self._processor_ns / 1e9

    def advance(self, seconds: float) -> None:
        """Moves both clocks forward by ``seconds``. Raises ValueError if ``seconds`` is negative."""
        if seconds < 0:
            raise ValueError(f"seconds {seconds}: time does not go back")
        step_ns = round(seconds * 1e9)
        self._now_ns += step_ns
        self._elapsed_ns += step_ns
