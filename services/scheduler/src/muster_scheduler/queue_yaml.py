"""The queue configuration's text, read strictly: YuniKorn's YAML, with line and column for whatever is wrong.

All problems are found in one reading (the real core stops at the first). An error makes the configuration unusable;
a warning says what is accepted without effect. The rules are those of core-features §2.1–2.6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from muster_scheduler.core import acl
from muster_scheduler.core.config import (
    DEFAULT_CONFIG,
    QUEUE_DEPTH_MAX,
    ROOT,
    VCORE,
    ClusterConfig,
    InvalidQuantity,
    NodeSortPolicy,
    PartitionConfig,
    PlacementRuleConfig,
    PreemptionConfig,
    QueueConfig,
    parse_quantity,
    partition_name,
)
from muster_scheduler.core.resources import TYPES_MAX
from muster_scheduler.yaml_tree import Mapping, Place, Scalar, Sequence, read_tree

# A configuration is written by people; beyond these it is an attack or an accident. (A MiB is read in about 4 s, in
# which the scheduler does nothing else, and it is as much as one request can carry.)
TEXT_BYTES_MAX = 1024 * 1024
QUEUES_MAX = 10_000
WEIGHT_MAX = 1e9  # of a node sort's resource; sums of products with it stay finite
# The answer to a registration carries the problems; it must stay a small record whatever the text was.
PROBLEMS_MAX = 100  # of each severity
PARTITION_NAME_MAX = 64  # as of a queue
CHARACTERS_MAX = 300  # of a problem's path, and of its message

_UINT64_MAX = (1 << 64) - 1
_RULES = ("provided", "user", "fixed", "tag")
_PROPERTIES = frozenset(
    {
        "application.sort.policy",
        "application.sort.priority",
        "application.unschedasks.backoff",
        "application.unschedasks.backoff.delay",
        "priority.policy",
        "priority.offset",
        "preemption.policy",
        "preemption.delay",
        "quota.preemption.delay",
    }
)
_EFFECTIVE_PROPERTIES = frozenset({"application.sort.policy", "application.sort.priority"})


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and where.

    :param path: ``partitions[0].queues[1].resources.max.memory``.
    :param line: from 1; 0: no place in the text.
    :param column: from 1.
    """

    severity: Literal["error", "warning"]
    path: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        place = f"line {self.line}, column {self.column}: " if self.line else ""
        return f"{place}{self.path + ': ' if self.path else ''}{self.message}"


def load_queue_config(text: str) -> tuple[ClusterConfig | None, list[Problem]]:
    """Reads a configuration. None when there is an error among the problems; empty text is the built-in default."""
    if not text.strip():
        return DEFAULT_CONFIG, []
    reader = _Reader()
    if len(text.encode()) > TEXT_BYTES_MAX:
        reader.error("", None, f"the configuration is over {TEXT_BYTES_MAX} bytes")
        return None, reader.problems
    document = read_tree(text, reader.unreadable)
    config = reader.cluster(document) if not reader.failed else None
    return (None if reader.failed else config), reader.problems


