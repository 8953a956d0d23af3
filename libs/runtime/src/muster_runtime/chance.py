"""Ids and random numbers: the one source of both.

What draws gets a generator as an argument: :data:`SYSTEM` in a real process, and one with a seed in a test or a
simulation, which then makes the same ids again. Keys and tokens that must be secret are no such ids.
"""

from __future__ import annotations

from random import Random, SystemRandom
from uuid import UUID

# The operating system's randomness: no two processes draw the same.
SYSTEM: Random = SystemRandom()


def new_id(chance: Random, size_bytes: int) -> str:
    """Returns an id of so many random bytes, in hexadecimal."""
    return chance.randbytes(size_bytes).hex()


def new_uuid(chance: Random) -> str:
    """Returns a random UUID (version 4, RFC 9562), such as ``f81d4fae-7dec-41d0-a765-00a0c91e6bf6``."""
    return str(UUID(int=chance.getrandbits(128), version=4))
