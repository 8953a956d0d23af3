"""Fills a session store from si.state, before its first use or after it lost its content.

This restores the life state (INIT for a forgotten RM), and the scheduler's knowledge of a callback stream, from which
epochs continue. Streams restore their seats themselves. A stream's place in the response log is searched when it opens.
"""

from __future__ import annotations

from random import Random

import structlog
from muster_bus.clock import Clock
from muster_bus.errors import CodecError, OffsetOutOfRange
from muster_bus.log import Log
from muster_bus.topics import Topics, is_forgotten_state_key, is_registration_key, is_rm_state_key
from muster_runtime.chance import new_id

from muster_gateway.codec import NO_GROUP, GroupMember, RmStateRecord, read_forgotten, read_registration, read_rm_state
from muster_gateway.errors import SessionStoreDown
from muster_gateway.rm_lifecycle import RmLifecycleState
from muster_gateway.sessions.contract import NOWHERE, Seat, Session, SessionStore
from muster_gateway.stream_kind import StreamKind

log = structlog.get_logger(__name__)

_BATCH = 2_000
_WAIT_S = 0.2
_ATTEMPTS = 3  # the next sweep tries again


async def rebuild(bus: Log, topics: Topics, sessions: SessionStore, clock: Clock, chance: Random) -> int:
    """Adds a session for each registered RM that has none, and names the content. Returns the number of added sessions.

    :param chance: makes the name.

    Raises LogUnavailable, SessionStoreDown.
    """
    for _ in range(_ATTEMPTS):
        fill = new_id(chance, 16)
        await sessions.begin_fill(fill)
        added = await _fill(bus, topics, sessions, clock)
        if await sessions.end_fill(fill):
            log.info("sessions filled from the log", added=added)
            return added
        log.warning("the session store lost its content while it was filled", added=added)
    raise SessionStoreDown("the session store loses its content while it is filled from the log")


async def _fill(bus: Log, topics: Topics, sessions: SessionStore, clock: Clock) -> int:
    added = 0
    for partition in range(topics.partitions):
        records, members = await _registered_rms(bus, topics, partition)
        for record in records:
            member, identity = members.get(record.rm_id, (NO_GROUP, ""))
            added += await sessions.compare_and_set(_session(record, member, identity, clock))
    return added


def _session(record: RmStateRecord, member: GroupMember, identity: str, clock: Clock) -> Session:
    return Session(
        rm_id=record.rm_id,
        version=0,
        state=record.state,
        since_ns=clock.now_ns(),
        state_reason="found in the log",
        announced=record.state,
        registered_at=NOWHERE,
        seats={StreamKind.CALLBACK: Seat("", record.callbacks_epoch)} if record.callbacks_epoch else {},
        callbacks_announced=record.callbacks_connected,
        policy_group=member.group,
        config_checksum=member.config_checksum,
        identity=identity,
    )


async def _registered_rms(
    bus: Log, topics: Topics, partition: int
) -> tuple[list[RmStateRecord], dict[str, tuple[GroupMember, str]]]:
    reader = await bus.reader(topics.state, partition)
    by_rm: dict[str, RmStateRecord] = {}
    members: dict[str, tuple[GroupMember, str]] = {}
    try:
        end = await reader.end_offset()
        while reader.position < end:
            try:
                records = await reader.read(_BATCH, _WAIT_S)
            except OffsetOutOfRange as error:  # compaction overtook the reader; each removed record has a newer one
                reader.seek(error.first)
                continue
            for record in records:
                forgotten = is_forgotten_state_key(record.key) and record.value is not None
                is_registration = is_registration_key(record.key)
                if not forgotten and not is_registration and not is_rm_state_key(record.key):
                    continue  # other keys are not even parsed
                try:
                    if is_registration:
                        rm_id, member, identity = read_registration(record)
                        members[rm_id] = (member, identity)
                        continue
                    rm_state = read_forgotten(record) if forgotten else read_rm_state(record)
                except CodecError as error:
                    log.error("unreadable state", error=str(error))
                    continue
                if rm_state is not None:
                    by_rm[rm_state.rm_id] = rm_state
    finally:
        await reader.close()
    states = [state for state in by_rm.values() if state.state is not RmLifecycleState.INIT or state.callbacks_epoch]
    return states, members
