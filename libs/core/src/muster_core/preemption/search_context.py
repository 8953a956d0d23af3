"""The data that a search for victims reads: the partition's objects, its nodes in order, and the room for gangs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from muster_core.gangs.gang_headroom import GangHeadroom
    from muster_core.model.partition_state import PartitionState
    from muster_core.nodes.node_accounting import NodeAccounting


class PreemptionPolicySource(Protocol):
    """Whether the RM is asked before a preemption."""

    @property
    def preemption(self) -> bool:
        """Whether the RM is asked."""


class SearchContext:
    """The data of one partition for a search of victims. The search changes nothing.

    :ivar state: the partition's objects.
    :ivar room: the room that limits leave to gangs.
    :ivar node_books: the nodes, in the order of the search.
    :ivar questions: whether the RM is asked before a preemption.
    """

    __slots__ = ("node_books", "questions", "room", "state")

    def __init__(
        self,
        state: PartitionState,
        *,
        room: GangHeadroom,
        node_books: NodeAccounting,
        questions: PreemptionPolicySource,
    ) -> None:
        self.state = state
        self.room = room
        self.node_books = node_books
        self.questions = questions
