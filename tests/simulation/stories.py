"""The kinds of lives that are lived in numbers; and how one that failed is told."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from simulation import shrink, words
from simulation.external_life import ExternalLife
from simulation.life import Life, play
from simulation.manager import CALLBACKS, EXTERNAL, GANGS

# Of a failed life's story the last lines are told.
LINES_MAX = 60
SHRINKING_S = 60.0


# All of them meet.
MIXED = ",".join((GANGS, CALLBACKS, EXTERNAL))


@dataclass(frozen=True)
class Kind:
    """Lives with some features.

    :param features: as the command line has them; ``target``: of make; ``seeds``, ``steps``: as many by default.
    :param twice: each is lived under two hash seeds.
    :param seeds_for_all: in so many lives everything must come up. (In fewer the rare may be missing by chance.)
    """

    features: str
    target: str
    seeds: int
    steps: int
    seeds_for_all: int
    twice: bool = True

    @property
    def name(self) -> str:
        return f"lives with {self.features.replace(',', ', ')}" if self.features else "lives"


KINDS = {
    each.features: each
    for each in (
        Kind("", "simulate", 5_000, 60, 1_000, twice=False),
        Kind(GANGS, "simulate-gangs", 2_000, 300, 1_000),
        Kind(CALLBACKS, "simulate-callbacks", 1_000, 80, 100),
        Kind(EXTERNAL, "simulate-external", 1_000, 60, 100),
        Kind(MIXED, "simulate-mixed", 1_000, 60, 100),
    )
}


def new_life(
    kind: Kind, seed: int, tally: Counter[str] | None = None, *, check_core: bool = True
) -> Life | ExternalLife:
    if EXTERNAL in kind.features:
        return ExternalLife(seed, tally, asks=CALLBACKS in kind.features, check_core=check_core)
    return Life(seed, tuple(filter(None, kind.features.split(","))), tally, check_core=check_core)


def live(kind: Kind, seed: int, steps: int, tally: Counter[str]) -> tuple[str, Exception | None]:
    """Lives one; gives the digest of what came out, and how it failed."""
    life = new_life(kind, seed, tally)
    error = _failure(life, steps)
    return life.digest.hexdigest(), error


def failure(kind: Kind, seed: int, steps: int, shrinking_s: float = SHRINKING_S) -> str:
    """Lives one; gives the story of its failure, or nothing."""
    return "" if live(kind, seed, steps, Counter())[1] is None else story(kind, seed, steps, shrinking_s)


def story(kind: Kind, seed: int, steps: int, shrinking_s: float = SHRINKING_S) -> str:
    """How a life fails, as short as it can be told; and what it heard and said last."""
    life = new_life(kind, seed)
    life.story = story = []
    error = _failure(life, steps)
    if error is None:
        return f"{kind.name}, seed {seed}: nothing failed"
    lines = [f"{kind.name}, seed {seed} failed in step {life.number}: {in_words(error)}", "the end of its story:"]
    lines += story[-LINES_MAX:]
    # (What is not done in the end depends on all before it: whatever is left out is left undone.)
    if isinstance(life, Life) and shrink.what_failed(error) != "end":
        features, run = kind.features.split(","), life.run
        # (Looked at after each step it fails earlier; now and then it fails otherwise.)
        failed = play(life.document, run.steps, features, often=True)[1]
        alike = failed is not None and shrink.what_failed(failed) == shrink.what_failed(error)
        again = partial(play, features=features, often=alike)
        short, found = shrink.shrunken(life.document, run.steps, error, shrinking_s, again)
        lines += ["the shortest life found that fails so:", words.told(life.document, short), str(found)]
    lines.append(f"again: make {kind.target} SEED={seed} STEPS={steps}\n")
    return "\n".join(lines)


def _failure(life: Life | ExternalLife, steps: int) -> Exception | None:
    try:
        life.live(steps)
    except Exception as error:
        return error
    return None


def in_words(error: Exception) -> str:
    """The failure, and where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.name}, {Path(where.filename).name})"
