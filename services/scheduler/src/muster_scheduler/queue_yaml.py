"""The queue configuration's text, read strictly: YuniKorn's YAML, with line and column for whatever is wrong.

All problems are found in one reading (the real core stops at the first). An error makes the configuration unusable;
a warning says what is accepted without effect. The rules are those of core-features §2.1–2.6.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from muster_scheduler.core import acl
from muster_scheduler.core.config import (
    DEFAULT_CONFIG,
    ROOT,
    VCORE,
    ClusterConfig,
    InvalidQuantity,
    PartitionConfig,
    PlacementRuleConfig,
    QueueConfig,
    parse_quantity,
    partition_name,
)

# A configuration is written by people; beyond these it is an attack or an accident.
TEXT_BYTES_MAX = 4 * 1024 * 1024
QUEUES_MAX = 10_000
DEPTH_MAX = 32

_UINT64_MAX = (1 << 64) - 1
_RULE_NAME = re.compile(r"^[_a-zA-Z][a-zA-Z0-9_]*$")
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
    document = reader.parse(text)
    config = reader.cluster(document) if not reader.failed else None
    return (None if reader.failed else config), reader.problems


Place = tuple[int, int] | None


class _Reader:
    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.failed = False
        self._queues = 0

    # ---- problems and places ---------------------------------------------------------------------------------------

    def error(self, path: str, place: Place, message: str) -> None:
        self.failed = True
        line, column = (place[0] + 1, place[1] + 1) if place is not None else (0, 0)
        self.problems.append(Problem("error", path, line, column, message))

    def warn(self, path: str, place: Place, message: str) -> None:
        line, column = (place[0] + 1, place[1] + 1) if place is not None else (0, 0)
        self.problems.append(Problem("warning", path, line, column, message))

    def parse(self, text: str) -> Any:
        yaml = YAML(typ="rt")
        try:
            return next(iter(yaml.load_all(text)), None)
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            what = " ".join(str(error.problem or error.context or "not valid YAML").split())
            self.error("", (mark.line, mark.column) if mark is not None else None, what)
        except RecursionError:
            self.error("", None, "nested too deeply")
        except (YAMLError, ValueError) as error:
            self.error("", None, " ".join(str(error).split())[:500])
        return None

    # ---- shapes ----------------------------------------------------------------------------------------------------

    def mapping(self, value: Any, path: str, place: Place, keys: frozenset[str]) -> CommentedMap | None:
        if not isinstance(value, CommentedMap):
            self.error(path, place, f"expected a mapping with keys among {', '.join(sorted(keys))}, got {_kind(value)}")
            return None
        for key in value:
            if key not in keys:
                self.error(
                    f"{path}.{key}" if path else str(key),
                    value.lc.key(key),
                    f"unknown key {str(key)!r}: expected one of {', '.join(sorted(keys))}",
                )
        return value

    def sequence(self, value: Any, path: str, place: Place) -> list[tuple[Any, str, Place]]:
        if value is None:
            return []
        if not isinstance(value, CommentedSeq):
            self.error(path, place, f"expected a list, got {_kind(value)}")
            return []
        return [(item, f"{path}[{number}]", value.lc.item(number)) for number, item in enumerate(value)]

    def text(self, owner: CommentedMap, key: str, path: str, default: str = "") -> str:
        value = owner.get(key)
        if value is None:
            return default
        if isinstance(value, bool | CommentedMap | CommentedSeq):
            self.error(f"{path}.{key}", owner.lc.value(key), f"expected a text, got {_kind(value)}")
            return default
        return str(value)

    def boolean(self, owner: CommentedMap, key: str, path: str, *, default: bool) -> bool:
        value = owner.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.error(f"{path}.{key}", owner.lc.value(key), f"expected true or false, got {_kind(value)}")
            return default
        return value

    def count(self, owner: CommentedMap, key: str, path: str) -> int:
        value = owner.get(key)
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _UINT64_MAX:
            self.error(
                f"{path}.{key}", owner.lc.value(key), f"expected a whole number from 0 on, got {_kind(value)} {value}"
            )
            return 0
        return int(value)

    def quantities(self, value: Any, path: str, place: Place) -> dict[str, int] | None:
        if value is None:
            return None
        if not isinstance(value, CommentedMap):
            self.error(path, place, f"expected a mapping of resource types to quantities, got {_kind(value)}")
            return None
        parsed: dict[str, int] = {}
        for name, text in value.items():
            try:
                if isinstance(text, bool | float | CommentedMap | CommentedSeq) or text is None:
                    raise InvalidQuantity(
                        f"invalid quantity {text!r}: expected digits and a suffix, such as 500m, 10, 2k or 4Gi"
                    )
                parsed[str(name)] = parse_quantity(str(name), str(text))
            except InvalidQuantity as error:
                self.error(f"{path}.{name}", value.lc.value(name), str(error))
        return parsed

    # ---- the configuration -----------------------------------------------------------------------------------------

    def cluster(self, document: Any) -> ClusterConfig | None:
        if document is None:
            return DEFAULT_CONFIG
        top = self.mapping(document, "", (0, 0), frozenset({"partitions", "checksum"}))
        if top is None:
            return None
        partitions: list[PartitionConfig] = []
        seen: set[str] = set()
        place = top.lc.value("partitions") if "partitions" in top else None
        for item, path, where in self.sequence(top.get("partitions"), "partitions", place):
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
        if owner.get("queues") is None:
            self.error(f"{path}.queues", place, "queue config is not set")
            return None
        listed = [
            self.queue(item, where_path, where, (), None)
            for item, where_path, where in self.sequence(owner["queues"], f"{path}.queues", owner.lc.value("queues"))
        ]
        queues = tuple(queue for queue in listed if queue is not None)
        if len(queues) == 1 and queues[0].name.lower() == ROOT:
            root = queues[0]
        else:
            root = QueueConfig(ROOT, parent=True, queues=queues)
            self.siblings(queues, f"{path}.queues", owner.lc.value("queues"))
        if root.guaranteed is not None or root.maximum is not None:
            self.error(f"{path}.queues", owner.lc.value("queues"), "root queue must not have resource limits set")
        self.sums(root, None, f"{path}.queues", owner.lc.value("queues"))
        rules = self.rules(owner, path)
        policy, weights = self.node_sort(owner, path)
        preemption = self.preemption(owner, path)
        for key in ("limits", "usergroupresolver"):
            if owner.get(key) is not None:
                self.warn(f"{path}.{key}", owner.lc.key(key), f"{key} is read, but not enforced by this version")
        return PartitionConfig(name, root, rules, policy, weights, *preemption)

    def queue(
        self, value: Any, path: str, place: Place, above: tuple[str, ...], parent_max: dict[str, int] | None
    ) -> QueueConfig | None:
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
        if self._queues > QUEUES_MAX or len(above) > DEPTH_MAX:
            if self._queues == QUEUES_MAX + 1 or len(above) > DEPTH_MAX:
                self.error(path, place, f"more than {QUEUES_MAX} queues, or deeper than {DEPTH_MAX}")
            return None
        owner = self.mapping(value, path, place, frozenset(keys))
        if owner is None:
            return None
        name = self.text(owner, "name", path)
        where = owner.lc.value("name") if "name" in owner else place
        if not acl.QUEUE_NAME.match(name):
            self.error(
                f"{path}.name",
                where,
                f"invalid queue name {name!r}: expected 1 to 64 of letters, digits and _ : # / @ -",
            )
        guaranteed, maximum = self.resources(owner, path)
        children = tuple(
            child
            for item, child_path, child_place in self.sequence(
                owner.get("queues"), f"{path}.queues", owner.lc.value("queues") if "queues" in owner else place
            )
            if (child := self.queue(item, child_path, child_place, (*above, name), maximum)) is not None
        )
        self.siblings(children, f"{path}.queues", place)
        for key in ("submitacl", "adminacl"):
            wrong = acl.problem(self.text(owner, key, path))
            if wrong:
                self.error(f"{path}.{key}", owner.lc.value(key), wrong)
        for key in ("limits", "childtemplate"):
            if owner.get(key) is not None:
                self.warn(f"{path}.{key}", owner.lc.key(key), f"{key} is read, but not enforced by this version")
        return QueueConfig(
            name,
            self.boolean(owner, "parent", path, default=False),
            children,
            guaranteed,
            maximum,
            self.count(owner, "maxapplications", path),
            self.properties(owner, path),
            self.text(owner, "submitacl", path),
            self.text(owner, "adminacl", path),
        )

    def siblings(self, queues: tuple[QueueConfig, ...], path: str, place: Place) -> None:
        seen: set[str] = set()
        for queue in queues:
            if queue.name.lower() in seen:
                self.error(path, place, f"duplicate child name found with name {queue.name!r}")
            seen.add(queue.name.lower())

    def resources(self, owner: CommentedMap, path: str) -> tuple[dict[str, int] | None, dict[str, int] | None]:
        value = owner.get("resources")
        if value is None:
            return None, None
        where = f"{path}.resources"
        resources = self.mapping(value, where, owner.lc.value("resources"), frozenset({"guaranteed", "max"}))
        if resources is None:
            return None, None
        parsed = [
            self.quantities(resources.get(key), f"{where}.{key}", resources.lc.value(key) if key in resources else None)
            for key in ("guaranteed", "max")
        ]
        guaranteed, maximum = parsed
        if guaranteed and maximum:
            for name, least in guaranteed.items():
                if name in maximum and least > maximum[name]:
                    self.error(
                        f"{where}.guaranteed.{name}",
                        resources.lc.value("guaranteed"),
                        f"guaranteed resource {name} {least} is larger than maximum {maximum[name]}",
                    )
        return guaranteed, maximum

    def properties(self, owner: CommentedMap, path: str) -> dict[str, str]:
        value = owner.get("properties")
        if value is None:
            return {}
        where = f"{path}.properties"
        if not isinstance(value, CommentedMap):
            self.error(where, owner.lc.value("properties"), f"expected a mapping of texts, got {_kind(value)}")
            return {}
        found: dict[str, str] = {}
        for name, text in value.items():
            if isinstance(text, CommentedMap | CommentedSeq):
                self.error(f"{where}.{name}", value.lc.value(name), f"expected a text, got {_kind(text)}")
                continue
            found[str(name)] = str(text).lower() if isinstance(text, bool) else str(text)
            if name not in _PROPERTIES:
                self.warn(f"{where}.{name}", value.lc.key(name), f"unknown property {str(name)!r} has no effect")
            elif name not in _EFFECTIVE_PROPERTIES:
                self.warn(f"{where}.{name}", value.lc.key(name), f"{name} is read, but has no effect in this version")
        policy = found.get("application.sort.policy")
        if policy not in (None, "fifo", "fair", "stateaware"):
            self.warn(
                f"{where}.application.sort.policy",
                value.lc.value("application.sort.policy"),
                f"unknown value {policy!r} means fifo: expected fifo or fair",
            )
        return found

    def sums(
        self, queue: QueueConfig, above: dict[str, int] | None, path: str, place: Place, *, named: str = ROOT
    ) -> dict[str, int]:
        """Checks limits against the ancestors' and the children's; gives the guaranteed that the parent must cover."""
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
                    path,
                    place,
                    f"queue {named}.{child.name}: maxapplications {child.max_applications or 'unset'}: "
                    f"its parent's is {queue.max_applications}, which must be at least the child's",
                )
            for name, least in self.sums(child, effective, path, place, named=f"{named}.{child.name.lower()}").items():
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

    def rules(self, owner: CommentedMap, path: str) -> tuple[PlacementRuleConfig, ...]:
        value = owner.get("placementrules")
        if value is None:
            return (PlacementRuleConfig("provided"),)
        rules: list[PlacementRuleConfig] = []
        for item, where, place in self.sequence(value, f"{path}.placementrules", owner.lc.value("placementrules")):
            rule = self.mapping(item, where, place, frozenset({"create", "filter", "name", "parent", "value"}))
            if rule is None:
                continue
            name = self.text(rule, "name", where)
            if not _RULE_NAME.match(name) or name.lower() not in _RULES:
                self.error(
                    f"{where}.name", place, f"unknown placement rule {name!r}: expected one of {', '.join(_RULES)}"
                )
                continue
            for key in ("filter", "parent"):
                if rule.get(key) is not None:
                    self.error(
                        f"{where}.{key}", rule.lc.key(key), f"{key} of a placement rule is not possible in this version"
                    )
            text = self.text(rule, "value", where)
            if name.lower() in ("fixed", "tag") and not text:
                self.error(where, place, f"placement rule {name} needs a value")
            rules.append(PlacementRuleConfig(name.lower(), self.boolean(rule, "create", where, default=False), text))
        return tuple(rules) or (PlacementRuleConfig("provided"),)

    def node_sort(self, owner: CommentedMap, path: str) -> tuple[str, dict[str, float]]:
        weights: dict[str, float] = {VCORE: 1.0, "memory": 1.0}
        value = owner.get("nodesortpolicy")
        if value is None:
            return "fair", weights
        where = f"{path}.nodesortpolicy"
        policy = self.mapping(value, where, owner.lc.value("nodesortpolicy"), frozenset({"resourceweights", "type"}))
        if policy is None:
            return "fair", weights
        kind = self.text(policy, "type", where) or "fair"
        if kind not in ("fair", "binpacking"):
            self.error(
                f"{where}.type", policy.lc.value("type"), f"undefined policy: {kind}; expected fair or binpacking"
            )
        given = policy.get("resourceweights")
        if isinstance(given, CommentedMap):
            weights = {}
            for name, weight in given.items():
                if isinstance(weight, bool) or not isinstance(weight, int | float):
                    self.error(
                        f"{where}.resourceweights.{name}",
                        given.lc.value(name),
                        f"expected a number, got {_kind(weight)}",
                    )
                elif weight < 0:
                    self.error(
                        f"{where}.resourceweights.{name}",
                        given.lc.value(name),
                        f"negative resource weight for {name} is not allowed",
                    )
                else:
                    weights[str(name)] = float(weight)
        elif given is not None:
            self.error(f"{where}.resourceweights", policy.lc.value("resourceweights"), "expected a mapping to numbers")
        return kind, weights

    def preemption(self, owner: CommentedMap, path: str) -> tuple[bool, bool]:
        value = owner.get("preemption")
        if value is None:
            return True, False
        where = f"{path}.preemption"
        keys = frozenset({"enabled", "quotapreemptionenabled"})
        preemption = self.mapping(value, where, owner.lc.value("preemption"), keys)
        if preemption is None:
            return True, False
        self.warn(where, owner.lc.key("preemption"), "preemption is read, but has no effect in this version")
        return (
            self.boolean(preemption, "enabled", where, default=True),
            self.boolean(preemption, "quotapreemptionenabled", where, default=False),
        )


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, CommentedMap):
        return "a mapping"
    if isinstance(value, CommentedSeq):
        return "a list"
    if isinstance(value, bool):
        return "true or false"
    return {int: "a number", float: "a number with a fraction"}.get(type(value), "a text")
