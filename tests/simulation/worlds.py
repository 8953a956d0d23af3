"""Random queue configurations, as the dictionaries that YAML would give, and valid by construction.

JSON is YAML: :func:`text_of` is what the scheduler reads; the auditor reads the dictionary, with no
reader in common.
"""

from __future__ import annotations

import json
import random
from functools import lru_cache
from typing import Any

from muster_core.config.queue_config import ClusterConfig
from muster_queue_config.queue_yaml import load_queue_config

USERS = ("ann", "bob", "cat", "dan")
GROUPS_OF = {"ann": ("red",), "bob": ("red", "blue"), "cat": ("blue",), "dan": ()}
GROUPS = ("red", "blue", "green")
TYPES = ("vcore", "memory", "gpu")
UNIT = {"vcore": 1000, "memory": 1, "gpu": 1}
# Types that a configuration may name: those, and one that few nodes have.
NAMES = "abcde"

Document = dict[str, Any]
Amounts = dict[str, int]


def text_of(document: Document) -> str:
    return json.dumps(document)


@lru_cache(maxsize=256)
def read(text: str) -> ClusterConfig | None:
    """What the scheduler makes of a configuration; None: it is not valid. (Reading takes longer than most steps.)"""
    return load_queue_config(text)[0]


def world(dice: random.Random, policy: str = "") -> Document:
    """A configuration; nine in ten have one partition. ``policy``: of its nodes; else any."""
    partitions = [_partition(dice, "default")]
    if dice.random() < 0.1:
        partitions.append(_partition(dice, "second"))
    for each in partitions if policy else ():
        each["nodesortpolicy"]["type"] = policy
    return {"partitions": partitions}


def another(dice: random.Random, document: Document) -> Document:
    """Another configuration: the same one with a few things changed, or now and then a wholly new one."""
    fate = dice.random()
    if fate < 0.15:
        fresh = world(dice)
        if dice.random() < 0.8:  # else a partition may vanish, or come
            names = {each["name"] for each in document["partitions"]}
            have = {each["name"] for each in fresh["partitions"]}
            fresh["partitions"] = [each for each in fresh["partitions"] if each["name"] in names]
            fresh["partitions"] += [_partition(dice, name) for name in sorted(names - have)]
        return fresh
    changed: Document = json.loads(json.dumps(document))
    if fate < 0.25:  # one partition more, or less
        if len(changed["partitions"]) > 1:
            changed["partitions"].pop()
        else:
            changed["partitions"].append(_partition(dice, "second"))
        return changed
    partition = dice.choice(changed["partitions"])
    for _ in range(dice.randint(1, 3)):
        _change(dice, partition)
    return changed


def with_one_partition(document: Document) -> Document:
    return {"partitions": document["partitions"][:1]}


def _change(dice: random.Random, partition: Document) -> None:
    queues = list(_walk(partition["queues"][0]))
    parent, queue = dice.choice(queues[1:])
    kind = dice.choice(["max", "max", "max", "properties", "vanish", "appear", "policy", "limits", "applications"])
    if kind == "max":
        resources = queue.setdefault("resources", {})
        if "max" in resources and dice.random() < 0.7:
            # Only ever larger where something below leans on it: stays valid by dropping what could clash.
            _lower_max(dice, queue, resources)
        else:
            resources.pop("max", None)
            resources.pop("guaranteed", None)
            _forget_limits(queue)
    elif kind == "properties":
        queue["properties"] = _properties(dice)
    elif kind == "vanish" and len(parent["queues"]) > 1:
        parent["queues"].remove(queue)
    elif kind == "appear":
        taken = {each["name"].lower() for each in parent["queues"]}
        free = [name for name in NAMES if name not in taken]
        if free:
            fresh: Document = {"name": dice.choice(free), "properties": _properties(dice)}
            if parent.get("maxapplications"):
                fresh["maxapplications"] = dice.randint(1, parent["maxapplications"])
            if dice.random() < 0.3:
                fresh["parent"] = True
            parent["queues"].append(fresh)
    elif kind == "policy":
        partition["nodesortpolicy"] = _node_sort(dice)
        partition["preemption"] = _preemption(dice)
        partition["reservation"] = _reservation(dice)
        partition["backfill"] = _backfill(dice)
    elif kind == "limits":
        _forget_limits(queue)
    elif kind == "applications":
        _forget_limits(queue)
        if parent.get("maxapplications"):
            queue["maxapplications"] = dice.randint(1, parent["maxapplications"])
        else:
            queue.pop("maxapplications", None)
        if queue.get("maxapplications"):
            for above, child in _walk(queue):
                if above is not child:
                    child["maxapplications"] = dice.randint(1, above["maxapplications"])


