"""What a run must have met: each kind of fault, and branches of the product that are seldom taken.

A branch is known by the line that the product logs there. A run of CI in which one never happened fails: then either
the plan of faults, or a list here, is no longer true.
"""

from __future__ import annotations

from collections.abc import Mapping

from virtual.trouble import KINDS

# In an hour, each kind of fault at least so often; and these in sum.
EACH = 20
IN_AN_HOUR = {"asks": 10_000, "deaths": 100, "streams broken": 500}
# Faults of single calls.
CALLS = (
    "append lost", "append written", "commit lost", "commit written", "commit late", "record seen late", "log away",
    "log full", "sessions down", "sessions full",
)  # fmt: skip
# Lines of the product's log.
LINES: tuple[str, ...] = ()


def missing(counts: Mapping[str, int], hours: float) -> list[str]:
    """Returns what a run should have met and did not, one line each."""
    least = max(1, round(EACH * hours))
    wanted = {f"fault {kind}": least for kind in KINDS} | {kind: 1 if kind in _RARELY else least for kind in CALLS}
    found = [f"{kind}: {counts[kind]} times, expected at least {count}"
             for kind, count in wanted.items() if counts[kind] < count]  # fmt: skip
    found += [f"{name}: {counts[name]}, expected at least {round(least * hours)}"
              for name, least in IN_AN_HOUR.items() if counts[name] < round(least * hours)]  # fmt: skip
    if hours >= 1:
        found += [f"never logged: {line}" for line in LINES if not counts[f"log: {line}"]]
    return found


_RARELY = frozenset({"commit lost", "commit written", "commit late"})
