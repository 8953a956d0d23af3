"""Packs blocks of events (the event history design calls the form an internal record, with each string kept once).

Each serialised ``si.v1.EventRecord`` is cut into five pieces, and each piece goes to a column:

======  ==================================================  =====================================================
front   type, object, message, tag of the time stamp        distinct ones once, and which one each record has
time    the nine bytes of the time stamp                    differences from record to record
middle  change, detail, tag and length of the reference     as front
ref     the reference                                       as front; UUIDs as 16 bytes instead of 36
back    the resource, and whatever else there is            as front
======  ==================================================  =====================================================

The cuts only affect the size: the joined pieces are the record, byte for byte, whatever it contains. So an invalid
record is kept without loss. The columns are then compressed (zstd).

With the mix of the event history design, a record of 142 bytes takes about 15; plain zstd over records takes 23 (see
the README).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard
from muster_state import event_layout
from muster_state.event_layout import TIMESTAMP_BYTES

# Higher levels cost more time than they save space: the rest is UUIDs and time stamps, which have no pattern.
_LEVEL = 3
_compress = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=False).compress
_decompress = zstandard.ZstdDecompressor().decompress

_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]
_Bytes = npt.NDArray[np.uint8]

# Zeros after the last record, so that reading a tag never leaves the buffer.
_PAD = bytes(16)

_UUID_LENGTH = 36
_UUID_DASHES = np.array([8, 13, 18, 23])
_UUID_DIGITS = np.array([i for i in range(_UUID_LENGTH) if i not in (8, 13, 18, 23)])
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
_NO_DIGIT = 255
_DIGIT_OF = np.full(256, _NO_DIGIT, np.uint8)
_DIGIT_OF[_DIGITS] = np.arange(16)
# A value in place of a length.
_IS_UUID = np.uint32(2**32 - 1)


class _Packed(msgspec.Struct, array_like=True):
    """A packed block. All but ``count`` is compressed.

    :param absent: one bit per record: the log has no such record; empty when it has all.
    :param codes: the front, middle, ref and back of each record by number; and bits: whether it has a time.
    :param lengths: the lengths of the distinct fronts, middles, refs and backs, which ``texts`` holds one after the
        other.
    """

    count: int
    absent: bytes
    codes: bytes
    times: bytes
    distinct: tuple[int, int, int, int]
    lengths: bytes
    uuids: bytes
    texts: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode


def pack(values: Sequence[bytes | None]) -> bytes:
    """A block of at least one and at most 65,535 records; None is a record that the log does not have."""
    absent = np.fromiter((value is None for value in values), np.bool_, len(values))
    records = [value or b"" for value in values]
    cuts, has_time, times = _cut(records)
    joined = b"".join(records)
    codes, distinct = bytearray(), []
    for begin, end in cuts:
        pieces = [joined[a:b] for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
        code, words = _as_recent(pieces)
        codes += _planes(code)
        distinct.append(words)
    codes += np.packbits(has_time).tobytes()
    lengths, uuids, texts = _pack_words([word for words in distinct for word in words])
    packed = _Packed(
        count=len(records),
        absent=_compress(np.packbits(absent).tobytes()) if absent.any() else b"",
        codes=_compress(bytes(codes)),
        times=_compress(_pack_times(times, has_time)),
        distinct=(len(distinct[0]), len(distinct[1]), len(distinct[2]), len(distinct[3])),
        lengths=_compress(lengths),
        uuids=_compress(uuids),
        texts=_compress(texts),
    )
    # (A copy: the encoder's buffer grew and was cut, and would leave holes in the memory.)
    return bytes(memoryview(_encode(packed)))


def unpack(packed: bytes) -> list[bytes | None]:
    """Restores the records that :func:`pack` got."""
    block = _decode(packed)
    count = block.count
    # 1. the distinct pieces
    words = _unpack_words(_decompress(block.lengths), _decompress(block.uuids), _decompress(block.texts))
    # 2. the number of the piece that each record has
    codes = _decompress(block.codes)
    columns: list[list[bytes]] = []
    first = 0
    for number, distinct in enumerate(block.distinct):
        code = _from_planes(codes[2 * count * number : 2 * count * (number + 1)], np.uint16)
        columns.append([words[first + index] for index in _from_recent(code)])
        first += distinct
    has_time = _bits(codes[2 * count * len(columns) :], count)
    times = _unpack_times(_decompress(block.times), has_time)
    # 3. the pieces, joined
    front, middle, ref, back = columns
    records: list[bytes | None] = [b"".join(pieces) for pieces in zip(front, times, middle, ref, back, strict=True)]
    if block.absent:
        for index in np.flatnonzero(_bits(_decompress(block.absent), count)).tolist():
            records[index] = None
    return records


def _cut(records: list[bytes]) -> tuple[list[tuple[_Ints, _Ints]], _Bools, _Ints]:
    """The begin and end of front, middle, ref and back in the joined records; which records have a time, and the time
    (else 0).

    It walks through all records at once, field by field, while they have the scheduler's form.
    """
    lengths = np.fromiter(map(len, records), np.int64, len(records))
    end = np.cumsum(lengths)
    begin = end - lengths
    buffer = np.frombuffer(b"".join((*records, _PAD)), np.uint8)
    position = begin

    def at(offset: int) -> _Ints:
        bytes_there: _Ints = buffer[position + offset].astype(np.int64)
        return bytes_there

    def here(tag: int) -> _Bools:
        tagged: _Bools = (at(0) == tag) & (position < end)
        return tagged

    def skip(lengths: _Ints | int, where: _Bools) -> _Ints:
        after: _Ints = np.minimum(position + np.where(where, lengths, 0), end)
        return after

    # 1. front: up to and with the tag of the time
    position = skip(2, here(event_layout.TYPE))
    position = skip(2 + at(1), here(event_layout.OBJECT))
    position = skip(2 + at(1), here(event_layout.MESSAGE))
    has_time = here(event_layout.TIMESTAMP) & (position + 1 + TIMESTAMP_BYTES <= end) & (at(TIMESTAMP_BYTES) < 128)
    for byte_index in range(1, TIMESTAMP_BYTES):
        has_time &= at(byte_index) >= 128
    front_end = skip(1, has_time)
    # 2. the time: seven bits of each byte
    times = np.zeros(len(records), np.int64)
    for byte_index in range(TIMESTAMP_BYTES):
        times |= (at(1 + byte_index) & 127) << (7 * byte_index)
    position = skip(1 + TIMESTAMP_BYTES, has_time)
    middle_begin = position
    # 3. the middle: up to and with the length of the reference
    position = skip(2, here(event_layout.CHANGE))
    position = skip(2 + (at(1) >= 128), here(event_layout.DETAIL))
    has_reference = here(event_layout.REFERENCE)
    reference_length = at(1)
    middle_end = skip(2, has_reference)
    # 4. reference, and the rest
    position = middle_end
    reference_end = skip(reference_length, has_reference)
    cuts = [(begin, front_end), (middle_begin, middle_end), (middle_end, reference_end), (reference_end, end)]
    return cuts, has_time, np.where(has_time, times, 0)


def _pack_times(times: _Ints, has_time: _Bools) -> bytes:
    """The differences between present times, as small numbers for small absolute values (zigzag)."""
    steps = np.diff(times[has_time], prepend=np.int64(0))
    return _planes((steps << 1) ^ (steps >> 63))


def _unpack_times(packed: bytes, has_time: _Bools) -> list[bytes]:
    """The nine bytes of each record's time; none for a record without a time."""
    zigzag = _from_planes(packed, np.uint64)
    steps = (zigzag >> np.uint64(1)).astype(np.int64) ^ -(zigzag & np.uint64(1)).astype(np.int64)
    times = np.cumsum(steps)
    wire = np.empty((len(times), TIMESTAMP_BYTES), np.uint8)
    for byte_index in range(TIMESTAMP_BYTES):
        wire[:, byte_index] = (times >> (7 * byte_index)) & 127
    wire[:, :-1] |= 128
    pieces = iter(_split(wire.tobytes(), TIMESTAMP_BYTES))
    if has_time.all():
        return list(pieces)
    return [next(pieces) if is_present else b"" for is_present in has_time.tolist()]


