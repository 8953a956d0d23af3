"""Bytes that are nearly right: seeds of a target, changed a few times, as a strategy of Hypothesis.

Most random bytes fail at the first check of a decoder. A valid message with one wrong byte, a length that is too large
or a piece of another message gets much further.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

# Bytes that often break decoders: limits of numbers, of lengths in protobuf, of UTF-8; escapes, brackets, controls.
TOKENS: tuple[bytes, ...] = (
    *(b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff" * 9 + b"\x01", b"\x80" * 10, b"\xfe\xff\xff\xff\x0f", b"\x0b"),
    *(b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xe2\x80\xae", b"\x1b[2J", b"\r\n", b"\x00\x00\x00\x00"),
    *(
        b"9223372036854775808",
        b"-1",
        b"1e999",
        b"nan",
        b"-0",
        b"0x",
        b"1" * 400,
        b"1" * 5000,
        b"inf",
        b"null",
        b"{}",
        b"[]",
        b"[" * 200,
    ),
    *(b"&a [*a,*a]", b"<<: *a", b"!!python/object:os.system", b"---\n", b": ", b"- ", b"|\n", b"%00", b"%2e%2e%2f"),
    *(b"partitions", b"queues", b"root", b"*", b"..", b"@", b"#", b"'", b'"', b"\\", b"${x}", b"password=x", b"//"),
)
_LONG = 200_000


_SCRIPT_BYTES_MAX = 40  # up to ten changes


def mutated(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """A strategy for a seed after some changes.

    Hypothesis draws one short script of bytes: that is twenty times as fast as a draw for each change, and a shorter
    script has fewer changes.
    """
    return st.builds(lambda script: apply(script, seeds), st.binary(max_size=_SCRIPT_BYTES_MAX))


def apply(script: bytes, seeds: Sequence[bytes]) -> bytes:
    """Choose a seed and change it as the script says, until the script ends."""
    steps = iter(script)

    def number(below: int) -> int:
        """A number from two bytes of the script; the last place first, because most decoders read on to the end."""
        return (below - 1 - (next(steps, 0) << 8 | next(steps, 0)) % below) if below > 1 else 0

    data = bytearray(seeds[next(steps, 0) % len(seeds)])
    for change in steps:
        place = number(len(data) + 1)
        match change % 8:
            case 0 if place < len(data):
                data[place] ^= 1 << next(steps, 0) % 8
            case 1:
                data[place:place] = TOKENS[next(steps, 0) % len(TOKENS)]
            case 2:
                del data[place : place + 1 + next(steps, 0) % 16]
            case 3:
                data[place:place] = bytes(next(steps, 0) for _ in range(1 + next(steps, 0) % 4))
            case 4:
                other = seeds[next(steps, 0) % len(seeds)]
                begin = number(len(other) + 1)
                data[place:place] = other[begin : begin + next(steps, 0)]
            case 5:
                piece = bytes(data[place : place + 1 + next(steps, 0) % 32])
                data[place:place] = piece * min((1, 2, 50, 1_000)[next(steps, 0) % 4], _LONG // max(len(piece), 1))
            case 6:
                del data[place:]
            case 7 if place < len(data):
                data[place] = next(steps, 0)
    return bytes(data[:_LONG])
