"""Fills a session store from si.state: after it lost its content, or before its first use.

The life state comes back, and what the scheduler knows of a callback stream: epochs go on from it. Seats come back with
the streams, places in the response log are searched when a stream opens.
"""

from __future__ import annotations

import structlog
from muster_bus.clock import Clock
from muster_bus.errors import CodecError, OffsetGone
from muster_bus.log import Log
from muster_bus.topics import Topics, is_rm_state_key

from muster_gateway.codec import KnownRm, read_known_rm
from muster_gateway.rm_life import RmState
from muster_gateway.sessions.contract import NOWHERE, Seat, Session, SessionStore
from muster_gateway.stream_kind import StreamKind

log = structlog.get_logger(__name__)

_BATCH = 2_000
_WAIT_S = 0.2


async def rebuild(bus: Log, topics: Topics, sessions: SessionStore, clock: Clock) -> int:
    """Adds a session for each registered RM that has none; sets the marker. Returns how many were added.

    Raises LogUnavailable, SessionsDown.
    """
    added = 0
    for partition in range(topics.partitions):
        for known in (await _known_rms(bus, topics, partition)).values():
            added += await sessions.compare_and_set(_session(known, clock))
    await sessions.mark()
    log.info("sessions filled from the log", added=added)
    return added


def _session(known: KnownRm, clock: Clock) -> Session:
    return Session(
        rm_id=known.rm_id,
        version=0,
        state=known.state,
        since_ns=clock.now_ns(),
        why="found in the log",
        announced=known.state,
        registered_at=NOWHERE,
        seats={StreamKind.CALLBACK: Seat("", known.callbacks_epoch)} if known.callbacks_epoch else {},
        callbacks_told=known.callbacks_connected,
    )


async def _known_rms(bus: Log, topics: Topics, partition: int) -> dict[str, KnownRm]:
    reader = await bus.reader(topics.state, partition)
    found: dict[str, KnownRm] = {}
    try:
        end = await reader.end_offset()
        while reader.position < end:
            try:
                records = await reader.read(_BATCH, _WAIT_S)
            except OffsetGone as error:  # compaction overtook the reading: what it removed has a later record
                reader.seek(error.first)
                continue
            for record in records:
                if not is_rm_state_key(record.key):  # the rest of the topic is not even split
                    continue
                try:
                    known = read_known_rm(record)
                except CodecError as error:
                    log.error("unreadable state", error=str(error))
                    continue
                if known is not None:
                    found[known.rm_id] = known
    finally:
        await reader.close()
    return {rm_id: known for rm_id, known in found.items() if known.state is not RmState.INIT}
