"""The sources that the scheduler waits for before it decides (the event handler framework, WaitForCacheSync)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_AGAIN = "#"


def restarted_incarnation(life: str, number: int) -> str:
    """Returns the life of informers that are started for the ``number``-th time in one start of the scheduler."""
    return life if number <= 1 else f"{life}{_AGAIN}{number}"


@dataclass(frozen=True, slots=True)
class SyncGate:
    """The sources that this start of the scheduler waits for. The informers' service builds it, and the machine asks
    it.

    A source has passed once the log has it as LIVE or given up (STALE) in this life. So the result is the same after
    the machine is rebuilt from the log.

    :ivar incarnation: the life of all informers of this process.
    :ivar sources: by RM, the (partition, source) that the scheduler waits for.
    :ivar natives: likewise, the handlers of the RM's own objects (``native_handler.py``): the scheduler does not wait
        for them.
    """

    incarnation: str = ""
    sources: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    natives: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    def is_of_this_start(self, life: str) -> bool:
        """Whether a life belongs to this start: informers in a process of their own may have several."""
        return life == self.incarnation or life.startswith(f"{self.incarnation}{_AGAIN}")

    def awaited_sources(self, rm_id: str) -> Iterable[tuple[str, str]]:
        """The (partition, source) that must pass before the scheduler decides for the RM."""
        return self.sources.get(rm_id, ())
