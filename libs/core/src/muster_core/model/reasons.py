"""Reasons why an ask is pending, as types.

The scheduler records each reason where it decides it. A reason has the requested amount, the limit and what was
available, so that a person can act on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from muster_core.model.cordons import CordonCount, describe_cordons
from muster_core.model.text_format import format_amounts, format_bare, join_words, pluralize


class ReasonCode(StrEnum):
    """The kinds of reasons."""

    # The scheduler has not tried the ask yet (only during a burst of asks).
    WAITING_FOR_TURN = "WAITING_FOR_TURN"
    # The partition has no schedulable node.
    NO_NODES = "NO_NODES"
    # The ask is larger, in the named type, than the whole capacity of every node: waiting does not help.
    LARGER_THAN_ANY_NODE = "LARGER_THAN_ANY_NODE"
    # No node has this much of the named type free.
    NO_NODE_HAS_ROOM = "NO_NODE_HAS_ROOM"
    # Each type is free somewhere, but no node has all of them.
    FREE_RESOURCES_SCATTERED = "FREE_RESOURCES_SCATTERED"
    # The ask would exceed the named queue's max. (Of root: the pool of the named type has too little left.)
    QUEUE_MAX = "QUEUE_MAX"
    # The named queue runs its maximum number of applications.
    QUEUE_MAX_APPLICATIONS = "QUEUE_MAX_APPLICATIONS"
    # The ask would exceed the user's or the group's limit at the named queue.
    USER_LIMIT = "USER_LIMIT"
    GROUP_LIMIT = "GROUP_LIMIT"
    # The user or the group runs its maximum number of applications in the named queue.
    USER_MAX_APPLICATIONS = "USER_MAX_APPLICATIONS"
    GROUP_MAX_APPLICATIONS = "GROUP_MAX_APPLICATIONS"
    # The ask requires a node (a daemon) that is not known.
    REQUIRED_NODE_UNKNOWN = "REQUIRED_NODE_UNKNOWN"
    # The ask requires a node that has too little of the named type free.
    REQUIRED_NODE_FULL = "REQUIRED_NODE_FULL"
    # Nodes with room are reserved for asks that come before this one.
    RESERVED_FOR_OTHERS = "RESERVED_FOR_OTHERS"
    # The gang starts as a whole, and the named queue, user or group has no room for all of it.
    GANG_ROOM = "GANG_ROOM"
    # Real asks wait for their gang's placeholders.
    GANG_FORMING = "GANG_FORMING"
    # The scheduler released the placeholder that makes room for the ask; the RM has not confirmed yet.
    PLACEHOLDER_LEAVING = "PLACEHOLDER_LEAVING"
    # A placeholder could make room, but the ask fits neither on the placeholder's node nor on another.
    PLACEHOLDER_STUCK = "PLACEHOLDER_STUCK"
    # The RM was asked whether the ask may go to the named node, and has not answered.
    RM_ASKED = "RM_ASKED"
    # The RM is asked about one proposal at a time, and has not answered about another one.
    RM_TURN = "RM_TURN"
    # The RM refused every node with room for it (its predicates).
    REFUSED_BY_RM = "REFUSED_BY_RM"
    # The named queue is stopped.
    QUEUE_STOPPED = "QUEUE_STOPPED"
    # The resource manager is stopped: the scheduler decides nothing for it until it registers again.
    RM_STOPPED = "RM_STOPPED"
    # The RM must be asked before each placement, and its callback stream is not open.
    RM_ABSENT = "RM_ABSENT"
    # An operator paused the resource manager: the scheduler decides nothing for it until it is resumed.
    RM_HELD = "RM_HELD"
    # After its start, the scheduler waits until each external source has listed everything.
    SOURCE_LISTING = "SOURCE_LISTING"


class NoPreemptionReason(StrEnum):
    """Why preemption does not help a waiting ask."""

    # Preemption is off for the partition.
    DISABLED = "DISABLED"
    # The ask does not say allowPreemptOther.
    NOT_ALLOWED = "NOT_ALLOWED"
    # The ask has waited for less than its queue's preemption.delay.
    TOO_YOUNG = "TOO_YOUNG"
    # None of its queues guarantees the ask's amounts, and its leaf holds no allocation of a lower priority.
    NO_GUARANTEE = "NO_GUARANTEE"
    # The ask would put its queue above the guarantee, and its leaf holds no allocation of a lower priority.
    OVER_GUARANTEE = "OVER_GUARANTEE"
    # The ask's leaf is a fence, and holds no allocation of a lower priority.
    FENCED = "FENCED"
    # No allocation may be a victim: fences, priorities, guarantees of others, opt-outs.
    NO_VICTIMS = "NO_VICTIMS"
    # All possible victims together would not make room on one node, or below the limit.
    NOT_ENOUGH_VICTIMS = "NOT_ENOUGH_VICTIMS"
    # Room could be made only on nodes that are kept for other asks, which this ask does not outrank.
    NODES_CLAIMED = "NODES_CLAIMED"
    # A limit is exceeded in which no victim counts, such as the user's or group's own.
    LIMIT = "LIMIT"
    # There is room without preemption; the ask is just not placed yet.
    NOT_NEEDED = "NOT_NEEDED"
    # The search tried as many ways to make room as it may, and found none.
    TOO_MANY_WAYS = "TOO_MANY_WAYS"


_PREEMPTION_WORDS = {
    NoPreemptionReason.DISABLED: "preemption is off in this partition",
    NoPreemptionReason.NOT_ALLOWED: "it may not preempt",
    NoPreemptionReason.TOO_YOUNG: "it has not waited long enough to preempt",
    NoPreemptionReason.NO_GUARANTEE: "its queues have no guarantee for the requested amounts",
    NoPreemptionReason.OVER_GUARANTEE: "it would put its queue above its guarantee",
    NoPreemptionReason.FENCED: "its queue may not preempt outside, and has nothing of a lower priority",
    NoPreemptionReason.NO_VICTIMS: "no allocation may be preempted for it",
    NoPreemptionReason.NOT_ENOUGH_VICTIMS: "all possible victims together would not make room",
    NoPreemptionReason.NODES_CLAIMED: "the nodes that could have room for it are kept for other asks",
    NoPreemptionReason.LIMIT: "no victim counts in the limit that it would exceed",
    NoPreemptionReason.NOT_NEEDED: "it has, or soon will have, room without preemption",
    NoPreemptionReason.TOO_MANY_WAYS: "the search reached its limit of tries and found no victims",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason with its figures.

    :param queue: the path of the queue whose limit is exceeded, or "".
    :param who: the user or group whose limit is exceeded, or "".
    :param node: the required node, or "".
    :param resource_type: the first type that does not fit, or "".
    :param asked: the amount of that type that one ask wants.
    :param used: the queue's, user's or group's use of that type at the decision.
    :param limit: its limit, or the largest node's capacity.
    :param free: the largest amount that any one node had free.
    :param nodes: the number of usable nodes; ``reserved``: how many of these have room, but are reserved for other
        asks.
    :param lacking: by type, how many of the nodes had too little of it.
    :param closed: by closer, how many other nodes took no new allocations or did not exist any more. Nodes that are
        wanted back in part are also among ``nodes``.
    :param preemption: why preemption did not help; None: it was not tried.
    :param of_group: ``who`` is a group, if the code does not say so.
    :param promised: the amount of that type that started gangs will still take there.
    :param task_group: the incomplete task group of the gang; ``placed`` of its ``members`` placeholders are placed.
    :param placeholder: the key of the placeholder that makes room; for RM_TURN, of the ask with the open proposal.
    :param said: why the RM refused the named node, as the RM gave it; or why a pool gives nothing; for
        RESERVED_FOR_OTHERS, why it is not backfilled.
    :param because: why the rest of the gang's placeholders is pending, if known.
    :param since_ns: when this reason (code, queue, who, type) began.
    :param as_of_ns: the time of its figures; 0: when it began.
    """

    code: ReasonCode
    queue: str = ""
    resource_type: str = ""
    asked: int = 0
    used: int = 0
    limit: int = 0
    free: int = 0
    since_ns: int = 0
    who: str = ""
    node: str = ""
    nodes: int = 0
    reserved: int = 0
    lacking: tuple[tuple[str, int], ...] = ()
    preemption: NoPreemptionReason | None = None
    promised: int = 0
    of_group: bool = False
    task_group: str = ""
    placed: int = 0
    members: int = 0
    placeholder: str = ""
    because: Reason | None = None
    said: str = ""
    as_of_ns: int = 0
    closed: tuple[CordonCount, ...] = ()

    def same_as(self, reason: Reason | None) -> bool:
        """Whether the other is the same reason. (Its figures may differ, because they change all the time.)"""
        return (
            reason is not None
            and self.code is reason.code
            and self.queue == reason.queue
            and self.resource_type == reason.resource_type
            and self.who == reason.who
            and self.said == reason.said
        )

    def with_preemption(self, no: NoPreemptionReason) -> Reason:
        """The same reason, with the result of preemption."""
        return replace(self, preemption=no)

    def with_nodes(
        self, nodes: int, reserved: int, lacking: tuple[tuple[str, int], ...], closed: tuple[CordonCount, ...] = ()
    ) -> Reason:
        """The same reason, with the number of nodes, the types that they lacked, and how many each closer closed."""
        return replace(self, nodes=nodes, reserved=reserved, lacking=lacking, closed=closed)

    def sentence(self) -> str:
        """One or two sentences for people."""
        text = capital(f"{self.clause()}.")
        if self.code in _POOLS and self._is_pool and self.said:
            text += capital(f" {self.said}.")
        if any(name != self.resource_type for name, _ in self.lacking):  # otherwise the sentence says so already
            lacks = join_words([f"{number:,} lack{'s' if number == 1 else ''} {name}" for name, number in self.lacking])
            text += f" Of {pluralize(self.nodes, 'node')} {lacks}."
        if self.reserved:
            text += f" {pluralize(self.reserved, 'node')} with room {_is_are(self.reserved)} reserved for other asks."
        if self.closed and self.code is not ReasonCode.NO_NODES:
            text += f" {capital(describe_cordons(self.closed))}."
        if helps := self._what_helps():
            text += f" Waiting does not help: {helps} would, or asking for less."
        if self.preemption is not None:
            text += f" Preemption: {_PREEMPTION_WORDS[self.preemption]}."
        return text

    @property
    def is_for_ever(self) -> bool:
        """Whether waiting does not help, by these figures."""
        return bool(self._what_helps())

    def _what_helps(self) -> str:
        """The remedy if waiting does not help; "": waiting may help."""
        if self.code is ReasonCode.LARGER_THAN_ANY_NODE and not self.closed:  # (one of those may be large enough)
            return "a larger node" if self.limit else f"a node with {self.resource_type}"
        if self.code is ReasonCode.REQUIRED_NODE_FULL and self.asked > self.limit:
            return f"a larger node {self.node}"
        if self._is_pool and self.said:  # (the lost part may come back)
            return ""
        if self.code in _LIMITS and self.asked > self.limit:
            return "a larger pool" if self._is_pool else "a higher limit" if self.who else "a higher max"
        return ""

    def clause(self) -> str:
        """The reason as a clause that can follow "because"."""
        kind = self.resource_type
        match self.code:
            case ReasonCode.WAITING_FOR_TURN:
                return "the scheduler has not tried it yet"
            case ReasonCode.NO_NODES:
                if not self.closed:
                    return "the partition has no node"
                return f"the partition has no schedulable node: {describe_cordons(self.closed)}"
            case ReasonCode.LARGER_THAN_ANY_NODE:
                requested, limit = format_amounts(kind, self.asked, self.limit)
                has = f"the largest node has {limit} in all" if self.limit else "no node has any, even when empty"
                return f"it asks for {requested}, and {has}"
            case ReasonCode.NO_NODE_HAS_ROOM:
                requested, free = format_amounts(kind, self.asked, self.free)
                return f"it asks for {requested}, and no node has " + (
                    f"more than {free} free" if self.free else "any free"
                )
            case ReasonCode.FREE_RESOURCES_SCATTERED:
                return "no single node has every requested resource free"
            case ReasonCode.RESERVED_FOR_OTHERS:
                detail = f"; {self.said}" if self.said else ""  # why it is not backfilled
                return f"the nodes with room for it are reserved for asks that come before it{detail}"
            case ReasonCode.QUEUE_MAX | ReasonCode.USER_LIMIT | ReasonCode.GROUP_LIMIT:
                requested, used, limit = format_amounts(kind, self.asked, self.used, self.limit)
                if self.asked > self.limit:
                    return f"it asks for {requested}, and {self._may_have(limit)}"
                if self.code is ReasonCode.QUEUE_MAX and self._is_pool:
                    return f"{self._pool()}; {format_bare(kind, self.asked)} more would exceed it"
                if self.code is ReasonCode.QUEUE_MAX:
                    return f"queue {self.queue} uses {used} of its max of {limit}; {requested} more would exceed it"
                verb, theirs = ("use", "their") if self._is_all else ("uses", "its")
                return (
                    f"{self._subject()} {verb} {used} of {theirs} limit of {limit} in queue {self.queue}; "
                    f"{requested} more would exceed it"
                )
            case ReasonCode.QUEUE_MAX_APPLICATIONS:
                return f"queue {self.queue} runs {pluralize(self.used, 'application')} and may run {self.limit:,}"
            case ReasonCode.USER_MAX_APPLICATIONS | ReasonCode.GROUP_MAX_APPLICATIONS:
                who = f"{self._subject()} {'run' if self._is_all else 'runs'}"
                return f"{who} {pluralize(self.used, 'application')} in queue {self.queue} and may run {self.limit:,}"
            case ReasonCode.REQUIRED_NODE_UNKNOWN:
                return f"it must run on node {self.node}, which is not registered"
            case ReasonCode.REQUIRED_NODE_FULL:
                requested, free, limit = format_amounts(kind, self.asked, self.free, self.limit)
                free = f"{free} of its {limit}" if self.free else f"none of its {limit}"
                return f"it must run on node {self.node} and asks for {requested}, and that node has {free} free"
            case ReasonCode.GANG_ROOM:
                return self._gang_room()
            case ReasonCode.GANG_FORMING:
                return self._forming()
            case ReasonCode.PLACEHOLDER_LEAVING:
                return (
                    f"placeholder {self.placeholder} on node {self.node} was released for it; "
                    "the resource manager has not confirmed the release"
                )
            case ReasonCode.PLACEHOLDER_STUCK:
                return (
                    f"placeholder {self.placeholder} could make room for it, but the placeholder's node "
                    f"{self.node} is closed to it now, and no other node has room"
                )
            case ReasonCode.RM_ASKED:
                return f"the resource manager has not yet answered whether it may run on node {self.node}"
            case ReasonCode.RM_TURN:
                if not self.placeholder:
                    return "the resource manager answers one proposal at a time, and other proposals come first"
                where = f" on node {self.node}" if self.node else ""
                return f"it waits for the answer to the proposal of {self.placeholder}{where}"
            case ReasonCode.RM_ABSENT:
                return "the resource manager wants predicate calls before placements, but its callback stream is closed"
            case ReasonCode.REFUSED_BY_RM:
                detail = f": {self.said}" if self.said else ""
                if self.nodes == 1:
                    return f"the resource manager refused node {self.node} for it{detail}"
                return f"the resource manager refused {pluralize(self.nodes, 'node')} for it, {self.node} last{detail}"
            case ReasonCode.QUEUE_STOPPED:
                return f"queue {self.queue} is stopped"
            case ReasonCode.RM_STOPPED:
                return "the resource manager is stopped; start it so that it registers again, or forget it"
            case ReasonCode.RM_HELD:
                detail = f" ({self.said})" if self.said else ""
                return f"an operator paused the resource manager{detail}; nothing is scheduled until it is resumed"
            case ReasonCode.SOURCE_LISTING:
                return f"nothing is scheduled until source {self.said} has listed all its objects"

    def _gang_room(self) -> str:
        kind = self.resource_type
        requested, used, limit, promised = format_amounts(kind, self.asked, self.used, self.limit, self.promised)
        if self.asked > self.limit:
            return f"its gang starts as a whole and asks for {requested} in all, and {self._may_have(limit)}"
        if self._is_pool:
            usage, requested = self._pool(), format_bare(kind, self.asked)
        elif self.who:
            verb, theirs = ("use", "their") if self._is_all else ("uses", "its")
            usage = f"{self._subject()} {verb} {used} of {theirs} limit of {limit} in queue {self.queue}"
        else:
            usage = f"queue {self.queue} uses {used} of its max of {limit}"
        beside = f" {promised} are promised to gangs that have started;" if self.promised else ""
        return f"{usage};{beside} its gang asks for {requested} in all and starts as a whole"

    def _forming(self) -> str:
        if not self.task_group:
            requested, used = format_amounts(self.resource_type, self.asked, self.used)
            return (
                f"it waits for its gang, which announced placeholders of {requested}; "
                f"{used} are placed, and no more were asked for"
            )
        clause = (
            f"it waits for its gang: task group {self.task_group} has {self.placed:,} of "
            f"{pluralize(self.members, 'placeholder')} placed"
        )
        return clause if self.because is None else f"{clause}; of the rest: {self.because.clause()}"

    def _may_have(self, limit: str) -> str:
        """For a limit that the ask alone exceeds."""
        if self._is_pool:
            return f"the pool of {self.resource_type} has {format_bare(self.resource_type, self.limit)} in all"
        if self.who:
            return f"{self._subject()} may use {limit} in all in queue {self.queue}"
        return f"queue {self.queue} may use {limit} in all"

    @property
    def _is_pool(self) -> bool:
        """Whether the limit is a pool's: root has no other max."""
        return self.queue == "root" and not self.who

    def _pool(self) -> str:
        kind = self.resource_type
        used = f"{format_bare(kind, self.used)} {_is_are(self.used if self.used == 1 else 2)}"
        return f"the pool of {kind} has {format_bare(kind, self.limit)}, of which {used} used"

    @property
    def _is_group(self) -> bool:
        return self.code in (ReasonCode.GROUP_LIMIT, ReasonCode.GROUP_MAX_APPLICATIONS) or self.of_group

    @property
    def _is_all(self) -> bool:
        return self._is_group and self.who == "*"

    def _subject(self) -> str:
        if self._is_all:
            return "all groups without a limit of their own together"
        return f"{'group' if self._is_group else 'user'} {self.who}"


_POOLS = (ReasonCode.QUEUE_MAX,)
_LIMITS = (ReasonCode.QUEUE_MAX, ReasonCode.USER_LIMIT, ReasonCode.GROUP_LIMIT, ReasonCode.GANG_ROOM)


def _is_are(number: int) -> str:
    return "is" if number == 1 else "are"


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    start = len(text) - len(text.lstrip())
    return text[:start] + text[start : start + 1].upper() + text[start + 1 :]
