"""Predicate checks: questions to the RM before decisions, and the RM's answers, as plain data (the scheduler interface,
"Scheduler plugin").

``predicates/predicate_calls.py`` works with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from muster_core.model.refusals import PendingCheck

if TYPE_CHECKING:
    from muster_core.model.application import Allocation, Application, Ask
    from muster_core.model.node import Node
    from muster_core.model.reason_history import Past
    from muster_core.model.refusals import NodeRefusals


class CheckKind(StrEnum):
    """The kinds of decisions."""

    # An allocation, which is booked on the node already.
    PLACE = "PLACE"
    # An allocation on the first of several nodes to which the RM agrees. The best node is booked.
    PROBE = "PROBE"
    # The replacement of a placeholder.
    REPLACE = "REPLACE"
    # The reservation of a node.
    RESERVE = "RESERVE"
    # The release of victims.
    PREEMPT = "PREEMPT"


class PredicateCheck:
    """One decision about which the RM is asked, with one question for each possible node.

    :ivar holds_out: whether one of the ask's pending allocations waits for it, and is not tried meanwhile.
    :ivar nodes: by question id, the best first.
    :ivar answers: by question id, the reason of a refusal; None: the RM agreed to the node.
    :ivar booked: the node on which the proposal counts; None: on none.
    :ivar due_ns: when an answer is late.
    :ivar placeholder: of REPLACE, the placeholder that would make room.
    :ivar victims: of PREEMPT, the allocations that may go, in order. The first ``least`` go in any case. If the RM
        agrees, it names the last one that goes: ``going`` in all.
    :ivar changed_nodes: those of its nodes on which an allocation ended since the question was sent: a refusal may
        concern the earlier state.
    :ivar past: the ask's past reasons when the question was sent.
    :ivar gone: it is decided, or withdrawn.
    """

    __slots__ = (
        "answers",
        "ask",
        "asked",
        "booked",
        "changed_nodes",
        "due_ns",
        "going",
        "gone",
        "holds_out",
        "kind",
        "least",
        "nodes",
        "past",
        "placeholder",
        "victims",
    )

    def __init__(self, kind: CheckKind, ask: Ask, nodes: dict[int, Node], now_ns: int, due_ns: int) -> None:
        self.kind = kind
        self.holds_out = kind is not CheckKind.RESERVE and kind is not CheckKind.PREEMPT
        self.ask = ask
        self.nodes = nodes
        self.answers: dict[int, str | None] = {}
        self.asked = PendingCheck(next(iter(nodes.values())).node_id, now_ns)
        self.booked: Node | None = None
        self.due_ns = due_ns
        self.placeholder: Allocation | None = None
        self.changed_nodes: dict[Node, None] | None = None
        self.past: Past = ()
        self.victims: tuple[Allocation, ...] = ()
        self.least = self.going = 0
        self.gone = False

    @property
    def is_clear(self) -> bool:
        """Whether the answers suffice: the best agreed node is known, or that there is none. Answers about worse nodes
        do not matter.
        """
        for question in self.nodes:
            if question not in self.answers:
                return False
            if self.answers[question] is None:
                return True
        return True

    def __repr__(self) -> str:
        return f"PredicateCheck({self.kind}, {self.ask}, {[node.node_id for node in self.nodes.values()]})"


class OpenChecks:
    """The open checks to the RM.

    :ivar of_asks: by ask, checks that each stand for one of its pending allocations (:attr:`PredicateCheck.holds_out`).
    :ivar of_nodes: by node, the checks about it. A proposal on the node counts in its ``allocated`` already.
    :ivar of_placeholders: by placeholder, the check about its replacement. Until the answer, the placeholder is not
        free.
    """

    def __init__(self) -> None:
        self.of_asks: dict[Ask, dict[PredicateCheck, None]] = {}
        self.of_nodes: dict[Node, dict[PredicateCheck, None]] = {}
        self.of_placeholders: dict[Allocation, PredicateCheck] = {}

    def for_ask(self, ask: Ask) -> list[PredicateCheck]:
        """The checks for which the ask waits, in the order in which they were sent."""
        return list(self.of_asks.get(ask, ()))

    def about_node(self, node: Node) -> list[PredicateCheck]:
        """The checks about the node, in the order in which they were sent."""
        return list(self.of_nodes.get(node, ()))

    def about_places_of(self, app: Application) -> list[PredicateCheck]:
        """The checks about replacements of the application's placeholders, in the order in which they were sent."""
        return [check for placeholder, check in self.of_placeholders.items() if placeholder.app is app]

    def add(self, check: PredicateCheck) -> None:
        """Files a check that is sent to the RM."""
        for node in check.nodes.values():
            self.of_nodes.setdefault(node, {})[check] = None
        if check.holds_out:
            ask = check.ask
            self.of_asks.setdefault(ask, {})[check] = None
            if ask.asking is None:
                ask.asking = []
            ask.asking.append(check.asked)

    def remove(self, check: PredicateCheck) -> None:
        """Removes a check that is over."""
        for node in check.nodes.values():
            _drop(self.of_nodes, node, check)
        ask = check.ask
        if check in self.of_asks.get(ask, ()):
            _drop(self.of_asks, ask, check)
            if ask.asking is not None:
                # (This one, not one that is equal: the others keep their order.)
                ask.asking = [pending_check for pending_check in ask.asking if pending_check is not check.asked] or None


K = TypeVar("K")


def _drop(checks: dict[K, dict[PredicateCheck, None]], key: K, check: PredicateCheck) -> None:
    key_checks = checks.get(key)
    if key_checks is not None:
        key_checks.pop(check, None)
        if not key_checks:
            del checks[key]


@dataclass(frozen=True, slots=True, eq=False)
class RefusalExpiry:
    """A deadline of an ask's refusals: the RM may be asked again then."""

    ask: Ask
    refusals: NodeRefusals

    @property
    def gone(self) -> bool:
        """Whether the ask is gone, or has other refusals now."""
        return self.ask.gone or self.ask.refusals is not self.refusals
