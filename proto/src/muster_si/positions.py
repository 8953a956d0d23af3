"""Positions: how far the log was behind an answer, as text that a client gives back with a read.

An answer that tells a client of a change has a position. A read that is given one shows that change, and all that was
decided before it, in every service, after restarts and take-overs (docs/consistency.md). To clients the text is
opaque.

A log partition's *stamp* is a place in the order of its decisions: the offset before which all requests are decided,
and the number of times since then that the scheduler wrote what time alone caused. The scheduler records it with each
transaction, in the state and in the answers, and it never goes back.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

# The headers, and in lower case the metadata of gRPC.
POSITION_HEADER, AFTER_HEADER, WAIT_HEADER = "Muster-Position", "Muster-After", "Muster-Wait"
POSITION_METADATA, AFTER_METADATA, WAIT_METADATA = "muster-position", "muster-after", "muster-wait"

TEXT_MAX = 1024  # characters of a position
_VERSION = 1
_LOG_BYTES, _SUM_BYTES = 6, 2
_PARTITIONS_MAX = 48  # of one position: each takes at most 16 bytes of some 700
_NUMBER_MAX = 2**63  # partitions, offsets and steps are below
_DIGITS_MAX = 19
_SHOWN_MAX = 40


class BadPosition(ValueError):
    """A text that is no position."""


class Stamp(NamedTuple):
    """A place in the order of a log partition's decisions. Later ones compare greater.

    :param before: all requests before this offset are decided.
    :param step: so many times since then the scheduler wrote what time alone caused.
    """

    before: int = 0
    step: int = 0

    def header(self) -> bytes:
        """Returns the stamp as a header of a record."""
        return b"%d/%d" % self

    @classmethod
    def of_header(cls, header: bytes) -> Stamp:
        """Inverse of :meth:`header`; NO_STAMP for bytes that are none."""
        numbers = [int(digits) for digits in header.split(b"/") if digits.isdigit() and len(digits) <= _DIGITS_MAX]
        return cls(*numbers) if len(numbers) == 2 else NO_STAMP


NO_STAMP = Stamp()


class Position(NamedTuple):
    """What a position's text holds.

    :param log: a digest of the log's identity, from :func:`log_digest`.
    :param stamps: by log partition.
    """

    log: bytes
    stamps: Mapping[int, Stamp]

    def text(self) -> str:
        """Returns the position as text: letters, digits, ``-`` and ``_``."""
        content = bytearray((_VERSION,)) + self.log
        for partition, stamp in sorted(self.stamps.items()):
            for number in (partition, *stamp):
                _add(content, number)
        content += zlib.crc32(content).to_bytes(4, "big")[:_SUM_BYTES]
        return base64.urlsafe_b64encode(content).rstrip(b"=").decode()

    @classmethod
    def parse(cls, text: str) -> Position:
        """Inverse of :meth:`text`. Raises BadPosition."""
        if not 0 < len(text) <= TEXT_MAX or not text.isascii():
            raise _bad(text)
        try:
            content = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except ValueError:
            raise _bad(text) from None
        body, check = content[:-_SUM_BYTES], content[-_SUM_BYTES:]
        if len(body) <= 1 + _LOG_BYTES or body[0] != _VERSION or zlib.crc32(body).to_bytes(4, "big")[:2] != check:
            raise _bad(text)
        stamps: dict[int, Stamp] = {}
        numbers = _numbers(body[1 + _LOG_BYTES :])
        try:
            for partition in numbers:
                stamps[partition] = Stamp(next(numbers), next(numbers))
        except (StopIteration, ValueError):
            raise _bad(text) from None
        return cls(body[1 : 1 + _LOG_BYTES], stamps)

    def merged(self, later: Position) -> Position:
        """Returns a position that includes this one and a later one; the later one alone if it is of another log.

        Of more partitions than a text holds, those of the later one stay.
        """
        if later.log != self.log:
            return later
        stamps = dict(later.stamps)
        for partition, stamp in self.stamps.items():
            if partition in stamps:
                stamps[partition] = max(stamp, stamps[partition])
            elif len(stamps) < _PARTITIONS_MAX:
                stamps[partition] = stamp
        return Position(later.log, stamps)


def log_digest(identity: str) -> bytes:
    """Returns what a position holds of a log's identity."""
    return hashlib.sha256(identity.encode()).digest()[:_LOG_BYTES]


def newest(before: str, later: str) -> str:
    """Returns the text of a position that includes two others; "" is none. One that cannot be read counts as none."""
    if not before or not later:
        return before or later
    try:
        return Position.parse(before).merged(Position.parse(later)).text()
    except BadPosition:
        return later


class Positions:
    """Makes the positions of one log partition.

    :param log: from :func:`log_digest`.
    """

    def __init__(self, log: bytes, partition: int) -> None:
        self._log, self._partition = log, partition
        self._last, self._text = NO_STAMP, ""

    def text(self, stamp: Stamp) -> str:
        """Returns a stamp's position; "": the answer has no stamp. (Answers of one transaction have the same one.)"""
        if stamp != self._last:
            self._last = stamp
            self._text = Position(self._log, {self._partition: stamp}).text() if stamp > NO_STAMP else ""
        return self._text


def _bad(text: str) -> BadPosition:
    shown = ascii(text[:_SHOWN_MAX]) + ("…" if len(text) > _SHOWN_MAX else "")
    return BadPosition(f"must be a position that Muster gave, got {shown}")


def _add(content: bytearray, number: int) -> None:
    """Appends a number in groups of seven bits, the lowest first."""
    while number > 0x7F:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    content.append(number)


def _numbers(content: bytes) -> Iterator[int]:
    """Inverse of :func:`_add`. Raises ValueError."""
    number = shift = 0
    for byte in content:
        number |= (byte & 0x7F) << shift
        shift += 7
        if number >= _NUMBER_MAX or shift > 70:
            raise ValueError("too large")
        if byte < 0x80:
            yield number
            number = shift = 0
    if shift:
        raise ValueError("cut")