def _as_recent(pieces: list[bytes]) -> tuple[npt.NDArray[np.uint16], list[bytes]]:
    """The distinct pieces in the order of first use; and for each piece 0 when it is new, else how many new pieces ago
    it first came.

    So a piece that soon repeats has a small number, which compresses better than its index.
    """
    distinct: dict[bytes, int] = {}
    index = np.fromiter([distinct.setdefault(piece, len(distinct)) for piece in pieces], np.int64, len(pieces))
    newest = np.maximum.accumulate(index)
    new = np.diff(newest, prepend=np.int64(-1)) > 0
    return np.where(new, 0, newest + 1 - index).astype(np.uint16), list(distinct)


def _from_recent(code: npt.NDArray[Any]) -> list[int]:
    """The indices that :func:`_as_recent` saw."""
    newest = np.cumsum(code == 0) - 1
    index: list[int] = np.where(code == 0, newest, newest + 1 - code.astype(np.int64)).tolist()
    return index


def _pack_words(words: list[bytes]) -> tuple[bytes, bytes, bytes]:
    """Lengths, UUIDs in binary, and the other words joined."""
    lengths = np.fromiter(map(len, words), np.uint32, len(words))
    places = np.flatnonzero(lengths == _UUID_LENGTH)
    letters = np.frombuffer(b"".join([words[index] for index in places.tolist()]), np.uint8)
    letters = letters.reshape(-1, _UUID_LENGTH)
    digits = _DIGIT_OF[letters[:, _UUID_DIGITS]]
    # Only lower case with dashes: any other spelling must be restored as it was.
    is_uuid = (digits != _NO_DIGIT).all(axis=1) & (letters[:, _UUID_DASHES] == ord("-")).all(axis=1)
    digits = digits[is_uuid]
    lengths[places[is_uuid]] = _IS_UUID
    uuids = ((digits[:, 0::2] << 4) | digits[:, 1::2]).tobytes()
    texts = b"".join([words[index] for index in np.flatnonzero(lengths != _IS_UUID).tolist()])
    return _planes(lengths), uuids, texts


