"""What the RM is asked before something is decided, and what it said: plain data (seed 000, "Scheduler plugin").

What is done with them is in ``questions.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from muster_scheduler.core.reasons import Reason, ReasonCode

if TYPE_CHECKING:
    from muster_scheduler.core.objects import Allocation, Ask, Node
    from muster_scheduler.core.past import Past

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class CallbackPolicy:
    """What the RM wants to be asked and told, and what happens when it is not there.

    :param predicates: it is asked before an allocation, a reservation, a replacement.
    :param preemption: it is asked before a preemption.
    :param states: it is told of asks that are skipped, reserved for, or fit nowhere.
    :param connected: its stream is open; ``since_ns``: since when it is, or is not.
    :param timeout_ns: for one answer.
    :param retry_ns: until refusals are forgotten, the first time.
    :param grace_ns: how long questions go on after the stream was lost.
    :param waits: without a stream nothing is placed; else whatever fits is.
    """

    predicates: bool = False
    preemption: bool = False
    states: bool = False
    connected: bool = False
    since_ns: int = 0
    timeout_ns: int = 10 * SECOND_NS
    retry_ns: int = 10 * SECOND_NS
    grace_ns: int = 30 * SECOND_NS
    waits: bool = False


class InquiryKind(StrEnum):
    """What the answer decides."""

    # An allocation; it is booked on the node already.
    PLACE = "PLACE"
    # An allocation on the first of several nodes that the RM agrees to; the best of them is booked.
    PROBE = "PROBE"
    # The replacement of a placeholder.
    REPLACE = "REPLACE"
    # A node that is kept free.
    RESERVE = "RESERVE"
    # Victims that are told to go.
    PREEMPT = "PREEMPT"


@dataclass(frozen=True, slots=True)
class Asked:
    """The node that the RM was asked about, and when."""

    node_id: str
    since_ns: int

    @property
    def reason(self) -> Reason:
        """Why the ask is pending meanwhile."""
        return Reason(ReasonCode.RM_ASKED, node=self.node_id, since_ns=self.since_ns)


class Inquiry:
    """One matter that the RM is asked about: one question for each node that comes into question.

    :ivar nodes: by question id, the best first.
    :ivar answers: the reasons of the refusals, by question id; None: the node will do.
    :ivar booked: the node on which it counts; None: on none.
    :ivar due_ns: when it is too late for an answer.
    :ivar placeholder: of REPLACE, the one that would make room.
    :ivar victims: of PREEMPT, those who may go, in order; the first ``least`` of them go in any case, and the RM says
        with a yes up to which, ``going`` of them in all.
    :ivar past: what the ask had waited for when it was put.
    :ivar gone: it is settled, or withdrawn.
    """

    __slots__ = (
        "answers",
        "ask",
        "asked",
        "booked",
        "due_ns",
        "going",
        "gone",
        "kind",
        "least",
        "nodes",
        "past",
        "placeholder",
        "victims",
    )

    def __init__(self, kind: InquiryKind, ask: Ask, nodes: dict[int, Node], now_ns: int, due_ns: int) -> None:
        self.kind = kind
        self.ask = ask
        self.nodes = nodes
        self.answers: dict[int, str | None] = {}
        self.asked = Asked(next(iter(nodes.values())).node_id, now_ns)
        self.booked: Node | None = None
        self.due_ns = due_ns
        self.placeholder: Allocation | None = None
        self.past: Past = ()
        self.victims: tuple[Allocation, ...] = ()
        self.least = self.going = 0
        self.gone = False

    @property
    def is_clear(self) -> bool:
        """The best node that will do is known, or that none does; what is said of worse ones does not matter."""
        for question in self.nodes:
            if question not in self.answers:
                return False
            if self.answers[question] is None:
                return True
        return True

    @property
    def holds_out(self) -> bool:
        """One of the ask's pending ones waits for it, and is not tried meanwhile."""
        return self.kind in _HOLDING

    def __repr__(self) -> str:
        return f"Inquiry({self.kind}, {self.ask}, {[node.node_id for node in self.nodes.values()]})"


_HOLDING = frozenset({InquiryKind.PLACE, InquiryKind.PROBE, InquiryKind.REPLACE})


@dataclass(frozen=True, slots=True)
class Refusal:
    """The RM does not want a node for an ask.

    :param unanswered: it did not say so: its time was up.
    """

    node_id: str
    reason: str
    refused_ns: int
    unanswered: bool = False


@dataclass(slots=True, eq=False)
class Refusals:
    """The nodes that the RM refused for one ask.

    :ivar nodes: by id, in the order in which they were refused.
    :ivar rounds: how often they were all forgotten.
    :ivar until_ns: when they will be; 0: there are none.
    :ivar armed: a deadline will come for it.
    """

    ask: Ask
    nodes: dict[str, Refusal] = field(default_factory=dict)
    rounds: int = 0
    until_ns: int = 0
    armed: bool = False

    @property
    def gone(self) -> bool:
        """Nobody cares any more."""
        return self.ask.gone or self.ask.refusals is not self

    @property
    def last(self) -> Refusal | None:
        """The one that came last."""
        return next(reversed(self.nodes.values()), None)

    @property
    def answered(self) -> int:
        """How many of them are the RM's word."""
        return sum(not refusal.unanswered for refusal in self.nodes.values())
