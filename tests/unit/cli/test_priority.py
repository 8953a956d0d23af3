"""Followers lower their own priority by the setting, and never that of other processes in their session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

AUTOGROUP = Path("/proc/self/autogroup")
SCRIPT = """
import os
from pathlib import Path
from muster_cli.priority import lower_priority

lower_priority(5)
print(os.nice(0))
print(Path("/proc/self/autogroup").read_text() if Path("/proc/self/autogroup").exists() else "nice of nobody")
"""


def seen(*, own_session: bool) -> tuple[int, str]:
    """Return the niceness of a process after it lowered its priority, and its session's."""
    output = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        start_new_session=own_session,
    ).stdout
    niceness, _, session = output.partition("\n")
    return int(niceness), session.strip()  # (the test does not check a session that the system itself began)


def test_a_process_gives_way() -> None:
    ours = os.nice(0)
    assert seen(own_session=False)[0] == min(19, ours + 5)


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this Linux weighs processes alone")
def test_its_session_does_where_it_is_its_own() -> None:
    ours = os.nice(0)
    assert seen(own_session=True)[1].endswith(f" nice {min(19, ours + 5)}")
    assert seen(own_session=False)[1] == AUTOGROUP.read_text().strip(), "another session keeps its niceness"
