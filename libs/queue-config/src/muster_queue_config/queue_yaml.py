"""Reads the text of a queue configuration strictly: YuniKorn's YAML. Each problem has its line and column.

One reading finds all problems (YuniKorn stops at the first). An error makes the configuration unusable. A warning is
for an accepted part without the effect that it seems to have. The rules are YuniKorn's, and an accepted configuration
can be activated. docs/configuration.md lists every key.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from dataclasses import replace
from typing import Any, NamedTuple

from muster_core.config import acl, properties
from muster_core.config.queue_config import (
    BACKFILL_OFF,
    BACKFILLS,
    DEFAULT_CONFIG,
    DEFAULT_NODE_SORT_POLICY,
    OWN_QUEUES,
    QUEUE_DEPTH_MAX,
    ROOT,
    ChildTemplateConfig,
    ClusterConfig,
    PartitionConfig,
    PlacementRuleConfig,
    PreemptionConfig,
    QueueConfig,
    ReservationConfig,
    effective_guaranteed,
    partition_name,
    quantity_text,
    set_quantities,
    types_named,
)
from muster_core.model.resources import TYPES_MAX
from muster_si.constants import CPU, MEMORY

from muster_queue_config import config_codec, node_policies
from muster_queue_config.queue_yaml_limits import LIMIT_KEYS, LimitsReader, ParsedLimit
from muster_queue_config.queue_yaml_rules import FILTER_KEYS, RULE_KEYS, RulesReader
from muster_queue_config.yaml_reader import ConfigProblem, YamlReader, is_nothing, kind, place_of, truncate
from muster_queue_config.yaml_tree import Mapping, Place, Scalar, read_tree

__all__ = ["KEYS", "ConfigProblem", "Recorded", "checksum", "load_queue_config", "load_recorded"]

# People write configurations; one beyond these limits is an attack or an accident. A MiB is the limit of one request;
# the services' own limit is lower (``settings.py``).
TEXT_BYTES_MAX = 1024 * 1024
QUEUES_MAX = 10_000
# Of a text that is no YAML and not larger than this, the slow reader gives the problem: its messages and places are
# better.
_TOLD_WELL_BYTES_MAX = 16 << 10
WEIGHT_MAX = 1e9  # of a node sort's resource; sums of products with it stay finite
PARTITION_NAME_MAX = 64  # as for a queue

USER_GROUP_RESOLVERS = ("", "os", "ldap", "test")

#: All keys, by the mapping that holds them.
KEYS: dict[str, frozenset[str]] = {
    "configuration": frozenset({"checksum", "partitions"}),
    "partition": frozenset(
        {
            "backfill",
            "limits",
            "name",
            "nodesortpolicy",
            "placementrules",
            "preemption",
            "queues",
            "reservation",
            "usergroupresolver",
        }
    ),
    "nodesortpolicy": frozenset({"resourceweights", "type"}),
    "preemption": frozenset({"enabled", "optout", "quotapreemptionenabled"}),
    "reservation": frozenset({"delay", "enabled", "timeout"}),
    "usergroupresolver": frozenset({"type"}),
    "queue": frozenset(
        {
            "adminacl",
            "childtemplate",
            "limits",
            "maxapplications",
            "name",
            "parent",
            "properties",
            "queues",
            "resources",
            "submitacl",
        }
    ),
    "resources": frozenset({"guaranteed", "max"}),
    "childtemplate": frozenset({"maxapplications", "properties", "resources"}),
    "limit": LIMIT_KEYS,
    "placement rule": RULE_KEYS,
    "filter": FILTER_KEYS,
}

# As YuniKorn's REST shows it: [rm]name. Every text matches.
_NAME_WITH_RM: Any = re.compile(r"(?:\[([^]]+)\])?(.*)\Z", re.DOTALL)
# Before version 3 of ``compiled`` the brackets were a part of the name.
_BRACKETS_IN_NAMES = 2
_CHECKSUM = re.compile("checksum: [0-9A-Fa-f]{64}")


class Recorded(NamedTuple):
    """A configuration that was accepted at some time.

    :ivar config: None: it cannot be read any more.
    :ivar compiled: its ``config_codec.encode``; b"": the text must be read each time.
    :ivar problems: the errors if it cannot be read; else the parts that would be refused today, and admit nobody.
    """

    config: ClusterConfig | None
    compiled: bytes
    problems: list[ConfigProblem]


def load_queue_config(
    text: str, *, bytes_max: int = TEXT_BYTES_MAX, queues_max: int = QUEUES_MAX, pure: bool = False
) -> tuple[ClusterConfig | None, list[ConfigProblem]]:
    """Reads a configuration. Returns None if there is an error among the problems; empty text is the built-in
    default.

    :param pure: as for ``yaml_tree.read_tree``.
    """
    config, problems, _ = _load(text, bytes_max, queues_max, pure=pure, recorded=False)
    return config, problems


def load_recorded(text: str, compiled_text: bytes) -> Recorded:
    """Returns a configuration that was accepted at some time. Access lists that were accepted then, and are refused
    now, admit nobody.

    :param compiled_text: an earlier ``config_codec.encode``; it saves the reading if it is of this text and version.
    """
    if not text.strip():
        return Recorded(DEFAULT_CONFIG, b"", [])
    config = config_codec.decode(text, compiled_text)
    if config is not None:
        return Recorded(config, compiled_text, [])
    config, problems, closed = _load(text, TEXT_BYTES_MAX, QUEUES_MAX, pure=False, recorded=True)
    if config is None:
        config, problems, closed = _load(text, TEXT_BYTES_MAX, QUEUES_MAX, pure=True, recorded=True)
    if config is None:
        return Recorded(None, b"", problems)
    config = _with_old_names(text, compiled_text, config)
    # (Only a text with nothing to name is kept as read: the bytes have no problems.)
    return Recorded(config, b"" if closed else config_codec.encode(text, config), closed)


def _with_old_names(text: str, compiled_text: bytes, config: ClusterConfig) -> ClusterConfig:
    """Returns the configuration with the names that an earlier version gave its partitions: records have them."""
    old = config_codec.decode(text, compiled_text, _BRACKETS_IN_NAMES)
    if old is None:
        return config
    pairs = zip(config.partitions, old.partitions, strict=True)
    return ClusterConfig(tuple(replace(new, name=before.name, of_rm="") for new, before in pairs))


def _load(
    text: str, bytes_max: int, queues_max: int, *, pure: bool, recorded: bool
) -> tuple[ClusterConfig | None, list[ConfigProblem], list[ConfigProblem]]:
    """Returns the configuration, all problems, and those of parts that only a recorded text may have."""
    if not text.strip():
        return DEFAULT_CONFIG, [], []
    reader = YamlReader()
    size = len(text.encode(errors="surrogatepass"))
    if size > bytes_max:
        reader.error("", None, f"the configuration has {size} bytes, expected at most {bytes_max}")
        return None, reader.problems, []
    document = read_tree(text, reader.unreadable, pure=pure)
    if reader.errors and not pure and size <= _TOLD_WELL_BYTES_MAX:
        pure_reader = YamlReader()
        read_tree(text, pure_reader.unreadable, pure=True)
        return None, (pure_reader if pure_reader.errors else reader).problems, []
    configuration = _Configuration(reader, queues_max, recorded=recorded)
    config = None if reader.errors else configuration.read(document)
    return (None if reader.errors else config), reader.problems, configuration.closed


def checksum(text: str) -> str:
    """Returns a text's checksum: SHA-256 in upper-case hex, of the text without the checksums in it."""
    return hashlib.sha256(_CHECKSUM.sub("", text).encode()).hexdigest().upper()


