"""The queue configuration as plain data, and the text form of quantities (core-features §2.1–2.4).

The YAML reader, which knows lines and columns, is ``muster_scheduler.queue_yaml``; this is what it makes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from muster_si.constants import APP_NAMESPACE_TAG, CPU, MEMORY

from muster_scheduler.core import acl
from muster_scheduler.core.patterns import Pattern, compile_pattern
from muster_scheduler.core.resources import INT64_MAX

ROOT = "root"
# Where applications go that must be taken in (they run already) and that no placement rule wants.
RECOVERY_QUEUE = "@recovery@"
RECOVERY_PATH = f"{ROOT}.{RECOVERY_QUEUE}"
# How deep a queue may be, root counted: beyond, it is an accident; each level costs with every allocation below it.
QUEUE_DEPTH_MAX = 32
DEFAULT_PARTITION = "default"

_QUANTITY = re.compile(r"([0-9]+)\s*([A-Za-z]*)\Z")
_DIGITS_MAX = 30  # more than any int64 has, with zeros before it; int() refuses thousands

_SUFFIXES = {
    "": 1,
    **{letter: 1000 ** (power + 1) for power, letter in enumerate("kMGTPE")},
    **{f"{letter}i": 1024 ** (power + 1) for power, letter in enumerate("KMGTPE")},
}
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class InvalidQuantity(ValueError):
    """A quantity's text that is not one; the message says what was expected."""


def parse_quantity(resource_type: str, text: str) -> int:
    """A configured quantity as an integer: ``10Gi`` → bytes; ``vcore`` in thousandths (``2`` → 2000, ``500m`` → 500).

    Raises InvalidQuantity.
    """
    match = _QUANTITY.match(text.strip())
    if match is None:
        raise InvalidQuantity(
            f"invalid quantity {text[:100]!r}: expected digits and a suffix, such as 500m, 10, 2k or 4Gi"
        )
    digits, suffix = match.groups()
    if len(digits) > _DIGITS_MAX:
        raise InvalidQuantity(f"quantity {text[:_DIGITS_MAX]!r}… is over {INT64_MAX}")
    if suffix == "m":
        if resource_type != CPU:
            raise InvalidQuantity(f"invalid suffix 'm' in {text[:100]!r}: thousandths exist for vcore only")
        value = int(digits)
    else:
        factor = _SUFFIXES.get(suffix)
        if factor is None:
            raise InvalidQuantity(
                f"invalid suffix {suffix[:100]!r} in {text[:100]!r}: expected one of k M G T P E Ki Mi Gi Ti Pi Ei"
            )
        value = int(digits) * factor * (1000 if resource_type == CPU else 1)
    if value > INT64_MAX:
        raise InvalidQuantity(f"quantity {text!r} is over {INT64_MAX}")
    return value


