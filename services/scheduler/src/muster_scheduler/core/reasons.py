"""Why an ask is pending, in types.

Every "no" is recorded where it is decided (design §2). A reason says what was asked, what limit stood against it and
how much was there: enough for a person to act on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReasonCode(StrEnum):
    """The kinds of "no"."""

    # The scheduler has not come to it yet (only while a burst is being worked off).
    WAITING_FOR_TURN = "WAITING_FOR_TURN"
    # The partition has no schedulable node.
    NO_NODES = "NO_NODES"
    # Larger, in the named type, than every node's whole capacity: waiting does not help.
    LARGER_THAN_ANY_NODE = "LARGER_THAN_ANY_NODE"
    # No node has this much of the named type free.
    NO_NODE_HAS_ROOM = "NO_NODE_HAS_ROOM"
    # Each type is free somewhere, but no one node has all of them.
    FREE_RESOURCES_SCATTERED = "FREE_RESOURCES_SCATTERED"
    # It would take the named queue over its max.
    QUEUE_MAX = "QUEUE_MAX"
    # The named queue runs as many applications as it may.
    QUEUE_MAX_APPLICATIONS = "QUEUE_MAX_APPLICATIONS"
    # The named queue is stopped.
    QUEUE_STOPPED = "QUEUE_STOPPED"
    # The resource manager is stopped: nothing is decided for it until it registers again.
    RM_STOPPED = "RM_STOPPED"


@dataclass(frozen=True, slots=True)
class Reason:
    """One "no" with its figures.

    :param queue: path of the queue whose limit it is, or "".
    :param resource_type: the first type that does not fit, or "".
    :param asked: of that type, by one ask.
    :param used: of that type by the queue, when it was decided.
    :param limit: the queue's max, or the largest node's capacity.
    :param free: the largest amount that any one node had free.
    :param since_ns: when this reason (code, queue, type) began.
    """

    code: ReasonCode
    queue: str = ""
    resource_type: str = ""
    asked: int = 0
    used: int = 0
    limit: int = 0
    free: int = 0
    since_ns: int = 0

    def same_as(self, other: Reason | None) -> bool:
        """Whether the other says the same "no" (figures may differ: they move all the time)."""
        return (
            other is not None
            and self.code is other.code
            and self.queue == other.queue
            and self.resource_type == other.resource_type
        )

    def sentence(self) -> str:
        """One sentence for people."""
        kind = self.resource_type
        match self.code:
            case ReasonCode.WAITING_FOR_TURN:
                return "The scheduler has not come to this ask yet."
            case ReasonCode.NO_NODES:
                return "The partition has no schedulable node."
            case ReasonCode.LARGER_THAN_ANY_NODE:
                return f"It asks for {self.asked} {kind}, and the largest node has {self.limit} in all."
            case ReasonCode.NO_NODE_HAS_ROOM:
                return f"It asks for {self.asked} {kind}, and no node has more than {self.free} free."
            case ReasonCode.FREE_RESOURCES_SCATTERED:
                return "Each resource is free somewhere, but no one node has all of them free."
            case ReasonCode.QUEUE_MAX:
                return (
                    f"Queue {self.queue} uses {self.used} of its max of {self.limit} {kind}; "
                    f"{self.asked} more would go over."
                )
            case ReasonCode.QUEUE_MAX_APPLICATIONS:
                return f"Queue {self.queue} runs {self.used} applications and may run {self.limit}."
            case ReasonCode.QUEUE_STOPPED:
                return f"Queue {self.queue} is stopped."
            case ReasonCode.RM_STOPPED:
                return "The resource manager is stopped; it must register again."
