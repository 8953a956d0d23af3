"""The nodes that the RM refused for asks, and when the scheduler asks about them again.

The scheduler forgets refusals after a pause, which grows; when the node changes; and when an allocation on the node
ends. It cannot see everything that the RM checks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from muster_core.model.application import Ask, AskGroup
from muster_core.model.node import Node
from muster_core.model.outcome import Outcome
from muster_core.model.predicate_checks import RefusalExpiry
from muster_core.model.reasons import Reason, ReasonCode
from muster_core.model.refusals import NodeRefusal, NodeRefusals
from muster_core.model.resources import fits
from muster_core.model.scopes import SECOND_NS, CallbackPolicy

if TYPE_CHECKING:
    from muster_core.allocation.scheduling_queue import SchedulingQueue
    from muster_core.gangs.gangs import Gangs
    from muster_core.model.partition_state import PartitionState
    from muster_core.nodes.node_accounting import NodeAccounting

# The pause before refusals are forgotten doubles up to this value.
RETRY_MAX_NS = 60 * SECOND_NS
# If the RM refuses a node again after an allocation ended there, the ask rests: twice as long each time, up to the
# first pause.
REST_MIN_NS = SECOND_NS // 4


class RefusedNodes:
    """The refusals of one partition's RM. The asks and the nodes hold them.

    :ivar policy: the decisions before which the RM wants to be asked, and the states of which it wants to be notified.
    """

    def __init__(
        self, state: PartitionState, *, waiting: SchedulingQueue, node_books: NodeAccounting, gangs: Gangs
    ) -> None:
        self._state = state
        self._waiting = waiting
        self._node_books = node_books
        self._gangs = gangs
        self.policy = CallbackPolicy()
        self._refused: dict[Ask, None] = {}
        # Nodes that changed, or on which an allocation ended or changed, since the last search.
        self._changed_nodes: dict[Node, None] = {}
        # By ask, nodes whose refusals may be older than such a change.
        self._outdated: dict[Ask, list[str]] = {}

    def refused_ids(self, ask: Ask) -> Collection[str]:
        """The ids of the nodes that the RM refused for the ask."""
        return ask.refusals.nodes if ask.refusals is not None else ()

    def _refuse(self, ask: Ask, refusal: NodeRefusal, node: Node, out: Outcome, now_ns: int) -> None:
        if ask.refusals is None:
            ask.refusals = NodeRefusals()
        refusals = ask.refusals
        self._refused[ask] = None
        refusals.nodes[refusal.node_id] = refusal
        node.refused_by[ask] = None
        out.mark_changed(ask, self._state.name)
        refusals.resting.pop(refusal.node_id, None)
        pause_ns = min(self.policy.retry_ns << min(refusals.rounds, 16), RETRY_MAX_NS)
        refusals.until_ns = now_ns + max(pause_ns, self.policy.retry_ns)
        if not refusals.armed_ns:
            self._arm_refusals(ask, refusals, refusals.until_ns)

    def _date(self, ask: Ask, node: Node, *, before_change: bool) -> None:
        """Notes whether a refusal may be about what was on the node before. What the RM says of the node as it is now
        counts more, whichever of several answers comes first.
        """
        node_id, refusals = node.node_id, ask.refusals
        outdated = self._outdated.get(ask, [])
        if not before_change:
            if node_id in outdated:
                outdated[:] = [outdated_id for outdated_id in outdated if outdated_id != node_id]
        elif refusals is None or node_id not in refusals.nodes or node_id in refusals.resting:
            self._outdated.setdefault(ask, []).append(node_id)

    def _forget(self, ask: Ask, node_ids: Collection[str]) -> None:
        assert ask.refusals is not None, f"nothing is refused for {ask}"
        for node_id in node_ids:
            ask.refusals.resting.pop(node_id, None)
            if ask.refusals.nodes.pop(node_id, None) is not None:
                node = self._state.nodes.get(node_id)
                if node is not None:
                    node.refused_by.pop(ask, None)

    def _forget_unanswered(self, ask: Ask, out: Outcome) -> None:
        refusals = ask.refusals
        unanswered = [refusal.node_id for refusal in refusals.nodes.values() if refusal.unanswered] if refusals else []
        if unanswered:
            self._forgive(ask, unanswered, out)

    def _forgive(self, ask: Ask, node_ids: Collection[str], out: Outcome) -> None:
        """Lifts the refusal of these nodes for the ask, and lets the ask be tried again."""
        self._forget(ask, node_ids)
        state, group = self._state, ask.group
        out.mark_changed(ask, state.name)
        if group is None:
            return
        if group.held:
            self._gangs.review_group(group)
        elif group.parked_key is not None:
            self._waiting.unpark(group, out)
            self._waiting.make_ready(group)

    def node_changed(self, node: Node, out: Outcome) -> None:
        """Reviews the RM's refusals of a node that changed."""
        for ask in list(node.refused_by):
            self._forgive(ask, [node.node_id], out)

    def refusal_reason(self, group: AskGroup) -> Reason | None:
        """The reason if the RM refused all nodes with room for an ask that is apart; None: that is not the reason."""
        ask = group.head()
        if ask is None or ask.refusals is None or (last := ask.refusals.last) is None:
            return None
        items, required = group.shape.items, group.required_node
        node = self._state.nodes.get(required) if required else self._node_books.index.first_fit(items)
        if node is None or not fits(items, node.available) or (required and required not in ask.refusals.nodes):
            return None
        return Reason(ReasonCode.REFUSED_BY_RM, nodes=len(ask.refusals.nodes), node=last.node_id, said=last.reason)

    def mark_changed(self, node: Node) -> None:
        """Notes that an allocation on the node ended or changed: the RM's refusals of the node are reviewed.

        The RM's predicates may depend on that: on ports, on disks, on which allocations run side by side.
        """
        self._changed_nodes[node] = None

    @property
    def has_wakeups(self) -> bool:
        """Whether nodes changed that :meth:`retry_changed` has not reviewed yet."""
        return bool(self._changed_nodes or self._outdated)

    def retry_changed(self, out: Outcome, now_ns: int) -> None:
        """Called before a search: asks again about refused nodes on which an allocation ended.

        The first time, it asks at once. Later, the ask first rests, longer each time. So on a busy node that the RM
        refuses again and again, the scheduler asks now and then, and not after each end of an allocation.
        """
        if not self.has_wakeups:
            return
        changed, self._changed_nodes = self._changed_nodes, {}
        outdated, self._outdated = self._outdated, {}
        for node in changed:
            if node.gone:
                continue
            for check in self._state.checks.about_node(node):
                if check.changed_nodes is None:
                    check.changed_nodes = {}
                check.changed_nodes[node] = None
            for ask in node.refused_by:
                outdated.setdefault(ask, []).append(node.node_id)
        for ask, node_ids in outdated.items():
            still = [node_id for node_id in node_ids if node_id in self.refused_ids(ask)]
            if still and not ask.gone:
                self._look_again_at(ask, still, out, now_ns)

    def _look_again_at(self, ask: Ask, node_ids: Sequence[str], out: Outcome, now_ns: int) -> None:
        refusals = ask.refusals
        assert refusals is not None, f"nothing is refused for {ask}"
        if now_ns >= refusals.again_ns:
            quiet = now_ns >= refusals.again_ns + refusals.rest_ns
            self._rest_from(refusals, 0 if quiet else refusals.rest_ns, now_ns)
            self._forgive(ask, node_ids, out)
        elif not all(node_id in refusals.resting for node_id in node_ids):
            refusals.resting.update(dict.fromkeys(node_ids))
            out.mark_changed(ask, self._state.name)  # (a restart need not wait)
            self._arm_refusals(ask, refusals, refusals.again_ns)

    def _rest_from(self, refusals: NodeRefusals, rested_ns: int, now_ns: int) -> None:
        refusals.rest_ns = min(2 * rested_ns, self.policy.retry_ns) if rested_ns else REST_MIN_NS
        refusals.again_ns = now_ns + refusals.rest_ns

    def on_retry_deadline(self, retry: RefusalExpiry, due_ns: int, out: Outcome, now_ns: int) -> None:
        """Handles the end of a pause: the RM may be asked again about the nodes that changed meanwhile, or about all
        nodes.
        """
        ask, refusals = retry.ask, retry.refusals
        if due_ns != refusals.armed_ns:
            return  # an earlier deadline came
        refusals.armed_ns = 0
        if refusals.until_ns and now_ns >= refusals.until_ns:
            refusals.until_ns = 0
            refusals.rounds += 1
            self._forgive(ask, list(refusals.nodes), out)
        elif refusals.resting and now_ns >= refusals.again_ns:
            self._rest_from(refusals, refusals.rest_ns, now_ns)
            self._forgive(ask, list(refusals.resting), out)
        if refusals.until_ns:  # (it was refused again meanwhile)
            self._arm_refusals(ask, refusals, refusals.until_ns)
        if refusals.resting:
            self._arm_refusals(ask, refusals, refusals.again_ns)

    def _arm_refusals(self, ask: Ask, refusals: NodeRefusals, due_ns: int) -> None:
        """Sets a deadline, unless there is an earlier one."""
        if not refusals.armed_ns or due_ns < refusals.armed_ns:
            refusals.armed_ns = due_ns
            self._state.deadlines.append((due_ns, RefusalExpiry(ask, refusals)))