def quantity_text(resource_type: str, value: int) -> str:
    """The shortest exact text of a quantity with binary suffixes; :func:`parse_quantity` reads it back."""
    if resource_type == CPU:
        return str(value // 1000) if value % 1000 == 0 else f"{value}m"
    power = 0
    while value and value % 1024 == 0 and power < len(_BINARY) - 1:
        value, power = value // 1024, power + 1
    return f"{value}{_BINARY[power]}"


@dataclass(frozen=True, slots=True)
class LimitConfig:
    """One entry of a queue's limits: what each of its users, and each of its groups, may use there (§2.7).

    :param users: names, or ``*`` for every user without a named limit at this queue.
    :param groups: names, or ``*`` for all groups without a named limit at this queue, together.
    :param max_applications: 0: not set.
    :param max_resources: by type name; None: not set; a type that is not named is unlimited.
    """

    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    max_applications: int = 0
    max_resources: dict[str, int] | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class ChildTemplateConfig:
    """What a dynamic leaf below a queue gets when it is made (§2.1)."""

    max_applications: int = 0
    properties: dict[str, str] = field(default_factory=dict)
    guaranteed: dict[str, int] | None = None
    maximum: dict[str, int] | None = None


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """One configured queue.

    :param guaranteed: by type name; None: not set (which is not the same as empty).
    :param maximum: by type name; None: not set.
    :param max_applications: 0: unlimited.
    :param child_template: None: not set; parents without one take their parent's.
    """

    name: str
    parent: bool = False
    queues: tuple[QueueConfig, ...] = ()
    guaranteed: dict[str, int] | None = None
    maximum: dict[str, int] | None = None
    max_applications: int = 0
    properties: dict[str, str] = field(default_factory=dict)
    submit_acl: str = ""
    admin_acl: str = ""
    child_template: ChildTemplateConfig | None = None
    limits: tuple[LimitConfig, ...] = ()


# Characters that make a filter's only entry a regular expression: names have none of them, but for a $ at the end.
_EXPRESSION = re.compile(r"[\^$*+?()\[{}|]")


def is_expression(names: tuple[str, ...]) -> bool:
    """Whether a filter's list is one regular expression, not names."""
    return len(names) == 1 and _EXPRESSION.search(names[0]) is not None


@dataclass(frozen=True, slots=True)
class FilterConfig:
    """Whom a placement rule concerns (§2.5).

    Raises patterns.InvalidPattern when made of an expression that is none.

    :param deny: the listed are refused and all others let in; else the other way round.
    :param users: names, or one regular expression; empty: not said. What is no name in a list of several is nobody.
    """

    deny: bool = False
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    # Made of the two once: expressions compiled, names in sets.
    _users: Pattern | frozenset[str] = field(init=False, repr=False, compare=False)
    _groups: Pattern | frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_users", _matcher(self.users, acl.USER_NAME))
        object.__setattr__(self, "_groups", _matcher(self.groups, acl.GROUP_NAME))

    def lets_in(self, user: str, groups: Iterable[str]) -> bool:
        """Whether the rule is for this user."""
        if not self.users and not self.groups:
            return not self.deny
        listed = _is_listed(user, self._users) or any(_is_listed(group, self._groups) for group in groups)
        return listed != self.deny


def _matcher(names: tuple[str, ...], name_rule: re.Pattern[str]) -> Pattern | frozenset[str]:
    if is_expression(names):
        return compile_pattern(names[0])
    return frozenset(name for name in names if name_rule.match(name))


def _is_listed(name: str, matcher: Pattern | frozenset[str]) -> bool:
    return matcher.search(name) if isinstance(matcher, Pattern) else name in matcher


# The rules that a configuration may name. (One more, for recovery, is always the last and needs no naming.)
RULES = ("provided", "user", "fixed", "tag", "test")


@dataclass(frozen=True, slots=True)
class PlacementRuleConfig:
    """One placement rule, in its list's order.

    :param name: lower case, one of RULES.
    :param create: queues that are not there may be made.
    :param value: of ``fixed`` the queue, of ``tag`` the tag's name.
    :param parent: the rule that names the queue above; None: root.
    """

    name: str
    create: bool = False
    value: str = ""
    filter: FilterConfig | None = None
    parent: PlacementRuleConfig | None = None


def rule_text(rule: PlacementRuleConfig) -> str:
    """A placement rule in one line: ``user (create) below tag namespace (create; only group ops)``."""
    notes = ["create"] if rule.create else []
    if rule.filter is not None:
        names = [f"user {name}" for name in rule.filter.users] + [f"group {name}" for name in rule.filter.groups]
        if names:
            notes.append(f"{'not' if rule.filter.deny else 'only'} {', '.join(names)}")
        elif rule.filter.deny:
            notes.append("for nobody")
    value = f" {rule.value}" if rule.value else ""
    above = f" below {rule_text(rule.parent)}" if rule.parent is not None else ""
    return f"{rule.name}{value}{' (' + '; '.join(notes) + ')' if notes else ''}{above}"


class NodeSortPolicy(StrEnum):
    """In which order nodes are tried; the last two are Muster's own."""

    FAIR = "fair"
    BINPACKING = "binpacking"
    FRAGMENTATION = "fragmentation"
    DOTPRODUCT = "dotproduct"


@dataclass(frozen=True, slots=True)
class PreemptionConfig:
    """Who may be preempted, of a partition.

    :param enabled: whether asks preempt at all.
    :param quota_enabled: whether queues over a lowered max are cut back.
    :param opted_out_last: allocations that opted out of preemption go last (as the real core has it), not never.
    """

    enabled: bool = True
    quota_enabled: bool = False
    opted_out_last: bool = False


@dataclass(frozen=True, slots=True)
class ReservationConfig:
    """When an ask that fits on no node gets a node to itself (§2.13).

    :param delay_ns: since it was asked for.
    :param timeout_ns: a reservation whose ask is over a limit for so long is given up.
    """

    enabled: bool = True
    delay_ns: int = 2 * 1_000_000_000
    timeout_ns: int = 3600 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class PartitionConfig:
    """One partition: its queue tree from root down, and its policies."""

    name: str
    root: QueueConfig
    placement_rules: tuple[PlacementRuleConfig, ...] = (PlacementRuleConfig("provided"),)
    node_sort_policy: NodeSortPolicy = NodeSortPolicy.FAIR
    node_sort_weights: dict[str, float] = field(default_factory=lambda: {CPU: 1.0, MEMORY: 1.0})
    preemption: PreemptionConfig = PreemptionConfig()
    reservation: ReservationConfig = ReservationConfig()
    user_group_resolver: str = ""


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """All partitions of one RM."""

    partitions: tuple[PartitionConfig, ...]


def types_named(partition: PartitionConfig) -> list[str]:
    """The resource types that a partition's configuration names, each once, in order of appearance."""
    found: dict[str, None] = {name: None for name, weight in partition.node_sort_weights.items() if weight > 0}
    _collect_types(partition.root, found)
    return list(found)


def _collect_types(queue: QueueConfig, found: dict[str, None]) -> None:
    template = queue.child_template or ChildTemplateConfig()
    maps = (queue.guaranteed, queue.maximum, template.guaranteed, template.maximum)
    for named in (*maps, *(limit.max_resources for limit in queue.limits)):
        found.update(dict.fromkeys(named or ()))
    for child in queue.queues:
        _collect_types(child, found)


# What an RM gets that registers with an empty configuration. As the real core's (tag rule on the namespace, open root),
# with one rule more: an RM without namespaces may name its queue.
DEFAULT_CONFIG = ClusterConfig(
    (
        PartitionConfig(
            DEFAULT_PARTITION,
            QueueConfig(ROOT, parent=True, submit_acl="*"),
            placement_rules=(
                PlacementRuleConfig("tag", create=True, value=APP_NAMESPACE_TAG),
                PlacementRuleConfig("provided", create=True),
            ),
        ),
    )
)


def partition_name(text: str) -> str:
    """An RM's or configuration's partition name in its one spelling: '' and any case of 'default' are the default."""
    return DEFAULT_PARTITION if text.lower() in ("", DEFAULT_PARTITION) else text


@dataclass(frozen=True, slots=True)
class EffectiveQueue:
    """A configured queue with what holds for it from all that is above and below.

    :ivar path: lower case, from root.
    :ivar guaranteed: its own; without one, the sum of its children's.
    :ivar maximum: by type name, the least on the path from root.
    :ivar max_applications: the least on the path; 0: unlimited.
    :ivar child_template: its own or the nearest ancestor's.
    """

    config: QueueConfig
    path: str
    leaf: bool
    guaranteed: dict[str, int]
    maximum: dict[str, int]
    max_applications: int
    child_template: ChildTemplateConfig | None


def effective_queues(root: QueueConfig) -> Iterator[EffectiveQueue]:
    """Every queue of a partition, parents before their children, in the configuration's order."""
    yield from _effective(root, None)


def _effective(config: QueueConfig, above: EffectiveQueue | None) -> Iterator[EffectiveQueue]:
    maximum = dict(above.maximum) if above is not None else {}
    for name, most in set_quantities(config.maximum).items():
        maximum[name] = min(most, maximum.get(name, most))
    counts = [count for count in (config.max_applications, above.max_applications if above else 0) if count]
    queue = EffectiveQueue(
        config,
        config.name.lower() if above is None else f"{above.path}.{config.name.lower()}",
        above is not None and not config.queues and not config.parent,
        effective_guaranteed(config),
        maximum,
        min(counts, default=0),
        config.child_template or (above.child_template if above is not None else None),
    )
    yield queue
    for child in config.queues:
        yield from _effective(child, queue)


def effective_guaranteed(config: QueueConfig) -> dict[str, int]:
    """A queue's own guaranteed resources; without, the sum of its children's (core-features §2.1)."""
    own = set_quantities(config.guaranteed)
    if own:
        return dict(own)
    total: dict[str, int] = {}
    for child in config.queues:
        for name, least in effective_guaranteed(child).items():
            total[name] = total.get(name, 0) + least
    return total


def set_quantities(quantities: dict[str, int] | None) -> dict[str, int]:
    """Quantities that are set: all-zero ones are "not set" (core-features §2.1)."""
    return quantities if quantities and any(quantities.values()) else {}