class _Configuration:
    """Makes a ClusterConfig from a tree."""

    def __init__(self, reader: YamlReader, queues_max: int, *, recorded: bool) -> None:
        self._reader, self._queues_max, self._recorded = reader, queues_max, recorded
        self.closed: list[ConfigProblem] = []
        self._limits = LimitsReader(reader)
        self._rules = RulesReader(reader)
        self._queues = 0
        # Each queue's place, and the parts of its limits, by the identity of its result (all results live as long as
        # this object).
        self._standing: dict[int, tuple[str, Place]] = {}
        self._limits_of: dict[int, tuple[ParsedLimit, ...]] = {}

    def read(self, document: Any) -> ClusterConfig | None:
        """Reads the whole document. Returns None if it is no configuration."""
        if is_nothing(document):
            return DEFAULT_CONFIG
        reader = self._reader
        top = reader.mapping(document, "", document.place, KEYS["configuration"])
        if top is None:
            return None
        partitions: list[PartitionConfig] = []
        names: set[str] = set()
        for item, path, where in reader.sequence(top.get("partitions"), "partitions"):
            partition = self._partition(item, path, where)
            if partition is None:
                continue
            if partition.name.lower() in names:
                reader.error(f"{path}.name", where, f"duplicate partition name {partition.name!r}")
            names.add(partition.name.lower())
            partitions.append(partition)
        if not partitions and not reader.errors:
            return DEFAULT_CONFIG
        return ClusterConfig(tuple(partitions))

    # ---- partitions ------------------------------------------------------------------------------------------------

    def _partition(self, value: Any, path: str, position: Place) -> PartitionConfig | None:
        reader = self._reader
        owner = reader.mapping(value, path, position, KEYS["partition"])
        if owner is None:
            return None
        named = _NAME_WITH_RM.match(reader.text(owner, "name", path))
        of_rm, name = named[1] or "", partition_name(named[2])
        if len(name) > PARTITION_NAME_MAX or not name.isprintable():
            reader.error(
                f"{path}.name",
                owner["name"].place,
                f"invalid partition name {truncate(name)!r}: expected at most {PARTITION_NAME_MAX} printable "
                "characters",
            )
        if is_nothing(owner.get("queues")):
            reader.error(f"{path}.queues", position, "queue config is not set")
            return None
        root = self._partition_limits(owner, path, self._root(owner, path))
        self._check_resources(root, root.name.lower(), {})
        self._check_applications(root, root.name.lower())
        self._limits.check_tree(root, self._limits_of)
        rules = self._rules.read(owner.get("placementrules"), f"{path}.placementrules", root)
        policy, weights = self._node_sort(owner, path)
        partition = PartitionConfig(
            name,
            root,
            rules or (PlacementRuleConfig("provided"),),
            policy,
            weights,
            self._preemption(owner, path),
            self._reservation(owner, path),
            self._backfill(owner, path),
            self._resolver(owner, path),
            of_rm,
        )
        types = len(types_named(partition))
        if types > TYPES_MAX:
            reader.error(path, position, f"{types} resource types, expected at most {TYPES_MAX}")
        return partition

    def _root(self, owner: Mapping, path: str) -> QueueConfig:
        queues = self._children(owner, path, 1)
        if len(queues) == 1 and queues[0].name.lower() == ROOT:
            root = queues[0]
        else:
            root = QueueConfig(ROOT, parent=True, queues=queues)
            self._standing[id(root)] = (f"{path}.queues", owner["queues"].place)
        where, position = self._standing[id(root)]
        if root.guaranteed is not None or root.maximum is not None:
            self._reader.error(where, position, "root queue must not have resource limits set")
        for child in root.queues:
            if child.name.lower() in OWN_QUEUES:
                child_path, child_place = self._standing[id(child)]
                self._reader.error(
                    f"{child_path}.name",
                    child_place,
                    f"invalid queue name {child.name!r}: {OWN_QUEUES[child.name.lower()]}",
                )
        return root

    def _partition_limits(self, owner: Mapping, path: str, root: QueueConfig) -> QueueConfig:
        """Returns root with the partition's limits, which count as root's own."""
        limits = self._limits.read(owner.get("limits"), f"{path}.limits")
        if not limits:
            return root
        configs = tuple(limit.config for limit in limits)
        if root.limits:
            if configs != root.limits:
                self._reader.error(
                    f"{path}.limits",
                    owner.key_places["limits"],
                    "partition limits and root queue limits are not equivalent: one of them is enough",
                )
            return root
        self._limits.check_against(limits, {}, root.max_applications)
        limited = replace(root, limits=configs)
        self._standing[id(limited)] = self._standing[id(root)]
        self._limits_of[id(limited)] = limits
        return limited

    def _node_sort(self, owner: Mapping, path: str) -> tuple[str, dict[str, float]]:
        reader = self._reader
        weights: dict[str, float] = {CPU: 1.0, MEMORY: 1.0}
        policy = reader.inner(owner, "nodesortpolicy", path, KEYS["nodesortpolicy"])
        if policy is None:
            return DEFAULT_NODE_SORT_POLICY, weights
        where = f"{path}.nodesortpolicy"
        name = reader.text(policy, "type", where) or DEFAULT_NODE_SORT_POLICY
        problem = node_policies.find(name)
        if problem:
            reader.error(f"{where}.type", policy["type"].place, problem)
        declared: Any = policy.get("resourceweights")
        if isinstance(declared, Mapping):
            own = {name: self._weight(name, weight, f"{where}.resourceweights") for name, weight in declared.items()}
            weights = own or weights  # (YuniKorn takes an empty mapping for none)
        elif not is_nothing(declared):
            reader.error(f"{where}.resourceweights", declared.place, "expected a mapping to numbers")
        return name, weights

    def _weight(self, name: str, weight: Any, path: str) -> float:
        number = weight.number if isinstance(weight, Scalar) else None
        where, error = f"{path}.{truncate(name)}", self._reader.error
        if number is None or math.isnan(number):
            error(where, weight.place, f"expected a number, got {kind(weight)}")
        elif number < 0:
            error(where, weight.place, f"negative resource weight for {truncate(name)} is not allowed")
        elif number > WEIGHT_MAX:
            error(where, weight.place, f"expected at most {WEIGHT_MAX:.0f}")
        else:
            return float(number)
        return 0.0

    def _preemption(self, owner: Mapping, path: str) -> PreemptionConfig:
        reader, default = self._reader, PreemptionConfig()
        declared = reader.inner(owner, "preemption", path, KEYS["preemption"])
        if declared is None:
            return default
        where = f"{path}.preemption"
        optout = reader.text(declared, "optout", where, "last" if default.opted_out_last else "never")
        if optout not in ("never", "last"):
            reader.error(
                f"{where}.optout", declared["optout"].place, f"expected never or last, got {truncate(optout)!r}"
            )
        return PreemptionConfig(
            reader.boolean(declared, "enabled", where, default=default.enabled),
            reader.boolean(declared, "quotapreemptionenabled", where, default=default.quota_enabled),
            optout == "last",
        )

    def _reservation(self, owner: Mapping, path: str) -> ReservationConfig:
        reader, default = self._reader, ReservationConfig()
        declared = reader.inner(owner, "reservation", path, KEYS["reservation"])
        if declared is None:
            return default
        where = f"{path}.reservation"
        return ReservationConfig(
            reader.boolean(declared, "enabled", where, default=default.enabled),
            reader.duration(declared, "delay", where, default.delay_ns, least_ns=0),
            reader.duration(declared, "timeout", where, default.timeout_ns, least_ns=1),
        )

    def _backfill(self, owner: Mapping, path: str) -> str:
        declared = owner.get("backfill")
        if declared is None:
            return BACKFILL_OFF
        text = self._reader.text(owner, "backfill", path, BACKFILL_OFF)
        if text not in BACKFILLS:
            expected = f"expected {', '.join(BACKFILLS[:-1])} or {BACKFILLS[-1]}, got {truncate(text)!r}"
            self._reader.error(f"{path}.backfill", declared.place, expected)
            return BACKFILL_OFF
        return text

    def _resolver(self, owner: Mapping, path: str) -> str:
        declared = self._reader.inner(owner, "usergroupresolver", path, KEYS["usergroupresolver"])
        if declared is None:
            return ""
        text = self._reader.text(declared, "type", f"{path}.usergroupresolver")
        where, position = f"{path}.usergroupresolver.type", place_of(declared, "type", declared.place)
        if text not in USER_GROUP_RESOLVERS:
            expected = ", ".join(name for name in USER_GROUP_RESOLVERS if name)
            self._reader.warn(
                where,
                position,
                f"unknown resolver {truncate(text)!r} means none: expected one of {expected}, or nothing",
            )
            return ""
        if text == "test":
            self._reader.warn(where, position, "resolver test knows three users and is there for tests only")
        return text

    # ---- queues ----------------------------------------------------------------------------------------------------

    def _children(self, owner: Mapping, path: str, depth: int) -> tuple[QueueConfig, ...]:
        children = [
            child
            for item, child_path, child_place in self._reader.sequence(owner.get("queues"), f"{path}.queues")
            if (child := self._queue(item, child_path, child_place, depth)) is not None
        ]
        names: set[str] = set()
        for child in children:
            if child.name.lower() in names:
                child_path, child_place = self._standing[id(child)]
                self._reader.error(
                    f"{child_path}.name",
                    child_place,
                    f"duplicate child name found with name {truncate(child.name)!r}, level {depth}",
                )
            names.add(child.name.lower())
        return tuple(children)

    def _queue(self, value: Any, path: str, position: Place, depth: int) -> QueueConfig | None:
        reader = self._reader
        self._queues += 1
        if self._queues > self._queues_max or depth > QUEUE_DEPTH_MAX:
            if self._queues == self._queues_max + 1 or depth > QUEUE_DEPTH_MAX:
                reader.error(path, position, f"more than {self._queues_max} queues, or deeper than {QUEUE_DEPTH_MAX}")
            return None
        owner = reader.mapping(value, path, position, KEYS["queue"])
        if owner is None:
            return None
        name = reader.text(owner, "name", path)
        where = place_of(owner, "name", position)
        if not acl.QUEUE_NAME.match(name):
            reader.error(
                f"{path}.name",
                where,
                f"invalid queue name {truncate(name)!r}: expected 1 to 64 of letters, digits and _ : # / @ -",
            )
        guaranteed, maximum = self._resources(owner, path)
        children = self._children(owner, path, depth + 1)
        limits = self._limits.read(owner.get("limits"), f"{path}.limits")
        config = QueueConfig(
            name,
            reader.boolean(owner, "parent", path, default=False),
            children,
            guaranteed,
            maximum,
            reader.count(owner, "maxapplications", path),
            self._properties(owner, path),
            self._acl(owner, "submitacl", path),
            self._acl(owner, "adminacl", path),
            self._child_template(owner, path),
            tuple(limit.config for limit in limits),
        )
        is_root = depth == 1 and name.lower() == ROOT
        self._limits.check_against(limits, {} if is_root else config.maximum or {}, config.max_applications)
        if config.child_template is not None and not config.queues and not config.parent and not is_root:
            reader.warn(
                f"{path}.childtemplate",
                owner.key_places["childtemplate"],
                "childtemplate has no effect on a leaf: queues are created below parents (parent: true)",
            )
        self._standing[id(config)] = (path, where)
        self._limits_of[id(config)] = limits
        return config

    def _resources(self, owner: Mapping, path: str) -> tuple[dict[str, int] | None, dict[str, int] | None]:
        reader, where = self._reader, f"{path}.resources"
        resources = reader.inner(owner, "resources", path, KEYS["resources"])
        if resources is None:
            return None, None
        guaranteed, maximum = (reader.quantities(resources, key, where) for key in ("guaranteed", "max"))
        for name, least in (guaranteed or {}).items():
            if name in (maximum or {}) and least > (maximum or {})[name]:
                reader.error(
                    f"{where}.guaranteed.{truncate(name)}",
                    resources["guaranteed"][name].place,
                    f"guaranteed resource {truncate(name)} {quantity_text(name, least)} is larger than maximum "
                    f"{quantity_text(name, (maximum or {})[name])}",
                )
        for key, quantities in (("guaranteed", guaranteed), ("max", maximum)):
            if quantities and not set_quantities(quantities):
                reader.warn(f"{where}.{key}", resources[key].place, f"{key} is zero in all types: it means not set")
        return guaranteed, maximum

    def _acl(self, owner: Mapping, key: str, path: str) -> str:
        reader = self._reader
        text = reader.text(owner, key, path)
        problem = acl.problem(text)
        if problem and self._recorded:
            reader.warn(f"{path}.{key}", owner[key].place, f"{problem}; until then it admits nobody")
            self.closed.append(reader.problems[-1])
            return ""
        if problem:
            reader.error(f"{path}.{key}", owner[key].place, problem)
            return ""
        if hint := acl.hint(text):
            reader.warn(f"{path}.{key}", owner[key].place, hint)
        refused = acl.read(text).refused if text else ()
        if refused:
            names = ", ".join(name if name.isprintable() else repr(name) for name in refused[:5])
            reader.warn(
                f"{path}.{key}",
                owner[key].place,
                f"{names}: not names of users or groups, so these entries admit no user"
                + ("; * means everybody only where it stands alone" if acl.EVERYBODY in refused else ""),
            )
        return text

    def _child_template(self, owner: Mapping, path: str) -> ChildTemplateConfig | None:
        reader, where = self._reader, f"{path}.childtemplate"
        declared = reader.inner(owner, "childtemplate", path, KEYS["childtemplate"])
        if declared is None:
            return None
        guaranteed, maximum = self._resources(declared, where)
        template = ChildTemplateConfig(
            reader.count(declared, "maxapplications", where), self._properties(declared, where), guaranteed, maximum
        )
        is_set = template.max_applications or template.properties
        return template if is_set or set_quantities(guaranteed) or set_quantities(maximum) else None

    def _properties(self, owner: Mapping, path: str) -> dict[str, str]:
        reader, where = self._reader, f"{path}.properties"
        value: Any = owner.get("properties")
        if is_nothing(value):
            return {}
        if not isinstance(value, Mapping):
            reader.error(where, value.place, f"expected a mapping of texts, got {kind(value)}")
            return {}
        declared: dict[str, str] = {}
        for name, item in value.items():
            if isinstance(item, Scalar):
                declared[name] = item.text
            else:
                reader.error(f"{where}.{truncate(name)}", item.place, f"expected a text, got {kind(item)}")
        wrong = properties.read(declared)[1]
        for name, text in declared.items():
            key = properties.KEYS.get(name)
            at = f"{where}.{truncate(name)}"
            if key is None:
                if reader.listens("warning"):
                    reader.warn(
                        at,
                        value.key_places[name],
                        f"unknown property {truncate(name)!r} is kept and shown, {_meant(name)}",
                    )
            elif name in wrong:
                reader.warn(
                    at,
                    value[name].place,
                    f"{truncate(text)!r} means the default, {key.default}: expected {wrong[name]}",
                )
            elif text in key.deprecated:
                reader.warn(at, value[name].place, f"{text} is deprecated: {key.deprecated[text]}")
            elif key.note:
                reader.warn(at, value.key_places[name], f"{name} is kept and shown, but has no effect: {key.note}")
        return declared

    # ---- down the tree ---------------------------------------------------------------------------------------------

    def _check_resources(self, queue: QueueConfig, named: str, above: dict[str, int]) -> None:
        """Checks a queue's max against the least above it, and its children's guaranteed amounts against its own."""
        for name, most in (queue.maximum or {}).items():
            if name in above and most > above[name]:
                self._error_at(
                    queue,
                    f"queue {named}: max {truncate(name)} {quantity_text(name, most)}: max resource of parent "
                    f"{quantity_text(name, above[name])} is smaller",
                )
        effective = {
            **above,
            **{name: min(most, above.get(name, most)) for name, most in (queue.maximum or {}).items()},
        }
        total: dict[str, int] = {}
        for child in queue.queues:
            self._check_resources(child, f"{named}.{child.name.lower()}", effective)
            for name, least in effective_guaranteed(child).items():
                total[name] = total.get(name, 0) + least
        own = queue.guaranteed or {}
        for name, least in total.items():
            for bound_name, bounds in (("guaranteed", own), ("max", effective)):
                if name in bounds and least > bounds[name]:
                    self._error_at(
                        queue,
                        f"queue {named}: {bound_name} {truncate(name)} {quantity_text(name, bounds[name])} is "
                        "smaller than sum of "
                        f"guaranteed resources {quantity_text(name, least)} of its children",
                    )
                    break

    def _check_applications(self, queue: QueueConfig, named: str) -> None:
        for child in queue.queues:
            path = f"{named}.{child.name.lower()}"
            if queue.max_applications and child.max_applications > queue.max_applications:
                self._error_at(
                    child,
                    f"queue {path}: maxapplications {child.max_applications}: parent maxApplications must be larger "
                    f"than child maxApplications, and is {queue.max_applications}",
                )
            elif queue.max_applications and not child.max_applications:
                self._error_at(
                    child,
                    f"queue {path}: maxapplications unset: either undefined or zero, not allowed when parent's "
                    f"maxApplications is defined, as {queue.max_applications}",
                )
            self._check_applications(child, path)

    def _error_at(self, queue: QueueConfig, message: str) -> None:
        self._reader.error(*self._standing[id(queue)], message)


def _meant(name: str) -> str:
    near = difflib.get_close_matches(name[:64], properties.KEYS, n=1, cutoff=0.8)
    return f"but has no effect: is {near[0]} meant?" if near else "but has no effect"
