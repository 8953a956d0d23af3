"""Small worlds: a few leaf queues, some with a max, a guarantee, limits, properties of gangs; with other managers five.

There is a fixed number of them, each with variants to reload, so that no text is read twice.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

from simulation import worlds

USERS = ("ann", "bob", "cat")
# More of them would only be read, which takes longer than a life's first hundred steps.
WORLDS, VARIANTS = 48, 3

# Those with other managers, whose queues have always the same names.
SHARED_WORLDS = 24

Document = dict[str, Any]


@lru_cache(maxsize=WORLDS * VARIANTS)
def world(number: int, variant: int) -> Document:
    """A valid configuration. Its variants have the same queues, with another max, other limits and properties."""
    shape = random.Random(number)
    tree = _tree(shape)
    dice = random.Random(number * VARIANTS + variant)
    while True:
        document = {"partitions": [_partition(dice, tree)]}
        if worlds.read(worlds.text_of(document)) is not None:
            return document


def _tree(shape: random.Random) -> dict[str, list[str]]:
    """The leaves below each queue below root; none: it is a leaf."""
    names = ["a", "b", "c", "d"][: shape.randint(1, 3)]
    return {name: ["x", "y"][: shape.randint(1, 2)] if shape.random() < 0.4 else [] for name in names}


def _partition(dice: random.Random, tree: dict[str, list[str]]) -> Document:
    root: Document = {"name": "root", "submitacl": "*", "queues": []}
    if dice.random() < 0.15:
        root["limits"] = _limits(dice, {})
    for name, leaves in tree.items():
        queue = _queue(dice, name, {})
        if leaves:
            above = queue.get("resources", {}).get("max", {})
            queue["queues"] = [_queue(dice, leaf, above) for leaf in leaves]
        root["queues"].append(queue)
    return {
        "name": "default",
        "nodesortpolicy": {"type": dice.choice(["fair", "binpacking", "fragmentation", "dotproduct"])},
        "preemption": {
            "enabled": dice.random() < 0.85,
            "quotapreemptionenabled": dice.random() < 0.5,
            "optout": dice.choice(["never", "last"]),
        },
        "reservation": {"enabled": dice.random() < 0.8, "delay": "2s", "timeout": dice.choice(["20s", "60m"])},
        "placementrules": [{"name": "provided", "create": False}],
        "queues": [root],
    }


def _queue(dice: random.Random, name: str, above: dict[str, str]) -> Document:
    queue: Document = {"name": name, "properties": _properties(dice)}
    most: dict[str, int] = {kind: worlds.amount(kind, text) for kind, text in above.items()}
    resources: Document = {}
    if dice.random() < 0.5:
        for kind in ("vcore", "memory"):
            if dice.random() < 0.75:
                value = dice.randint(4, 16) * worlds.UNIT[kind]
                most[kind] = min(value, most.get(kind, value))
                resources.setdefault("max", {})[kind] = _written(kind, most[kind])
    if dice.random() < 0.5 and not above:
        value = dice.randint(1, 5)
        resources["guaranteed"] = {
            kind: _written(kind, min(value * worlds.UNIT[kind], most.get(kind, 1 << 60)))
            for kind in ("vcore", "memory")
        }
    if resources:
        queue["resources"] = resources
    if dice.random() < 0.15 and not above:
        queue["maxapplications"] = dice.randint(1, 3)
    if dice.random() < 0.2:
        queue["limits"] = _limits(dice, most)
    return queue


def _limits(dice: random.Random, most: dict[str, int]) -> list[Document]:
    who = dice.choice([["ann"], ["bob", "cat"], ["*"]])
    kind = dice.choice(["vcore", "memory"])
    value = min(dice.randint(3, 12) * worlds.UNIT[kind], most.get(kind, 1 << 60))
    return [{"limit": "users", "users": who, "maxresources": {kind: _written(kind, value)}}]


def _properties(dice: random.Random) -> dict[str, str]:
    found: dict[str, str] = {}

    def maybe(chance: float, name: str, *values: str) -> None:
        if dice.random() < chance:
            found[name] = dice.choice(values)

    maybe(0.45, "gang.start", "incremental", "incremental", "whole")
    maybe(0.3, "gang.preemption", "whole", "whole", "members")
    maybe(0.15, "application.sort.policy", "fair", "fifo", "stateaware")
    maybe(0.8, "preemption.delay", "1s", "1s", "5s")
    maybe(0.1, "preemption.policy", "fence", "disabled")
    maybe(0.25, "quota.preemption.delay", "1s")
    return found


def _written(kind: str, value: int) -> str:
    return f"{value}m" if kind == "vcore" else str(value)


# ---- with other managers -------------------------------------------------------------------------------------------


@lru_cache(maxsize=2 * SHARED_WORLDS * VARIANTS)
def shared_world(number: int, variant: int, *, gangs: bool = False) -> Document:
    """A valid configuration for lives with other managers; ``gangs``: with properties of gangs, and limits."""
    shape = random.Random(number)
    preempts = shape.random() < 0.4
    policy = shape.choice(["fair", "binpacking", "fragmentation", "dotproduct"])
    dice = random.Random(number * VARIANTS + variant)
    reserves = preempts and dice.random() < 0.5
    leaves = [_shared_queue(dice, "a", gangs=gangs)]
    below = [_shared_queue(dice, "x", gangs=gangs), {"name": "y"}]
    leaves += [{**_shared_queue(dice, "b", 20), "queues": below}, _shared_queue(dice, "c", gangs=gangs)]
    root: Document = {"name": "root", "submitacl": "*", "queues": leaves}
    if gangs and dice.random() < 0.3:
        root["limits"] = _limits(dice, {})
    document = {
        "partitions": [
            {
                "name": "default",
                "nodesortpolicy": {"type": policy},
                "preemption": {"enabled": preempts, "optout": shape.choice(["never", "last"])},
                "reservation": {"enabled": reserves},
                "placementrules": [{"name": "provided", "create": False}],
                "queues": [root],
            }
        ]
    }
    assert worlds.read(worlds.text_of(document)) is not None
    return document


def _shared_queue(dice: random.Random, name: str, least: int = 6, *, gangs: bool = False) -> Document:
    queue: Document = {"name": name, "properties": {"preemption.delay": "1s"}}
    resources: Document = {}
    if dice.random() < 0.4:
        most = dice.randint(least, least * 2)
        resources["max"] = {"vcore": f"{most * 1000}m"}
    if dice.random() < 0.6 and name in ("a", "c"):
        resources["guaranteed"] = {"vcore": "3000m"}
    if resources:
        queue["resources"] = resources
    if gangs:
        queue["properties"] = _properties(dice)
        if dice.random() < 0.2:
            queue["maxapplications"] = dice.randint(2, 4)
    return queue