def _unpack_words(packed_lengths: bytes, packed_uuids: bytes, texts: bytes) -> list[bytes]:
    lengths = _from_planes(packed_lengths, np.uint32)
    binary = np.frombuffer(packed_uuids, np.uint8).reshape(-1, 16)
    letters = np.full((len(binary), _UUID_LENGTH), ord("-"), np.uint8)
    letters[:, _UUID_DIGITS[0::2]] = _DIGITS[binary >> 4]
    letters[:, _UUID_DIGITS[1::2]] = _DIGITS[binary & 15]
    is_uuid = lengths == _IS_UUID
    lengths[is_uuid] = 0
    ends = np.cumsum(lengths, dtype=np.int64)
    words = [texts[a:b] for a, b in zip((ends - lengths).tolist(), ends.tolist(), strict=True)]
    for index, uuid in zip(np.flatnonzero(is_uuid).tolist(), _split(letters.tobytes(), _UUID_LENGTH), strict=True):
        words[index] = uuid
    return words


def _split(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def _planes(numbers: npt.NDArray[Any]) -> bytes:
    """The numbers' lowest bytes, then their second bytes …: equal high bytes lie together."""
    little = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False)
    return little.view(np.uint8).reshape(-1, little.itemsize).T.tobytes()


def _from_planes(data: bytes, dtype: type[np.unsignedinteger[Any]]) -> npt.NDArray[Any]:
    size = np.dtype(dtype).itemsize
    planes = np.frombuffer(data, np.uint8).reshape(size, -1)
    return np.ascontiguousarray(planes.T).view(np.dtype(dtype).newbyteorder("<")).reshape(-1).astype(dtype)


def _bits(data: bytes, count: int) -> _Bools:
    return np.unpackbits(np.frombuffer(data, np.uint8), count=count).astype(np.bool_)
