"""What the client calls when the scheduler has decided something, or asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from muster_proto.muster.v1 import callbacks_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si


class Rejection(NamedTuple):
    """A rejected ask or allocation, in either generation's message.

    :param previous_generation: it came as RejectedAllocationAsk (seed 001), the answer to an AllocationAsk.
    """

    allocation_key: str
    application_id: str
    reason: str
    previous_generation: bool


Result = Awaitable[None] | None
Said = bool | str
Predicates = Callable[[pb.PredicatesQuestion], Said | Awaitable[Said]]
Victims = int | str | None
PreemptionPredicates = Callable[[pb.PreemptionPredicatesQuestion], Victims | Awaitable[Victims]]
OnApplication = Callable[
    [Sequence[si.AcceptedApplication], Sequence[si.RejectedApplication], Sequence[si.UpdatedApplication]], Result
]


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What an RM wants to hear. Every one is optional, plain or async.

    They are called in the order of the stream, one at a time per stream; a response counts as processed when all of
    them have returned, and an exception ends the client (CallbackFailed). A slow callback holds its stream up: that is
    the back-pressure.

    :param on_allocated: allocations made: key, node, application; also the echo of existing ones.
    :param on_released: allocations that ended, as the RM asked for (STOPPED_BY_RM), and those that the scheduler tells
        to go: the latter count until the RM sends a :func:`confirmation`. A second word about one is a reminder.
        Also asks of the current generation that the scheduler gave up (placeholders that timed out), by their key.
    :param on_released_asks: [001] the same asks in the previous generation's words.
    :param on_rejected_allocation: asks and allocations that were refused.
    :param on_application: accepted, rejected, updated.
    :param on_node: accepted, rejected.
    :param on_stream: name of the stream; True: opened, False: lost. For logs and indicators; may come a second late,
        and an exception in it is only logged.
    :param on_reregister_needed: the gateway does not know the RM; with its words. Register, then report everything.
    :param on_registered: after each registration the client made by itself; report everything here.

    The following five open a fourth stream, on which the scheduler asks (docs/callbacks.md). Questions are answered
    beside everything else, up to ``questions_at_once``; a plain function must be quick, an async one may wait. One that
    raises says no, with the exception's text. News come in their order, one call at a time; a slow one holds the
    questions up that come behind it.

    :param predicates: may this ask go to this node? True, False, or the reason for a no, which explanations show.
    :param preemption_predicates: would the ask fit once some of ``args.preemptAllocationKeys`` were gone? The index of
        the last one that must go, at least ``args.startIndex``; None or a reason: no.
    :param on_scheduling_states: asks that were skipped, reserved for, or fit on no node.
    :param on_events: events of the RM; ``id`` is absent in events of asks, which come by themselves at an interval.
        After a reconnection both go on behind the last ones that were processed.
    :param request_events_only: of the events those of asks only.
    :param state_dump: the RM's own state as JSON text, when an operator wants a dump; at most 512 KiB.
    """

    on_allocated: Callable[[Sequence[si.Allocation]], Result] | None = None
    on_released: Callable[[Sequence[si.AllocationRelease]], Result] | None = None
    on_released_asks: Callable[[Sequence[si.AllocationAskRelease]], Result] | None = None
    on_rejected_allocation: Callable[[Sequence[Rejection]], Result] | None = None
    on_application: OnApplication | None = None
    on_node: Callable[[Sequence[si.AcceptedNode], Sequence[si.RejectedNode]], Result] | None = None
    on_stream: Callable[[str, bool], Result] | None = None
    on_reregister_needed: Callable[[str], Result] | None = None
    on_registered: Callable[[], Result] | None = None
    predicates: Predicates | None = None
    preemption_predicates: PreemptionPredicates | None = None
    on_scheduling_states: Callable[[Sequence[si.UpdateContainerSchedulingStateRequest]], Result] | None = None
    on_events: Callable[[Sequence[pb.Event]], Result] | None = None
    state_dump: Callable[[], str | Awaitable[str]] | None = None
    request_events_only: bool = False
