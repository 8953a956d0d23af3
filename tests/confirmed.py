"""Runs pytest. With MUSTER_CONFIRM_FAILURES, few failures count only if one of them fails again by itself.

    python tests/confirmed.py PYTEST [ARGUMENT...]

`.ci/run` sets it (docs/decisions/0257-ci-confirms-a-failure.md). Without it, this is pytest.

    1. Run the tests. All pass, or more than MOST_FAILED fail: that is the result.
    2. Wait until MUSTER_CONFIRM_AFTER exists, if it is set: then nothing runs beside.
    3. Run what failed TIMES times, one after the other, in a new process each time. One failure: that is the result.
    4. Otherwise name them as unsteady, in the output and in the file MUSTER_UNSTEADY.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

MOST_FAILED = 3  # a change that breaks something mostly breaks more
TIMES = 2
_FAILED = 1  # pytest's status for "tests were run, some failed"
_WAIT_S = 3600.0  # longer than any part of the tests


def main(command: list[str]) -> int:
    if not os.environ.get("MUSTER_CONFIRM_FAILURES"):
        os.execv(command[0], command)
    with tempfile.TemporaryDirectory() as cache:
        status = _run([*command, "-o", f"cache_dir={cache}"])
        failed = _failed(Path(cache)) if status == _FAILED else []
    if not failed:
        return status
    if len(failed) > MOST_FAILED:
        print(f"==> {len(failed)} tests failed: too many to be tried again", flush=True)
        return status
    _wait_for_quiet()
    for attempt in range(1, TIMES + 1):
        print(f"==> {len(failed)} failed: again by themselves ({attempt} of {TIMES})", flush=True)
        with tempfile.TemporaryDirectory() as cache:
            again = _run([command[0], "-n", "0", "-o", f"cache_dir={cache}", *failed])
        if again != 0:
            return again
    for test in failed:
        print(f"==> UNSTEADY: {test} failed beside others (above), and passed {TIMES} times by itself", flush=True)
    if unsteady := os.environ.get("MUSTER_UNSTEADY"):
        with Path(unsteady).open("a", encoding="utf-8") as file:
            file.writelines(f"{test}\n" for test in failed)
    return 0


def _run(command: list[str]) -> int:
    """Runs a command to its end and returns its status. SIGTERM and SIGINT end it, too."""
    process = subprocess.Popen(command)

    def end(number: int, _frame: FrameType | None) -> None:
        process.send_signal(number)

    before = [(number, signal.signal(number, end)) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        return process.wait()
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _failed(cache: Path) -> list[str]:
    """The tests, and the files that could not be read, that pytest remembers as failed."""
    remembered = cache / "v" / "cache" / "lastfailed"
    return list(json.loads(remembered.read_text())) if remembered.exists() else []


def _wait_for_quiet() -> None:
    quiet = os.environ.get("MUSTER_CONFIRM_AFTER")
    until = time.monotonic() + _WAIT_S
    while quiet and not Path(quiet).exists() and time.monotonic() < until:
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
