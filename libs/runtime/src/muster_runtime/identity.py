"""The caller's identity over HTTP: a name and a role.

The gateway's front identifies the caller, drops the caller's own claims, and tells the services behind it in two
headers. The services trust these headers, because only the gateway can reach them (docs/security.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

IDENTITY_HEADER = b"x-muster-identity"
ROLE_HEADER = b"x-muster-role"
IDENTITY_HEADERS = frozenset({IDENTITY_HEADER, ROLE_HEADER})


class Role(StrEnum):
    """A caller's rights. Each role has the rights of those before it."""

    NONE = "none"
    READ = "read"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        """Order of the role; a higher rank has more rights."""
        return _RANK[self]

    def includes(self, needed: Role) -> bool:
        """Tells whether this role may do what needs ``needed``."""
        return self.rank >= needed.rank


_RANK = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller.

    :param name: a token's name, or one of the names below; ASCII without blanks.
    """

    name: str
    role: Role

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Returns the headers from which a service behind the gateway reads the identity with :func:`identity_of`."""
        return [(IDENTITY_HEADER, self.name.encode("ascii")), (ROLE_HEADER, self.role.encode("ascii"))]


NOBODY = Identity("nobody", Role.NONE)
"""A caller without a token, where none is needed."""
LOOPBACK = Identity("loopback", Role.ADMIN)
"""A peer on the same machine, where the front listens on the loopback only and no token is configured."""
GATEWAY = Identity("gateway", Role.ADMIN)
"""The gateway itself, for its gRPC answers."""
ANYONE = "anyone"
"""The name of a caller without a token, where the front is open."""

RESERVED_NAMES = frozenset({NOBODY.name, LOOPBACK.name, GATEWAY.name, ANYONE})


def identity_of(headers: Iterable[tuple[bytes, bytes]]) -> Identity:
    """Returns the caller that the gateway's headers name; NOBODY if they are missing or cannot be read."""
    said = {name: value.decode("latin-1") for name, value in headers if name in IDENTITY_HEADERS}
    name, role = said.get(IDENTITY_HEADER, ""), said.get(ROLE_HEADER, "")
    return Identity(name, Role(role)) if name and role in set(Role) else NOBODY
