"""Small worlds for lives of gangs: a few leaf queues, some with a max, a guarantee, limits, properties of gangs.

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
