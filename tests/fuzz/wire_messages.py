"""Random messages in every form that protobuf reads: as an encoder never writes them, but as anybody may send them.

Fields come in any order and several times, nested messages in pieces, entries of maps without one of their parts and
with the same key again, numbers longer than they need be, fields and groups that nobody knows, texts that are no UTF-8,
and cut ends.
"""

from __future__ import annotations

from random import Random

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from muster_gateway.wire_fields import framed, varint

_TEXTS = (b"", b"k", b"app", "ключ".encode(), b"x" * 40, b"x" * 300, b"\xff", b"a\x00b", b"true")
_NUMBERS = (0, 1, 5, 7, 2**31 - 1, 2**53 + 1, 2**63 - 1, 2**64 - 1, 2**64 - 5)
_STRANGE = (
    b"\x08\x01",
    b"\xf8\x01\x07",
    b"\xfb\x01\xfc\x01",
    b"\xfb\x01\x0a\x01x\xfc\x01",
    b"\xfd\x01abcd",
    b"\xf9\x01abcdefgh",
)
_BROKEN = (b"\x0a", b"\x0a\x05x", b"\xfc\x01", b"\x80" * 11, b"\x0e", b"\xfb\x01", b"\x0a\xff\xff\xff\xff\x0f")


def message(random: Random, descriptor: Descriptor, fields: int, *, broken: float = 0.01) -> bytes:
    """Returns a message with about so many fields.

    :param broken: how often something is in it that is no protobuf.
    """
    pieces = []
    for _ in range(random.randrange(fields + 1)):
        choice = random.random()
        if choice < 0.06:
            pieces.append(random.choice(_STRANGE))
        elif choice < 0.06 + broken / 10:
            pieces.append(random.choice(_BROKEN))
        else:
            pieces.append(_field(random, random.choice(descriptor.fields), fields, broken))
    found = b"".join(pieces)
    return found[: random.randrange(len(found) + 1)] if random.random() < broken / 10 else found


def _field(random: Random, field: FieldDescriptor, fields: int, broken: float) -> bytes:
    if field.message_type is not None:
        inner = max(1, fields // (1 if random.random() < 0.3 else 3)) if fields > 1 else 0
        body = message(random, field.message_type, inner, broken=broken)
        return _tag(random, field.number << 3 | 2) + _long(random, len(body)) + body
    if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        text = random.choice(_TEXTS) if random.random() < 0.5 else str(random.randrange(20)).encode()
        if text == b"\xff" and random.random() > broken:
            text = b"rm"
        return framed(field.number << 3 | 2, text)
    return _tag(random, field.number << 3) + varint(random.choice(_NUMBERS))


def _tag(random: Random, tag: int) -> bytes:
    return _long(random, tag) if random.random() < 0.1 else varint(tag)


def _long(random: Random, value: int) -> bytes:
    """Returns a number, now and then with more bytes than it needs."""
    found = varint(value)
    if random.random() < 0.05 and len(found) < 4:
        return found[:-1] + bytes((found[-1] | 128, 0))
    return found
