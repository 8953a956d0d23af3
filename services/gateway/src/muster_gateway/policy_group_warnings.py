"""Policy groups (the scheduler interface): RMs with identical static configuration name the same group at registration.

The gateway compares the RMs that name the same group. A scheduler knows only the RMs of its own partitions of the log;
sessions know all RMs. An RM is compared after its own session holds its checksum. So if two RMs register at the same
time, with any partitions and gateways, at least one is compared with the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from muster_gateway.codec import ConfigProblem, GroupMember
from muster_gateway.errors import SessionStoreDown
from muster_gateway.rm_lifecycle import RmLifecycleState
from muster_gateway.session_manager import SessionManager
from muster_gateway.sessions.contract import Session

log = structlog.get_logger(__name__)

_FIELD = "policyGroup"
_NAMED_MAX = 5


class GroupComparison:
    """Compares the members of policy groups."""

    def __init__(self, session_manager: SessionManager) -> None:
        self._session_manager = session_manager
        self._lock = asyncio.Lock()
        self._next: asyncio.Task[list[Session]] | None = None

    async def warnings(self, rm_id: str, member: GroupMember) -> tuple[ConfigProblem, ...]:
        """Returns warnings if other RMs of the group have another configuration."""
        if not member.group:
            return ()
        try:
            sessions = await self._sessions()
        except SessionStoreDown as error:
            # A failed comparison does not undo the acceptance.
            log.warning("policy group not compared", rm_id=rm_id, error=str(error))
            return (_warning(f"{member.group!r}: not compared with the others of this group: {error}"),)
        return other_configurations(rm_id, member, sessions)

    async def _sessions(self) -> list[Session]:
        """Returns all sessions, read after this call began. RMs that register at the same time share one reading."""
        if self._next is None:
            self._next = asyncio.create_task(self._read_sessions(), name="policy-groups")
        return await asyncio.shield(self._next)

    async def _read_sessions(self) -> list[Session]:
        async with self._lock:
            self._next = None  # this reading may be too early for later calls
            return await self._session_manager.all_sessions()


def other_configurations(rm_id: str, member: GroupMember, sessions: Sequence[Session]) -> tuple[ConfigProblem, ...]:
    """Returns the warning, with names if RMs of the group may know each other. Stopped RMs do not count."""
    others = [
        session.rm_id
        for session in sessions
        if session.policy_group == member.group
        and session.config_checksum not in ("", member.config_checksum)
        and session.rm_id != rm_id
        and session.state not in (RmLifecycleState.INIT, RmLifecycleState.STOPPED)
    ]
    if not others:
        return ()
    named = _named(sorted(others)) if member.named else f"{len(others)} other resource manager{'s' * (len(others) > 1)}"
    reason = f"{named} of this group registered with another configuration, expected identical ones"
    return (_warning(f"{member.group!r}: {reason}"),)


def _named(rm_ids: Sequence[str]) -> str:
    more = len(rm_ids) - _NAMED_MAX
    return ", ".join(rm_ids[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _warning(message: str) -> ConfigProblem:
    return ConfigProblem("warning", _FIELD, 0, 0, message)
