"""Many lives of a scheduler that asks its resource manager; ``make simulate-callbacks``. See README.md."""

from __future__ import annotations

import sys
from collections import Counter

from simulation import twice
from simulation.callbacks_life import CallbackLife

SEEDS, STEPS = 1_000, 80
LINES_MAX, CHARACTERS_MAX = 60, 300
SEEDS_FOR_ALL = 100
# What must come up in so many lives.
KINDS = (
    "RM: a question is never answered",
    "RM: answers twice",
    "RM: registered anew",
    "RM: says no to PredicatesAsked",
    "RM: says no to PreemptionPredicatesAsked",
    "RM: says yes to PredicatesAsked",
    "RM: says yes to PreemptionPredicatesAsked",
    "allocation: agreed",
    "allocation: in a placeholder's place",
    "allocation: without a question",
    "answer: nobody's",
    "preemption",
    "preemption: agreed",
    "question: not to place",
    "question: to place",
    "question: to preempt",
    "question: unanswered",
    "replacement: agreed",
    "restart: with open questions",
    "restart: with refusals",
    "state: RESERVED",
    "state: SKIPPED",
    "stream: comes",
    "stream: goes",
)


def live(seed: int, steps: int, tally: Counter[str]) -> tuple[str, Exception | None]:
    """Lives one; gives the digest of what came out, and how it failed."""
    life = CallbackLife(seed, tally)
    error = twice.failure(life, steps)
    return life.digest.hexdigest(), error


def story(seed: int, steps: int) -> str:
    """How a life fails, and what it heard and said last."""
    life = CallbackLife(seed)
    life.story = []
    error = twice.failure(life, steps)
    if error is None:
        return f"callbacks, seed {seed}: nothing failed"
    lines = [f"callbacks, seed {seed} failed in step {life.steps}: {twice.in_words(error)}", "the end of its story:"]
    lines += [line[:CHARACTERS_MAX] for line in life.story[-LINES_MAX:]]
    lines.append(f"again: make simulate-callbacks SEED={seed} STEPS={steps}\n")
    return "\n".join(lines)


def missing(tally: Counter[str]) -> list[str]:
    """What never came up."""
    return [kind for kind in KINDS if not tally[kind]]


KIND = twice.Kind(
    "callbacks", "simulate-callbacks", "simulation.callbacks", SEEDS, STEPS, live, story, missing, SEEDS_FOR_ALL
)

if __name__ == "__main__":
    sys.exit(twice.main(KIND))
