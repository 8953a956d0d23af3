"""Which sources the scheduler waits for before it decides (seed 004, WaitForCacheSync)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_AGAIN = "#"


def life_again(life: str, number: int) -> str:
    """The life of informers that are started for the ``number``-th time in one start of the scheduler."""
    return life if number <= 1 else f"{life}{_AGAIN}{number}"


@dataclass(frozen=True, slots=True)
class Gate:
    """What this start of the scheduler waits for; the machine asks it, the informers' service makes it.

    A source has passed once it was heard, on the log, to be LIVE or given up (STALE) in this life: so after a rebuild
    of the machine from the log, too.

    :ivar life: of all informers of this process.
    :ivar sources: by RM, the (partition, source) that are waited for.
    """

    life: str = ""
    sources: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    def is_of_this_start(self, life: str) -> bool:
        """Whether a life is one of this start's: informers that are a process of their own may have several."""
        return life == self.life or life.startswith(f"{self.life}{_AGAIN}")

    def awaited(self, rm_id: str) -> Iterable[tuple[str, str]]:
        """(partition, source) that must pass before anything is decided for the RM."""
        return self.sources.get(rm_id, ())
