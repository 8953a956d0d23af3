"""``make mutate-whole``: mutants of the product, each of which a life in virtual time notices, by a law.

A mutant is one edit of the mutation tool (``mutation/mutants.py``), named by its function and texts. It is in place for
a whole life, with the seed and the length that are named beside it; the same life without it breaks no law.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import as_source  # noqa: F401  (first)
from mutation.applying import applied
from mutation.forks import in_forks
from mutation.mutants import Mutant, named

from virtual.play import play, stormy


@dataclass(frozen=True, slots=True)
class WholeMutant:
    """A mutant, and a life that notices it.

    :ivar says: what is broken; ``laws``: those of which one is broken then.
    :ivar seconds: of virtual time in which the RMs work.
    :ivar nth: of several mutants with these texts.
    """

    says: str
    laws: frozenset[str]
    seed: int
    seconds: float
    module: str
    function: str
    before: str
    after: str
    nth: int = 0

    @property
    def mutant(self) -> Mutant:
        """Raises LookupError if the function is another one now."""
        return named(self.module, self.function, self.before, self.after, self.nth)


def _of(says: str, laws: str, seed: int, seconds: float, place: str, before: str, after: str, nth: int = 0) -> WholeMutant:  # fmt: skip  # noqa: E501
    module, _, function = place.partition(":")
    return WholeMutant(says, frozenset(laws.split(", ")), seed, seconds, module, function, before, after, nth)


MUTANTS: tuple[WholeMutant, ...] = (
    _of(
        "repeated messages are taken twice", "one answer", 50, 80.0,
        "muster_state.message_dedup:MessageDedup.accept", "return False", "return True",
    ),
    _of(
        "a standby skips what comes when it is warm", "run, response numbers, running", 1, 200.0,
        "muster_bus.standby:Standby._follow", "await self._fold(machine, live, records)", "pass",
    ),
    _of(
        "a response counts as sent before it is written", "heard, one answer", 42, 80.0,
        "muster_gateway.response_delivery:ResponseFeed.delivered",
        "self._written if self._queue or self._writing else self._read_position",
        "self._read_position if self._queue or self._writing else self._written",
    ),
    _of(
        "a broken stream keeps its cursor", "heard, one answer", 45, 80.0,
        "muster_gateway.response_delivery:ResponseFeed.safe_cursor",
        "self._now_s() - window_s", "self._now_s() + window_s",
    ),
    _of(
        "a request that the log did not take is passed over", "run, one answer", 1, 200.0,
        "muster_gateway.stream:RmStream._appended", "self.end(append_error(error))", "pass",
    ),
    _of(
        "a release is not told", "running, one answer", 1, 60.0,
        "muster_core.allocation.releases:Releases.release",
        "out.facts.append(released(state, allocation, termination, message))", "pass",
    ),
    _of(
        "the events of a release are lost", "sums, recount", 1, 60.0,
        "muster_core.allocation.releases:Releases.emit_ended", "...", "return None",
    ),
    _of(
        "quotas and limits do not hold", "limits", 2, 200.0,
        "muster_core.allocation.limit_checks:LimitChecks.exceeded_limit", "...", "return None",
    ),
    _of(
        "a rejection is not told", "one answer, run", 1, 60.0,
        "muster_core.requests.item_validation:reject",
        "out.facts.append(RejectedAsk(item.key, item.app_id, reason, is_ask))", "pass",
    ),
    _of(
        "an exporter goes on at the end of the log", "history", 1, 200.0,
        "muster_event_publisher.history.exporter:Exporter._resume_at", "min(progress.end, end)",
        "max(progress.end, end)", 1,
    ),
    _of(
        "a read does not wait for its position", "process", 2, 250.0,
        "muster_runtime.positions:PositionWaits._has_all",
        "return all((shown.includes(stamp) for shown, _, stamp in stamps))", "return True",
    ),
)  # fmt: skip


# A change of the product gives each seed another life, in which the break may have no chance.
LIVES_MAX = 4


def lived(mutant: WholeMutant, lives_max: int = LIVES_MAX) -> dict[str, Any]:
    """Plays lives with the mutant in place, of its seed and the next ones, until it is noticed.

    Raises NotApplicable, LookupError.
    """
    began_s = time.process_time()
    for seed in range(mutant.seed, mutant.seed + lives_max):
        with applied(mutant.mutant):
            played = play(stormy(seed, mutant.seconds))
        laws = {each.law for each in played.findings}
        if laws & mutant.laws:
            break
    return {
        "seed": seed,
        "laws": sorted(laws),
        "cpu_s": round(time.process_time() - began_s, 1),
        "first": played.story()[:1],
    }


def main(words: Sequence[str]) -> int:
    """0: each was noticed."""
    parser = argparse.ArgumentParser(prog="make mutate-whole", description=__doc__)
    parser.add_argument("--only", default="", help="those whose text contains this")
    parser.add_argument("--seed", type=int, help="one life, of this seed, not of that beside the mutant")
    parser.add_argument("--seconds", type=float, help="and of this length")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args(words)
    chosen = [each for each in MUTANTS if asked.only in each.says]
    pieces = []
    for each in chosen:
        seed = each.seed if asked.seed is None else asked.seed
        seconds = asked.seconds or each.seconds
        of_life = WholeMutant(each.says, each.laws, seed, seconds, *_place(each))
        lives = LIVES_MAX if asked.seed is None else 1
        pieces.append(lambda _, of_life=of_life, lives=lives: lived(of_life, lives))
    missed = 0
    for number, given, how in in_forks(pieces, asked.jobs):
        mutant = chosen[number]
        told = given or {"seed": mutant.seed, "laws": [how], "cpu_s": 0.0, "first": []}
        noticed = bool(mutant.laws & set(told["laws"]))
        missed += not noticed
        what = "noticed" if noticed else "NOT noticed"
        laws = ", ".join(told["laws"]) or "none"
        print(f"{mutant.says}: {what} (seed {told['seed']}), {told['cpu_s']} s of a core; broken laws: {laws}")
        print("".join(f"    {line}\n" for line in told["first"]), end="", flush=True)
    return 1 if missed else 0


def _place(of: WholeMutant) -> tuple[str, str, str, str, int]:
    return of.module, of.function, of.before, of.after, of.nth


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
