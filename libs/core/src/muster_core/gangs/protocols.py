"""Protocols: what gangs need from parts that are built after them."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from muster_core.model.application import Allocation, Ask, AskGroup
    from muster_core.model.node import Node
    from muster_core.model.outcome import Outcome
    from muster_core.model.predicate_checks import PredicateCheck


class ReplacementChecks(Protocol):
    """The questions to the RM about placeholders and the asks that take their places."""

    @property
    def predicates(self) -> bool:
        """Whether the RM is asked before a placement."""

    def refused_ids(self, ask: Ask) -> Collection[str]:
        """The ids of the nodes that the RM refused for the ask."""

    def propose_replacement(
        self, ask: Ask, group: AskGroup, placeholder: Allocation, node: Node, out: Outcome, now_ns: int
    ) -> None:
        """Proposes that a placeholder makes room for a real ask."""

    def withdraw(self, check: PredicateCheck, out: Outcome | None) -> None:
        """Withdraws the question."""


class NodeExclusivity(Protocol):
    """Decides which nodes the scheduler may propose now."""

    def may_propose(self, ask: Ask, node: Node) -> bool:
        """Whether the scheduler may propose the node for the ask now."""


class RealAskAllocator(Protocol):
    """The part that places real asks."""

    def find_node(self, ask: Ask, group: AskGroup) -> Node | None:
        """The node on which the ask may be placed now; None: there is none."""

    def allocate(
        self,
        ask: Ask,
        group: AskGroup | None,
        node: Node,
        out: Outcome,
        now_ns: int,
        replaces: Allocation | None = None,
    ) -> None:
        """Makes one allocation of an ask on a node that has room."""


class StuckAskReporter(Protocol):
    """The part that reports asks for which the cluster is too small."""

    def request_scale_up(self, group: AskGroup, now_ns: int) -> None:
        """Reports asks for which placeholders could make room, but which fit on no node."""
