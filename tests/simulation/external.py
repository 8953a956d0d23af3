"""Many lives of a scheduler beside other managers; ``make simulate-external``. See README.md."""

from __future__ import annotations

import logging
import sys
from collections import Counter

import structlog
from simulation import twice
from simulation.external_life import ExternalLife

SEEDS, STEPS = 1_000, 60
LINES_MAX, CHARACTERS_MAX = 60, 400
SEEDS_FOR_ALL = 100
# What must come up in so many lives.
KINDS = (
    "RM: a node leaves",
    "RM: measures a node again",
    "RM: registered anew",
    "RM: speaks of a node that it did not bring",
    "RM: takes a node",
    "allocations",
    "informer: an object cannot be read",
    "informer: an object cannot be read at its start",
    "informer: an old version comes late",
    "informer: its manager goes away",
    "informer: its manager is back",
    "informer: says it twice",
    "informer: stale",
    "lent: forgets an offer",
    "lent: offers",
    "lent: revokes",
    "lent: snatches an offer",
    "licences: changes a pool",
    "licences: takes a pool away",
    "node: gone with its source",
    "node: held back, a source is lost",
    "node: its capacity is disputed",
    "node: the RM's, with a source",
    "node: with a source",
    "offer: OFFERED",
    "offer: RETURNED",
    "offer: REVOKED",
    "offer: given back, idle",
    "offer: withdrawn, and gone",
    "over-commit: not told in time",
    "pool: used",
    "rack: lifts a cap",
    "rack: sets a cap",
    "rest: looked for asks that would fit",
    "restart: informers go on",
    "restart: of everything",
    "told to go: Preempted",
    "vms: adds a host",
    "vms: drains a host",
    "vms: ends maintenance",
    "vms: forgets an owner of VMs",
    "vms: has an owner in another queue",
    "vms: lifts a quota",
    "vms: moves a VM",
    "vms: rebuilds a host",
    "vms: removes a host",
    "vms: resizes a VM",
    "vms: sets a quota",
    "vms: starts a VM",
    "vms: stops a VM",
)


def live(seed: int, steps: int, tally: Counter[str]) -> tuple[str, Exception | None]:
    """Lives one; gives the digest of what came out, and how it failed."""
    life = ExternalLife(seed, tally)
    error = twice.failure(life, steps)
    return life.digest.hexdigest(), error


def story(seed: int, steps: int) -> str:
    """How a life fails, and what it heard and said last."""
    told: list[str] = []
    life = ExternalLife(seed, story=told)
    error = twice.failure(life, steps)
    if error is None:
        return f"external, seed {seed}: nothing failed"
    lines = [f"external, seed {seed} failed in step {life.steps}: {twice.in_words(error)}", "the end of its story:"]
    lines += [line[:CHARACTERS_MAX] for line in told[-LINES_MAX:]]
    lines.append(f"again: make simulate-external SEED={seed} STEPS={steps}\n")
    return "\n".join(lines)


def missing(tally: Counter[str]) -> list[str]:
    """What never came up."""
    return [kind for kind in KINDS if not tally[kind]]


KIND = twice.Kind(
    "external", "simulate-external", "simulation.external", SEEDS, STEPS, live, story, missing, SEEDS_FOR_ALL
)

if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    sys.exit(twice.main(KIND))
