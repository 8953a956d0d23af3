"""Placement rules in a queue configuration: each rule, and the queues that it certainly names.

YuniKorn finds some of these mistakes only when it activates the configuration, and others never. In Muster, an accepted
configuration works.
"""

from __future__ import annotations

from typing import Any

from muster_core.config import acl
from muster_core.config.patterns import InvalidPattern, compile_pattern
from muster_core.config.queue_config import (
    INDEPENDENT_PATH,
    QUEUE_DEPTH_MAX,
    RECOVERY_PATH,
    ROOT,
    RULES,
    FilterConfig,
    PlacementRuleConfig,
    QueueConfig,
    is_expression,
)

from muster_queue_config.yaml_reader import YamlReader, is_nothing, place_of, truncate
from muster_queue_config.yaml_tree import Mapping, Place

RULE_KEYS = frozenset({"create", "filter", "name", "parent", "value"})
FILTER_KEYS = frozenset({"groups", "type", "users"})

# Each application tries every rule, at a microsecond each. Parents count.
RULES_MAX = 1000
# Making an expression's table takes up to some 20 ms.
EXPRESSIONS_MAX = 100


class RulesReader:
    """Reads a partition's placement rules through a reader."""

    def __init__(self, reader: YamlReader) -> None:
        self._reader = reader
        self._rules = 0
        self._expressions = 0
        self._configured: dict[str, QueueConfig] = {}  # by path, of the present partition

    def read(self, value: Any, path: str, root: QueueConfig) -> tuple[PlacementRuleConfig, ...]:
        """Returns the rules, checked against the configured queues. Reports each problem once."""
        rules: list[PlacementRuleConfig] = []
        self._configured = {}
        self._collect(root, ROOT)
        for item, where, position in self._reader.sequence(value, path):
            errors = self._reader.errors
            rule = self._rule(item, where, position, 1)
            if rule is not None:
                rules.append(rule)
                if self._reader.errors == errors:
                    self._check_queues(rule, len(rules) - 1, root, where, position)
        return tuple(rules)

    # ---- one rule --------------------------------------------------------------------------------------------------

    def _rule(self, item: Any, path: str, position: Place, depth: int) -> PlacementRuleConfig | None:
        reader = self._reader
        self._rules += 1
        if self._rules > RULES_MAX or depth > QUEUE_DEPTH_MAX:
            if self._rules == RULES_MAX + 1 or depth > QUEUE_DEPTH_MAX:
                reader.error(path, position, f"more than {RULES_MAX} rules, or parents deeper than {QUEUE_DEPTH_MAX}")
            return None
        owner = reader.mapping(item, path, position, RULE_KEYS)
        if owner is None:
            return None
        name = reader.text(owner, "name", path)
        if name.lower() not in RULES:
            reader.error(
                f"{path}.name",
                place_of(owner, "name", position),
                f"unknown placement rule {truncate(name)!r}: expected one of {', '.join(RULES)}",
            )
            return None
        name = name.lower()
        if name == "test":
            reader.warn(f"{path}.name", place_of(owner, "name", position), "rule test is there for tests only")
        create = reader.boolean(owner, "create", path, default=False)
        filtered = self._filter(owner, path)
        parent: PlacementRuleConfig | None = None
        if not is_nothing(owner.get("parent")):
            parent = self._rule(owner["parent"], f"{path}.parent", owner["parent"].place, depth + 1)
        text = self._value(owner, name, path, position, is_below=not is_nothing(owner.get("parent")))
        return PlacementRuleConfig(name, create, text, filtered, parent)

    def _value(self, owner: Mapping, name: str, path: str, position: Place, *, is_below: bool) -> str:
        reader = self._reader
        text = reader.text(owner, "value", path)
        where, at = f"{path}.value", place_of(owner, "value", position)
        if name not in ("fixed", "tag"):
            if text:
                reader.warn(where, at, f"a value has no effect in the rule {name}")
            return text
        if not text:
            reader.error(path, position, f"placement rule {name} needs a value")
        elif name == "fixed":
            queue = text.lower()
            parts = queue.split(".", QUEUE_DEPTH_MAX)
            if len(parts) > QUEUE_DEPTH_MAX or not all(acl.QUEUE_NAME.match(part) for part in parts):
                reader.error(
                    where,
                    at,
                    f"invalid queue name {truncate(text)!r}: expected at most {QUEUE_DEPTH_MAX} names of 1 to "
                    "64 letters, "
                    "digits and _ : # / @ -, with dots between",
                )
            elif is_below and _is_qualified(queue):
                reader.error(
                    where,
                    at,
                    f"illegal fully qualified 'fixed' rule with value {truncate(text)}: a rule with a parent "
                    "names a queue "
                    "below it",
                )
        return text

    # ---- filters ---------------------------------------------------------------------------------------------------

    def _filter(self, owner: Mapping, path: str) -> FilterConfig | None:
        reader = self._reader
        filtered = reader.inner(owner, "filter", path, FILTER_KEYS)
        if filtered is None:
            return None
        path = f"{path}.filter"
        text = reader.text(filtered, "type", path)
        if text.lower() not in ("", "allow", "deny"):
            reader.error(
                f"{path}.type",
                filtered["type"].place,
                f"invalid rule filter type {truncate(text)}, filter type must be either '', allow or deny",
            )
        users = self._names(filtered, "user", path)
        groups = self._names(filtered, "group", path)
        deny = text.lower() == "deny"
        if deny and users == () and groups == ():
            reader.warn(path, owner.key_places["filter"], "a deny filter without names refuses everybody")
        return None if users is None or groups is None else FilterConfig(deny, users, groups)

    def _names(self, filtered: Mapping, kind: str, path: str) -> tuple[str, ...] | None:
        """Returns the names, or the expression; None if they cannot be used."""
        reader = self._reader
        entries = reader.texts(filtered, f"{kind}s", path)
        names = tuple(name for name, _, _ in entries)
        rule = acl.USER_NAME if kind == "user" else acl.GROUP_NAME
        if is_expression(names):
            _, where, position = entries[0]
            try:
                self._expressions += 1
                if self._expressions > EXPRESSIONS_MAX:
                    raise InvalidPattern(f"there are more than {EXPRESSIONS_MAX} regular expressions")
                compile_pattern(names[0])
            except InvalidPattern as error:
                reader.error(
                    where, position, f"invalid rule filter {kind} list is not a proper list or regexp: {error}"
                )
                return None
            return names
        for name, where, position in entries:
            if rule.match(name):
                continue
            if len(entries) == 1:
                reader.error(
                    where,
                    position,
                    f"invalid rule filter {kind} list is not a proper list or regexp: {truncate(name)!r}",
                )
                return None
            reader.warn(
                where,
                position,
                f"{truncate(name)!r} is not a {kind}'s name and matches none: the entries of a list are names; "
                "a regular expression must be the only entry",
            )
        return names

    # ---- the queues that a rule names ------------------------------------------------------------------------------

    def _check_queues(
        self, rule: PlacementRuleConfig, number: int, root: QueueConfig, where: str, position: Place
    ) -> None:
        """Checks what is certain for every application: the fixed names from the outermost parent on."""
        chain = _chain(rule)
        path, may_all_be_made = "", True
        for depth, link in enumerate(chain):
            if link.name != "fixed":
                is_whole = False
                break
            path = _joined(path, link.value.lower())
            is_whole = depth == len(chain) - 1
            missing = self._walk(path)[1]
            may_all_be_made = may_all_be_made and (is_whole or not missing or link.create)
        if not path:
            return
        subject = f"placement rule no. #{number} ({'->'.join(link.name for link in chain)}) references"
        queue, missing = self._walk(path)
        is_leaf = queue is not root and not queue.queues and not queue.parent
        problem = ""
        if path.count(".") >= QUEUE_DEPTH_MAX:
            problem = f"a queue ({truncate(path)}) deeper than {QUEUE_DEPTH_MAX}"
        elif f"{path}.".startswith(f"{RECOVERY_PATH}."):
            problem = f"{RECOVERY_PATH}, which is for applications that must be taken in"
        elif f"{path}.".startswith(f"{INDEPENDENT_PATH}."):
            problem = f"{INDEPENDENT_PATH}, which is for independent allocations"
        elif is_leaf and (missing or not is_whole):
            problem = (
                f"non-existing queues ({truncate(path)}{'' if is_whole else '.…'}) which cannot be created "
                "because the last "
                f"queue ({queue.name}) in the hierarchy is a leaf"
            )
        elif missing and not rule.create:
            problem = f"non-existing queues ({truncate(path)}) and create is 'false'"
        elif is_whole and not missing and not is_leaf:
            problem = f"a queue ({truncate(path)}) which is not a leaf"
        if problem:
            self._reader.error(where, position, f"{subject} {problem}")
        elif not may_all_be_made:
            self._reader.warn(
                where,
                position,
                f"{subject} non-existing queues ({truncate(path)}) and create of a parent is 'false': the rule "
                "finds no queue "
                "until another rule has created them",
            )

    def _walk(self, path: str) -> tuple[QueueConfig, bool]:
        """Returns the last configured queue on a path, and whether names are left. Compares names in lower case."""
        nearest, missing = path, False
        while nearest not in self._configured:
            nearest, missing = nearest.rpartition(".")[0], True
        return self._configured[nearest], missing

    def _collect(self, queue: QueueConfig, path: str) -> None:
        self._configured[path] = queue
        for child in queue.queues:
            self._collect(child, f"{path}.{child.name.lower()}")


def _chain(rule: PlacementRuleConfig) -> list[PlacementRuleConfig]:
    """Returns the rule with its parents, the outermost first."""
    chain = [rule]
    while chain[-1].parent is not None:
        chain.append(chain[-1].parent)
    return chain[::-1]


def _joined(above: str, queue: str) -> str:
    return queue if _is_qualified(queue) else f"{above or ROOT}.{queue}"


def _is_qualified(queue: str) -> bool:
    return queue == ROOT or queue.startswith(f"{ROOT}.")
