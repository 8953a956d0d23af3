"""The state machine that a partition worker feeds from one input partition.

The worker (``partition_worker.py``) does the I/O; the machine decides. The machine is synchronous: it takes records and
the time, and returns records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from muster_bus.log import OutRecord, Record


class StateMachine(Protocol):
    """A deterministic consumer of one input partition. Each take-over makes a new one. No machine is used after an
    error.
    """

    def fold(self, record: Record) -> None:
        """Takes one record of the state topic during recovery. The records come oldest first and include tombstones."""
        ...

    def finish_fold(self, now_ns: int) -> None:
        """The state topic is read to its end. The machine can now build sums and indexes."""
        ...

    def apply(self, records: Sequence[Record], now_ns: int) -> list[OutRecord]:
        """Takes input records in order, decides, and returns the records of one transaction.

        Never raises for a record's content: a record that cannot be read becomes an output record to the dead letters.
        An exception here is a defect: the worker drops the machine and starts again from the log.
        """
        ...

    def tick(self, now_ns: int) -> list[OutRecord]:
        """Makes the decisions that time alone causes, or that the last budget left over."""
        ...

    def flush(self, now_ns: int) -> Iterable[Sequence[OutRecord]]:
        """Returns the records that ``apply`` and ``tick`` held back, for the transaction that now ends, in parts.

        A machine may hold records back: what a transaction changes several times, it then writes once. Writing may
        take long: at an empty part other tasks run. The machine is not called before all parts are taken.
        """
        ...

    def pending_records(self) -> int:
        """Returns about how many records the machine holds back."""
        ...

    def next_deadline_ns(self) -> int | None:
        """Returns the time of the next ``tick``. None: not before there is input. A past time: at once."""
        ...


class StandbyStateMachine(StateMachine, Protocol):
    """A machine that a standby can keep up to date before it takes over."""

    def build_state(self) -> Iterator[None]:
        """Builds the state from the records folded so far, in steps. Afterwards ``fold`` applies each record at once.

        ``folded`` still ends the fold. It must make the same machine as a fold of all records at once.
        """
        ...


@runtime_checkable
class SteppedMachine(Protocol):
    """A machine whose calls may take long, because one record may concern very many objects.

    It yields what the call of that name returns, in parts. At an empty part other tasks run. The machine is not called
    before all parts are taken.
    """

    def apply_in_steps(self, records: Sequence[Record], now_ns: int) -> Iterator[Sequence[OutRecord]]:
        """Does what :meth:`Machine.apply` does."""
        ...

    def tick_in_steps(self, now_ns: int) -> Iterator[Sequence[OutRecord]]:
        """Does what :meth:`Machine.tick` does."""
        ...
