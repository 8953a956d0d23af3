"""The resource manager of a life with other managers: it knows its own nodes and containers, and nothing of VMs."""

from __future__ import annotations

import random
from collections import Counter

from muster_scheduler.core.commands import (
    AppItem,
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
from muster_si.constants import ALLOC_TYPE_STATIC, FOREIGN, REQUIRED_NODE_TAG
from simulation.books import Amounts
from simulation.external_books import App, Books, Held
from simulation.external_world import POOLS, World

QUEUES = ("root.a", "root.a", "root.b.x", "root.b.y", "root.c")
USERS = ("ann", "bob")
APPS_MAX = 5


class ResourceManager:
    """What it knows of its containers is in the auditor's books, as it would be in its own."""

    def __init__(self, dice: random.Random, world: World, books: Books, tally: Counter[str]) -> None:
        self._dice = dice
        self._world = world
        self._books = books
        self._tally = tally
        self._number = 0
        self._licensed = dice.random() < 0.7

    # ---- first -----------------------------------------------------------------------------------------------------

    def begin(self) -> list[Command]:
        """Its nodes, and two applications."""
        nodes = [self._create(host_id) for host_id, host in self._world.hosts.items() if host.known]
        return [UpdateNodes(tuple(nodes)), UpdateApplications(tuple(self._application() for _ in range(2)))]

    def report(self) -> list[Command]:
        """What it has, to a scheduler that it registers with again: as it was, and then what it still wants."""
        books = self._books
        nodes = [
            NodeItem(node_id, NodeAction.CREATE, dict(node.attributes), dict(node.capacity), dict(node.occupied))
            for node_id, node in books.rm_nodes.items()
            if node.capacity is not None
        ]
        drained = [NodeItem(id_, NodeAction.DRAIN_NODE) for id_, node in books.rm_nodes.items() if not node.schedulable]
        foreign = [
            _item("", key, quantities, node_id, {FOREIGN: ALLOC_TYPE_STATIC})
            for key, (node_id, quantities) in books.foreign.items()
        ]
        held = [
            _item(each.app_id, each.key, each.quantities, each.node_id, {}, each.priority)
            for each in books.held.values()
        ]
        asks = [
            _item(each.app_id, each.key, each.quantities, "", _tags(each.required_node), each.priority)
            for each in books.wanted.values()
        ]
        apps = [AppItem(app.app_id, app.queue, "default", app.user) for app in books.apps.values()]
        found: list[Command] = [UpdateNodes(tuple(nodes)), UpdateApplications(tuple(apps))]
        return [*found, UpdateNodes(tuple(drained)), UpdateAllocations(foreign), UpdateAllocations(held + asks)]

    def wind_up(self) -> list[Command]:
        """Everything ends."""
        books = self._books
        gone = [_release(held) for held in books.held.values()]
        return [UpdateAllocations((), gone), UpdateApplications((), tuple(("default", app) for app in books.apps))]

    # ---- each step -------------------------------------------------------------------------------------------------

    def commands(self) -> list[Command]:
        """What it says in this step."""
        dice = self._dice
        found: list[Command] = []
        told = [held for held in self._books.held.values() if held.told]
        confirmed = [_confirm(held) for held in told if dice.random() < 0.6]
        if confirmed:
            found.append(UpdateAllocations((), confirmed))
        for _ in range(dice.choice([0, 1, 2, 3])):
            command = self._one()
            if command is not None:
                found.append(command)
        return found

    def confirm(self) -> list[Command]:
        """What was told to go went."""
        told = [_confirm(held) for held in self._books.held.values() if held.told]
        return [UpdateAllocations((), told)] if told else []

    def _one(self) -> Command | None:
        fate = self._dice.random()
        if fate < 0.42:
            return self._ask()
        if fate < 0.62:
            return self._release()
        if fate < 0.68:
            return self._cancel()
        if fate < 0.75:
            return self._submit()
        if fate < 0.79:
            return self._remove()
        if fate < 0.84:
            return self._new_node()
        if fate < 0.96:
            return self._change_node()
        return self._foreign()

    def _ask(self) -> Command | None:
        if not self._books.apps:
            return None
        app = self._some_app()
        return UpdateAllocations([self._wanted(app) for _ in range(self._dice.choice([1, 1, 2, 4]))])

    def _some_app(self) -> App:
        return self._dice.choice(list(self._books.apps.values()))

    def _wanted(self, app: App) -> AskItem:
        dice = self._dice
        self._number += 1
        size: Amounts = {"vcore": dice.randint(1, 4) * 1000, "memory": dice.randint(1, 5)}
        if dice.random() < 0.1:
            size["gpu"] = 1
        if self._licensed and dice.random() < 0.25:
            size[dice.choice(POOLS)] = dice.choice([1, 1, 2])
        node_id = dice.choice(list(self._world.hosts)) if dice.random() < 0.05 else ""
        return _item(app.app_id, f"c-{self._number}", size, "", _tags(node_id), dice.choice([0, 0, 0, 10, -5]))

    def _release(self) -> Command | None:
        held = [each for each in self._books.held.values() if not each.told]
        if not held:
            return None
        count = min(len(held), self._dice.choice([1, 1, 2, 3]))
        return UpdateAllocations((), [_release(each) for each in self._dice.sample(held, count)])

    def _cancel(self) -> Command | None:
        wanted = list(self._books.wanted.values())
        if not wanted:
            return None
        each = self._dice.choice(wanted)
        return UpdateAllocations((), [ReleaseItem("default", each.app_id, each.key, Termination.STOPPED_BY_RM)])

    def _submit(self) -> Command | None:
        if len(self._books.apps) >= APPS_MAX:
            return None
        return UpdateApplications((self._application(),))

    def _application(self) -> AppItem:
        self._number += 1
        dice = self._dice
        return AppItem(f"app-{self._number}", dice.choice(QUEUES), "default", dice.choice(USERS))

    def _remove(self) -> Command | None:
        if not self._books.apps:
            return None
        return UpdateApplications((), (("default", self._some_app().app_id),))

    def _new_node(self) -> Command | None:
        hosts = [host for host in self._world.hosts.values() if host.physical]
        new = [host.host_id for host in hosts if host.host_id not in self._books.rm_nodes]
        if not new:
            return None
        host_id = self._dice.choice(new)
        self._world.hosts[host_id].known = True
        self._tally["RM: takes a node"] += 1
        return UpdateNodes((self._create(host_id),))

    def _create(self, host_id: str) -> NodeItem:
        host = self._world.hosts[host_id]
        return NodeItem(host_id, NodeAction.CREATE, {"rack": host.rack}, dict(host.physical), {})

    def _change_node(self) -> Command | None:
        nodes = self._books.rm_nodes
        if not nodes:
            return None
        dice = self._dice
        if dice.random() < 0.12:
            return self._speak_of_others()
        node_id = dice.choice(list(nodes))
        host = self._world.hosts.get(node_id)
        if host is None or nodes[node_id].capacity is None:
            return UpdateNodes((NodeItem(node_id, NodeAction.DRAIN_TO_SCHEDULABLE),))
        fate = dice.random()
        if fate < 0.25:
            self._tally["RM: a node leaves"] += 1
            host.known = False
            return UpdateNodes((NodeItem(node_id, NodeAction.DECOMISSION),))
        if fate < 0.55:
            drains = nodes[node_id].schedulable or dice.random() < 0.1
            action = NodeAction.DRAIN_NODE if drains else NodeAction.DRAIN_TO_SCHEDULABLE
            return UpdateNodes((NodeItem(node_id, action),))
        if fate < 0.75:
            # It sees at last what the host has, or believes that it has less, or more memory than there is.
            self._tally["RM: measures a node again"] += 1
            capacity = {name: max(value + dice.choice([0, 0, -2, 3]), 0) for name, value in host.physical.items()}
            return UpdateNodes((NodeItem(node_id, NodeAction.UPDATE, {}, capacity),))
        if fate < 0.85:
            attributes = {"rack": dice.choice("xy"), "zone": "z"}
            return UpdateNodes((NodeItem(node_id, NodeAction.UPDATE, attributes),))
        occupied = {"vcore": dice.choice([0, 500])}
        return UpdateNodes((NodeItem(node_id, NodeAction.UPDATE, {}, None, occupied),))

    def _speak_of_others(self) -> Command | None:
        """It knows of a node that it did not bring, and says something of it."""
        # (Not of one that may be there for a moment only: with it goes what was said of it.)
        hosts, own = self._world.hosts, self._books.rm_nodes
        others = [node_id for node_id in self._books.nodes() if node_id in hosts and node_id not in own]
        if not others:
            return None
        self._tally["RM: speaks of a node that it did not bring"] += 1
        actions = [NodeAction.DRAIN_NODE, NodeAction.DRAIN_NODE, NodeAction.DRAIN_TO_SCHEDULABLE]
        actions += [NodeAction.UPDATE, NodeAction.DECOMISSION]
        return UpdateNodes((NodeItem(self._dice.choice(others), self._dice.choice(actions), {}),))

    def _foreign(self) -> Command | None:
        books, dice = self._books, self._dice
        if books.foreign and dice.random() < 0.5:
            key = dice.choice(list(books.foreign))
            return UpdateAllocations((), [ReleaseItem("default", "", key, Termination.STOPPED_BY_RM)])
        if not books.rm_nodes:
            return None
        node_id = dice.choice(list(books.rm_nodes))
        self._number += 1
        tags = {FOREIGN: ALLOC_TYPE_STATIC}
        # (It may call what it finds what it likes, also as a source's VM is called in the scheduler.)
        key = f"pod-{self._number}" if dice.random() < 0.8 else f"vms/vm-{dice.randint(1, 12)}"
        return UpdateAllocations([_item("", key, {"vcore": 500}, node_id, tags)])


def _item(app_id: str, key: str, size: Amounts, node_id: str, tags: dict[str, str], priority: int = 0) -> AskItem:
    return AskItem(
        key,
        app_id,
        "default",
        dict(size),
        priority=priority,
        tags=tags,
        allow_preempt_self=True,
        allow_preempt_other=True,
        has_preemption_policy=True,
        node_id=node_id,
    )


def _tags(required_node: str) -> dict[str, str]:
    return {REQUIRED_NODE_TAG: required_node} if required_node else {}


def _release(held: Held) -> ReleaseItem:
    return ReleaseItem("default", held.app_id, held.key, Termination.STOPPED_BY_RM)


def _confirm(held: Held) -> ReleaseItem:
    return ReleaseItem("default", held.app_id, held.key, Termination[held.told])
