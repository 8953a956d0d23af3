"""The caller of the present call: its identity, its address and the door that it came through.

The gateway sets it before a gRPC method or an HTTP route answers. So code below, such as an audit log, asks
:func:`current`. Tasks that the method starts inherit it. Code that no caller started, such as the gateway's periodic
work, gets the gateway itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from muster_runtime.identity import GATEWAY, Identity, Right, Rights
from muster_runtime.read_scope import ReadScope

Door = Literal["grpc", "http", "internal"]
Claim = tuple[Right, str]


@dataclass(slots=True, eq=False)
class Caller:
    """Who calls.

    :ivar identity: the name, how it was proven, and the rights. A reload of the policy replaces the rights.
    :ivar peer: the caller's address without a port, as far as it is known; "": not known.
    :ivar door: how the call came.
    :ivar method: the gRPC method's full name, or the HTTP method and path.
    :ivar carried: a request of the call is on its way to the scheduler, which writes the audit entry.
    :ivar claims: the rights that the call goes on to use, with the RM; "": any RM.
    :ivar credential: the digest of the token; b"": none.
    :ivar ends_s: when the caller stops waiting, by :func:`muster_runtime.elapsed.elapsed_s`.
    :ivar position: of the change that the call made (``muster_si.positions``); "": none is known.
    :ivar after: the position that the answer must include; "": none. ``after_wait``: how long the caller waits for
        that, as it says.
    """

    identity: Identity
    peer: str = ""
    door: Door = "internal"
    method: str = ""
    credential: bytes = b""
    carried: bool = False
    ends_s: float = math.inf
    position: str = ""
    after: str = ""
    after_wait: str = ""
    claims: list[Claim] = field(default_factory=list)
    _on_withdrawn: list[Callable[[], None]] = field(default_factory=list)

    def may(self, right: Right, rm_id: str = "") -> bool:
        """Tells whether the caller has a right now."""
        return self.identity.rights.may(right, rm_id)

    def read_scope(self, right: Right = Right.READ) -> ReadScope:
        """Returns what an answer that needs a right may show to the caller."""
        return self.identity.rights.reach(right)

    def note_position(self, position: str) -> None:
        """Keeps the position of what the call changed, for its answer. (The gateway itself is no single call.)"""
        if self is not INTERNAL:
            self.position = position

    def on_withdrawn(self, end: Callable[[], None]) -> None:
        """Registers a function that ends the call when the caller loses a right that the call uses."""
        self._on_withdrawn.append(end)

    def call_over(self) -> None:
        """Forgets what would end the call. (Each refers to the call, and the call to its caller.)"""
        self._on_withdrawn.clear()

    def replace_rights(self, rights: Rights | None) -> bool:
        """Gives the caller other rights. Ends the call, and returns True, if the call uses a right that is gone.

        :param rights: None: the identity is gone.
        """
        before = self.identity.rights
        new = rights if rights is not None else Rights()
        self.identity = Identity(self.identity.name, new, self.identity.proof)
        kept = rights is not None and all(_holds(before, new, right, rm_id) for right, rm_id in self.claims)
        if not kept:
            for end in self._on_withdrawn:
                end()
        return not kept


def _holds(before: Rights, now: Rights, right: Right, rm_id: str) -> bool:
    if right is Right.READ and not rm_id:
        return before.reads.is_subset_of(now.reads)
    return now.may(right, rm_id)


INTERNAL = Caller(GATEWAY)
_CURRENT: ContextVar[Caller] = ContextVar("muster_caller", default=INTERNAL)


def current() -> Caller:
    """Returns the caller of the present call; the gateway itself if there is none."""
    return _CURRENT.get()


@contextmanager
def calling(caller: Caller) -> Iterator[Caller]:
    """Makes a caller the present one."""
    token = _CURRENT.set(caller)
    try:
        yield caller
    finally:
        _CURRENT.reset(token)
