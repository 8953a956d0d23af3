"""The RM's requests about nodes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace

from muster_si.constants import NODE_PARTITION, NODE_READY_ATTRIBUTE

from muster_core.config.queue_config import partition_name
from muster_core.model.commands import AskItem, NodeAction, NodeItem
from muster_core.model.node import Node, NodeReport, is_ready
from muster_core.model.outcome import AcceptedNode, Outcome, RejectedNode
from muster_core.model.quotas import QuotaKind, text_bytes
from muster_core.model.resources import TooManyTypes
from muster_core.model.steps import STEP, Steps
from muster_core.partition import Partition
from muster_core.requests.item_validation import SHOWN_MAX, NegativeQuantity, refuse_negative, reject


class NodeRequests:
    """Creates, changes and removes nodes of the RM. Each item is accepted or rejected, once.

    :param partitions: the core's partitions, by name.
    :param take_allocation: takes an allocation that runs on a reported node.
    """

    def __init__(
        self, partitions: Mapping[str, Partition], take_allocation: Callable[[AskItem, Outcome, int], None]
    ) -> None:
        self._partitions = partitions
        self._take_allocation = take_allocation

    def update(self, item: NodeItem, out: Outcome, now_ns: int) -> Steps:
        """Handles one node's change: accepts or rejects it, once, and likewise each allocation that comes with it. In
        steps.
        """
        creates = item.action in (NodeAction.CREATE, NodeAction.CREATE_DRAIN)
        partition, reason = self._partition_of_node(item, creates=creates)
        if partition is not None:
            try:
                refuse_negative(f"node {item.node_id}", item.capacity or {}, item.occupied or {})
                partition.types.reserve([*(item.capacity or {}), *(item.occupied or {})])
                if creates:
                    reason = yield from self._create(partition, item, out, now_ns)
                elif item.action is NodeAction.UNKNOWN:
                    reason = f"node {item.node_id}: action is not set"
                else:
                    reason = yield from self._change(partition, item, out, now_ns)
            except (TooManyTypes, NegativeQuantity) as error:
                reason = str(error)
        if reason:
            out.facts.append(RejectedNode(item.node_id, reason))
        elif not creates:
            out.facts.append(AcceptedNode(item.node_id))
        for count, existing in enumerate(item.existing, 1):
            if not count % STEP:
                yield
            if reason or partition is None or item.action is NodeAction.DECOMISSION:
                explanation = f"was rejected: {reason}" if reason else "is removed"
                reject(existing, f"node {item.node_id} {explanation}", out)
            elif existing.node_id not in ("", item.node_id):
                explanation = (
                    f"comes with node {item.node_id} and says that it is on node {existing.node_id[:SHOWN_MAX]}"
                )
                reject(existing, f"allocation {existing.key} {explanation}, expected the same", out)
            else:
                self._take_allocation(replace(existing, node_id=item.node_id, partition=partition.name), out, now_ns)

    def _partition_of_node(self, item: NodeItem, *, creates: bool) -> tuple[Partition | None, str]:
        """Returns the partition of an item; or None, and why there is none.

        A node stays in the partition in which it was created. An item without a partition is about the node of that id,
        in any partition.
        """
        name = partition_name(item.partition)
        partition = self._partitions.get(name)
        existing = partition.nodes.get(item.node_id) if partition is not None else None
        if creates or (existing is not None and (existing.of_rm or item.partition)):
            return partition, "" if partition is not None else _no_partition(item)
        holders = [holder for holder in self._partitions.values() if item.node_id in holder.nodes]
        # (A node that a source brought is meant only if the RM has no node of that id.)
        own = [holder for holder in holders if holder.nodes[item.node_id].of_rm]
        others = [holder.name for holder in own or holders]
        if not item.partition and len(others) == 1:
            return self._partitions[others[0]], ""
        if others:
            location = f"node {item.node_id} is in partition {', '.join(others)}"
            if item.partition:
                return (
                    None,
                    f"{location}, not in {name}: a node does not change its partition, DECOMISSION and CREATE it",
                )
            return None, f"{location}: attributes[{NODE_PARTITION!r}] must say which one is meant"
        return partition, "" if partition is not None else _no_partition(item)

    def _create(self, partition: Partition, item: NodeItem, out: Outcome, now_ns: int) -> Generator[None, None, str]:
        node = partition.nodes.get(item.node_id)
        if node is not None and node.of_rm:
            return f"failure while adding new node: existing node {item.node_id}, node name must be unique"
        if problem := _ready_problem(item):
            return problem
        quotas = partition.quotas
        text = text_bytes(item.attributes) - (text_bytes(node.attributes) if node is not None else 0)
        problem = quotas.problem(QuotaKind.NODES, node is None) or quotas.problem(QuotaKind.TEXT_BYTES, text)
        if problem:
            return f"node {item.node_id}: {problem}"
        schedulable = item.action is NodeAction.CREATE
        report = NodeReport(dict(item.attributes), item.capacity or {}, item.occupied or {}, schedulable)
        yield from partition.node_lives.settle_in_steps(item.node_id, report, out, now_ns)
        out.facts.append(AcceptedNode(item.node_id))
        return ""

    def _change(self, partition: Partition, item: NodeItem, out: Outcome, now_ns: int) -> Generator[None, None, str]:
        node = partition.nodes.get(item.node_id)
        if node is None:
            return (
                f"node {item.node_id} does not exist in partition {partition.name}: {item.action.name} is not possible"
            )
        if item.action in (NodeAction.UPDATE, NodeAction.DECOMISSION) and not node.of_rm:
            by = ", ".join(node.sources)
            return f"node {item.node_id} was brought by {by}: CREATE it first, {item.action.name} is not possible"
        if item.action is NodeAction.UPDATE:
            return (yield from self._refresh(partition, node, item, out, now_ns))
        if item.action is NodeAction.DECOMISSION:
            yield from partition.node_lives.decommission(node, out, now_ns)
            return ""
        drains = item.action is NodeAction.DRAIN_NODE
        report = partition.node_lives.report_of(node)
        if not drains and (report is None or report.schedulable):
            if node.schedulable:
                return ""  # no change (Kubernetes' shim enables each node twice)
            by = ", ".join(node.sources)
            return f"node {node.node_id} is not draining by the RM, but by {by}: DRAIN_TO_SCHEDULABLE is not possible"
        if report is None:
            # (The RM did not create the node, and has no other statement about it.)
            report = NodeReport({}, None, {}, schedulable=False, by_operator=item.by_operator)
        elif report.capacity is None:
            report = replace(report, by_operator=item.by_operator) if drains else None
        else:
            report = replace(report, schedulable=not drains, by_operator=drains and item.by_operator)
        yield from partition.node_lives.settle_in_steps(node.node_id, report, out, now_ns)
        return ""

    def _refresh(
        self, partition: Partition, node: Node, item: NodeItem, out: Outcome, now_ns: int
    ) -> Generator[None, None, str]:
        if problem := _ready_problem(item):
            return problem
        report = partition.node_lives.report_of(node, item.capacity)
        assert report is not None, f"{node} is not the RM's"
        attributes = attributes_after(report.attributes, item.attributes)
        if item.attributes:
            text = text_bytes(attributes) - text_bytes(report.attributes)
            if problem := partition.quotas.problem(QuotaKind.TEXT_BYTES, text):
                return f"node {item.node_id}: {problem}"
        updated = NodeReport(
            attributes,
            item.capacity if item.capacity is not None else report.capacity,
            item.occupied if item.occupied is not None else report.occupied,
            report.schedulable,
            report.by_operator,
        )
        yield from partition.node_lives.settle_in_steps(node.node_id, updated, out, now_ns)
        return ""


def _no_partition(item: NodeItem) -> str:
    return f"failed to find partition {item.partition!r} for node {item.node_id}"


def _ready_problem(item: NodeItem) -> str:
    """Why the ready flag cannot be read; "": it can, or there is none."""
    flag = item.attributes.get(NODE_READY_ATTRIBUTE)
    if flag is None or is_ready(item.attributes) is not None:
        return ""
    return f"node {item.node_id}: attributes[{NODE_READY_ATTRIBUTE!r}]: {flag[:SHOWN_MAX]!r}, expected true or false"


def attributes_after(before: Mapping[str, str], update: Mapping[str, str]) -> dict[str, str]:
    """The attributes after an update: new ones replace the former ones as a whole (the scheduler interface).

    An update that only names the partition and the ready flag changes just these: with each change, shims of the
    previous generation send the ready flag and nothing else.
    """
    if update.keys() <= {NODE_PARTITION, NODE_READY_ATTRIBUTE}:
        return {**before, **update}
    kept = {NODE_PARTITION: before[NODE_PARTITION]} if NODE_PARTITION in before else {}
    return {**kept, **update}
