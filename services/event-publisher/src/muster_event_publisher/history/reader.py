"""The contract of a reader of history: it reads events that neither ring nor log have any more, by id."""

from __future__ import annotations

from typing import Protocol

from muster_event_publisher.log_search import OldEvents


class HistoryReader(Protocol):
    """Reads what a sink wrote. Does not block the event loop."""

    @property
    def name(self) -> str:
        """The store's name in the settings."""
        ...

    async def read(self, rm_id: str, instance: str, start: int, count: int) -> OldEvents | None:
        """Up to ``count`` consecutive events of the RM from the first id at or after ``start``; None: there are none.

        The values are serialised si.v1.EventRecord with the fields of the originals, but not always the same bytes.

        Raises SinkError: the store cannot be read now.
        """
        ...

    async def close(self) -> None: ...
