"""The preemption rules, in the order in which the scheduler tries them.

Muster's own rules stand in :data:`SHIPPED`. Another package calls :func:`register` before the scheduler starts; its
rules come after Muster's own.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster_core.preemption.rule import AskRule, OfferRule, PreemptionRule, QueueRule, RequiredNodeRule
from muster_core.preemption.rules import guarantee, priority, quota, required_node, revoked_offer

SHIPPED: tuple[PreemptionRule, ...] = (
    guarantee.RULE,
    priority.RULE,
    required_node.RULE,
    quota.RULE,
    revoked_offer.RULE,
)


class _Rules:
    """Rules by name and by occasion. (Checking the protocol with isinstance at each search would cost a tenth of the
    search.)
    """

    def __init__(self, rules: Iterable[PreemptionRule]) -> None:
        self.by_name: dict[str, PreemptionRule] = {}
        self.for_asks: list[AskRule] = []
        self.for_required_nodes: list[RequiredNodeRule] = []
        self.for_queues: list[QueueRule] = []
        self.for_offers: list[OfferRule] = []
        self.every_own = False
        for rule in rules:
            self.add(rule)

    def add(self, rule: PreemptionRule) -> None:
        if self.by_name.get(rule.name, rule) is not rule:
            raise ValueError(f"preemption rule {rule.name} is there already")
        if rule.name in self.by_name:
            return
        if not isinstance(rule, AskRule | RequiredNodeRule | QueueRule | OfferRule):
            raise ValueError(f"preemption rule {rule.name} is for no occasion: expected reach, plan, cut or evict")
        self.by_name[rule.name] = rule
        if isinstance(rule, AskRule):
            self.for_asks.append(rule)
            self.every_own |= not getattr(rule, "own_lower_only", False)
        if isinstance(rule, RequiredNodeRule):
            self.for_required_nodes.append(rule)
        if isinstance(rule, QueueRule):
            self.for_queues.append(rule)
        if isinstance(rule, OfferRule):
            self.for_offers.append(rule)


_rules = _Rules(SHIPPED)


def register(rule: PreemptionRule) -> None:
    """Adds a rule. Registering the same rule again changes nothing.

    :raises ValueError: another rule has the name, or the rule has no occasion, so that nothing would consult it.
    """
    _rules.add(rule)


def names() -> list[str]:
    """The names of all rules, Muster's own first."""
    return list(_rules.by_name)


def rule_named(name: str) -> PreemptionRule | None:
    """The rule with this name; None: a record names the rule, but the package that had it is not installed any more."""
    return _rules.by_name.get(name)


def ask_rules() -> list[AskRule]:
    """The rules for an ask that waits."""
    return _rules.for_asks


def looks_at_every_own() -> bool:
    """Whether an allocation of the asking application, of any priority, may change a rule's answer for an ask."""
    return _rules.every_own


def required_node_rules() -> list[RequiredNodeRule]:
    """The rules for an ask that can run on one node only."""
    return _rules.for_required_nodes


def queue_rules() -> list[QueueRule]:
    """The rules for a queue above its max."""
    return _rules.for_queues


def offer_rules() -> list[OfferRule]:
    """The rules for an offer that its source wants back."""
    return _rules.for_offers
