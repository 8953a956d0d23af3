"""The RM's refusals of nodes for one ask, and its open questions: plain data (the scheduler interface, "Scheduler
plugin").

``predicates/refused_nodes.py`` works with them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from muster_core.model.reasons import Reason, ReasonCode


@dataclass(frozen=True, slots=True)
class PendingCheck:
    """The node about which the RM was asked, and when."""

    node_id: str
    since_ns: int

    @property
    def reason(self) -> Reason:
        """Why the ask is pending meanwhile."""
        return Reason(ReasonCode.RM_ASKED, node=self.node_id, since_ns=self.since_ns)


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """The RM refused a node for an ask.

    :param unanswered: the RM did not answer in time.
    """

    node_id: str
    reason: str
    refused_ns: int
    unanswered: bool = False


@dataclass(slots=True, eq=False)
class NodeRefusals:
    """The nodes that the RM refused for one ask.

    :ivar nodes: by id, in the order of the refusals.
    :ivar rounds: how often all refusals were forgotten.
    :ivar until_ns: when they will be forgotten; 0: there are none.
    :ivar resting: those of ``nodes`` on which an allocation ended. The RM is asked about them again from ``again_ns``
        on, not at once, because it was asked a moment ago. The record does not have them any more.
    :ivar rest_ns: how long the last rest was.
    :ivar armed_ns: the next deadline; 0: none.
    :ivar turn: where the ask gives way to others, the number of its last refused turn (``allocation/exclusivity.py``).
    """

    nodes: dict[str, NodeRefusal] = field(default_factory=dict)
    rounds: int = 0
    until_ns: int = 0
    resting: dict[str, None] = field(default_factory=dict)
    again_ns: int = 0
    rest_ns: int = 0
    armed_ns: int = 0
    turn: int = 0

    @property
    def last(self) -> NodeRefusal | None:
        """The latest refusal; None: there is none."""
        return next(reversed(self.nodes.values()), None)

    @property
    def answered(self) -> int:
        """How many of them the RM answered."""
        return sum(not refusal.unanswered for refusal in self.nodes.values())
