"""A few words for each reason: for what asks wait. For sentences about many asks."""

from __future__ import annotations

from muster_core.config.queue_config import ROOT
from muster_core.model.reasons import ReasonCode
from muster_core.queues.limits import WILDCARD

# The words that follow "waits".
WAITS: dict[str, str] = {
    ReasonCode.WAITING_FOR_TURN: "for the scheduler's first try",
    ReasonCode.NO_NODES: "for a schedulable node",
    ReasonCode.LARGER_THAN_ANY_NODE: "for a larger node",
    ReasonCode.NO_NODE_HAS_ROOM: "for room on a node",
    ReasonCode.FREE_RESOURCES_SCATTERED: "for a single node with every requested resource free",
    ReasonCode.QUEUE_MAX: "for room below a queue's max",
    ReasonCode.QUEUE_MAX_APPLICATIONS: "for another application of a queue to end",
    ReasonCode.USER_LIMIT: "for room below a user's limit",
    ReasonCode.GROUP_LIMIT: "for room below a group's limit",
    ReasonCode.USER_MAX_APPLICATIONS: "for another application of a user to end",
    ReasonCode.GROUP_MAX_APPLICATIONS: "for another application of a group to end",
    ReasonCode.REQUIRED_NODE_UNKNOWN: "for a required node that is not registered",
    ReasonCode.REQUIRED_NODE_FULL: "for room on a required node",
    ReasonCode.RESERVED_FOR_OTHERS: "for nodes that are reserved for older asks",
    ReasonCode.GANG_ROOM: "for room for a whole gang",
    ReasonCode.GANG_FORMING: "for a gang's placeholders",
    ReasonCode.PLACEHOLDER_LEAVING: "for a placeholder to be released",
    ReasonCode.PLACEHOLDER_STUCK: "for a placeholder on a closed node",
    ReasonCode.RM_ASKED: "for the resource manager's answer",
    ReasonCode.RM_TURN: "for the resource manager's answer to another proposal",
    ReasonCode.REFUSED_BY_RM: "for a node that the resource manager accepts",
    ReasonCode.QUEUE_STOPPED: "for a stopped queue",
    ReasonCode.RM_STOPPED: "for the stopped resource manager",
    ReasonCode.RM_ABSENT: "for the resource manager's callback stream",
    ReasonCode.RM_HELD: "for an operator to resume the resource manager",
    ReasonCode.SOURCE_LISTING: "for a source to list its objects",
}


def waits_for(code: str, *, queue: str = "", who: str = "", kind: str = "") -> str:
    """The same with names; each is "" if there is none.

    :param queue: the queue of the limit, or the stopped one; ``who``: the user or group of the limit; ``kind``: the
        resource type.
    """
    at = f" in queue {queue}" if queue else ""
    group = "the groups without a limit of their own" if who == WILDCARD else f"group {who}"
    match code:
        case ReasonCode.QUEUE_MAX if queue == ROOT:
            return f"for the pool of {kind}"
        case ReasonCode.QUEUE_MAX:
            phrase = f"for room below the max of queue {queue}"
        case ReasonCode.USER_LIMIT:
            phrase = f"for room below the limit of user {who}{at}"
        case ReasonCode.GROUP_LIMIT:
            phrase = f"for room below the limit of {group}{at}"
        case ReasonCode.QUEUE_MAX_APPLICATIONS:
            phrase = f"for another application of queue {queue} to end"
        case ReasonCode.USER_MAX_APPLICATIONS:
            phrase = f"for another application of user {who}{at} to end"
        case ReasonCode.GROUP_MAX_APPLICATIONS:
            phrase = f"for another application of {group}{at} to end"
        case ReasonCode.GANG_ROOM:
            phrase = f"{WAITS[code]}{at}"
        case ReasonCode.QUEUE_STOPPED:
            phrase = f"for the stopped queue {queue}"
        case _:
            phrase = WAITS[code]
    return f"{phrase} ({kind})" if kind else phrase
