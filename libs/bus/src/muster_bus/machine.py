"""What a partition worker drives: a state machine fed by one input partition.

The worker (``partition_worker.py``) owns the I/O; the machine owns the meaning. The machine is synchronous: it gets
records and the time, and gives records back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from muster_bus.log import OutRecord, Record


class Machine(Protocol):
    """A deterministic consumer of one input partition. Built new for each take-over; never used after an error."""

    def fold(self, record: Record) -> None:
        """Takes one record of the state topic during recovery (tombstones too), oldest first."""
        ...

    def folded(self, now_ns: int) -> None:
        """The state topic is read to its end: sums and indexes can be made."""
        ...

    def apply(self, records: Sequence[Record], now_ns: int) -> list[OutRecord]:
        """Takes input records in order, decides, and gives what one transaction is to carry.

        Never raises for a record's content: what cannot be read goes to the dead letters, as an output record.
        An exception here is a defect: the worker drops the machine and starts again from the log.
        """
        ...

    def tick(self, now_ns: int) -> list[OutRecord]:
        """Decides what time alone causes, or what the last budget left over."""
        ...

    def next_deadline_ns(self) -> int | None:
        """When ``tick`` wants to be called next; ``None``: not before there is input. In the past: at once."""
        ...
