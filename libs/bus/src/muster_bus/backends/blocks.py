"""Blocks: the form in which the embedded log keeps records in its file.

A block holds up to :data:`MAX_RECORDS` consecutive records of one partition in one row. With one row per record, the
writer's thread and the event loop would hand over the interpreter's lock once per record; with blocks they hand it over
once per block.

The body is five columns in MessagePack: offsets and timestamps (differences from the block's own; None for offsets
without a hole, and for equal timestamps), keys, values, and headers (None if no record has any). A body of at least
:data:`COMPRESS_BYTES` is deflated, which adds a checksum. A smaller body is followed by a CRC-32. SQLite itself does
not notice changed bytes.

A row also has a digest of all that is in it, and the digest of the row before it (``sqlite_chain.py``). Rows of
versions before 0.3 have neither.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from muster_bus.errors import LogDamaged
from muster_bus.log import Headers, Record

MAX_RECORDS = 1000  # a reader that wants one record decodes up to this many
MAX_BYTES = 1 << 18  # limit of the content's bytes; a larger record is a block of its own
COMPRESS_BYTES = 2048  # for fewer bytes, the thread switch costs more than compression saves
_LEVEL = 1  # 5-7 times smaller for scheduler records; higher levels save little more and take twice the time

PLAIN, DEFLATED = 0, 1

# A digest is a number of so many bits, so that SQLite can add digests without an overflow. It is against faults:
# whoever writes into the file on purpose can compute digests, too.
DIGEST_BITS = 62
DIGEST_MASK = (1 << DIGEST_BITS) - 1
_DIGEST_COLUMNS = struct.Struct("<8q")
_FIRST = struct.Struct("<Q")

_Columns = tuple[list[int] | None, list[int] | None, list[bytes | None], list[bytes | None], list[Headers] | None]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Columns)


class Block(NamedTuple):
    """One row: the records from ``first_offset`` up to, not including, ``next_offset``. Offsets may be missing."""

    first_offset: int
    next_offset: int
    timestamp_ms: int  # of the newest record
    codec: int
    body: bytes
    claim: int | None = None  # whose input position the transaction of this block moved
    position: int | None = None  # to where
    previous: int | None = (
        None  # digest of the partition's block before; 0: it had none; None: compaction wrote this one
    )
    heads: int | None = None  # sum of the newest digests of all partitions, in the last block of a transaction
    digest: int | None = None  # of all above and of the place; None: an older version wrote this block


def encode_run(
    first_offset: int, timestamp_ms: int, keys: list[bytes | None], values: list[bytes | None], headers: list[Headers]
) -> Block:
    """Returns a block of records that have consecutive offsets and one timestamp."""
    columns = (None, None, keys, values, headers if any(headers) else None)
    return Block(first_offset, first_offset + len(keys), timestamp_ms, *_pack(columns))


def encode_records(records: Sequence[Record], next_offset: int) -> Block:
    """Returns a block of any records in offset order. The block covers all offsets up to ``next_offset``."""
    first = records[0].offset
    newest_ms = max(record.timestamp_ms for record in records)
    headers = [record.headers for record in records]
    columns = (
        [record.offset - first for record in records],
        [record.timestamp_ms - newest_ms for record in records],
        [record.key for record in records],
        [record.value for record in records],
        headers if any(headers) else None,
    )
    return Block(first, next_offset, newest_ms, *_pack(columns))


def decode(topic: str, partition: int, block: Block) -> list[Record]:
    """Returns the records of a block. Raises LogDamaged."""
    first, ms = block.first_offset, block.timestamp_ms
    if block.digest is not None and block.digest != digest_of(topic, partition, block):
        raise LogDamaged(
            topic, partition, first, max(block.next_offset, first + 1), "its block is not as it was written"
        )
    try:
        body = zlib.decompress(block.body) if block.codec == DEFLATED else _checked(block.body)
        offsets, timestamps, keys, values, headers = _decoder.decode(body)
        count = len(keys)
        return [
            Record(topic, partition, first + offset, ms + age, key, value, header)
            for offset, age, key, value, header in zip(
                offsets if offsets is not None else range(count),
                timestamps if timestamps is not None else (0,) * count,
                keys,
                values,
                headers if headers is not None else ((),) * count,
                strict=True,
            )
        ]
    except (zlib.error, msgspec.MsgspecError, ValueError, TypeError) as error:
        # (Whatever is in the columns of the row: SQLite itself compares no types.)
        reason = f"its block cannot be read ({error})"
        raise LogDamaged(topic, partition, first, max(block.next_offset, first + 1), reason) from error


def digest_of(topic: str, partition: int, block: Block) -> int:
    """Returns the digest of a block and its place; -1 if a column has no possible value."""
    try:
        return digest_at(
            digest_name(topic, partition),
            block.first_offset,
            block.next_offset,
            block.timestamp_ms,
            block.codec,
            block.body,
            block.claim,
            block.position,
            block.previous,
            block.heads,
        )
    except struct.error:
        return -1


def digest_name(topic: str, partition: int) -> bytes:
    """Returns a partition's name in digests."""
    return f"{topic}/{partition} ".encode()


def digest_at(
    partition_name: bytes,
    first_offset: int,
    next_offset: int,
    timestamp_ms: int,
    codec: int,
    body: bytes,
    claim: int | None,
    position: int | None,
    previous: int | None,
    heads: int | None,
) -> int:
    """Returns the digest of a block with these columns. Raises struct.error if one has no possible value."""
    # (No column is negative, so -1 is None.)
    columns = _DIGEST_COLUMNS.pack(
        first_offset,
        next_offset,
        timestamp_ms,
        codec,
        -1 if claim is None else claim,
        -1 if position is None else position,
        -1 if previous is None else previous,
        -1 if heads is None else heads,
    )
    return short_digest(b"".join((partition_name, columns, body)))


def short_digest(content: bytes) -> int:
    """Returns the digest of some bytes."""
    digest: int = _FIRST.unpack_from(hashlib.sha256(content).digest())[0]
    return digest & DIGEST_MASK


def _checked(body: bytes) -> bytes:
    content = body[:-4]
    if zlib.crc32(content).to_bytes(4, "little") != body[-4:]:
        raise zlib.error("wrong checksum")
    return content


def _pack(columns: object) -> tuple[int, bytes]:
    body = _encoder.encode(columns)
    if len(body) < COMPRESS_BYTES:
        return PLAIN, body + zlib.crc32(body).to_bytes(4, "little")
    return DEFLATED, zlib.compress(body, _LEVEL)
