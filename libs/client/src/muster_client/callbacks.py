"""What the client calls when the scheduler has decided something."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
