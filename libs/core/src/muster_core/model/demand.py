"""The demand of an ask, which its allocations share."""

from __future__ import annotations

from dataclasses import dataclass, fields

from muster_core.model.resources import Shape
from muster_core.model.scopes import SCOPE_TAG, Scope, scope_of

# The tag with which an ask of the current generation declares how long it runs at the most, in ms: its execution
# time-out. (The previous generation has a field for it.)
DURATION_TAG = "muster.executionTimeoutMilliSeconds"


@dataclass(slots=True, eq=False, kw_only=True)
class Demand:
    """The RM's request, in its own terms. An ask and all its allocations share it, and it never changes.

    :ivar submission: the order of arrival. An ask that is sent again keeps its number.
    :ivar created_ns: when the ask was created, as the RM says (tag creationTime), or when it arrived.
    :ivar previous_generation: it came as si.v1.AllocationAsk, and its allocations have a UUID.
    :ivar required_node: the one node on which it may run (a daemon); "": any node.
    :ivar changed_ns: of a running allocation: when the RM changed its size or its node; 0: never.
    :ivar admitted_ns: when the gateway admitted the ask, by the gateway's wall clock; 0: not known, as after a restart.
        Only statistics use it.
    """

    key: str
    shape: Shape
    priority: int
    submission: int
    created_ns: int
    tags: dict[str, str]
    task_group: str = ""
    placeholder: bool = False
    originator: bool = False
    allow_preempt_self: bool = False
    allow_preempt_other: bool = False
    has_preemption_policy: bool = False
    execution_timeout_ms: int = 0
    previous_generation: bool = False
    required_node: str = ""
    changed_ns: int = 0
    admitted_ns: int = 0

    @property
    def alone(self) -> Scope:
        """The scope in which its proposals must be alone, from its tags."""
        tags = self.tags
        return scope_of(tags) if SCOPE_TAG in tags else Scope.ALL  # (runs for each ask)

    def same_as(self, demand: Demand) -> bool:
        """Whether both demands are the same request."""
        return all(getattr(self, name) == getattr(demand, name) for name in _SAID)


_NOT_SAID = ("key", "submission", "changed_ns", "admitted_ns")
_SAID = tuple(field.name for field in fields(Demand) if field.name not in _NOT_SAID)


class _HasDemand:
    """The properties of the demand, for objects that have one."""

    __slots__ = ()
    demand: Demand

    @property
    def key(self) -> str:
        """The allocationKey."""
        return self.demand.key

    @property
    def shape(self) -> Shape:
        """The amounts that it takes."""
        return self.demand.shape

    @property
    def priority(self) -> int:
        """Higher priorities go first."""
        return self.demand.priority

    @property
    def submission(self) -> int:
        """The order of arrival."""
        return self.demand.submission

    @property
    def created_ns(self) -> int:
        """When the ask was created."""
        return self.demand.created_ns

    @property
    def tags(self) -> dict[str, str]:
        """The tags that the RM sent."""
        return self.demand.tags

    @property
    def task_group(self) -> str:
        """The task group of its gang, or ""."""
        return self.demand.task_group

    @property
    def placeholder(self) -> bool:
        """Whether it holds room for a later ask of its task group."""
        return self.demand.placeholder

    @property
    def originator(self) -> bool:
        """Whether it is the application's first pod, which is preempted last."""
        return self.demand.originator

    @property
    def allow_preempt_self(self) -> bool:
        """Whether it may be preempted."""
        return self.demand.allow_preempt_self

    @property
    def allow_preempt_other(self) -> bool:
        """Whether it may preempt."""
        return self.demand.allow_preempt_other

    @property
    def has_preemption_policy(self) -> bool:
        """Whether the RM said anything about preemption."""
        return self.demand.has_preemption_policy

    @property
    def execution_timeout_ms(self) -> int:
        """How long it may run; 0 or less: forever."""
        return self.demand.execution_timeout_ms

    @property
    def previous_generation(self) -> bool:
        """Whether it came as si.v1.AllocationAsk."""
        return self.demand.previous_generation
