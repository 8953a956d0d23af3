"""The functions that the client calls for the scheduler's decisions and questions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from muster_proto.muster.v1 import callbacks_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si


class Rejection(NamedTuple):
    """A rejected ask or allocation, from either generation's message.

    :param previous_generation: it came as RejectedAllocationAsk (previous generation), the answer to an AllocationAsk.
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
    """An RM's callback functions. Each is optional, plain or async.

    The client calls them in the order of the stream, one at a time per stream. A response counts as processed when all
    of them have returned; an exception ends the client (CallbackFailed). A slow callback delays its stream: that is the
    back-pressure.

    :param on_allocated: allocations made: key, node, application; also the echo of existing ones.
    :param on_released: allocations that ended at the RM's wish (STOPPED_BY_RM), and those that the scheduler releases.
        The latter count until the RM sends a :func:`confirmation`; a repeated release is a reminder. Also asks of the
        current generation that the scheduler gave up (placeholders that timed out), by their key.
    :param on_released_asks: (previous generation) the same asks in the previous generation's messages.
    :param on_rejected_allocation: asks and allocations that were refused.
    :param on_application: accepted, rejected, updated.
    :param on_node: accepted, rejected.
    :param on_stream: name of the stream; True: opened, False: lost. For logs and indicators. The call may come a second
        late, and its exceptions are only logged.
    :param on_reregister_needed: the gateway does not know the RM; with the gateway's text. Register, then report
        everything.
    :param on_registered: called after each registration that the client made by itself; report everything here.

    The following five open a fourth stream, for the scheduler's questions (docs/callbacks.md). The client answers up to
    ``questions_at_once`` questions beside everything else. A plain function must be quick; an async one may wait. A
    function that raises answers no, with the exception's text. News come in order, one call at a time; a slow call
    delays later questions.

    :param predicates: whether this ask may go to this node: True, False, or the reason of a no, which explanations
        show.
    :param preemption_predicates: whether the ask would fit after some of ``args.preemptAllocationKeys`` are gone.
        Returns the index of the last one that must go, at least ``args.startIndex``; None or a reason: no.
    :param on_scheduling_states: asks that were skipped, got a reservation, or fit on no node.
    :param on_events: events of the RM; ``id`` is absent in events of asks, which come separately at an interval. After
        a reconnection both continue after the last processed ones.
    :param open_proposals: which proposals may be open at the same time: all, or one of each node, task group or
        application, or one at all. Unless it is all, a question comes to ``predicates`` after ``on_allocated`` has
        returned for all earlier allocations.
    :param request_events_only: only events of asks.
    :param state_dump: returns the RM's own state as JSON text for an operator's dump; at most 512 KiB.
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
    open_proposals: pb.OpenProposals.ValueType = pb.OPEN_PROPOSALS_ALL
