"""``make fuzz``: every target in turn, until the time is over. Each finding goes to a file in its smallest form.

    PYTHONPATH=tests python -m fuzz --seconds 600 [--target yaml] [--seed 7]

A run with the same seed tries the same inputs, as far as its time allows. The files are in ``tests/fuzz/found``, and
``tests/fuzz/test_fuzz.py`` replays each of them. Mend the decoder, and commit both.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import logging
import sys
import time
import traceback
from pathlib import Path

import hypothesis
import structlog
from hypothesis import HealthCheck, Phase, given, settings

from fuzz.mutate import mutated
from fuzz.targets import TARGETS, Target

FOUND = Path(__file__).parent / "found"
_EXAMPLES = 200  # of a target, before the next one's turn


def once(target: Target, data: bytes) -> None:
    """Try one input. Raise if it is a finding."""
    with contextlib.suppress(*target.expected):
        target.call(data)


def fuzz(target: Target, seed: int, examples: int) -> bytes | None:
    """Return the smallest input that is a finding; None: no input was one."""
    last: list[bytes] = []

    @hypothesis.seed(seed)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(mutated(target.seeds()))
    def attempt(data: bytes) -> None:
        last[:] = [data]
        once(target, data)

    try:
        attempt()
    except Exception:
        traceback.print_exc()
        return last[0]
    return None


def main() -> int:
    """Returns the exit code: 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--target", action="append", default=[], choices=[each.name for each in TARGETS])
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    chosen = [each for each in TARGETS if not arguments.target or each.name in arguments.target]
    took, tried = dict.fromkeys((each.name for each in chosen), 0.0), dict.fromkeys((each.name for each in chosen), 0)
    found: list[Path] = []
    end, turn = time.monotonic() + arguments.seconds, 0
    while time.monotonic() < end:
        # The target with the least time so far, so that a slow one does not take the others' time.
        target = min(chosen, key=lambda each: took[each.name])
        began = time.monotonic()
        data = fuzz(target, arguments.seed * 1_000_003 + turn, _EXAMPLES)
        took[target.name] += time.monotonic() - began
        tried[target.name] += _EXAMPLES
        turn += 1
        if data is not None:
            file = FOUND / target.name / hashlib.sha256(data).hexdigest()[:16]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            found.append(file)
            chosen.remove(target)
            print(f"found: {file}")
        if not chosen:
            break
    for name, count in tried.items():
        print(f"{name:<14} {count:>9,} inputs {took[name]:>7.1f} s")
    print(f"seed {arguments.seed}: {sum(tried.values()):,} inputs, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
