"""Many lives with gangs, each lived twice under another PYTHONHASHSEED; ``make simulate-gangs``. See README.md."""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial

from simulation import gangs_tally, shrink, twice, words
from simulation.gangs_life import BEGIN_NS, GangLife, play
from simulation.twice import in_words

SEEDS, STEPS = 2_000, 300
# Of a failed life's story the last lines are told.
LINES_MAX = 40
SHRINKING_S = 60.0


def live(seed: int, steps: int, tally: Counter[str]) -> tuple[str, Exception | None]:
    """Lives one; gives the digest of what came out, and how it failed."""
    life = GangLife(seed, tally)
    error = twice.failure(life, steps)
    return life.run.digest.hexdigest(), error


def story(seed: int, steps: int, shrinking_s: float = SHRINKING_S) -> str:
    """How a life fails, as short as it can be told; and what it heard and said last."""
    life = GangLife(seed)
    life.run.story = []
    error = twice.failure(life, steps)
    if error is None:
        return f"gangs, seed {seed}: nothing failed"
    lines = [f"gangs, seed {seed} failed in step {len(life.run.steps)}: {in_words(error)}", "the end of its story:"]
    lines += life.run.story[-LINES_MAX:]
    if shrink.what_failed(error) != "end":  # else whatever is left out is left undone
        # (Looked at after each step it fails earlier; now and then it fails otherwise.)
        failed = play(life.run.document, life.run.steps, often=True)[1]
        alike = failed is not None and shrink.what_failed(failed) == shrink.what_failed(error)
        again = partial(play, often=alike)
        short, found = shrink.shrunken(life.run.document, life.run.steps, error, shrinking_s, again)
        lines += ["the shortest life found that fails so:", words.told(life.run.document, short, BEGIN_NS), str(found)]
    lines.append(f"again: make simulate-gangs SEED={seed} STEPS={steps}\n")
    return "\n".join(lines)


KIND = twice.Kind(
    "gangs",
    "simulate-gangs",
    "simulation.gangs",
    SEEDS,
    STEPS,
    live,
    story,
    gangs_tally.missing,
    gangs_tally.SEEDS_FOR_ALL,
)

if __name__ == "__main__":
    sys.exit(twice.main(KIND))
