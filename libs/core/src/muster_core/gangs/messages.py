"""Messages for the RM when placeholders are released."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster_core.gangs.placeholders import timeout_ns, timeout_setting_ns
from muster_core.model.application import Gang
from muster_core.model.outcome import Outcome

if TYPE_CHECKING:
    from muster_core.gangs.gang_headroom import GangHeadroom

# Shims recognise a time-out by this text.
TIMEOUT_MESSAGE = "ResourceReservationTimeout"
MISMATCH_MESSAGE = "cancel placeholder: resource incompatible"
LEFTOVER_MESSAGE = "the application is over: the placeholder is not needed any more"


def replacing_message(key: str) -> str:
    """The message for the RM when a placeholder is released for the real ask with this key."""
    return f"replacing allocationKey: {key}"


def time_out_message(gang: Gang, room: GangHeadroom) -> str:
    """The text of the time-out: its configured value, why it was shorter, why the gang did not start."""
    app, setting_ns = gang.app, timeout_setting_ns(gang.app)
    over = f"the placeholders' time-out of {setting_ns // 1_000_000} ms is over"
    if timeout_ns(app) < setting_ns:
        over += ", counted from the creation of the application"
    below = room.unsatisfiable_limit(app) if gang.too_large_since_ns else None
    return over if below is None else f"{over}: {room.smaller_limit(*below)}"


def emit_user_event(gang: Gang, message: str, out: Outcome, now_ns: int) -> None:
    """Adds an event for people about the gang. The event names its first placeholder ask: such events are about a
    request.
    """
    for name in gang.groups:
        ask = gang.oldest_pending(name)
        if ask is not None:
            out.add_user_event(ask.key, gang.app.app_id, ask.shape, message, now_ns)
            return
