"""What each file of tests costs: time, CPU of its test process and of what it starts, and idle cores over time.

    python tests/costs.py OUT.json .venv/bin/pytest -n 5 --dist loadfile tests/e2e

It runs the command with this module as a plugin of pytest. The plugin measures the test processes. The command samples
the others: a process belongs to the test whose name pytest had in the environment (PYTEST_CURRENT_TEST) when the
process started. A process that lives for less than half a second may be missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_VARIABLE = "TEST_COSTS"  # (children of Muster do not inherit what begins with MUSTER_)
_INTERVAL_S = 0.4
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Appends one line for each test: its name, its begin (s since 1970), its time (s), its process's CPU (s)."""
    begun, begun_ns, cpu = time.time(), time.monotonic_ns(), time.process_time()
    result = yield
    line = [item.nodeid, begun, (time.monotonic_ns() - begun_ns) / 1e9, time.process_time() - cpu]
    with Path(os.environ[_VARIABLE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return result


def _environment(pid: str) -> dict[str, str]:
    texts = Path("/proc", pid, "environ").read_bytes().decode(errors="replace").split("\0")
    return dict(text.split("=", 1) for text in texts if "=" in text)


class _Sampler:
    """Samples /proc: the CPU of each process that a test started, and how much of the cores was idle."""

    def __init__(self, marker: str) -> None:
        self._marker = marker
        self._tests: dict[tuple[str, str], str | None] = {}  # process → test, None if none started it
        self.seconds: dict[tuple[str, str], float] = {}
        self.commands: dict[tuple[str, str], str] = {}
        self.idle: list[tuple[float, float]] = []  # (s since 1970, idle cores until then)
        self._last = self._cores()

    @staticmethod
    def _cores() -> tuple[float, float]:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        return time.monotonic(), (int(fields[4]) + int(fields[5])) / _TICKS_A_SECOND

    def sample(self) -> None:
        now, idle_s = self._cores()
        self.idle.append((time.time(), (idle_s - self._last[1]) / max(now - self._last[0], 1e-3)))
        self._last = now, idle_s
        for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - names are all it needs
            try:
                fields = Path("/proc", pid, "stat").read_text().rsplit(")", 1)[1].split()
                process = pid, fields[19]
                if process not in self._tests:
                    environment = _environment(pid)
                    ours = environment.get(_VARIABLE) == self._marker
                    self._tests[process] = environment.get("PYTEST_CURRENT_TEST") if ours else None
                if self._tests[process] is None:
                    continue
                self.seconds[process] = (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND
                self.commands[process] = Path("/proc", pid, "cmdline").read_text().replace("\0", " ")[:200]
            except OSError:
                continue

    def started(self) -> list[tuple[str, float, str]]:
        """Returns (test, CPU in s, command) for each process."""
        return [(self._tests[process] or "", cpu, self.commands[process]) for process, cpu in self.seconds.items()]


@dataclass
class _Row:
    """What a file costs; times in seconds."""

    tests: int = 0
    wall_s: float = 0.0
    own_cpu_s: float = 0.0
    started_cpu_s: float = 0.0
    processes: int = 0


def _rows(tests: list[list[Any]], started: list[tuple[str, float, str]]) -> dict[str, _Row]:
    """Returns the files with what they cost, those with the most processor time first: neighbours change the time."""
    rows: dict[str, _Row] = defaultdict(_Row)
    for name, _, wall_s, cpu_s in tests:
        row = rows[name.split("::")[0]]
        row.tests += 1
        row.wall_s += wall_s
        row.own_cpu_s += cpu_s
    for name, cpu_s, _ in started:
        row = rows[name.split("::")[0]]
        row.started_cpu_s += cpu_s
        row.processes += 1
    return dict(sorted(rows.items(), key=lambda item: -(item[1].own_cpu_s + item[1].started_cpu_s)))


def main() -> int:
    out, command = Path(sys.argv[1]), sys.argv[2:]
    lines = out.with_suffix(".tests")
    lines.parent.mkdir(parents=True, exist_ok=True)
    lines.write_text("")
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, _VARIABLE: str(lines.absolute()), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    begun = time.time()
    sampler = _Sampler(environment[_VARIABLE])
    running = subprocess.Popen([command[0], "-p", "costs", *command[1:]], env=environment)
    while running.poll() is None:
        sampler.sample()
        time.sleep(_INTERVAL_S)
    tests = [json.loads(line) for line in lines.read_text().splitlines()]
    started = sampler.started()
    whole_s = time.time() - begun
    idle = [(at - begun, cores) for at, cores in sampler.idle]
    found = {"tests": tests, "started": started, "idle": idle, "begun": begun, "whole_s": whole_s}
    out.write_text(json.dumps(found))
    for file, row in _rows(tests, started).items():
        cpu = f"CPU {row.own_cpu_s:6.1f} + {row.started_cpu_s:6.1f} s"
        print(f"{row.wall_s:7.1f} s  {cpu}  {row.processes:4d} processes  {row.tests:4d} tests  {file}")
    cpu_s = sum(test[3] for test in tests) + sum(cpu for _, cpu, _ in started)
    idle_share = sum(cores for _, cores in idle) / max(len(idle), 1)
    print(f"{whole_s:.0f} s in all, {cpu_s:.0f} s of CPU, {idle_share:.2f} cores idle")
    return running.returncode


if __name__ == "__main__":
    sys.exit(main())
