"""Ingests what concerns an RM's callback stream: gateways' notes, and the RM's answers (step "ingest")."""

from __future__ import annotations

from collections.abc import Mapping

from muster_core.config.properties import duration_text, parse_duration_ns
from muster_core.model.commands import PredicateAnswer, PredicateAnswers
from muster_core.model.scopes import SECOND_NS, CallbackPolicy, Scope
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.v1 import callbacks_pb2
from muster_runtime.secrets import masked_text
from muster_state.state_folder import ACCEPT, CALLBACKS_ABSENT_KEY, WAIT, RmInfo, waits_for_callbacks

# Keys of a registration's extraConfig.
TIMEOUT_KEY = "muster.callbacks.timeout"
RETRY_KEY = "muster.callbacks.retry"
GRACE_KEY = "muster.callbacks.grace"
_SHOWN_MAX = 256  # characters of a value in a warning

_ALONE: dict[int, Scope] = {
    callbacks_pb2.OPEN_PROPOSALS_ALL: Scope.ALL,
    callbacks_pb2.OPEN_PROPOSALS_NODE: Scope.NODE,
    callbacks_pb2.OPEN_PROPOSALS_TASK_GROUP: Scope.TASK_GROUP,
    callbacks_pb2.OPEN_PROPOSALS_APPLICATION: Scope.APPLICATION,
    callbacks_pb2.OPEN_PROPOSALS_ONE: Scope.ONE,
}

# Valid ranges. Shorter values would let one RM's questions keep the scheduler busy at the cost of the others. The
# longest value, added to the present in nanoseconds, stays far within an int64.
_BOUNDS_NS = {
    TIMEOUT_KEY: (SECOND_NS // 10, 3600 * SECOND_NS),
    RETRY_KEY: (SECOND_NS, 3600 * SECOND_NS),
    GRACE_KEY: (0, 24 * 3600 * SECOND_NS),
}


def policy_of(info: RmInfo) -> CallbackPolicy:
    """Returns the questions and messages that the RM wants now, from its stream and its registration.

    An RM with ``muster.callbacks.absent: wait`` wants questions even without a stream.
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
        alone=_ALONE.get(stream.open_proposals, Scope.ONE),  # an unknown value of a later version: the narrowest
    )


def take_note(info: RmInfo, note: pb.CallbackStream, now_ns: int) -> bool:
    """Takes a gateway's note. Returns whether it changed anything.

    Notes of two gateways may arrive in any order, and twice. Each carries the epoch of the stream's seat, which grows
    when a stream opens and when it ends. A note with an older epoch changes nothing.
    """
    current = info.callbacks
    if note.epoch <= current.epoch:
        return False
    if note.connected:
        info.callbacks = note
        info.callbacks_since_ns = now_ns
        return True
    was_connected = current.connected
    # Makes a new object, because the old one may be on its way to a record. The stream's wishes stay valid for the
    # grace.
    info.callbacks = pb.CallbackStream()
    info.callbacks.CopyFrom(current)
    info.callbacks.connected, info.callbacks.epoch = False, note.epoch
    if was_connected or not info.callbacks_since_ns:
        info.callbacks_since_ns = now_ns
    return True


def answers(message: callbacks_pb2.FromResourceManager) -> PredicateAnswers:
    """Returns the RM's answers to predicates. Their reasons are shown in explanations and events: without secrets."""
    predicate_answers = [
        PredicateAnswer(answer.id, answer.fits, masked_text(answer.reason)) for answer in message.predicates
    ]
    predicate_answers += [
        PredicateAnswer(answer.id, answer.response.success, masked_text(answer.reason), answer.response.index)
        for answer in message.preemption_predicates
    ]
    return PredicateAnswers(predicate_answers)


def problems_of(extra: Mapping[str, str]) -> list[pb.ConfigProblem]:
    """Returns warnings for settings about callbacks in the registration's extraConfig that have no effect."""
    problems = []
    for key, (least_ns, most_ns) in _BOUNDS_NS.items():
        if key in extra and _read_ns(extra, key) is None:
            bounds = f"from {duration_text(least_ns)} to {duration_text(most_ns)}"
            problems.append(
                (key, f"{masked_text(extra[key])[:_SHOWN_MAX]!r}, expected a duration such as 10s, {bounds}")
            )
    absent = extra.get(CALLBACKS_ABSENT_KEY, ACCEPT).strip().lower()
    if absent not in (WAIT, ACCEPT):
        problems.append(
            (
                CALLBACKS_ABSENT_KEY,
                f"{masked_text(extra[CALLBACKS_ABSENT_KEY])[:_SHOWN_MAX]!r}, expected {ACCEPT} or {WAIT}",
            )
        )
    return [
        pb.ConfigProblem(
            severity=pb.ConfigProblem.WARNING, path=f"extraConfig[{key}]", message=f"{problem}: the default holds"
        )
        for key, problem in problems
    ]


def _duration_ns(extra: Mapping[str, str], key: str, default_ns: int) -> int:
    found_ns = _read_ns(extra, key)
    return default_ns if found_ns is None else found_ns


def _read_ns(extra: Mapping[str, str], key: str) -> int | None:
    """Returns the duration that a key sets; None if it is absent or out of range."""
    least_ns, most_ns = _BOUNDS_NS[key]
    try:
        found_ns = parse_duration_ns(extra[key])
    except (KeyError, ValueError):
        return None
    return found_ns if least_ns <= found_ns <= most_ns else None