def _lower_max(dice: random.Random, queue: Document, resources: Document) -> None:
    factor = dice.choice([0.3, 0.5, 0.8, 1.0])
    for _, each in _walk(queue):
        own = each.get("resources", {})
        own.pop("guaranteed", None)
        each.pop("limits", None)
        if "max" in own:
            lowered = {name: int(amount(name, text) * factor) for name, text in own["max"].items()}
            own["max"] = _written(lowered)


def _forget_limits(queue: Document) -> None:
    for _, each in _walk(queue):
        each.pop("limits", None)


def _walk(queue: Document, parent: Document | None = None) -> list[tuple[Document, Document]]:
    """(parent, queue), root as its own parent, parents first."""
    found = [(parent if parent is not None else queue, queue)]
    for child in queue.get("queues", ()):
        found += _walk(child, queue)
    return found


def amount(name: str, text: str) -> int:
    """A quantity as it is written here: thousandths of vcore with an m, all else plain."""
    return int(text.removesuffix("m")) if name == "vcore" else int(text)


def _written(amounts: Amounts) -> dict[str, str]:
    return {name: f"{value}m" if name == "vcore" else str(value) for name, value in amounts.items()}


# ---- partitions ----------------------------------------------------------------------------------------------------


def _partition(dice: random.Random, name: str) -> Document:
    root = _root(dice)
    return {
        "name": name,
        "nodesortpolicy": _node_sort(dice),
        "preemption": _preemption(dice),
        "reservation": _reservation(dice),
        "backfill": _backfill(dice),
        "placementrules": _rules(dice, root),
        "queues": [root],
    }


def _node_sort(dice: random.Random) -> Document:
    policy: Document = {
        "type": dice.choice(["fair", "fair", "binpacking", "binpacking", "fragmentation", "dotproduct"])
    }
    if dice.random() < 0.3:
        policy["resourceweights"] = {kind: dice.choice([0, 0.5, 1, 3]) for kind in dice.sample(TYPES, 2)}
        if not any(policy["resourceweights"].values()):
            del policy["resourceweights"]
    return policy


def _preemption(dice: random.Random) -> Document:
    return {
        "enabled": dice.random() < 0.85,
        "quotapreemptionenabled": dice.random() < 0.7,
        "optout": dice.choice(["never", "last"]),
    }


def _reservation(dice: random.Random) -> Document:
    return {
        "enabled": dice.random() < 0.85,
        "delay": dice.choice(["2s", "2s", "2s", "0s", "10s"]),
        "timeout": dice.choice(["60m", "60m", "20s", "1m"]),
    }


def _backfill(dice: random.Random) -> str:
    return dice.choice(["off", "off", "conservative", "easy"])


def _rules(dice: random.Random, root: Document) -> list[Document]:
    rules: list[Document] = []
    if dice.random() < 0.2:
        rules.append({"name": "tag", "value": "namespace", "create": dice.random() < 0.7})
    if dice.random() < 0.15:
        parents = [each["name"] for each in root["queues"] if "queues" in each or each.get("parent")]
        rule: Document = {"name": "user", "create": True}
        if parents:
            rule["parent"] = {"name": "fixed", "value": dice.choice(parents)}
        if dice.random() < 0.7:
            listed = dice.choice([{"users": ["ann"]}, {"users": ["bob", "cat"]}, {"groups": ["blue"]}])
            rule["filter"] = {"type": dice.choice(["allow", "deny"]), **listed}
        rules.append(rule)
    rules.append({"name": "provided", "create": dice.random() < 0.8})
    if dice.random() < 0.1:
        rules.append({"name": "fixed", "value": "root.last", "create": True})
    return rules


# ---- queues --------------------------------------------------------------------------------------------------------


class _Above:
    """What holds from above: the least max, what guarantees are left, the most applications, limits by name."""

    def __init__(self, most: Amounts, left: Amounts, applications: int, held: dict[tuple[str, str], Any]) -> None:
        self.most = most
        self.left = left
        self.applications = applications
        self.held = held


