"""The RM's callback stream, as the scheduler hears of it: its gateways' notes, and the RM's answers (step "ingest")."""

from __future__ import annotations

from collections.abc import Mapping

from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.v1 import callbacks_pb2

from muster_scheduler.core.commands import Answer, Answers
from muster_scheduler.core.inquiries import SECOND_NS, CallbackPolicy
from muster_scheduler.core.properties import duration_text, parse_duration_ns
from muster_scheduler.follower import ACCEPT, CALLBACKS_ABSENT_KEY, WAIT, RmInfo, waits_for_callbacks

# Keys of a registration's extraConfig.
TIMEOUT_KEY = "muster.callbacks.timeout"
RETRY_KEY = "muster.callbacks.retry"
GRACE_KEY = "muster.callbacks.grace"
_SHOWN_MAX = 256  # characters of a value in a warning

# What each may be. Shorter ones would keep the scheduler busy with one RM's questions at the cost of all others; added
# to now in nanoseconds even the longest stays far within an int64.
_BOUNDS_NS = {
    TIMEOUT_KEY: (SECOND_NS // 10, 3600 * SECOND_NS),
    RETRY_KEY: (SECOND_NS, 3600 * SECOND_NS),
    GRACE_KEY: (0, 24 * 3600 * SECOND_NS),
}


def policy_of(info: RmInfo) -> CallbackPolicy:
    """What the RM wants to be asked and told now, as its stream and its registration say.

    Whoever registers with ``muster.callbacks.absent: wait`` wants to be asked, stream or not.
    """
    stream, extra, default = info.callbacks, info.extra_config, CallbackPolicy()
    waits = waits_for_callbacks(extra)
    return CallbackPolicy(
        predicates=stream.predicates or (waits and not stream.connected),
        preemption=stream.preemption_predicates,
        states=stream.scheduling_states,
        connected=stream.connected,
        since_ns=info.callbacks_since_ns,
        timeout_ns=_duration_ns(extra, TIMEOUT_KEY, default.timeout_ns),
        retry_ns=_duration_ns(extra, RETRY_KEY, default.retry_ns),
        grace_ns=_duration_ns(extra, GRACE_KEY, default.grace_ns),
        waits=waits,
    )


def take_note(info: RmInfo, note: pb.CallbackStream, now_ns: int) -> bool:
    """Takes a gateway's note; says whether it changed anything.

    Notes of two gateways may come in any order, and twice: each carries the epoch of the stream's seat, which grows
    with each stream that comes and each that goes. An older one changes nothing.
    """
    known = info.callbacks
    if note.epoch <= known.epoch:
        return False
    if note.connected:
        info.callbacks = note
        info.callbacks_since_ns = now_ns
        return True
    was_connected = known.connected
    # (Another object: the old one may be on its way to a record. What the stream wanted holds on for the grace.)
    info.callbacks = pb.CallbackStream()
    info.callbacks.CopyFrom(known)
    info.callbacks.connected, info.callbacks.epoch = False, note.epoch
    if was_connected or not info.callbacks_since_ns:
        info.callbacks_since_ns = now_ns
    return True


def answers(message: callbacks_pb2.FromResourceManager) -> Answers:
    """The RM's answers to predicates."""
    found = [Answer(each.id, each.fits, each.reason) for each in message.predicates]
    found += [
        Answer(each.id, each.response.success, each.reason, each.response.index)
        for each in message.preemption_predicates
    ]
    return Answers(found)


def problems_of(extra: Mapping[str, str]) -> list[pb.ConfigProblem]:
    """What of the registration's extraConfig about callbacks has no effect: warnings."""
    found = []
    for key, (least_ns, most_ns) in _BOUNDS_NS.items():
        if key in extra and _read_ns(extra, key) is None:
            bounds = f"from {duration_text(least_ns)} to {duration_text(most_ns)}"
            found.append((key, f"{extra[key][:_SHOWN_MAX]!r}, expected a duration such as 10s, {bounds}"))
    absent = extra.get(CALLBACKS_ABSENT_KEY, ACCEPT).strip().lower()
    if absent not in (WAIT, ACCEPT):
        found.append(
            (CALLBACKS_ABSENT_KEY, f"{extra[CALLBACKS_ABSENT_KEY][:_SHOWN_MAX]!r}, expected {ACCEPT} or {WAIT}")
        )
    return [
        pb.ConfigProblem(
            severity=pb.ConfigProblem.WARNING, path=f"extraConfig[{key}]", message=f"{why}: the default holds"
        )
        for key, why in found
    ]


def _duration_ns(extra: Mapping[str, str], key: str, default_ns: int) -> int:
    found_ns = _read_ns(extra, key)
    return default_ns if found_ns is None else found_ns


def _read_ns(extra: Mapping[str, str], key: str) -> int | None:
    """The duration that is said; None: none, or one that cannot be."""
    least_ns, most_ns = _BOUNDS_NS[key]
    try:
        found_ns = parse_duration_ns(extra[key])
    except (KeyError, ValueError):
        return None
    return found_ns if least_ns <= found_ns <= most_ns else None
