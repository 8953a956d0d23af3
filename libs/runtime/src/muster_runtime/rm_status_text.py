"""The state of a resource manager (RM) as text: one vocabulary for REST, page, CLI, metrics and answers.

An operator's pause is separate from the state.

RUNNING
    At least one of its streams is open.
DISCONNECTED
    Every stream is lost. Allocations keep running and asks are placed, but the RM receives no messages.
STOPPED
    The RM was disconnected for too long, or shut down. Allocations keep running; Muster schedules nothing for it and
    refuses its requests.
paused
    An operator paused the RM: Muster schedules nothing for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import NamedTuple

RUNNING, DISCONNECTED, STOPPED = "RUNNING", "DISCONNECTED", "STOPPED"
STATES = (RUNNING, DISCONNECTED, STOPPED)
PAUSED = "paused"
# A key of a registration's extra configuration.
REPLAY_KEY = "muster.replay"

_UNITS_S = ((86_400, "day"), (3_600, "h"), (60, "min"), (1, "s"))
_NS = 1_000_000_000


class RmFacts(NamedTuple):
    """What the gateway adds to the log's record of an RM.

    :param disconnect_timeout_s: an RM without streams for so long is stopped; 0: not known.
    :param unscheduled: why no scheduler decides for it at present, as a clause; "": one does, or it is not known.
    """

    disconnect_timeout_s: float = 0.0
    unscheduled: str = ""


NO_FACTS = RmFacts()


def label(state: str, *, paused: bool) -> str:
    """Returns the state and the pause, for a header or a heading."""
    return f"{state}, {PAUSED}" if paused else state


def description(
    state: str,
    since_ns: int,
    now_ns: int,
    *,
    paused: bool = False,
    paused_reason: str = "",
    paused_since_ns: int = 0,
    rm_id: str = "RM",
    replay: bool = False,
    facts: RmFacts = NO_FACTS,
) -> str:
    """Describes the state and what to do about it.

    :param since_ns: start of the state; 0: not known.
    :param rm_id: for the command that forgets the RM.
    :param replay: the RM is the replay of a trace (:func:`is_replay`).
    """
    unscheduled = facts.unscheduled
    when = format_ago(since_ns, now_ns)
    if state == DISCONNECTED:
        stop = _stop(since_ns, now_ns, facts.disconnect_timeout_s)
        sentences = [_disconnected(when, stop, unscheduled, replay=replay, paused=paused)]
    elif state == STOPPED:
        sentences = [_stopped(when, rm_id, replay=replay)]
    elif state == RUNNING:
        sentences = ["It is connected."]
    else:
        sentences = [f"Its state is {state}."]
    if unscheduled and state != STOPPED:
        sentences.append(f"Muster decides nothing for it at present: {unscheduled}.")
    if paused:
        reason = f" ({paused_reason})" if paused_reason else ""
        when = format_ago(paused_since_ns, now_ns)
        sentences.append(
            f"An operator paused it{when}{reason}: Muster schedules nothing for it until `muster admin resume`."
        )
    return " ".join(sentences)


def is_replay(extra_config: Mapping[str, str]) -> bool:
    """Whether a registration declares that the RM is the replay of a trace, whose cluster stays when it ends."""
    return extra_config.get(REPLAY_KEY) == "true"


def _disconnected(when: str, stop: str, unscheduled: str, *, replay: bool, paused: bool) -> str:
    asks = "" if paused else " and its asks stay" if unscheduled else " and its asks are still placed"
    end = "" if paused else "; then Muster schedules nothing more for it"
    if replay:
        return (
            f"The replay ended{when}. Its cluster is kept: its allocations keep running{asks}. It is "
            f"stopped {stop or 'if nobody starts it again'}{end}."
        )
    return (
        f"All its streams were lost{when}. Its allocations keep running{asks}, but it gets no messages. "
        f"Start the resource manager, or repair its connection: it is stopped {stop or 'if it stays away'}{end}."
    )


def _stopped(when: str, rm_id: str, *, replay: bool) -> str:
    forget = f"end all its allocations with `muster admin forget {quote(rm_id)}`."
    if replay:
        return (
            f"The replay ended, and it was stopped{when}. Its cluster is kept as it was; Muster schedules nothing for "
            f"it. Start the replay again, or {forget}"
        )
    return (
        f"It was stopped{when}: it shut down, or stayed disconnected for too long. Its allocations keep their "
        "resources; Muster schedules nothing for it. Start the resource manager, so that it registers again, or "
        f"{forget}"
    )


def _stop(since_ns: int, now_ns: int, disconnect_timeout_s: float) -> str:
    """Returns when a disconnected RM is stopped, such as "in 8 min"; "" if that is not known."""
    if not since_ns or not disconnect_timeout_s:
        return ""
    left_s = (since_ns - now_ns) // _NS + round(disconnect_timeout_s)
    return f"in {length(left_s)}" if left_s > 0 else "in a moment"


def format_ago(since_ns: int, now_ns: int) -> str:
    """Returns a text like " 12 min ago", with the leading blank; "" if the time is not known."""
    if not since_ns:
        return ""
    passed_s = max(0, now_ns - since_ns) // _NS
    return f" {length(passed_s)} ago" if passed_s else " just now"


def length(seconds: int) -> str:
    """Returns whole seconds in their largest unit, such as "12 min"."""
    for length_s, unit in _UNITS_S:
        if seconds >= length_s:
            count = seconds // length_s
            return f"{count} {unit}{'s' if unit == 'day' and count > 1 else ''}"
    return "0 s"
