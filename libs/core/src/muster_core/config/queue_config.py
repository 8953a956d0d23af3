"""The queue configuration as plain data, and the text form of quantities.

``muster_queue_config.queue_yaml`` makes it from YAML, and knows lines and columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from muster_si.constants import APP_NAMESPACE_TAG, CPU, MEMORY

from muster_core.config import acl
from muster_core.config.patterns import Pattern, compile_pattern
from muster_core.model.resources import INT64_MAX

ROOT = "root"
# The queue for applications that must be accepted (because they run already) but match no placement rule.
RECOVERY_QUEUE = "@recovery@"
RECOVERY_PATH = f"{ROOT}.{RECOVERY_QUEUE}"
# The queue and application of independent asks and allocations, which belong to no application of the RM.
INDEPENDENT = "@independent@"
INDEPENDENT_PATH = f"{ROOT}.{INDEPENDENT}"
# Queues that Muster creates, for one purpose each. A configuration or an application that names them is rejected.
OWN_QUEUES = {
    RECOVERY_QUEUE: "Muster creates it when an application must be accepted",
    INDEPENDENT: "Muster creates it for allocations that belong to no application",
}
# The largest depth of a queue, with root. More is an accident: each level costs time with every allocation below it.
QUEUE_DEPTH_MAX = 32
DEFAULT_PARTITION = "default"
DEFAULT_NODE_SORT_POLICY = "fair"
BACKFILL_OFF, BACKFILL_CONSERVATIVE, BACKFILL_EASY = BACKFILLS = ("off", "conservative", "easy")

_QUANTITY = re.compile(r"([0-9]+)\s*([A-Za-z]*)\Z")
_DIGITS_MAX = 30  # more than any int64 has, with leading zeros; int() refuses thousands of digits

_SUFFIXES = {
    "": 1,
    **{letter: 1000 ** (power + 1) for power, letter in enumerate("kMGTPE")},
    **{f"{letter}i": 1024 ** (power + 1) for power, letter in enumerate("KMGTPE")},
}
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class InvalidQuantity(ValueError):
    """A text is not a quantity; the message names the expectation."""


def parse_quantity(resource_type: str, text: str) -> int:
    """Parses a configured quantity: ``10Gi`` → bytes; ``vcore`` in thousandths (``2`` → 2000, ``500m`` → 500).

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
    """The shortest exact text of a quantity, with binary suffixes. :func:`parse_quantity` reads it back."""
    if resource_type == CPU:
        return str(value // 1000) if value % 1000 == 0 else f"{value}m"
    power = 0
    while value and value % 1024 == 0 and power < len(_BINARY) - 1:
        value, power = value // 1024, power + 1
    return f"{value}{_BINARY[power]}"


@dataclass(frozen=True, slots=True)
class LimitConfig:
    """One entry of a queue's limits, which hold for each of its users and each of its groups.

    :param users: names, or ``*`` for every user without a named limit at this queue.
    :param groups: names, or ``*`` for all groups without a named limit at this queue, together.
    :param max_applications: 0: not set.
    :param max_resources: by type name; None: not set; other types are unlimited.
    """

    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    max_applications: int = 0
    max_resources: dict[str, int] | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class ChildTemplateConfig:
    """The settings of a new dynamic leaf below a queue."""

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


# Characters that make a filter's only entry a regular expression. Names have none of them, except for a $ at the end.
_EXPRESSION = re.compile(r"[\^$*+?()\[{}|]")


def is_expression(names: tuple[str, ...]) -> bool:
    """Whether a filter's list is one regular expression, and not names."""
    return len(names) == 1 and _EXPRESSION.search(names[0]) is not None


@dataclass(frozen=True, slots=True)
class FilterConfig:
    """The users and groups that a placement rule concerns.

    Raises patterns.InvalidPattern for an invalid expression.

    :param deny: the listed users and groups are refused and all others admitted; else the other way round.
    :param users: names, or one regular expression; empty: not set. In a list of several, an invalid name matches
        nobody.
    """

    deny: bool = False
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    # Made from the two above, once: compiled expressions, or sets of names.
    _users: Pattern | frozenset[str] = field(init=False, repr=False, compare=False)
    _groups: Pattern | frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_users", _matcher(self.users, acl.USER_NAME))
        object.__setattr__(self, "_groups", _matcher(self.groups, acl.GROUP_NAME))

    def matches(self, user: str, groups: Iterable[str]) -> bool:
        """Whether the rule concerns this user."""
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


# The rules that a configuration may name. (The rule for recovery is always last and cannot be named.)
RULES = ("provided", "user", "fixed", "tag", "test")


@dataclass(frozen=True, slots=True)
class PlacementRuleConfig:
    """One placement rule, in the order of its list.

    :param name: lower case, one of RULES.
    :param create: missing queues may be created.
    :param value: the queue of ``fixed``; the tag's name of ``tag``.
    :param parent: the rule that names the parent queue; None: root.
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


@dataclass(frozen=True, slots=True)
class PreemptionConfig:
    """A partition's settings of preemption.

    :param enabled: whether asks preempt at all.
    :param quota_enabled: whether queues over a lowered max are cut back.
    :param opted_out_last: allocations that opted out of preemption go last (as in YuniKorn), instead of never.
    """

    enabled: bool = True
    quota_enabled: bool = False
    opted_out_last: bool = False


@dataclass(frozen=True, slots=True)
class ReservationConfig:
    """When a node is reserved for an ask that fits on no node.

    :param delay_ns: how long the ask has waited since its creation.
    :param timeout_ns: a reservation ends when its ask has been over a limit for so long.
    """

    enabled: bool = True
    delay_ns: int = 2 * 1_000_000_000
    timeout_ns: int = 3600 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class PartitionConfig:
    """One partition: its queue tree from root down, and its policies.

    :param backfill: whether asks with a declared duration may use reserved nodes (``allocation/backfill.py``).
    :param of_rm: the RM in ``[rm]name``, which must be the one whose configuration it is; "": none was named.
    """

    name: str
    root: QueueConfig
    placement_rules: tuple[PlacementRuleConfig, ...] = (PlacementRuleConfig("provided"),)
    node_sort_policy: str = DEFAULT_NODE_SORT_POLICY
    node_sort_weights: dict[str, float] = field(default_factory=lambda: {CPU: 1.0, MEMORY: 1.0})
    preemption: PreemptionConfig = PreemptionConfig()
    reservation: ReservationConfig = ReservationConfig()
    backfill: str = BACKFILL_OFF
    user_group_resolver: str = ""
    of_rm: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """All partitions of one RM."""

    partitions: tuple[PartitionConfig, ...]


def queue_paths(partition: PartitionConfig) -> list[str]:
    """The paths of all queues that a partition's configuration names."""
    paths: list[str] = []
    below = [(partition.root, "")]
    while below:
        queue, above = below.pop()
        path = f"{above}.{queue.name.lower()}" if above else queue.name.lower()
        paths.append(path)
        below.extend((child, path) for child in queue.queues)
    return paths


def types_named(partition: PartitionConfig) -> list[str]:
    """The resource types that a partition's configuration names, each once, in order of appearance."""
    types: dict[str, None] = {name: None for name, weight in partition.node_sort_weights.items() if weight > 0}
    _collect_types(partition.root, types)
    return list(types)


def _collect_types(queue: QueueConfig, types: dict[str, None]) -> None:
    template = queue.child_template or ChildTemplateConfig()
    maps = (queue.guaranteed, queue.maximum, template.guaranteed, template.maximum)
    for named in (*maps, *(limit.max_resources for limit in queue.limits)):
        types.update(dict.fromkeys(named or ()))
    for child in queue.queues:
        _collect_types(child, types)


# The configuration of an RM that registers with an empty one: YuniKorn's (tag rule on the namespace, open root), with
# one more rule, so that an RM without namespaces may name its queue.
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


def without_rm(text: str, rm_id: str) -> str:
    """A partition's name without the RM: REST shows ``[rm]name`` in the attributes of nodes, as YuniKorn does. Another
    RM's prefix stays: there is no such partition.
    """
    return text.removeprefix(f"[{rm_id}]")


def partition_name(text: str, rm_id: str = "") -> str:
    """The canonical partition name: '' and any case of 'default' are the default partition.

    :param rm_id: the RM, where its name may stand before the partition's.
    """
    text = without_rm(text, rm_id) if rm_id else text
    return DEFAULT_PARTITION if text.lower() in ("", DEFAULT_PARTITION) else text


@dataclass(frozen=True, slots=True)
class EffectiveQueue:
    """A configured queue with everything that holds for it from the queues above and below.

    :ivar path: lower case, from root.
    :ivar guaranteed: its own; if not set, the sum of its children's.
    :ivar maximum: by type name, the smallest max on the path from root.
    :ivar max_applications: the smallest on the path; 0: unlimited.
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
    """A queue's own guaranteed resources; if not set, the sum of its children's."""
    own = set_quantities(config.guaranteed)
    if own:
        return dict(own)
    total: dict[str, int] = {}
    for child in config.queues:
        for name, least in effective_guaranteed(child).items():
            total[name] = total.get(name, 0) + least
    return total


def set_quantities(quantities: dict[str, int] | None) -> dict[str, int]:
    """The quantities, or empty if all are zero, which means "not set"."""
    return quantities if quantities and any(quantities.values()) else {}
