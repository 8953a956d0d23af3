"""What a partition of a compacted topic holds on Kafka: the number of its live keys, and the sum of their digests.

A broker compacts without account: nobody knows which older records of a key are left, or when a tombstone is removed.
But the newest record of each key stays. So the sum over these is the same before and after a compaction, and each
record changes it in O(1). It needs the digest of each key's newest record in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable
from zlib import crc32

from muster_bus.backends.blocks import DIGEST_MASK, short_digest
from muster_bus.log import Record
from muster_bus.topics import parse_state_key

# One dictionary of all keys would be copied in one step when it grows.
_SHARDS = 256


class LiveSum(NamedTuple):
    """Number of the live keys of a partition, and the sum of the digests of their newest records."""

    keys: int
    total: int


class LiveKeys:
    """The sum, kept up to date record by record.

    :ivar last: offset of the newest record of :meth:`fold`; -1: there was none.
    """

    def __init__(self) -> None:
        self._shards: list[dict[bytes, int]] = [{} for _ in range(_SHARDS)]
        self._keys = self._total = 0
        self.last = -1

    def fold(self, records: Sequence[Record]) -> None:
        """Adds records of the log, oldest first."""
        for record in records:
            self.add(record.key or b"", record.value)
        if records:
            self.last = records[-1].offset

    def add(self, key: bytes, value: bytes | None) -> None:
        """Adds the newest record of a key; None removes the key."""
        shard = self._shards[crc32(key) % _SHARDS]
        if value is None:
            before = shard.pop(key, None)
            if before is not None:
                self._keys -= 1
                self._total -= before
            return
        before, digest = shard.get(key), short_digest(b"\0".join((key, value)))
        shard[key] = digest
        if before is None:
            self._keys += 1
            self._total += digest
        else:
            self._total += digest - before

    def sum(self) -> LiveSum:
        return LiveSum(self._keys, self._total & DIGEST_MASK)

    def __iter__(self) -> Iterator[bytes]:
        """Yields the live keys."""
        for shard in self._shards:
            yield from shard


@runtime_checkable
class NotedLog(Protocol):
    """A log whose owners note with each commit what is there."""

    def live_keys(self) -> LiveKeys:
        """Returns an empty account, for a reader of the state who folds all records into it."""
        ...


@runtime_checkable
class NotingOwner(Protocol):
    """An owner of such a log. Only who decides must check: others may look at a damaged log."""

    def check_ends(self) -> None:
        """Compares the ends of partitions, at the take-over, with what the last commit noted. Raises LogDamaged."""
        ...

    def check_state(self, live: LiveKeys) -> None:
        """Compares the folded state with what the last commit noted. From now on the owner keeps the account.

        Raises LogDamaged.
        """
        ...


def live_keys_of(log: object) -> LiveKeys | None:
    """Returns an empty account of a log's state; None if the log needs none."""
    return log.live_keys() if isinstance(log, NotedLog) else None


def check_ends(owner: object) -> None:
    """Checks what an owner took over, if it has notes. Raises LogDamaged."""
    if isinstance(owner, NotingOwner):
        owner.check_ends()


def check_state(owner: object, live: LiveKeys | None) -> None:
    """Checks the folded state, if there is an account of it. Raises LogDamaged."""
    if live is not None and isinstance(owner, NotingOwner):
        owner.check_state(live)


def names_of(keys: Iterable[bytes]) -> tuple[str, ...]:
    """Returns the ids of the RMs that state keys belong to."""
    rm_ids: set[str] = set()
    for key in keys:
        try:
            rm_ids.add(parse_state_key(key)[0])
        except ValueError:
            continue
    return tuple(sorted(rm_ids))
