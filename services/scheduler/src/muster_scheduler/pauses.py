"""Pauses of decisions for an RM, present and past. The log keeps them, to explain later why an ask waited.

=============  =================================================  ====================================
kind           begins                                             ends
=============  =================================================  ====================================
OPERATOR       an operator pauses the RM                          an operator resumes it
ABSENT         the RM registers, or changes its configuration     its callback stream opens, or it
               to ``muster.callbacks.absent: wait``, without      changes that
               a callback stream; or that stream ends
LISTING        the scheduler begins, or the RM registers, and     all of them listed, or were given up
               external sources have not listed
=============  =================================================  ====================================

A pause of less than a second is not kept (``core/past.py``). Of each kind, only the last few are kept: a stream that
opens and ends repeatedly must not displace an operator's pauses.
"""

from __future__ import annotations

from muster_core.external.model import SourceState
from muster_core.external.reports import ExternalReports
from muster_core.model.reason_history import PAST_KEPT, is_significant
from muster_informers.sync_gate import SyncGate
from muster_state.state_folder import Pause, PauseKind, RmInfo


def end(info: RmInfo, kind: PauseKind, since_ns: int, now_ns: int, reason: str = "") -> bool:
    """Ends a pause. Returns whether it is kept; the registration's record must then be written. ``since_ns`` 0: not
    known.
    """
    if not since_ns or not is_significant(since_ns, now_ns):
        return False
    alike = [pause for pause in info.pauses if pause.kind is kind]
    dropped = alike[0] if len(alike) >= PAST_KEPT else None
    info.pauses = (*(pause for pause in info.pauses if pause is not dropped), Pause(since_ns, now_ns, reason, kind))
    return True


def mark_absence(info: RmInfo, now_ns: int) -> bool:
    """Updates the RM's absence. Returns whether a pause ended that is kept."""
    if info.is_absent:
        info.absent_ns = info.absent_ns or now_ns
        return False
    since_ns, info.absent_ns = info.absent_ns, 0
    return end(info, PauseKind.ABSENT, since_ns, now_ns)


def mark_awaited(info: RmInfo, awaited: tuple[str, ...], now_ns: int) -> bool:
    """Sets the sources that the scheduler waits for. Returns whether a pause ended that is kept; it names the last
    source.
    """
    last, info.awaited = info.awaited, awaited
    if awaited:
        info.awaited_ns = info.awaited_ns or now_ns
        return False
    since_ns, info.awaited_ns = info.awaited_ns, 0
    return end(info, PauseKind.LISTING, since_ns, now_ns, last[-1] if last else "")


def awaited_sources(gate: SyncGate, books: ExternalReports | None, rm_id: str) -> tuple[str, ...]:
    """Returns the sources that have not listed since the informers started. The scheduler waits for them."""
    awaited = []
    for partition, source in gate.awaited_sources(rm_id):
        entry = books.source(partition, source) if books is not None else None
        if entry is None or not gate.is_of_this_start(entry.life) or entry.state is SourceState.LISTING:
            awaited.append(source)
    return tuple(awaited)