def _root(dice: random.Random) -> Document:
    root: Document = {"name": "root", "submitacl": "*" if dice.random() < 0.85 else "ann red"}
    if dice.random() < 0.1:
        root["maxapplications"] = dice.randint(3, 9)
    if dice.random() < 0.25:
        root["properties"] = _properties(dice)
    above = _Above({}, {}, root.get("maxapplications", 0), {})
    above = _limits(dice, root, above, {})
    root["queues"] = _children(dice, above, 1)
    return root


def _children(dice: random.Random, above: _Above, depth: int) -> list[Document]:
    names = dice.sample(NAMES, dice.randint(2, 4) if depth == 1 else dice.randint(1, 3))
    return [_queue(dice, name, above, depth) for name in names]


def _queue(dice: random.Random, name: str, above: _Above, depth: int) -> Document:
    queue: Document = {"name": name.upper() if dice.random() < 0.05 else name}
    resources: Document = {}
    maximum: Amounts = {}
    if dice.random() < 0.55:
        for kind in _some_types(dice):
            value = dice.randint(3, 40 if kind != "gpu" else 6) * UNIT[kind]
            maximum[kind] = min(value, above.most.get(kind, value))
            if dice.random() < 0.04:
                maximum[kind] = 0
    effective = {**above.most, **{kind: min(value, above.most.get(kind, value)) for kind, value in maximum.items()}}
    if any(maximum.values()):
        resources["max"] = _written(maximum)
    else:
        maximum = {}
        effective = dict(above.most)
    guaranteed: Amounts = {}
    if dice.random() < 0.5:
        for kind in _some_types(dice):
            value = dice.randint(1, 15 if kind != "gpu" else 3) * UNIT[kind]
            bounds = [bound[kind] for bound in (effective, above.left) if kind in bound]
            value = min([value, *bounds])
            if value:
                guaranteed[kind] = value
    if guaranteed:
        resources["guaranteed"] = _written(guaranteed)
    if resources:
        queue["resources"] = resources
    if above.applications or dice.random() < 0.2:
        queue["maxapplications"] = dice.randint(1, above.applications or 4)
    if dice.random() < 0.6:
        queue["properties"] = _properties(dice)
    if dice.random() < 0.12:
        queue["submitacl"] = dice.choice(["*", "ann", "ann,bob blue", " green"])
    below = _Above(
        effective, _left_for_children(guaranteed, effective, above.left), queue.get("maxapplications", 0), above.held
    )
    below = _limits(dice, queue, below, maximum)
    fate = dice.random()
    if depth < 3 and fate < 0.35:
        queue["queues"] = _children(dice, below, depth + 1)
    elif fate < 0.5:
        queue["parent"] = True
    if ("queues" in queue or "parent" in queue) and dice.random() < 0.5:
        queue["childtemplate"] = _template(dice)
    # What this queue, or else what is below it, takes of the guarantees.
    for kind, value in _guaranteed_of(queue).items():
        if kind in above.left:
            above.left[kind] -= value
    return queue


def _left_for_children(guaranteed: Amounts, effective: Amounts, left: Amounts) -> Amounts:
    """How much the children may guarantee in sum, by type: by this queue's own, its max, and what is left above."""
    found = dict(effective)
    for kind, value in left.items() if not guaranteed else guaranteed.items():
        found[kind] = min(value, found.get(kind, value))
    if guaranteed:  # types that the queue does not guarantee itself count nowhere above
        for kind, value in effective.items():
            found[kind] = min(value, found[kind])
    return found


def _guaranteed_of(queue: Document) -> Amounts:
    own = queue.get("resources", {}).get("guaranteed")
    if own:
        return {kind: amount(kind, text) for kind, text in own.items()}
    total: Amounts = {}
    for child in queue.get("queues", ()):
        for kind, value in _guaranteed_of(child).items():
            total[kind] = total.get(kind, 0) + value
    return total


def _some_types(dice: random.Random) -> list[str]:
    return [kind for kind in TYPES if dice.random() < 0.6] or ["vcore"]


