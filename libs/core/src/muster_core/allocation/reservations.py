"""Claims on nodes: a node that is kept free for one ask.

An ask has at most one claim, and a claim has one owner, its ask, which still wants it, and one end:

* A claim by age begins after ``reservation.delay`` and gives way to asks of higher rank (``rank.py``). It ends at
  ``reservation.timeout`` if a limit stops the ask, and when reservations are switched off.
* A claim by preemption begins when victims are released for the ask, and gives way to daemons of that node only. It
  ends when the ask is placed, or when the room is lost: then the ask may preempt again after a pause.
* A daemon's claim begins at once, and gives way to nothing.
* A claim of a replacement begins when a placeholder leaves for an ask that is placed on another node, and ends when the
  placeholder is gone. It gives way to daemons of that node only.

Each of them also ends when its ask is gone; when its node is removed, closed or too small; and when the RM refuses the
node for the ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from muster_core.model.outcome import EventChange, EventDetail, EventType, Outcome, SchedulingState
from muster_core.model.resources import fits
from muster_core.queues.rank import may_take_over, outranks

if TYPE_CHECKING:
    from muster_core.allocation.scheduling_queue import SchedulingQueue
    from muster_core.model.application import Ask
    from muster_core.model.node import Node
    from muster_core.model.partition_state import PartitionState
    from muster_core.model.queue import Queue
    from muster_core.nodes.node_accounting import NodeAccounting


class AskStateNotifier(Protocol):
    """Tells the RM the state of an ask."""

    def notify_state(self, ask: Ask, state: SchedulingState, reason: str, out: Outcome) -> None:
        """Tells the RM the state of the ask if the RM wants such messages."""


class Reservations:
    """The claims on nodes of one partition. The asks and the nodes hold them."""

    _questions: AskStateNotifier

    def __init__(self, state: PartitionState, *, waiting: SchedulingQueue, node_books: NodeAccounting) -> None:
        self._state = state
        self._waiting = waiting
        self._node_books = node_books
        # By leaf and priority, the youngest ask with a claim by age; None: to be computed again.
        self._youngest: dict[tuple[Queue, int], Ask] | None = None
        # By queue with a guarantee, what it used of these types.
        self._used: dict[Queue, dict[int, int]] = {}
        self._used_version = -1

    def connect(self, *, questions: AskStateNotifier) -> None:
        """Takes the part that is built after this one."""
        self._questions = questions

    def activate(self) -> None:
        """Begins with the claims that were folded."""
        state = self._state
        for node in state.nodes.values():
            # (Sorted by the time of reservation, as before. A fold adds them in the order in which the asks arrived.)
            node.reservations = dict.fromkeys(
                sorted(node.reservations, key=lambda ask: (ask.reserved_ns, ask.submission))
            )
            if node.reservations:
                state.reserved[node] = None
            for ask in node.reservations:
                self.limit_time(ask)

    def reserve(self, ask: Ask, node: Node, out: Outcome, now_ns: int) -> None:
        """Reserves the node for the ask: no other ask is placed there until this ask is placed, or its reservation
        ends; but see :attr:`Ask.yields`.
        """
        assert not ask.reserved_node, f"{ask} has node {ask.reserved_node} already"
        state = self._state
        ask.reserved_node, ask.reserved_ns = node.node_id, now_ns
        node.reservations[ask] = None
        state.reserved[node] = None
        self._youngest = None
        self._node_books.update_index(node)
        out.mark_changed(ask, state.name)
        if ask.group is not None:
            self._waiting.parking.review(ask.group)
        _event(EventChange.ADD, ask, node, out, now_ns)
        self._questions.notify_state(ask, SchedulingState.RESERVED, f"Node {node.node_id} is reserved for it.", out)
        self.limit_time(ask)

    def take_over(self, ask: Ask, node: Node, out: Outcome, now_ns: int) -> None:
        """Reserves the node for the ask. Other claims there end."""
        for holder in list(node.reservations):
            self.unreserve(holder, out, now_ns)
        self.reserve(ask, node, out, now_ns)

    def claim(self, ask: Ask, node: Node, out: Outcome, now_ns: int) -> None:
        """Claims the room that victims leave on the node for the ask. Other claims there end."""
        if ask.reserved_node != node.node_id:
            if ask.reserved_node:
                self.unreserve(ask, out, now_ns)
            self.take_over(ask, node, out, now_ns)
        ask.preempts, ask.planned_ns, ask.lost = True, now_ns, ""
        self._youngest = None
        if ask.group is not None:
            self._waiting.parking.review(ask.group)
        out.mark_changed(ask, self._state.name)

    def limit_time(self, ask: Ask) -> None:
        """Sets the deadline of the ask's reservation, if it has one."""
        state = self._state
        if state.config.reservation.timeout_ns:
            state.deadlines.append((ask.reserved_ns + state.config.reservation.timeout_ns, ask))

    def unreserve(self, ask: Ask, out: Outcome, now_ns: int, lost: str = "") -> None:
        """Ends the ask's claim: the node is open to all asks again.

        :param lost: why the room is lost, as a clause, if the ask still wants it.
        """
        node = self._state.nodes[ask.reserved_node]
        self._end_preemption(ask, lost, out, now_ns)
        ask.reserved_node, ask.reserved_ns = "", 0
        del node.reservations[ask]
        if not node.reservations:
            self._state.reserved.pop(node, None)
        self._state.contested.pop(node, None)
        self._youngest = None
        self._node_books.update_index(node)
        out.mark_changed(ask, self._state.name)
        _event(EventChange.REMOVE, ask, node, out, now_ns)
        if not ask.gone and ask.group is not None:
            self._waiting.rekey_head(ask.group)

    def _end_preemption(self, ask: Ask, lost: str, out: Outcome, now_ns: int) -> None:
        """Ends the claim on what victims leave. A lost one is told, and planned anew after a pause."""
        if not ask.preempts:
            return
        ask.preempts = False
        if not lost:
            ask.planned_ns, ask.lost = 0, ""
            return
        ask.lost = lost
        text = f"The room that was made for it on node {ask.reserved_node} is lost: {lost}"
        out.add_user_event(ask.key, ask.app.app_id, ask.shape, text, now_ns)

    def placed(self, ask: Ask, node: Node, out: Outcome, now_ns: int) -> None:
        """One allocation of the ask is being placed on the node: its claim has done its work."""
        if ask.reserved_node and (node.node_id == ask.reserved_node or not ask.awaits_placeholders):
            self.unreserve(ask, out, now_ns)
        ask.planned_ns, ask.lost = 0, ""

    def transfer(self, old: Ask, new: Ask, out: Outcome, now_ns: int) -> None:
        """Copies the claim and the wait of an ask to the ask that replaces it.

        A claim by age is for the amount that waited. Room that victims leave stays claimed for another amount, too: if
        it does not suffice, it is lost when all of them are gone.
        """
        new.notified = old.notified
        if old.demand.required_node != new.demand.required_node:
            return
        same = old.shape is new.shape
        new.planned_ns, new.lost = old.planned_ns, old.lost
        if same:
            new.scaled_up, new.mismatched = old.scaled_up, old.mismatched
        node = self._state.nodes.get(old.reserved_node)
        if node is not None and (same or (old.preempts and fits(new.shape.items, node.capacity))):
            new.preempts, old.preempts = old.preempts, False
            new.reserved_node, new.reserved_ns, old.reserved_node = node.node_id, old.reserved_ns, ""
            node.reservations = {new if ask is old else ask: None for ask in node.reservations}
            self._youngest = None
            self.limit_time(new)
            if not same:
                _event(EventChange.REMOVE, old, node, out, now_ns)
                _event(EventChange.ADD, new, node, out, now_ns)

    # ---- ends ------------------------------------------------------------------------------------------------------

    def review(self, ask: Ask, node: Node, out: Outcome, now_ns: int, *, limited: bool) -> None:
        """Ends a claim by preemption whose room is lost: all victims are gone from the node, and the ask is not placed.

        :param limited: a limit stops the ask, though the node has room.
        """
        if not ask.preempts:
            return
        state, app_id = self._state, ask.app.app_id
        if fits(ask.shape.items, node.available):
            if not limited or state.victims.get((app_id, ask.key)):
                return
            lost = "a limit stops the ask"
        else:
            for allocation in node.allocations.values():
                record = allocation.preempted
                if record is not None and record.key == ask.key and record.app_id == app_id:
                    return
            lost = "others use it"
        if ask.demand.required_node:  # (it waits for this node in any case)
            self._end_preemption(ask, lost, out, now_ns)
            out.mark_changed(ask, state.name)
            if ask.group is not None:
                self._waiting.rekey_head(ask.group)
        else:
            self.unreserve(ask, out, now_ns, lost)

    def reconfigured(self, out: Outcome, now_ns: int) -> None:
        """Ends the claims that the present configuration does not provide for."""
        state = self._state
        for node in list(state.reserved):
            for ask in list(node.reservations):
                if ask.preempts and not ask.demand.required_node and not state.config.preemption.enabled:
                    self._end_preemption(ask, "", out, now_ns)
                    self._youngest = None
                    out.mark_changed(ask, state.name)
                if ask.yields and not state.config.reservation.enabled:
                    self.unreserve(ask, out, now_ns)
                else:
                    self.limit_time(ask)  # (it may have changed)

    # ---- rank ------------------------------------------------------------------------------------------------------

    def giving_way(self, ask: Ask) -> list[Node]:
        """The nodes whose reservations by age the ask may take over."""
        if self._youngest is None:
            self._youngest = {}
            for node in self._state.reserved:
                for holder in node.reservations:
                    if holder.yields:
                        key = (holder.app.queue, holder.priority)
                        youngest = self._youngest.get(key)
                        if youngest is None or holder.age > youngest.age:
                            self._youngest[key] = holder
        # (If it does not outrank the youngest ask of a leaf and priority, it outranks none of them.)
        if not any(outranks(ask, holder) for holder in self._youngest.values()):
            return []
        reserved = self._state.reserved
        return [node for node in reserved if all(may_take_over(ask, holder) for holder in node.reservations)]

    def guarantees_moved(self) -> tuple[set[Queue], set[Queue]]:
        """The queues with guarantees that use less than when this was last called, and those that reached a guarantee
        since: the rank of their asks may be another one.
        """
        lowered: set[Queue] = set()
        raised: set[Queue] = set()
        if self._used_version == self._state.version:
            return lowered, raised
        self._used_version = self._state.version
        for queue in self._state.queues.values():
            if queue.guaranteed is None:
                continue
            used = {number: queue.allocated[number] for number in queue.guaranteed}
            before = self._used.get(queue, {})
            self._used[queue] = used
            if any(used[number] < before.get(number, 0) for number in used):
                lowered.add(queue)
            if any(before.get(number, 0) < least <= used[number] for number, least in queue.guaranteed.items()):
                raised.add(queue)
        if len(self._used) > 2 * len(self._state.queues):
            self._used = {queue: used for queue, used in self._used.items() if not queue.gone}
        return lowered, raised


def _event(change: EventChange, ask: Ask, node: Node, out: Outcome, now_ns: int) -> None:
    detail = EventDetail.NODE_RESERVATION
    out.add_event(EventType.NODE, change, detail, node.node_id, ask.key, ask.shape, now_ns=now_ns)
