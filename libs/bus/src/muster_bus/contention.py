"""Whether several resource managers ask for something at present, and how much work their requests are.

While several ask, none of them may keep the loop for long, and none may have much undecided work on the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

# A resource manager that was silent for so long does not count.
_ACTIVE_S = 2.0


class Contention:
    """The resource managers whose requests a process reads, as far as it matters: one of them, or more. O(1)."""

    def __init__(self) -> None:
        self._key: bytes | None = b""
        self._at_s = float("-inf")
        self._other_at_s = float("-inf")

    def note(self, key: bytes | None, now_s: float) -> None:
        """Notes a request. ``key``: the id of its resource manager; ``now_s``: monotonic."""
        if key != self._key:
            self._key, self._other_at_s = key, self._at_s
        self._at_s = now_s

    def is_shared(self, now_s: float) -> bool:
        """Whether another resource manager had a request shortly before now, beside the last one."""
        return now_s - self._other_at_s < _ACTIVE_S


class Work(NamedTuple):
    """What the requests that a transaction answers cost.

    :param us: processor time of the machine and of the commit since the transaction before that answered requests.
    :param input_bytes: of the requests.
    :param commit_us: how long the last commit took that was waited for; 0: commits are not waited for.
    """

    us: int
    input_bytes: int
    commit_us: int


class WorkMeter:
    """Measures the work of a worker's transactions.

    :param processor_s: reads the processor time of the thread that works. (A system call: a microsecond.)
    :param monotonic_s: reads the time that elapses. (A tenth of that.)
    :ivar input_bytes: of the requests since the last :meth:`read`.
    :ivar commit_s: duration of the last commit; 0: commits are seldom waited for.
    """

    def __init__(self, processor_s: Callable[[], float], monotonic_s: Callable[[], float]) -> None:
        self._processor_s, self._monotonic_s = processor_s, monotonic_s
        self.input_bytes = 0
        self.commit_s = 0.0
        self._spent_s = 0.0
        self._since_s = 0.0
        self._began_s = 0.0

    def start(self) -> None:
        """Begins a piece of work of this thread. Other tasks' work between pieces does not count."""
        self._since_s, self._began_s = self._processor_s(), self._monotonic_s()

    def has_worked(self, least_s: float) -> bool:
        """Whether the present piece has used at least so much processor time: never more than has elapsed."""
        return self._monotonic_s() - self._began_s >= least_s and self._processor_s() - self._since_s >= least_s

    def stop(self) -> None:
        """Ends the piece."""
        self._spent_s += self._processor_s() - self._since_s

    @contextmanager
    def working(self) -> Iterator[None]:
        """Measures the body as one piece."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def read(self) -> Work:
        """Returns the work since the last time."""
        work = Work(round(self._spent_s * 1e6), self.input_bytes, round(self.commit_s * 1e6))
        self._spent_s, self.input_bytes = 0.0, 0
        return work
