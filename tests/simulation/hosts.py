"""The part of a resource manager that shares hosts with other managers: it knows its own nodes, and nothing of VMs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster_core.model.application import Application
from muster_core.model.commands import (
    AskItem,
    Command,
    NodeAction,
    NodeItem,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_core.model.node import Node, NodeReport
from muster_core.partition import Partition
from muster_si.constants import ALLOC_TYPE_STATIC, FOREIGN
from simulation.external_world import POOLS, World
from simulation.speech import reported

if TYPE_CHECKING:
    from simulation.manager import ResourceManager


class Hosts:
    """Of one RM.

    :ivar world: the hosts as they are.
    """

    def __init__(self, rm: ResourceManager, world: World) -> None:
        self._rm = rm
        self.world = world
        self._licensed = rm.dice.random() < 0.7
        rm.kinds |= {"take": 5.0, "change": 12.0, "foreign": 4.0, "remove": 3.0}
        rm.makers |= {"take": self._take, "change": self._change, "foreign": self._foreign}

    def begin(self, partition: Partition) -> list[Command]:
        nodes = [self._create(host_id) for host_id, host in self.world.hosts.items() if host.known]
        apps = [self._rm.makers["app"](partition, []) for _ in range(2)]
        new = [item for each in apps if isinstance(each, UpdateApplications) for item in each.new]
        return [UpdateNodes(tuple(nodes)), UpdateApplications(tuple(new))]

    def report(self, partition: Partition) -> list[Command]:
        """What it says of nodes, and of what it found there, to a scheduler that it registers with again."""
        own = {node_id: said for node_id, node in partition.nodes.items() if (said := _said(partition, node))}
        nodes = [
            NodeItem(
                node_id,
                NodeAction.CREATE,
                dict(said.attributes),
                capacity=dict(said.capacity),
                occupied=dict(said.occupied),
                partition=partition.name,
            )
            for node_id, said in own.items()
            if said.capacity is not None
        ]
        drained = [NodeItem(node_id, NodeAction.DRAIN_NODE) for node_id, said in own.items() if not said.schedulable]
        foreign = [reported(partition, each) for each in partition.foreign.values() if not each.source]
        return [UpdateNodes(tuple(nodes)), UpdateNodes(tuple(drained)), UpdateAllocations(foreign)]

    def item(self, item: AskItem) -> AskItem:
        if self._licensed and self._rm.maybe(0.25):
            item.quantities[self._rm.dice.choice(POOLS)] = self._rm.dice.choice([1, 1, 2])
        return item

    # ---- each step -------------------------------------------------------------------------------------------------

    def _take(self, partition: Partition, apps: list[Application]) -> Command | None:
        has = _own(partition)
        new = [host.host_id for host in self.world.hosts.values() if host.physical and host.host_id not in has]
        if not new:
            return None
        host_id = self._rm.dice.choice(new)
        self.world.hosts[host_id].known = True
        self._rm.tally["RM: takes a node"] += 1
        return UpdateNodes((self._create(host_id),))

    def _create(self, host_id: str) -> NodeItem:
        host = self.world.hosts[host_id]
        return NodeItem(host_id, NodeAction.CREATE, {"rack": host.rack}, capacity=dict(host.physical), occupied={})

    def _change(self, partition: Partition, apps: list[Application]) -> Command | None:
        rm, dice, nodes = self._rm, self._rm.dice, _own(partition)
        if not nodes or rm.maybe(0.12):
            return self._speak_of_others(partition)
        node_id = dice.choice(list(nodes))
        host, fate = self.world.hosts[node_id], dice.random()
        if fate < 0.25:
            rm.tally["RM: a node leaves"] += 1
            host.known = False
            item = NodeItem(node_id, NodeAction.DECOMISSION)
        elif fate < 0.55:
            drains = nodes[node_id].schedulable or rm.maybe(0.1)
            item = NodeItem(node_id, NodeAction.DRAIN_NODE if drains else NodeAction.DRAIN_TO_SCHEDULABLE)
        elif fate < 0.75:
            # It sees at last what the host has, or believes that it has less, or more memory than there is.
            rm.tally["RM: measures a node again"] += 1
            capacity = {name: max(value + dice.choice([0, 0, -2, 3]), 0) for name, value in host.physical.items()}
            item = NodeItem(node_id, NodeAction.UPDATE, {}, capacity=capacity)
        elif fate < 0.85:
            item = NodeItem(node_id, NodeAction.UPDATE, {"rack": dice.choice("xy"), "zone": "z"})
        else:
            item = NodeItem(node_id, NodeAction.UPDATE, {}, occupied={"vcore": dice.choice([0, 500])})
        return UpdateNodes((item,))

    def _speak_of_others(self, partition: Partition) -> Command | None:
        """It knows of a node that it did not bring, and says something of it."""
        # (Not of one that may be there for a moment only: with it goes what was said of it.)
        dice, own = self._rm.dice, _own(partition)
        others = [
            node for node in partition.nodes.values() if node.node_id in self.world.hosts and node.node_id not in own
        ]
        if not others:
            return None
        self._rm.tally["RM: speaks of a node that it did not bring"] += 1
        node = dice.choice(others)
        actions = [NodeAction.DRAIN_NODE, NodeAction.DRAIN_NODE, NodeAction.DRAIN_TO_SCHEDULABLE]
        actions += [NodeAction.UPDATE, NodeAction.DECOMISSION]
        return UpdateNodes((NodeItem(node.node_id, dice.choice(actions), {}),))

    def _foreign(self, partition: Partition, apps: list[Application]) -> Command | None:
        """Something that it finds on a node. (Where it is being asked about something else that is its own affair.)"""
        rm, dice = self._rm, self._rm.dice
        known = [each for each in partition.foreign.values() if not each.source]
        if known and rm.maybe(0.5):
            release = ReleaseItem("default", "", dice.choice(known).key, Termination.STOPPED_BY_RM)
            return UpdateAllocations((), [release])
        own = list(_own(partition))
        if not own or rm.answering is not None:
            return None
        rm.number += 1
        # (It may call what it finds what it likes, also as a source's VM is called in the scheduler.)
        key = f"pod-{rm.number}" if rm.maybe(0.8) else f"vms/vm-{dice.randint(1, 12)}"
        tags = {FOREIGN: ALLOC_TYPE_STATIC}
        return UpdateAllocations([AskItem(key, "", "default", {"vcore": 500}, tags=tags, node_id=dice.choice(own))])


def _said(partition: Partition, node: Node) -> NodeReport | None:
    if node.reported is not None or node.sources:
        return node.reported
    capacity = partition.types.quantities(node.capacity)
    return NodeReport(dict(node.attributes), capacity, dict(node.reported_occupied), node.schedulable)


def _own(partition: Partition) -> dict[str, NodeReport]:
    said = ((node.node_id, _said(partition, node)) for node in partition.nodes.values())
    return {node_id: each for node_id, each in said if each is not None and each.capacity is not None}
