"""The best priority of a queue's parts, against a plain search, over many random changes."""

from __future__ import annotations

import random

from muster_core.model.priorities import Priorities


def test_the_best_priority_is_that_of_a_plain_search() -> None:
    chance = random.Random(3)
    priorities: Priorities[str] = Priorities()
    plain: dict[str, int] = {}
    for _ in range(5_000):
        part = f"part{chance.randrange(40)}"
        if chance.random() < 0.4:
            priorities.set(part, None)
            plain.pop(part, None)
        else:
            plain[part] = chance.randrange(-6, 6)
            priorities.set(part, ("any", plain[part]))
        if plain:
            best, owner = priorities.best()
            assert best == min(plain.values()) == plain[owner]
    assert len(priorities._heap) < 2 * 40 + 20  # what is outdated goes
    priorities.clear()
    priorities.set("a", (2,))
    assert priorities.best() == (2, "a")
