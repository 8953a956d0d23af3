"""The contract of a log that records are copied into.

Nobody reads a target before :meth:`CopyTarget.finish`. Until then Muster does not start on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from muster_bus.log import Record
from muster_bus.topics import Topics


class CopyTarget(Protocol):
    """A log in the making. Offsets in it begin at 0. Timestamps stay those of the records.

    :ivar topics: of the target.
    :ivar name: the target in messages.
    """

    topics: Topics
    name: str

    async def start(self) -> None:
        """Creates the log, or opens an interrupted copy of it.

        Raises TargetNotEmpty, LogUnavailable.
        """
        ...

    async def copied(self, topic: str, sources: int) -> dict[int, int]:
        """Returns how far each partition of the source's topic was copied: the position to continue from.

        :param sources: number of the source's partitions; partitions without a copied record may be absent.
        """
        ...

    async def write(self, topic: str, records: Mapping[int, Sequence[Record]], copied: Mapping[int, int]) -> None:
        """Writes records and how far the source was copied, all or nothing.

        :param records: by partition of the target.
        :param copied: by partition of the source.
        """
        ...

    async def ends(self, topic: str) -> list[int]:
        """Returns one past the highest offset of each partition."""
        ...

    async def positions(self, group: str) -> list[int | None]:
        """Returns the group's position in each partition of the requests; None: not set."""
        ...

    async def set_positions(self, group: str, positions: Sequence[int]) -> None:
        """Sets the group's position in each partition of the requests."""
        ...

    async def finish(self) -> None:
        """Makes the copy a log that Muster starts on."""
        ...

    async def close(self) -> None:
        """Closes the target. An unfinished copy stays, and :meth:`start` continues it."""
        ...
