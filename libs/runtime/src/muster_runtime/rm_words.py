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

from shlex import quote

RUNNING, DISCONNECTED, STOPPED = "RUNNING", "DISCONNECTED", "STOPPED"
STATES = (RUNNING, DISCONNECTED, STOPPED)
PAUSED = "paused"

_UNITS_S = ((86_400, "day"), (3_600, "h"), (60, "min"), (1, "s"))
_NS = 1_000_000_000


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
) -> str:
    """Describes the state and what to do about it.

    :param since_ns: start of the state; 0: not known.
    :param rm_id: for the command that forgets the RM.
    """
    sentences = [_of_state(state, ago(since_ns, now_ns), rm_id, paused=paused)]
    if paused:
        why = f" ({paused_reason})" if paused_reason else ""
        when = ago(paused_since_ns, now_ns)
        sentences.append(
            f"An operator paused it{when}{why}: Muster schedules nothing for it until `muster admin resume`."
        )
    return " ".join(sentences)


def _of_state(state: str, when: str, rm_id: str, *, paused: bool) -> str:
    if state == DISCONNECTED:
        asks = "" if paused else " and its asks are still placed"
        end = "" if paused else ", and Muster schedules nothing more for it"
        return (
            f"All its streams were lost{when}. Its allocations keep running{asks}, but it gets no messages. Start it, "
            f"or repair its connection: if it stays away it is stopped{end}."
        )
    if state == STOPPED:
        return (
            f"It was stopped{when}: it shut down, or stayed disconnected for too long. Its allocations keep their "
            "resources; Muster schedules nothing for it. Start it, so that it registers again, or end all its "
            f"allocations with `muster admin forget {quote(rm_id)}`."
        )
    if state == RUNNING:
        return "It is connected."
    return f"Its state is {state}."


def ago(since_ns: int, now_ns: int) -> str:
    """Returns a text like " 12 min ago", with the leading blank; "" if the time is not known."""
    if not since_ns:
        return ""
    passed_s = max(0, now_ns - since_ns) // _NS
    for length_s, unit in _UNITS_S:
        if passed_s >= length_s:
            count = passed_s // length_s
            return f" {count} {unit}{'s' if unit == 'day' and count > 1 else ''} ago"
    return " just now"
