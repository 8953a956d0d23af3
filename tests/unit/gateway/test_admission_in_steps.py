"""Admission in steps judges as protobuf's parse of the whole message does; and the scanner of fields by itself."""

from __future__ import annotations

from random import Random

import pytest
from fuzz import wire_messages
from fuzz.admission_oracle import TINY, compare
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from muster_gateway.admission import KINDS
from muster_gateway.bounded_messages import StepSizes
from muster_gateway.stream_kind import SI_KINDS, StreamKind
from muster_gateway.wire_fields import FieldScanner, Malformed
from muster_proto.si.v1 import si_pb2 as si


@pytest.mark.parametrize("sizes", TINY, ids=["smallest", "small", "less small"])
@pytest.mark.parametrize("kind", SI_KINDS)
def test_random_messages_are_judged_as_protobuf_reads_them(kind: StreamKind, sizes: StepSizes) -> None:
    seen: set[str] = set()
    for seed in range(300):
        random = Random(f"{kind} {seed}")
        of = KINDS[kind]
        raw = wire_messages.message(random, of.message.DESCRIPTOR, random.choice((3, 6, 10)))
        if random.random() < 0.9:
            raw += si.NodeRequest(rmID="rm").SerializeToString() if kind is StreamKind.NODE else b"\x1a\x02rm"
        seen.add(compare(kind, raw, sizes))
    assert {"InvalidRequest", "rejected"} <= seen, seen


# Fields in every form, whole and broken. (A message without fields of its own parses all of them as unknown ones.)
PIECES = [
    *(b"\x0a\x00", b"\x08\x01", b"\x0d1234", b"\x0912345678", b"\x0b", b"\x0c", b"\x13", b"\x14", b"\x80", b"\x00"),
    *(b"\xff", b"\x8a\x00\x00", b"\x0a\x80\x00", b"\x0a\x80\x80\x80\x80\x00", b"\x0a\x80\x80\x80\x80\x80\x00"),
    *(b"\x08" + b"\x80" * 9 + b"\x01", b"\x08" + b"\xff" * 9 + b"\x7f", b"\x08" + b"\x80" * 10 + b"\x01"),
    *(b"\x8a\x80\x80\x80\x00\x00", b"\x8a\x80\x80\x80\x10\x00", b"\x8a\x80\x80\x80\x80\x00\x00"),
    *(
        b"\xfa\xff\xff\xff\x0f\x00",
        b"\xfa\xff\xff\xff\x7f\x00",
        b"\x0a\xff\xff\xff\xff\x07",
        b"\x0a\xff\xff\xff\xff\x0f",
    ),
    *(b"\x0b" * 99, b"\x0c" * 99, b"\x0b" * 100, b"\x0c" * 100, b"\x02\x00", b"\x06", b"\x0f", b"\x0e"),
]


def is_scanned(raw: bytes) -> bool:
    scanner, end = FieldScanner(raw, 0, len(raw)), 0
    try:
        while not scanner.is_done():
            for _, begin, body, after in scanner.scan(3):
                assert begin == end
                assert begin <= body <= after
                end = after
    except Malformed:
        return False
    assert end == len(raw)
    return True


def is_parsed(raw: bytes) -> bool:
    try:
        Empty.FromString(raw)
    except DecodeError:
        return False
    return True


def test_the_scanner_refuses_what_protobuf_refuses() -> None:
    random, parsed = Random(36), 0
    for _ in range(20_000):
        count = random.randrange(1, 6)
        raw = b"".join(
            random.choice(PIECES) if random.random() < 0.8 else bytes([random.randrange(256)]) for _ in range(count)
        )
        assert is_scanned(raw) == is_parsed(raw), raw.hex()
        parsed += is_parsed(raw)
    assert 1_000 < parsed < 19_000
