"""Builders of cores and commands for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from muster_core import invariants
from muster_core.config.queue_config import ClusterConfig
from muster_core.model.application import Allocation, Application, Ask, Gang
from muster_core.model.commands import (
    AppItem,
    AskItem,
    Command,
    NodeAction,
    NodeItem,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateConfiguration,
    UpdateNodes,
)
from muster_core.model.node import Node
from muster_core.model.outcome import ConfigurationResult, NewAllocation, Outcome
from muster_core.model.pending_reason import ask_reason
from muster_core.model.queue import Queue
from muster_core.partition import Partition
from muster_core.scheduler import SchedulerCore
from muster_queue_config.queue_yaml import load_queue_config

SECOND_NS = 1_000_000_000


def configured(queues: str, *, nodesort: str = "fair", partition: str = "") -> ClusterConfig:
    """A configuration with one partition: its queue tree from root down, and further keys, each as YAML in a line."""
    text = f"partitions: [{{name: default, nodesortpolicy: {{type: {nodesort}}}, {partition} queues: [{queues}]}}]"
    config, problems = load_queue_config(text)
    assert config is not None, problems
    return config


class Cluster:
    """A core with a clock that the test sets.

    Each call applies commands, runs cycles until none is due, and checks all invariants.

    :ivar outcomes: the outcome of each call, in order.
    """

    def __init__(self, queues: str, *, nodesort: str = "fair", partition: str = "", rm_id: str = "") -> None:
        config = configured(queues, nodesort=nodesort, partition=partition)
        self.now_ns = 1_000 * SECOND_NS
        self.core = SchedulerCore(config, rm_id=rm_id)
        self.outcomes: list[Outcome] = [self.core.start(self.now_ns)]

    @property
    def partition(self) -> Partition:
        return self.core.partitions["default"]

    def do(self, *commands: Command, budget: int = 1 << 30) -> Outcome:
        """Applies the commands and cycles; gives their one outcome."""
        out = Outcome()
        for command in commands:
            self.core.apply(command, self.now_ns, out)
        self.core.cycle(self.now_ns, budget, out)
        self.outcomes.append(out)
        invariants.check(self.core, exhausted=self.core.exhausted)
        return out

    def wait(self, seconds: float) -> Outcome:
        self.now_ns += round(seconds * SECOND_NS)
        return self.do()

    def reload(self, queues: str, *, nodesort: str = "fair", partition: str = "") -> tuple[str, ...]:
        """Loads another configuration. Returns its problems."""
        out = self.do(UpdateConfiguration(configured(queues, nodesort=nodesort, partition=partition)))
        (answer,) = (fact for fact in out.facts if isinstance(fact, ConfigurationResult))
        return answer.obstacles

    # ---- shorthands ------------------------------------------------------------------------------------------------

    def having(self, nodes: Mapping[str, Mapping[str, int]], apps: Mapping[str, str] | None = None) -> Self:
        """Creates nodes, then applications (id → queue), each in a call of its own. Returns self."""
        for node_id, capacity in nodes.items():
            self.node(node_id, **capacity)
        for app_id, queue in (apps or {}).items():
            self.app(app_id, queue)
        return self

    def node(self, node_id: str, **capacity: int) -> Outcome:
        return self.do(nodes(NodeAction.CREATE, {node_id: capacity}))

    def app(self, app_id: str, queue: str, *, user: str = "alice", **tags: str) -> Outcome:
        return self.do(UpdateApplications((AppItem(app_id, queue, "default", user, tags=tags),)))

    def ask(self, app_id: str, key: str, *, priority: int = 0, wanted: int = 1, **quantities: int) -> Outcome:
        return self.do(UpdateAllocations([ask(app_id, key, priority=priority, wanted=wanted, **quantities)]))

    def release(self, app_id: str, key: str = "", termination: Termination = Termination.STOPPED_BY_RM) -> Outcome:
        return self.do(UpdateAllocations((), [ReleaseItem("default", app_id, key, termination)]))

    def application(self, app_id: str) -> Application:
        return self.partition.apps[app_id]

    def queue(self, path: str) -> Queue:
        return self.partition.queues[path]

    def the_node(self, node_id: str) -> Node:
        return self.partition.nodes[node_id]

    def placed(self, app_id: str) -> dict[str, str]:
        """Allocation key → node of an application."""
        return {key: held.node_id for key, held in self.application(app_id).allocations.items()}

    def pending(self, app_id: str) -> dict[str, str]:
        """Ask key → reason code of an application."""
        found: dict[str, str] = {}
        for key, waiting in self.application(app_id).asks.items():
            reason = ask_reason(waiting)
            assert reason is not None, f"{key} is pending without a reason"
            found[key] = reason.code.value
        return found

    def reason(self, app_id: str, key: str) -> object:
        return ask_reason(self.application(app_id).asks[key])


def ask(app_id: str, key: str, *, priority: int = 0, wanted: int = 1, **quantities: int) -> AskItem:
    return AskItem(key, app_id, "default", dict(quantities), wanted=wanted, priority=priority)


def nodes(action: NodeAction, capacities: Mapping[str, Mapping[str, int] | None]) -> UpdateNodes:
    return UpdateNodes(
        tuple(
            NodeItem(node_id, action, capacity=None if capacity is None else dict(capacity))
            for node_id, capacity in capacities.items()
        )
    )


def allocations(out: Outcome) -> list[tuple[str, str, str]]:
    """(application, key, node) of each new allocation, in order."""
    return [
        (fact.allocation.app_id, fact.allocation.key, fact.allocation.node_id)
        for fact in out.facts
        if isinstance(fact, NewAllocation)
    ]


def snapshot(core: SchedulerCore) -> dict[str, object]:
    """The state of a core as comparable plain data."""
    return {
        name: {
            "nodes": {
                n.node_id: (list(n.capacity), list(n.allocated), list(n.occupied), n.schedulable)
                for n in part.nodes.values()
            },
            "queues": {
                q.path: (list(q.allocated), list(q.pending), q.running_applications, q.state, q.leaf, q.managed)
                for q in part.queues.values()
            },
            "apps": {
                a.app_id: (
                    a.queue.path,
                    a.state,
                    tuple(a.state_log),
                    a.deadline_ns,
                    a.usage,
                    _gang(a.gang),
                    {k: _ask(v) for k, v in a.asks.items()},
                    {k: _allocation(v) for k, v in a.allocations.items()},
                )
                for a in part.apps.values()
            },
            "rejected": {a.app_id: (a.rejected_message, a.deadline_ns) for a in part.rejected.values()},
            "foreign": {k: _allocation(v) for k, v in part.foreign.items()},
            "types": part.types.names,
        }
        for name, part in core.partitions.items()
    }


def _ask(what: Ask) -> tuple[object, ...]:
    reserved = what.reserved_node
    demand = (what.shape.name, what.priority, what.submission, what.created_ns)
    return (*demand, what.pending, what.allocated, what.open, what.mismatched, reserved)


def _allocation(what: Allocation) -> tuple[object, ...]:
    told = (what.releasing_since_ns, what.preempted, what.timed_out, what.replaced_by, what.replaces)
    return (what.shape.name, what.node_id, what.ordinal, what.uuid, what.submission, what.allocated_ns, *told)


def _gang(gang: Gang | None) -> object:
    if gang is None:
        return None
    groups = {
        each.name: (
            each.shape.name,
            (each.asked, each.pending, each.held, each.replaced, each.timed_out, each.lost),
            [held.unique_key for held in each.free],
        )
        for each in gang.groups.values()
    }
    placed = {number: value for number, value in gang.placed.items() if value}
    leaving = {key: sorted(keys) for key, keys in gang.replacing.items()}
    return (
        gang.phase,
        gang.deadline_ns,
        gang.too_large_since_ns,
        gang.total and gang.total.name,
        groups,
        placed,
        leaving,
    )
