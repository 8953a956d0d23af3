"""Small worlds for lives with other managers: five leaf queues, some with a max. A fixed number, each with variants."""

from __future__ import annotations

import random
from functools import lru_cache

from simulation import worlds
from simulation.books import Document

WORLDS, VARIANTS = 24, 3


@lru_cache(maxsize=WORLDS * VARIANTS)
def world(number: int, variant: int) -> Document:
    """A valid configuration. Its variants have the same queues, with another max."""
    shape = random.Random(number)
    preempts = shape.random() < 0.4
    policy = shape.choice(["fair", "binpacking", "fragmentation", "dotproduct"])
    dice = random.Random(number * VARIANTS + variant)
    document = {
        "partitions": [
            {
                "name": "default",
                "nodesortpolicy": {"type": policy},
                "preemption": {"enabled": preempts, "optout": shape.choice(["never", "last"])},
                "reservation": {"enabled": preempts and dice.random() < 0.5},
                "placementrules": [{"name": "provided", "create": False}],
                "queues": [
                    {
                        "name": "root",
                        "submitacl": "*",
                        "queues": [
                            _queue(dice, "a"),
                            {**_queue(dice, "b", 20), "queues": [_queue(dice, "x"), {"name": "y"}]},
                            _queue(dice, "c"),
                        ],
                    }
                ],
            }
        ]
    }
    assert worlds.read(worlds.text_of(document)) is not None
    return document


def _queue(dice: random.Random, name: str, least: int = 6) -> Document:
    queue: Document = {"name": name, "properties": {"preemption.delay": "1s"}}
    resources: Document = {}
    if dice.random() < 0.4:
        most = dice.randint(least, least * 2)
        resources["max"] = {"vcore": f"{most * 1000}m"}
    if dice.random() < 0.6 and name in ("a", "c"):
        resources["guaranteed"] = {"vcore": "3000m"}
    if resources:
        queue["resources"] = resources
    return queue