def _template(dice: random.Random) -> Document:
    template: Document = {}
    if dice.random() < 0.5:
        template["maxapplications"] = dice.randint(1, 3)
    if dice.random() < 0.6:
        template["properties"] = _properties(dice)
    if dice.random() < 0.6:
        template["resources"] = {
            "max": _written({"vcore": dice.randint(5, 20) * 1000}),
            "guaranteed": _written({"vcore": dice.randint(1, 5) * 1000, "memory": dice.randint(1, 5)}),
        }
    return template


def _properties(dice: random.Random) -> dict[str, str]:
    found: dict[str, str] = {}

    def maybe(chance: float, name: str, *values: str) -> None:
        if dice.random() < chance:
            found[name] = dice.choice(values)

    maybe(0.4, "application.sort.policy", "fair", "fair", "fairshare", "fairshare", "fifo", "nonsense")
    if found.get("application.sort.policy") == "fairshare":
        found["application.sort.halflife"] = dice.choice(["1m", "1m", "5m", "60m"])
    maybe(0.2, "application.sort.priority", "disabled", "disabled", "enabled")
    maybe(0.2, "priority.policy", "fence", "fence", "default")
    maybe(0.25, "priority.offset", "-3", "2", "5", "100", "2147483647")
    maybe(0.2, "preemption.policy", "fence", "disabled", "default")
    maybe(0.6, "preemption.delay", "1s", "5s", "5s", "20s")
    maybe(0.15, "preemption.priority", "disabled", "enabled")
    maybe(0.4, "quota.preemption.delay", "1s", "10s", "0s")
    return found


# ---- limits --------------------------------------------------------------------------------------------------------


def _limits(dice: random.Random, queue: Document, above: _Above, maximum: Amounts) -> _Above:
    """Limits for the queue, within those above and within its own max; gives what holds below."""
    if dice.random() > 0.3:
        return above
    entries: list[Document] = []
    own: dict[tuple[str, str], Any] = {}
    groups_named = False
    for who in dice.sample(["user", "user", "group", "group", "users*", "groups*"], dice.randint(1, 3)):
        entry: Document = {"limit": who}
        if who == "user":
            entry["users"] = dice.sample(USERS, dice.randint(1, 2))
        elif who == "group":
            entry["groups"] = dice.sample(GROUPS, dice.randint(1, 2))
        else:
            entry[who.rstrip("*")] = ["*"]
        names = [("user", name) for name in entry.get("users", ())] + [
            ("group", name) for name in entry.get("groups", ())
        ]
        wildcard = {kind for kind, name in own if name == "*"}
        if any(name in own or name[0] in wildcard for name in names):
            continue
        if ("group", "*") in names and not groups_named:
            continue
        groups_named = groups_named or any(kind == "group" for kind, _ in names)
        limit = _limit(dice, names, above, maximum, queue.get("maxapplications", 0))
        if limit is None:
            continue
        resources, applications = limit
        if resources:
            entry["maxresources"] = _written(resources)
        if applications:
            entry["maxapplications"] = applications
        entries.append(entry)
        for name in names:
            bound = _bound(above, name)
            least = {**bound[0], **{k: min(v, bound[0].get(k, v)) for k, v in resources.items()}}
            counts = [count for count in (applications, bound[1]) if count]
            own[name] = (least, min(counts, default=0))
    if entries:
        queue["limits"] = entries
    return _Above(above.most, above.left, above.applications, {**above.held, **own})


def _limit(
    dice: random.Random, names: list[tuple[str, str]], above: _Above, maximum: Amounts, applications_max: int
) -> tuple[Amounts, int] | None:
    bounds = [_bound(above, name) for name in names]
    resources: Amounts = {}
    if dice.random() < 0.7:
        for kind in _some_types(dice):
            value = dice.randint(2, 20 if kind != "gpu" else 4) * UNIT[kind]
            value = min([value, *(bound[0][kind] for bound in bounds if kind in bound[0])])
            resources[kind] = min(value, maximum.get(kind, value))
        if not any(resources.values()):
            resources = {}
    most = [count for count in (applications_max, *(bound[1] for bound in bounds)) if count]
    must = any(bound[1] for bound in bounds)
    applications = dice.randint(1, min([*most, 4])) if must or not resources or dice.random() < 0.3 else 0
    return resources, applications


def _bound(above: _Above, name: tuple[str, str]) -> tuple[Amounts, int]:
    found = above.held.get(name)
    if found is None and name[1] != "*":
        found = above.held.get((name[0], "*"))
    return found if found is not None else ({}, 0)
