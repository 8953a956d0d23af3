"""The queue configuration as plain data, and the text form of quantities (core-features §2.1–2.4).

The YAML reader, which knows lines and columns, is ``muster_scheduler.service.queue_yaml``; this is what it makes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from muster_scheduler.core.resources import INT64_MAX

ROOT = "root"
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
VCORE = "vcore"


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
        if resource_type != VCORE:
            raise InvalidQuantity(f"invalid suffix 'm' in {text[:100]!r}: thousandths exist for vcore only")
        value = int(digits)
    else:
        factor = _SUFFIXES.get(suffix)
        if factor is None:
            raise InvalidQuantity(
                f"invalid suffix {suffix[:100]!r} in {text[:100]!r}: expected one of k M G T P E Ki Mi Gi Ti Pi Ei"
            )
        value = int(digits) * factor * (1000 if resource_type == VCORE else 1)
    if value > INT64_MAX:
        raise InvalidQuantity(f"quantity {text!r} is over {INT64_MAX}")
    return value


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


@dataclass(frozen=True, slots=True)
class FilterConfig:
    """Whom a placement rule concerns (§2.5).

    :param deny: the listed are refused and all others let in; else the other way round.
    :param users: names, or one regular expression; empty: not said.
    """

    deny: bool = False
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlacementRuleConfig:
    """One placement rule, in its list's order.

    :param parent: the rule that names the queue above; None: root.
    """

    name: str
    create: bool = False
    value: str = ""
    filter: FilterConfig | None = None
    parent: PlacementRuleConfig | None = None


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
    node_sort_weights: dict[str, float] = field(default_factory=lambda: {VCORE: 1.0, "memory": 1.0})
    preemption: PreemptionConfig = PreemptionConfig()
    reservation: ReservationConfig = ReservationConfig()
    user_group_resolver: str = ""


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """All partitions of one RM."""

    partitions: tuple[PartitionConfig, ...]


# What an RM gets that registers with an empty configuration. As the real core's (tag rule on the namespace, open root),
# with one rule more: an RM without namespaces may name its queue.
DEFAULT_CONFIG = ClusterConfig(
    (
        PartitionConfig(
            DEFAULT_PARTITION,
            QueueConfig(ROOT, parent=True, submit_acl="*"),
            placement_rules=(
                PlacementRuleConfig("tag", create=True, value="namespace"),
                PlacementRuleConfig("provided", create=True),
            ),
        ),
    )
)


def partition_name(text: str) -> str:
    """An RM's or configuration's partition name in its one spelling: '' and any case of 'default' are the default."""
    return DEFAULT_PARTITION if text.lower() in ("", DEFAULT_PARTITION) else text
