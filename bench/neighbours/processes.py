"""What a Muster's processes use: processor time, memory, and the long callbacks of their loops."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LONGEST = 5


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a tree."""

    pid: int
    command: bytes


def tree(pid: int) -> list[Member]:
    """Return the process and all that descend from it; none that has ended meanwhile."""
    try:
        members = [Member(pid, Path(f"/proc/{pid}/cmdline").read_bytes())]
        children = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
    for child in " ".join(children).split():
        members += tree(int(child))
    return members


def followers_of(pid: int) -> int:
    """Return the pid of the followers' process of `muster up`: a copy of it, or started anew. 0: none runs."""
    own, *others = tree(pid) or [Member(pid, b"")]
    return next((each.pid for each in others if each.command == own.command or b"followers" in each.command), 0)


def processor_s(pid: int) -> float:
    """Return what all threads of the process, and its children that have ended, used so far. 0: it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(value) for value in fields[11:15]) / _TICKS_PER_S


def loop_s(pid: int) -> float:
    """Return what the first thread used so far: the loop."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def memory_mib(pid: int) -> float:
    """Return its resident memory."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((round(int(line.split()[1]) / 1024, 1) for line in lines if line.startswith("VmRSS")), 0.0)


def long_callbacks(directory: Path, pid: int, since: float, until: float) -> dict[str, Any]:
    """Sum up the callbacks that ended in this time (monotonic seconds) and used the processor for 1 ms and more."""
    file = directory / f"{pid}.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    found = [each for line in lines if since <= (each := json.loads(line))["at"] <= until]
    longest = sorted(found, key=lambda each: -each["used_ms"])
    names = ("used_ms", "collected_ms", "what", "where", "stacks")
    shown = [{name: each[name] for name in names} for each in longest[:_LONGEST]]
    return {"max_ms": longest[0]["used_ms"] if longest else 0.0, "from_1_ms": len(found), "longest": shown}
