"""What those who wait for a reason wait for, in a few words each: for sentences about many of them."""

from __future__ import annotations

from muster_scheduler.core.config import ROOT
from muster_scheduler.core.limits import WILDCARD
from muster_scheduler.core.reasons import ReasonCode

# Behind "waits".
WAITS: dict[str, str] = {
    ReasonCode.WAITING_FOR_TURN: "for the scheduler to come to it",
    ReasonCode.NO_NODES: "for a schedulable node",
    ReasonCode.LARGER_THAN_ANY_NODE: "for a larger node",
    ReasonCode.NO_NODE_HAS_ROOM: "for room on a node",
    ReasonCode.FREE_RESOURCES_SCATTERED: "for all it asks for on one node",
    ReasonCode.QUEUE_MAX: "for room below a queue's max",
    ReasonCode.QUEUE_MAX_APPLICATIONS: "for another application of a queue to end",
    ReasonCode.USER_LIMIT: "for room below a user's limit",
    ReasonCode.GROUP_LIMIT: "for room below a group's limit",
    ReasonCode.USER_MAX_APPLICATIONS: "for another application of a user to end",
    ReasonCode.GROUP_MAX_APPLICATIONS: "for another application of a group to end",
    ReasonCode.REQUIRED_NODE_UNKNOWN: "for a node that is not known",
    ReasonCode.REQUIRED_NODE_FULL: "for room on the one node that will do",
    ReasonCode.RESERVED_FOR_OTHERS: "behind others that have waited longer",
    ReasonCode.GANG_ROOM: "for room for a whole gang",
    ReasonCode.GANG_FORMING: "for a gang's placeholders",
    ReasonCode.PLACEHOLDER_LEAVING: "for a placeholder to go",
    ReasonCode.PLACEHOLDER_STUCK: "for a placeholder whose node takes nothing",
    ReasonCode.RM_ASKED: "for the resource manager's answer",
    ReasonCode.REFUSED_BY_RM: "for a node that the resource manager does not refuse",
    ReasonCode.QUEUE_STOPPED: "for a queue that is stopped",
    ReasonCode.RM_STOPPED: "for the resource manager, which is stopped",
    ReasonCode.RM_ABSENT: "for the resource manager's callback stream",
    ReasonCode.RM_HELD: "for an operator to resume the resource manager",
    ReasonCode.SOURCE_LISTING: "for a source to list what it has",
}


def waits_for(code: str, *, queue: str = "", who: str = "", kind: str = "") -> str:
    """The same with the names of what it is about; each is "" where there is none.

    :param queue: whose limit it is, or which is stopped; ``who``: the user or group that it is for; ``kind``: the
        resource type.
    """
    at = f" in queue {queue}" if queue else ""
    group = "the groups without a limit of their own" if who == WILDCARD else f"group {who}"
    match code:
        case ReasonCode.QUEUE_MAX if queue == ROOT:
            return f"for the pool of {kind}"
        case ReasonCode.QUEUE_MAX:
            what = f"for room below the max of queue {queue}"
        case ReasonCode.USER_LIMIT:
            what = f"for room below the limit of user {who}{at}"
        case ReasonCode.GROUP_LIMIT:
            what = f"for room below the limit of {group}{at}"
        case ReasonCode.QUEUE_MAX_APPLICATIONS:
            what = f"for another application of queue {queue} to end"
        case ReasonCode.USER_MAX_APPLICATIONS:
            what = f"for another application of user {who}{at} to end"
        case ReasonCode.GROUP_MAX_APPLICATIONS:
            what = f"for another application of {group}{at} to end"
        case ReasonCode.GANG_ROOM:
            what = f"{WAITS[code]}{at}"
        case ReasonCode.QUEUE_STOPPED:
            what = f"for queue {queue}, which is stopped"
        case _:
            what = WAITS[code]
    return f"{what} ({kind})" if kind else what
