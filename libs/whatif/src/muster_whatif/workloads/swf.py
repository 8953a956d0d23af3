"""The Standard Workload Format of the Parallel Workloads Archive (version 2.2): one job a line, 18 fields.

A job of several processors becomes as many tasks of one core each as its machine's size allows (``cores_of_a_task``).
They arrive together, in one application. The tasks of a job start one by one; the format's jobs start as a whole, so
waits of large jobs come out shorter than on a machine that holds processors back for them.

A job declares its requested time as execution time-out, at least its run time: some ran on for a while.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

from muster_si.constants import CPU, MEMORY

from muster_whatif.errors import WorkloadWrong
from muster_whatif.workload import Machine, Task, Workload

_FIELDS = 18
# Places in a line, from 0.
_NUMBER, _SUBMIT_S, _RUN_S, _PROCESSORS, _ASKED_PROCESSORS, _ASKED_S, _ASKED_KIB, _USER, _QUEUE = (
    0,
    1,
    3,
    4,
    7,
    8,
    9,
    11,
    14,
)
_MILLI = 1_000
_KIB = 1_024


def read(path: Path, cores_of_a_node: int = 0) -> Workload:
    """Reads a file, also a gzipped one. Machines come from the header (MaxNodes, MaxProcs).

    :param cores_of_a_node: 0: MaxProcs over MaxNodes.

    Raises WorkloadWrong, naming the line.
    """
    header: dict[str, str] = {}
    rows: list[list[float]] = []
    for number, line in _lines(path):
        if line.startswith(";"):
            name, _, value = line[1:].partition(":")
            header.setdefault(name.strip(), value.strip())
        elif line.strip():
            rows.append(_row(path, number, line))
    processors = _count(path, header, "MaxProcs")
    nodes = _count(path, header, "MaxNodes") if "MaxNodes" in header else 0
    each = cores_of_a_node or (-(-processors // nodes) if nodes else 1)
    machines = [
        Machine(f"node-{index + 1}", {CPU: _MILLI * min(each, processors - index * each), "pods": each}, "node")
        for index in range(-(-processors // each))
    ]
    tasks: list[Task] = []
    left_out = 0
    for row in sorted(rows, key=lambda row: (row[_SUBMIT_S], row[_NUMBER])):
        wanted = int(row[_PROCESSORS] if row[_PROCESSORS] > 0 else row[_ASKED_PROCESSORS])
        if wanted <= 0 or row[_RUN_S] < 0:
            left_out += 1
            continue
        tasks += _tasks(row, wanted, each)
    facts = [
        f"{len(machines):,} machines of {each} cores and {len(rows) - left_out:,} jobs of {path.name}",
        "the tasks of a job start one by one",
    ]
    if left_out:
        facts.append(f"{left_out:,} jobs without processors or a run time are left out")
    return Workload(path.name, machines, tasks, _config(tasks), facts)


def _tasks(row: list[float], wanted: int, each: int) -> Iterator[Task]:
    job, left = f"job-{int(row[_NUMBER])}", wanted
    queue = f"root.swf.queue-{int(row[_QUEUE])}" if row[_QUEUE] >= 0 else "root.swf.queue"
    user = f"user-{int(row[_USER])}" if row[_USER] >= 0 else "nobody"
    declares_s = max(row[_ASKED_S], row[_RUN_S]) if row[_ASKED_S] > 0 else 0.0
    while left > 0:
        cores = min(left, each)
        quantities = {CPU: _MILLI * cores}
        if row[_ASKED_KIB] > 0:
            quantities[MEMORY] = int(row[_ASKED_KIB]) * _KIB * cores
        name = f"{job}.{(wanted - left) // each}"
        yield Task(name, job, queue, user, quantities, row[_SUBMIT_S], row[_RUN_S], declares_s=declares_s)
        left -= cores


def _config(tasks: list[Task]) -> str:
    leaves = "".join(
        f"              - name: {name}\n" for name in sorted({task.queue.rpartition(".")[2] for task in tasks})
    )
    return (
        "partitions:\n  - name: default\n    queues:\n      - name: root\n        submitacl: '*'\n"
        "        queues:\n          - name: swf\n            parent: true\n            queues:\n" + leaves
    )


def _row(path: Path, number: int, line: str) -> list[float]:
    words = line.split()
    if len(words) < _FIELDS:
        raise WorkloadWrong(f"{path} line {number}: {len(words)} fields, expected {_FIELDS}")
    try:
        return [float(word) for word in words[:_FIELDS]]
    except ValueError as error:
        raise WorkloadWrong(f"{path} line {number}: {error}, expected numbers") from error


def _count(path: Path, header: dict[str, str], name: str) -> int:
    text = header.get(name, "")
    if not text.isdecimal() or int(text) <= 0:
        raise WorkloadWrong(f"{path}: header {name} is {text!r}, expected a count")
    return int(text)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            yield from enumerate(file, 1)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise WorkloadWrong(f"{path}: {error}") from error
