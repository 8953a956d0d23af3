"""Makes Muster's child processes hang when a test says so.

A stopped process (SIGSTOP) does not hang: its watchdog waits until it is continued.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from muster_runtime.child_process import ChildProcess

_PROGRAM = """
import runpy, signal, sys, threading
signal.signal(signal.SIGUSR1, lambda *_: threading.Event().wait())
module = sys.argv.pop(1)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def can_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes :func:`hang` possible for the children that are started from now on."""

    def popen(command: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
        assert tuple(command[:3]) == (sys.executable, "-P", "-m")
        return subprocess.Popen([sys.executable, "-P", "-c", _PROGRAM, *command[3:]], **more)

    monkeypatch.setattr(ChildProcess, "popen", staticmethod(popen))


def hang(pid: int) -> None:
    """Makes the process's first thread wait for ever."""
    os.kill(pid, signal.SIGUSR1)
