"""The client's source of random numbers: for jitter, and for the ids of streams."""

from __future__ import annotations

from random import Random, SystemRandom

# The operating system's randomness: no two clients draw the same.
SYSTEM: Random = SystemRandom()
