"""Whether several resource managers ask for something at present: then none of them may keep the loop for long."""

from __future__ import annotations

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
