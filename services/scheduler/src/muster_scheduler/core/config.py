"""The queue configuration as plain data, and the text form of quantities (core-features §2.1–2.4).

The YAML reader, which knows lines and columns, is ``muster_scheduler.service.queue_yaml``; this is what it makes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

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
class QueueConfig:
    """One configured queue.

    :param guaranteed: by type name; None: not set (which is not the same as empty).
    :param maximum: by type name; None: not set.
    :param max_applications: 0: unlimited.
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


@dataclass(frozen=True, slots=True)
class PlacementRuleConfig:
    """One placement rule, in its list's order."""

    name: str
    create: bool = False
    value: str = ""


@dataclass(frozen=True, slots=True)
class PartitionConfig:
    """One partition: its queue tree from root down, and its policies."""

    name: str
    root: QueueConfig
    placement_rules: tuple[PlacementRuleConfig, ...] = (PlacementRuleConfig("provided"),)
    node_sort_policy: str = "fair"
    node_sort_weights: dict[str, float] = field(default_factory=lambda: {VCORE: 1.0, "memory": 1.0})
    preemption_enabled: bool = True
    quota_preemption_enabled: bool = False


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
