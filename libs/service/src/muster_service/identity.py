"""Who asks over HTTP: a name and a role.

The gateway's front finds it out, drops what a client says of itself, and tells the services behind it in two headers.
They believe these, because nobody but the gateway reaches them (docs/security.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

IDENTITY_HEADER = b"x-muster-identity"
ROLE_HEADER = b"x-muster-role"
IDENTITY_HEADERS = frozenset({IDENTITY_HEADER, ROLE_HEADER})


class Role(StrEnum):
    """What somebody may do; each has the rights of those before it."""

    NONE = "none"
    READ = "read"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        """The higher, the more."""
        return _RANK[self]

    def includes(self, needed: Role) -> bool:
        """Whether who has this one may do what needs ``needed``."""
        return self.rank >= needed.rank


_RANK = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks.

    :param name: a token's, or of one of those below; ASCII without blanks.
    """

    name: str
    role: Role

    def headers(self) -> list[tuple[bytes, bytes]]:
        """As a service behind the gateway reads it with :func:`identity_of`."""
        return [(IDENTITY_HEADER, self.name.encode("ascii")), (ROLE_HEADER, self.role.encode("ascii"))]


NOBODY = Identity("nobody", Role.NONE)
"""No token, and none was needed."""
LOOPBACK = Identity("loopback", Role.ADMIN)
"""A peer on the same machine, where the front listens on the loopback only and no token is configured."""
GATEWAY = Identity("gateway", Role.ADMIN)
"""The gateway itself, for what it answers over gRPC."""
ANYONE = "anyone"
"""The name of who brings no token where the front is open."""

RESERVED_NAMES = frozenset({NOBODY.name, LOOPBACK.name, GATEWAY.name, ANYONE})


def identity_of(headers: Iterable[tuple[bytes, bytes]]) -> Identity:
    """Who asks, as the gateway says it; NOBODY where it says nothing, or nothing that can be read."""
    said = {name: value.decode("latin-1") for name, value in headers if name in IDENTITY_HEADERS}
    name, role = said.get(IDENTITY_HEADER, ""), said.get(ROLE_HEADER, "")
    return Identity(name, Role(role)) if name and role in set(Role) else NOBODY
