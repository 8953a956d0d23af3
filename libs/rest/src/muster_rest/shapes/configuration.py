"""Placement rules, the queue configuration, and the check of a configuration."""

from __future__ import annotations

from msgspec import UNSET, UnsetType, field

from muster_rest.shapes.base import YuniKornShape


class FilterDao(YuniKornShape, kw_only=True):
    """The users and groups of a rule: names, or one expression."""

    type: str
    user_list: list[str] = []
    group_list: list[str] = []
    user_exp: str = ""
    group_exp: str = ""


class RuleDao(YuniKornShape, kw_only=True):
    """One rule."""

    name: str
    parameters: dict[str, str] = {}
    filter: FilterDao | None = None
    parent_rule: RuleDao | None = None


class ValidatedDao(YuniKornShape, kw_only=True):
    """Whether a configuration would be accepted; the reason has one line for each error."""

    allowed: bool
    reason: str = ""


class ResourcesDao(YuniKornShape, kw_only=True, rename="pascal"):
    """A queue's guaranteed and greatest amounts."""

    guaranteed: dict[str, str] = {}
    max: dict[str, str] = {}


class LimitDao(YuniKornShape, kw_only=True, rename="pascal"):
    """A limit of users and groups."""

    limit: str
    users: list[str] = []
    groups: list[str] = []
    max_resources: dict[str, str] = {}
    max_applications: int = 0


class ChildTemplateDao(YuniKornShape, kw_only=True, rename="pascal"):
    """The settings of dynamic leaves below a queue."""

    max_applications: int = 0
    properties: dict[str, str] = {}
    resources: ResourcesDao


class ConfiguredQueueDao(YuniKornShape, kw_only=True, rename="pascal"):
    """A queue."""

    name: str
    parent: bool = False
    resources: ResourcesDao
    max_applications: int = 0
    properties: dict[str, str] = {}
    admin_acl: str = field(default="", name="AdminACL")
    submit_acl: str = field(default="", name="SubmitACL")
    child_template: ChildTemplateDao
    queues: list[ConfiguredQueueDao] = []
    limits: list[LimitDao] = []


class ConfiguredFilterDao(YuniKornShape, kw_only=True, rename="pascal"):
    """The users and groups of a placement rule."""

    type: str
    users: list[str] = []
    groups: list[str] = []


class ConfiguredRuleDao(YuniKornShape, kw_only=True, rename="pascal"):
    """A placement rule."""

    name: str
    create: bool = False
    filter: ConfiguredFilterDao
    parent: ConfiguredRuleDao | None = None
    value: str = ""


class ConfiguredPreemptionDao(YuniKornShape, kw_only=True, rename="pascal"):
    """Preemption in a partition. A flag that is left out is not the same as one that is false."""

    enabled: bool | UnsetType = UNSET
    quota_preemption_enabled: bool | UnsetType = UNSET
    opt_out: str = ""


class ConfiguredNodeSortDao(YuniKornShape, kw_only=True, rename="pascal"):
    """The node sort policy."""

    type: str
    resource_weights: dict[str, float | int] = {}


class ConfiguredResolverDao(YuniKornShape, kw_only=True):
    """The resolver of users' groups."""

    type: str = ""


class ConfiguredReservationDao(YuniKornShape, kw_only=True, rename="pascal"):
    """Reservations of nodes."""

    enabled: bool = False
    delay: str = ""
    timeout: str = ""


class ConfiguredPartitionDao(YuniKornShape, kw_only=True, rename="pascal"):
    """A partition."""

    name: str
    queues: list[ConfiguredQueueDao]
    placement_rules: list[ConfiguredRuleDao] = []
    limits: list[LimitDao] = []
    preemption: ConfiguredPreemptionDao
    node_sort_policy: ConfiguredNodeSortDao
    user_group_resolver: ConfiguredResolverDao
    reservation: ConfiguredReservationDao | None = None


class ConfigDao(YuniKornShape, kw_only=True, rename="pascal"):
    """The queue configuration in force, as JSON."""

    partitions: list[ConfiguredPartitionDao]
    checksum: str = ""
    extra: dict[str, str] = {}
    deadlock_detection_enabled: bool
    deadlock_timeout_seconds: int
