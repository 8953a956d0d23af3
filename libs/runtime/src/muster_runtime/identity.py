"""The caller's identity: a name, how it was proven, and rights. One model for gRPC and HTTP.

The gateway identifies the caller, drops the caller's own claims, and tells the services behind it in headers. The
services trust these headers, because only the gateway can reach them (docs/security.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from muster_runtime.read_scope import ANY, EVERYTHING, NOTHING, REACH_HEADER, ReadScope, matches_glob

IDENTITY_HEADER = b"x-muster-identity"
ROLE_HEADER = b"x-muster-role"
IDENTITY_HEADERS = frozenset({IDENTITY_HEADER, ROLE_HEADER, REACH_HEADER})


class Role(StrEnum):
    """A caller's rights to the process. Each role has the rights of those before it."""

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


class Right(StrEnum):
    """What a method or a route needs, the strongest one last.

    ``read``, ``act``, ``configure`` and ``operate`` are about an RM. ``inspect`` and ``admin`` are about the process.
    """

    NONE = "none"
    """Nothing; callers need no identity."""
    READ = "read"
    """To see the RM."""
    INSPECT = "inspect"
    """The role read."""
    ACT = "act"
    """To act as the RM: to register as it and to hold its streams."""
    CONFIGURE = "configure"
    """To act as the RM, or to operate it."""
    OPERATE = "operate"
    """To operate the RM: to pause or forget it, to drain its nodes, to dump its state."""
    ADMIN = "admin"
    """The role admin."""

    @property
    def rank(self) -> int:
        """Order of the right."""
        return _RIGHT_RANK[self]

    @property
    def role(self) -> Role:
        """The role that suffices for a caller whose rights come from a role."""
        if self is Right.NONE:
            return Role.NONE
        return Role.READ if self in (Right.READ, Right.INSPECT) else Role.ADMIN


_RIGHT_RANK = {right: rank for rank, right in enumerate(Right)}


class Proof(StrEnum):
    """How an identity was proven."""

    NONE = "none"
    OPEN = "open"
    LOOPBACK = "loopback"
    TOKEN = "token"  # noqa: S105 - a word
    CERTIFICATE = "certificate"
    JWT = "jwt"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Rights:
    """A caller's rights.

    :param role: to the process.
    :param act: globs of the RMs that the caller may act as.
    :param operate: globs of the RMs that it may operate.
    :param reads: what it may read; a policy adds the RMs of ``act`` and ``operate``.
    """

    role: Role = Role.NONE
    act: tuple[str, ...] = ()
    operate: tuple[str, ...] = ()
    reads: ReadScope = NOTHING

    def may(self, right: Right, rm_id: str = "") -> bool:
        """Tells whether the caller has a right.

        :param rm_id: the RM that the right is about; "" for ``read``: at least one RM.
        """
        match right:
            case Right.READ:
                return self.reads.can_read_rm(rm_id) if rm_id else bool(self.reads)
            case Right.ACT:
                return _any(self.act, rm_id)
            case Right.OPERATE:
                return _any(self.operate, rm_id)
            case Right.CONFIGURE:
                return _any(self.act, rm_id) or _any(self.operate, rm_id)
            case _:
                return self.role.includes(right.role)

    def might(self, right: Right) -> bool:
        """Tells whether the caller has a right for some RM."""
        match right:
            case Right.ACT:
                return bool(self.act)
            case Right.OPERATE:
                return bool(self.operate)
            case Right.CONFIGURE:
                return bool(self.act or self.operate)
            case _:
                return self.may(right)

    def reach(self, right: Right) -> ReadScope:
        """Returns what an answer that needs a right may show."""
        match right:
            case Right.OPERATE:
                return EVERYTHING if ANY in self.operate else ReadScope(tuple((rm, ANY) for rm in self.operate))
            case Right.ADMIN:
                return EVERYTHING  # the process's own affairs
            case _:
                return self.reads


_OF_ROLE = {
    Role.NONE: Rights(),
    Role.READ: Rights(Role.READ, reads=EVERYTHING),
    Role.ADMIN: Rights(Role.ADMIN, (ANY,), (ANY,), EVERYTHING),
}


def rights_of(role: Role) -> Rights:
    """Returns the rights of a role, for all RMs: where no policy says more."""
    return _OF_ROLE[role]


def _any(globs: tuple[str, ...], rm_id: str) -> bool:
    return any(matches_glob(glob, rm_id) for glob in globs)


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller.

    :param name: a token's name, a certificate's or JWT's subject, or one of the names below; ASCII without blanks.
    """

    name: str
    rights: Rights
    proof: Proof = Proof.NONE

    @property
    def role(self) -> Role:
        return self.rights.role

    def headers(self, right: Right = Right.READ) -> list[tuple[bytes, bytes]]:
        """Returns the headers from which a service behind the gateway reads the identity with :func:`identity_of`, and
        what it may show with ``scope_from_headers``.

        :param right: the right that the request needs.
        """
        name, role = self.name.encode("ascii"), self.role.encode("ascii")
        return [(IDENTITY_HEADER, name), (ROLE_HEADER, role), *self.rights.reach(right).header()]


NOBODY = Identity("nobody", rights_of(Role.NONE))
"""A caller without credentials, where none are needed."""
LOOPBACK = Identity("loopback", rights_of(Role.ADMIN), Proof.LOOPBACK)
"""A peer on the same machine, where the gateway listens on the loopback only and no credentials are configured."""
GATEWAY = Identity("gateway", rights_of(Role.ADMIN), Proof.INTERNAL)
"""The gateway itself, for its gRPC answers."""
ANYONE = "anyone"
"""The name of a caller without credentials, where a door is open."""

RESERVED_NAMES = frozenset({NOBODY.name, LOOPBACK.name, GATEWAY.name, ANYONE})


def identity_of(headers: Iterable[tuple[bytes, bytes]]) -> Identity:
    """Returns the caller that the gateway's headers name, with the rights of its role; NOBODY if they are missing or
    cannot be read.
    """
    header_values = {name: value.decode("latin-1") for name, value in headers if name in IDENTITY_HEADERS}
    name, role = header_values.get(IDENTITY_HEADER, ""), header_values.get(ROLE_HEADER, "")
    return Identity(name, rights_of(Role(role))) if name and role in set(Role) else NOBODY
