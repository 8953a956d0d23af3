"""The messages between a log and a child of its process, and an encoding of the log's errors.

=======  ===============  ===================================================================================
sender   message          content
=======  ===============  ===================================================================================
child    Append           many records; the log keeps their order
log      AppendResults    records are durable, or were refused
log      EndsChanged      partitions have new ends or beginnings in the file
child    TakeOver         becomes an input partition's owner
child    Commit           a transaction of an owner
child    GetCommitted     asks for an owner's committed position
child    Release          closes an owner
child    GetHealth        asks whether the log answers
log      Reply            answers TakeOver, Commit, GetCommitted or GetHealth, by number
log      SyncRequest      asks whether the messages before it are taken
child    SyncDone         answers SyncRequest, by number
=======  ===============  ===================================================================================
"""

from __future__ import annotations

from typing import cast

import msgspec

from muster_bus.errors import (
    BusError,
    Fenced,
    InvalidRecord,
    LogClosed,
    LogError,
    LogUnavailable,
    OffsetOutOfRange,
    RecordTooLarge,
    TransactionFailed,
    TransactionTimeout,
)
from muster_bus.log import Headers, OutRecord


class LogMessage(msgspec.Struct, array_like=True, tag=True):
    """A message of the table above."""


class EncodedError(msgspec.Struct, array_like=True, frozen=True):
    """An error of the log: its name in :mod:`muster_bus.errors` and its constructor's arguments."""

    name: str
    arguments: tuple[str | int, ...]


class PipeRecord(msgspec.Struct, array_like=True, frozen=True):
    """A record for the log; ``number`` identifies it on the pipe."""

    number: int
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


class Append(LogMessage):
    """Plain appends. The log settles each record on its own."""

    records: tuple[PipeRecord, ...]


class AppendResults(LogMessage):
    """:param durable: (number, offset); :param refused: (number, why)."""

    durable: tuple[tuple[int, int], ...]
    refused: tuple[tuple[int, EncodedError], ...] = ()


class EndsChanged(LogMessage):
    """:param places: (partition's id in the file, lowest offset that exists, one past the highest visible)."""

    places: tuple[tuple[int, int, int], ...]


class TakeOver(LogMessage):
    """Asks for the ownership of an input partition, as ``Log.take_over``."""

    number: int
    group: str
    topic: str
    partition: int


class Commit(LogMessage):
    """:param owner: the TakeOver's number; :param records: as in ``OutRecord``."""

    number: int
    owner: int
    records: tuple[tuple[str, int, bytes | None, bytes | None, Headers], ...]
    input_position: int | None


class GetCommitted(LogMessage):
    """Asks an owner for its committed position."""

    number: int
    owner: int


class Release(LogMessage):
    """Closes an owner."""

    number: int
    owner: int


class GetHealth(LogMessage):
    """Asks whether the log answers."""

    number: int


class Reply(LogMessage):
    """:param value: a position, or 1 for yes."""

    number: int
    value: int | None = None
    failure: EncodedError | None = None


class SyncRequest(LogMessage):
    """Asks for a Seen with this number."""

    number: int


class SyncDone(LogMessage):
    """Everything before the SyncRequest of this number is taken."""

    number: int


FromChild = Append | TakeOver | Commit | GetCommitted | Release | GetHealth | SyncDone
FromLog = AppendResults | EndsChanged | Reply | SyncRequest


def out_record(new: PipeRecord) -> OutRecord:
    """Returns the record to write."""
    return OutRecord(new.topic, new.partition, new.key, new.value, new.headers)


_PLAIN: dict[str, type[BusError]] = {
    kind.__name__: kind
    for kind in (LogUnavailable, LogClosed, InvalidRecord, LogError, Fenced, TransactionFailed, TransactionTimeout)
}


def failure_of(error: BaseException) -> EncodedError:
    """Encodes an error for the other side. An error that the bus does not know becomes LogUnavailable."""
    match error:
        case RecordTooLarge():
            return EncodedError("RecordTooLarge", (error.topic, error.size_bytes, error.limit_bytes))
        case OffsetOutOfRange():
            return EncodedError("OffsetOutOfRange", (str(error), error.position, error.first, error.end))
    name = next((base.__name__ for base in type(error).__mro__ if base.__name__ in _PLAIN), "LogUnavailable")
    return EncodedError(name, (str(error) or type(error).__name__,))


def error_of(failure: EncodedError) -> BusError:
    """Inverse of :func:`failure_of`."""
    match failure.name:
        case "RecordTooLarge":
            return RecordTooLarge(*cast("tuple[str, int, int]", failure.arguments))
        case "OffsetOutOfRange":
            text, *offsets = cast("tuple[str, int, int, int]", failure.arguments)
            gone = OffsetOutOfRange("", 0, *offsets)
            gone.args = (text,)
            return gone
    return _PLAIN.get(failure.name, LogError)(*failure.arguments)
