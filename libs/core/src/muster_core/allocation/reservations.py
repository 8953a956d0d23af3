"""Reservations: a node that is kept free for one ask, so that no other ask is placed there first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from muster_core.model.outcome import Change, Detail, EventType, Outcome, SchedulingState

if TYPE_CHECKING:
    from muster_core.allocation.waiting import Waiting
    from muster_core.model.application import Ask
    from muster_core.model.node import Node
    from muster_core.model.partition_state import PartitionState
    from muster_core.nodes.node_books import NodeBooks


class StateNotifications(Protocol):
    """Tells the RM the state of an ask."""

    def tell(self, ask: Ask, state: SchedulingState, reason: str, out: Outcome) -> None:
        """Tells the RM the state of the ask if the RM wants such messages."""


class Reservations:
    """The reservations of one partition. The asks and the nodes hold them."""

    _questions: StateNotifications

    def __init__(self, state: PartitionState, *, waiting: Waiting, node_books: NodeBooks) -> None:
        self._state = state
        self._waiting = waiting
        self._node_books = node_books

    def connect(self, *, questions: StateNotifications) -> None:
        """Takes the part that is built after this one."""
        self._questions = questions

    def reserve(self, ask: Ask, node: Node, out: Outcome, now_ns: int) -> None:
        """Reserves the node for the ask: no other ask is placed there until this ask is placed, or its reservation
        ends.
        """
        assert not ask.reserved_node, f"{ask} has node {ask.reserved_node} already"
        state = self._state
        ask.reserved_node, ask.reserved_ns = node.node_id, now_ns
        node.reservations[ask] = None
        state.reserved[node] = None
        self._node_books.list_node(node)
        out.touch(ask, state.name)
        if ask.group is not None:
            self._waiting.parking.review(ask.group)
        _event(Change.ADD, ask, node, out, now_ns)
        self._questions.tell(ask, SchedulingState.RESERVED, f"Node {node.node_id} is reserved for it.", out)
        if state.config.reservation.timeout_ns:
            state.deadlines.append((now_ns + state.config.reservation.timeout_ns, ask))

    def unreserve(self, ask: Ask, out: Outcome, now_ns: int) -> None:
        """Ends the ask's reservation: the node is open to all asks again."""
        node = self._state.nodes[ask.reserved_node]
        ask.reserved_node, ask.reserved_ns = "", 0
        del node.reservations[ask]
        if not node.reservations:
            self._state.reserved.pop(node, None)
        self._node_books.list_node(node)
        out.touch(ask, self._state.name)
        _event(Change.REMOVE, ask, node, out, now_ns)
        if not ask.gone and ask.group is not None:
            self._waiting.next_in_line(ask.group)

    def pass_on(self, old: Ask, new: Ask) -> None:
        """Copies the reservation and the wait of an ask to the ask that replaces it with the same amount."""
        new.notified = old.notified
        same = old.shape is new.shape and old.demand.required_node == new.demand.required_node
        if not same:
            return
        new.preempts, new.scaled_up, new.mismatched = old.preempts, old.scaled_up, old.mismatched
        if old.reserved_node:
            node = self._state.nodes[old.reserved_node]
            new.reserved_node, new.reserved_ns, old.reserved_node = node.node_id, old.reserved_ns, ""
            node.reservations = {new if ask is old else ask: None for ask in node.reservations}
            state = self._state
            state.deadlines.append((new.reserved_ns + state.config.reservation.timeout_ns, new))


def _event(change: Change, ask: Ask, node: Node, out: Outcome, now_ns: int) -> None:
    detail = Detail.NODE_RESERVATION
    out.track(EventType.NODE, change, detail, node.node_id, ask.key, ask.shape, now_ns=now_ns)
