"""The contract of a preemption rule: its occasions, its possible victims, and the explanations of its decisions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from muster_core.external.reports import ReportedObject
    from muster_core.model.allocation import PreemptionRecord
    from muster_core.model.application import Allocation, Ask
    from muster_core.model.node import Node
    from muster_core.model.partition_state import PartitionState
    from muster_core.model.queue import Ledger, Queue
    from muster_core.model.reasons import NoPreemptionReason
    from muster_core.preemption.cover_search import VictimLeaf
    from muster_core.preemption.plan import Plan, Victim
    from muster_core.preemption.victims import PendingPreemptions, VictimCache


@dataclass(frozen=True, slots=True)
class RuleGuards:
    """The promises of a rule to the allocations that it could take.

    :ivar opted_out_stay: an allocation that opted out stays, unless the partition says ``optout: last``.
    :ivar daemons_stay: an allocation that can run on one node only stays.
    :ivar guarantees_kept: no queue falls below its guarantee in a type that it gives up.
    """

    opted_out_stay: bool
    daemons_stay: bool
    guarantees_kept: bool


@runtime_checkable
class PreemptionRule(Protocol):
    """A right by which the scheduler releases an allocation. A rule is one module in ``rules/`` and one entry in
    ``registry.py``.

    A rule also implements one of the four protocols below. Each protocol is for the occasion on which the rule is
    consulted. On each occasion, the scheduler tries the rules in the order of the registry.

    The contract, which ``tests/unit/core/test_preemption_rule_contract.py`` runs over every rule:

    * A rule decides and changes nothing: its caller releases the victims. The same state gives the same answer: a rule
      uses no clock, no chance and no memory.
    * A rule takes no allocation that is released already, and none of an external source.
    * A rule keeps its ``promises``.
    * Where a queue says ``gang.preemption: whole``, a rule takes the whole gang or none of it.
    * A rule takes only necessary victims, and none if all its possible victims would not suffice for the ask.

    :ivar name: recorded with each victim, and shown as ``rule`` wherever the victim is shown: the state topic, REST,
        explain. In capital letters; docs/preemption.md has a row for it.
    """

    name: str
    promises: RuleGuards

    def sentence(self, beginning: str, queue: str, held: Allocation, why: PreemptionRecord) -> str:
        """Explains one preemption in one sentence.

        :param beginning: of the sentence: "Allocation k of application a on node n was preempted 3 seconds ago".
        :param queue: the path of the victim's queue.
        """
        ...

    def message(self, queue: str, held: Allocation, why: PreemptionRecord) -> str:
        """Explains the same decision from the victim's side: "It was preempted …", without times."""
        ...


def asker_of(why: PreemptionRecord) -> str:
    """The beginning of the message of a rule that makes room for an ask."""
    return f"It was preempted for {why.key} of application {why.app_id}"


def shares(queue: str, before: float, after: float) -> str:
    """How the preemption changes a queue's share, as a text."""
    return f"{queue} goes from {before:.0%} to {after:.0%} of its share"


@dataclass(slots=True)
class VictimScope:
    """The leaves from which an ask may preempt by a rule, each at most once.

    :ivar no: the reason for no leaves, if the rule knows it.
    """

    branches: list[VictimLeaf]
    no: NoPreemptionReason | None = None


@runtime_checkable
class AskRule(PreemptionRule, Protocol):
    """Consulted for an ask that has waited for its leaf's ``preemption.delay`` and fits nowhere.

    The rule says from which leaves, up to which priority and down to which guarantees. The search
    (``victim_search.py``) chooses the victims. The search tries each rule alone, then all rules together; if several
    rules reach the same leaf, the first of them counts for the leaf then. ``preemption.enabled`` of the partition and
    ``allowPreemptOther`` of the ask switch all rules of this kind.

    Asks of one leaf get the same reach if they share shape, priority, and limits of users and groups, and if their
    applications hold nothing. The search calls the rule once for all of them.

    A rule with ``own_lower_only = True`` says more: of the asking application's own allocations, only those of lower
    priorities than the ask's may change its answer. Then the search asks less often.
    """

    def reach(self, ask: Ask, underway: PendingPreemptions, over: Iterable[Ledger]) -> VictimScope:
        """Returns the leaves from which the ask may preempt.

        :param underway: earlier preemptions that are not finished.
        :param over: the limits that the ask would exceed.
        """
        ...


@runtime_checkable
class RequiredNodeRule(PreemptionRule, Protocol):
    """Consulted for an ask that can run on one node only, as soon as that node is reserved for it."""

    def plan(self, ask: Ask, node: Node, known: VictimCache, now_ns: int) -> Plan | NoPreemptionReason:
        """Returns victims on the node, or why there are none."""
        ...


@runtime_checkable
class QueueRule(PreemptionRule, Protocol):
    """Consulted once for a queue above its max, when its ``quota.preemption.delay`` is over."""

    def cut(self, state: PartitionState, queue: Queue, now_ns: int, *, opted_out: bool) -> tuple[Victim, ...]:
        """Returns victims in the queue: together never more than what is above its max.

        :param opted_out: allocations that opted out may go too, last.
        """
        ...


@runtime_checkable
class OfferRule(PreemptionRule, Protocol):
    """Consulted when the grace period of an offer that its source wants back is over."""

    def evict(self, node: Node, lack: dict[int, int], entry: ReportedObject, now_ns: int) -> tuple[Victim, ...]:
        """Returns the victims that do not fit on the node without the offer.

        :param lack: by type number, how much more is used on the node than the node has without the offer.
        """
        ...
