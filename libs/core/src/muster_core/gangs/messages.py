"""Messages for the RM when placeholders are released."""

from __future__ import annotations

from muster_core.model.application import Gang
from muster_core.model.outcome import Outcome

# Shims recognise a time-out by this text.
TIMEOUT_MESSAGE = "ResourceReservationTimeout"
MISMATCH_MESSAGE = "cancel placeholder: resource incompatible"
LEFTOVER_MESSAGE = "the application is over: the placeholder is not needed any more"


def replacing_message(key: str) -> str:
    """The message for the RM when a placeholder is released for the real ask with this key."""
    return f"replacing allocationKey: {key}"


def tell_people(gang: Gang, message: str, out: Outcome, now_ns: int) -> None:
    """Adds an event for people about the gang. The event names its first placeholder ask: such events are about a
    request.
    """
    for name in gang.groups:
        ask = gang.oldest_pending(name)
        if ask is not None:
            out.tell_people(ask.key, gang.app.app_id, ask.shape, message, now_ns)
            return