class _Reader:
    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.failed = False
        self._told = {"error": 0, "warning": 0}
        self._queues = 0
        # Where each queue stands, by the identity of what was made of it (all of them live as long as the reading).
        self._standing: dict[int, tuple[str, Place]] = {}

    # ---- problems and places ---------------------------------------------------------------------------------------

    def error(self, path: str, place: Place | None, message: str) -> None:
        self.failed = True
        self._tell("error", path, place, message)

    def warn(self, path: str, place: Place | None, message: str) -> None:
        self._tell("warning", path, place, message)

    def unreadable(self, place: Place | None, message: str) -> None:
        self.error("", place, message)

    def _tell(self, severity: Literal["error", "warning"], path: str, place: Place | None, message: str) -> None:
        told = self._told[severity] = self._told[severity] + 1
        if told > PROBLEMS_MAX:
            return
        line, column = (place[0] + 1, place[1] + 1) if place is not None else (0, 0)
        if told == PROBLEMS_MAX:
            path, message = "", f"there are more {severity}s from here on, which are not listed"
        self.problems.append(Problem(severity, _cut(path), line, column, _cut(message)))

    # ---- shapes ----------------------------------------------------------------------------------------------------

    def mapping(self, value: Any, path: str, place: Place, keys: frozenset[str]) -> Mapping | None:
        if not isinstance(value, Mapping):
            self.error(path, place, f"expected a mapping with keys among {', '.join(sorted(keys))}, got {_kind(value)}")
            return None
        for key in value:
            if key not in keys:
                self.error(
                    f"{path}.{_cut(key)}" if path else _cut(key),
                    value.key_places[key],
                    f"unknown key {_cut(key)!r}: expected one of {', '.join(sorted(keys))}",
                )
        return value

    def sequence(self, value: Any, path: str) -> list[tuple[Any, str, Place]]:
        if _is_nothing(value):
            return []
        if not isinstance(value, Sequence):
            self.error(path, value.place, f"expected a list, got {_kind(value)}")
            return []
        return [(item, f"{path}[{number}]", item.place) for number, item in enumerate(value)]

    def text(self, owner: Mapping, key: str, path: str, default: str = "") -> str:
        value: Any = owner.get(key)
        if _is_nothing(value):
            return default
        if not isinstance(value, Scalar) or isinstance(value.value, bool):
            self.error(f"{path}.{key}", value.place, f"expected a text, got {_kind(value)}")
            return default
        return value.text

    def boolean(self, owner: Mapping, key: str, path: str, *, default: bool) -> bool:
        value: Any = owner.get(key)
        if _is_nothing(value):
            return default
        if not isinstance(value, Scalar) or not isinstance(value.value, bool):
            self.error(f"{path}.{key}", value.place, f"expected true or false, got {_kind(value)}")
            return default
        return value.value

    def count(self, owner: Mapping, key: str, path: str) -> int:
        value: Any = owner.get(key)
        if _is_nothing(value):
            return 0
        number = value.value if isinstance(value, Scalar) else None
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _UINT64_MAX:
            self.error(
                f"{path}.{key}", value.place, f"expected a whole number from 0 on, got {_kind(value)}{_shown(value)}"
            )
            return 0
        return number

    def quantities(self, value: Any, path: str) -> dict[str, int] | None:
        if _is_nothing(value):
            return None
        if not isinstance(value, Mapping):
            self.error(path, value.place, f"expected a mapping of resource types to quantities, got {_kind(value)}")
            return None
        parsed: dict[str, int] = {}
        for name, given in value.items():
            try:
                if not isinstance(given, Scalar) or isinstance(given.value, bool | float | None):
                    raise InvalidQuantity(
                        f"invalid quantity{_shown(given) or ' ' + _kind(given)}: "
                        "expected digits and a suffix, such as 500m, 10, 2k or 4Gi"
                    )
                parsed[name] = parse_quantity(name, given.text)
            except InvalidQuantity as error:
                self.error(f"{path}.{_cut(name)}", given.place, str(error))
        return parsed

    # ---- the configuration -----------------------------------------------------------------------------------------

    def cluster(self, document: Any) -> ClusterConfig | None:
        if _is_nothing(document):
            return DEFAULT_CONFIG
        top = self.mapping(document, "", document.place, frozenset({"partitions", "checksum"}))
        if top is None:
            return None
        partitions: list[PartitionConfig] = []
        seen: set[str] = set()
        for item, path, where in self.sequence(top.get("partitions"), "partitions"):
            partition = self.partition(item, path, where)
            if partition is None:
                continue
            if partition.name.lower() in seen:
                self.error(f"{path}.name", where, f"duplicate partition name {partition.name!r}")
            seen.add(partition.name.lower())
            partitions.append(partition)
        if not partitions and not self.failed:
            return DEFAULT_CONFIG
        return ClusterConfig(tuple(partitions))

    def partition(self, value: Any, path: str, place: Place) -> PartitionConfig | None:
        keys = {
            "limits",
            "name",
            "nodesortpolicy",
            "placementrules",
            "preemption",
            "queues",
            "usergroupresolver",
        }
        owner = self.mapping(value, path, place, frozenset(keys))
        if owner is None:
            return None
        name = partition_name(self.text(owner, "name", path))
        if len(name) > PARTITION_NAME_MAX or not name.isprintable():
            self.error(
                f"{path}.name",
                owner["name"].place,
                f"invalid partition name {_cut(name)!r}: expected at most {PARTITION_NAME_MAX} printable characters",
            )
        if _is_nothing(owner.get("queues")):
            self.error(f"{path}.queues", place, "queue config is not set")
            return None
        listed = [
            self.queue(item, where_path, where, 1)
            for item, where_path, where in self.sequence(owner["queues"], f"{path}.queues")
        ]
        queues = tuple(queue for queue in listed if queue is not None)
        if len(queues) == 1 and queues[0].name.lower() == ROOT:
            root = queues[0]
        else:
            root = QueueConfig(ROOT, parent=True, queues=queues)
            self._standing[id(root)] = (f"{path}.queues", owner["queues"].place)
            self.siblings(queues)
        if root.guaranteed is not None or root.maximum is not None:
            self.error(*self._standing[id(root)], "root queue must not have resource limits set")
        self.sums(root, None)
        rules = self.rules(owner, path)
        policy, weights = self.node_sort(owner, path)
        preemption = self.preemption(owner, path)
        for key in ("limits", "usergroupresolver"):
            if not _is_nothing(owner.get(key)):
                self.warn(f"{path}.{key}", owner.key_places[key], f"{key} is read, but not enforced by this version")
        types = {name for name in weights if weights[name] > 0} | _types_of(root)
        if len(types) > TYPES_MAX:
            self.error(path, place, f"{len(types)} resource types, expected at most {TYPES_MAX}")
        return PartitionConfig(name, root, rules, NodeSortPolicy(policy), weights, PreemptionConfig(*preemption))

    def queue(self, value: Any, path: str, place: Place, depth: int) -> QueueConfig | None:
        keys = {
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
        self._queues += 1
        if self._queues > QUEUES_MAX or depth > QUEUE_DEPTH_MAX:
            if self._queues == QUEUES_MAX + 1 or depth > QUEUE_DEPTH_MAX:
                self.error(path, place, f"more than {QUEUES_MAX} queues, or deeper than {QUEUE_DEPTH_MAX}")
            return None
        owner = self.mapping(value, path, place, frozenset(keys))
        if owner is None:
            return None
        name = self.text(owner, "name", path)
        where = owner["name"].place if "name" in owner else place
        if not acl.QUEUE_NAME.match(name):
            self.error(
                f"{path}.name",
                where,
                f"invalid queue name {_cut(name)!r}: expected 1 to 64 of letters, digits and _ : # / @ -",
            )
        guaranteed, maximum = self.resources(owner, path)
        children = tuple(
            child
            for item, child_path, child_place in self.sequence(owner.get("queues"), f"{path}.queues")
            if (child := self.queue(item, child_path, child_place, depth + 1)) is not None
        )
        self.siblings(children)
        acls = {key: self.text(owner, key, path) for key in ("submitacl", "adminacl")}
        for key, text in acls.items():
            wrong = acl.problem(text)
            if wrong:
                self.error(f"{path}.{key}", owner[key].place, wrong)
        for key in ("limits", "childtemplate"):
            if not _is_nothing(owner.get(key)):
                self.warn(f"{path}.{key}", owner.key_places[key], f"{key} is read, but not enforced by this version")
        config = QueueConfig(
            name,
            self.boolean(owner, "parent", path, default=False),
            children,
            guaranteed,
            maximum,
            self.count(owner, "maxapplications", path),
            self.properties(owner, path),
            acls["submitacl"],
            acls["adminacl"],
        )
        self._standing[id(config)] = (path, where)
        return config

    def siblings(self, queues: tuple[QueueConfig, ...]) -> None:
        seen: set[str] = set()
        for queue in queues:
            if queue.name.lower() in seen:
                path, place = self._standing[id(queue)]
                self.error(f"{path}.name", place, f"duplicate child name found with name {queue.name!r}")
            seen.add(queue.name.lower())

    def resources(self, owner: Mapping, path: str) -> tuple[dict[str, int] | None, dict[str, int] | None]:
        value: Any = owner.get("resources")
        if _is_nothing(value):
            return None, None
        where = f"{path}.resources"
        resources = self.mapping(value, where, value.place, frozenset({"guaranteed", "max"}))
        if resources is None:
            return None, None
        guaranteed, maximum = (self.quantities(resources.get(key), f"{where}.{key}") for key in ("guaranteed", "max"))
        if guaranteed and maximum:
            for name, least in guaranteed.items():
                if name in maximum and least > maximum[name]:
                    self.error(
                        f"{where}.guaranteed.{name}",
                        resources["guaranteed"][name].place,
                        f"guaranteed resource {name} {least} is larger than maximum {maximum[name]}",
                    )
        return guaranteed, maximum

    def properties(self, owner: Mapping, path: str) -> dict[str, str]:
        value: Any = owner.get("properties")
        if _is_nothing(value):
            return {}
        where = f"{path}.properties"
        if not isinstance(value, Mapping):
            self.error(where, value.place, f"expected a mapping of texts, got {_kind(value)}")
            return {}
        found: dict[str, str] = {}
        for name, given in value.items():
            if not isinstance(given, Scalar):
                self.error(f"{where}.{_cut(name)}", given.place, f"expected a text, got {_kind(given)}")
                continue
            found[name] = given.text
            if name not in _PROPERTIES:
                self.warn(f"{where}.{_cut(name)}", value.key_places[name], f"unknown property {name!r} has no effect")
            elif name not in _EFFECTIVE_PROPERTIES:
                self.warn(
                    f"{where}.{name}", value.key_places[name], f"{name} is read, but has no effect in this version"
                )
        policy = found.get("application.sort.policy")
        if policy not in (None, "fifo", "fair", "stateaware"):
            self.warn(
                f"{where}.application.sort.policy",
                value["application.sort.policy"].place,
                f"unknown value {policy!r} means fifo: expected fifo or fair",
            )
        return found

    def sums(self, queue: QueueConfig, above: dict[str, int] | None, *, named: str = ROOT) -> dict[str, int]:
        """Checks limits against the ancestors' and the children's; gives the guaranteed that the parent must cover."""
        path, place = self._standing[id(queue)]
        if above and queue.maximum:
            for name, most in queue.maximum.items():
                if name in above and most > above[name]:
                    self.error(
                        path,
                        place,
                        f"queue {named}: max {name} {most}: max resource of parent {above[name]} is smaller",
                    )
        effective = dict(above or {})
        for name, most in (queue.maximum or {}).items():
            effective[name] = min(most, effective.get(name, most))
        total: dict[str, int] = {}
        for child in queue.queues:
            if queue.max_applications and (
                not child.max_applications or child.max_applications > queue.max_applications
            ):
                self.error(
                    *self._standing[id(child)],
                    f"queue {named}.{child.name}: maxapplications {child.max_applications or 'unset'}: "
                    f"its parent's is {queue.max_applications}, which must be at least the child's",
                )
            for name, least in self.sums(child, effective, named=f"{named}.{child.name.lower()}").items():
                total[name] = total.get(name, 0) + least
        for name, least in total.items():
            own = (queue.guaranteed or {}).get(name)
            if own is not None and least > own:
                self.error(
                    path,
                    place,
                    f"queue {named}: guaranteed {name} {own} is smaller than sum of guaranteed resources {least} "
                    "of its children",
                )
            elif name in effective and least > effective[name]:
                self.error(
                    path,
                    place,
                    f"queue {named}: max {name} {effective[name]} is smaller than sum of guaranteed resources {least} "
                    "of its children",
                )
        return {**total, **(queue.guaranteed or {})}

    def rules(self, owner: Mapping, path: str) -> tuple[PlacementRuleConfig, ...]:
        value: Any = owner.get("placementrules")
        rules: list[PlacementRuleConfig] = []
        for item, where, place in self.sequence(value, f"{path}.placementrules"):
            rule = self.mapping(item, where, place, frozenset({"create", "filter", "name", "parent", "value"}))
            if rule is None:
                continue
            name = self.text(rule, "name", where)
            if name.lower() not in _RULES:
                self.error(
                    f"{where}.name",
                    rule["name"].place if "name" in rule else place,
                    f"unknown placement rule {_cut(name)!r}: expected one of {', '.join(_RULES)}",
                )
                continue
            for key in ("filter", "parent"):
                if not _is_nothing(rule.get(key)):
                    self.error(
                        f"{where}.{key}",
                        rule.key_places[key],
                        f"{key} of a placement rule is not possible in this version",
                    )
            text = self.text(rule, "value", where)
            if name.lower() in ("fixed", "tag") and not text:
                self.error(where, place, f"placement rule {name} needs a value")
            rules.append(PlacementRuleConfig(name.lower(), self.boolean(rule, "create", where, default=False), text))
        return tuple(rules) or (PlacementRuleConfig("provided"),)

    def node_sort(self, owner: Mapping, path: str) -> tuple[str, dict[str, float]]:
        weights: dict[str, float] = {VCORE: 1.0, "memory": 1.0}
        value: Any = owner.get("nodesortpolicy")
        if _is_nothing(value):
            return "fair", weights
        where = f"{path}.nodesortpolicy"
        policy = self.mapping(value, where, value.place, frozenset({"resourceweights", "type"}))
        if policy is None:
            return "fair", weights
        kind = self.text(policy, "type", where) or "fair"
        if kind not in list(NodeSortPolicy):
            expected = ", ".join(NodeSortPolicy)
            self.error(f"{where}.type", policy["type"].place, f"undefined policy: {kind}; expected one of {expected}")
            kind = "fair"
        given: Any = policy.get("resourceweights")
        if isinstance(given, Mapping):
            weights = {name: self.weight(name, weight, f"{where}.resourceweights") for name, weight in given.items()}
        elif not _is_nothing(given):
            self.error(f"{where}.resourceweights", given.place, "expected a mapping to numbers")
        return kind, weights

    def weight(self, name: str, given: Any, path: str) -> float:
        number = given.value if isinstance(given, Scalar) else None
        if isinstance(number, bool) or not isinstance(number, int | float) or math.isnan(number):
            self.error(f"{path}.{_cut(name)}", given.place, f"expected a number, got {_kind(given)}")
        elif number < 0:
            self.error(f"{path}.{_cut(name)}", given.place, f"negative resource weight for {name} is not allowed")
        elif number > WEIGHT_MAX:
            self.error(f"{path}.{_cut(name)}", given.place, f"expected at most {WEIGHT_MAX:.0f}")
        else:
            return float(number)
        return 0.0

    def preemption(self, owner: Mapping, path: str) -> tuple[bool, bool]:
        value: Any = owner.get("preemption")
        if _is_nothing(value):
            return True, False
        where = f"{path}.preemption"
        keys = frozenset({"enabled", "quotapreemptionenabled"})
        preemption = self.mapping(value, where, value.place, keys)
        if preemption is None:
            return True, False
        self.warn(where, owner.key_places["preemption"], "preemption is read, but has no effect in this version")
        return (
            self.boolean(preemption, "enabled", where, default=True),
            self.boolean(preemption, "quotapreemptionenabled", where, default=False),
        )


def _types_of(queue: QueueConfig) -> set[str]:
    own = {*(queue.guaranteed or ()), *(queue.maximum or ())}
    return own.union(*(_types_of(child) for child in queue.queues))


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, Scalar) and value.value is None)


def _cut(text: str) -> str:
    return text if len(text) <= CHARACTERS_MAX else f"{text[: CHARACTERS_MAX - 1]}…"


def _shown(value: Any) -> str:
    return f" {_cut(value.text)!r}" if isinstance(value, Scalar) and value.text else ""


def _kind(value: Any) -> str:
    if _is_nothing(value):
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, Sequence):
        return "a list"
    if isinstance(value.value, bool):
        return "true or false"
    return {int: "a number", float: "a number with a fraction"}.get(type(value.value), "a text")
