"""The Standard Workload Format of the Parallel Workloads Archive (version 2.2): one job a line, 18 fields.

Logs of the archive differ from the format and from each other. What is odd becomes one fact of the workload, with its
first line and how often it occurs, and the rest is read (docs/workload-format.md).

A job of several processors becomes as many tasks as the machines' sizes require, of as many cores each as fit on a
machine. They arrive at the same time, in one application. The tasks of a job start one by one; the format's jobs start
as a whole, so waits of large jobs come out shorter than on a machine that holds processors back for them.

A job declares its requested time as execution time-out, at least its run time: some ran on for a while.
"""

from __future__ import annotations

import codecs
import gzip
import io
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from muster_si.constants import CPU, MEMORY

from muster_whatif.errors import InvalidWorkload
from muster_whatif.workload import Quantities, Workload, WorkloadNode, WorkloadTask

_FIELDS = 18
_UNKNOWN = -1.0
_MILLI = 1_000
_KIB = 1_024
# Bounds of what a value can mean. With them, no moment and no amount of a machine exceeds an int64.
_SECONDS_MAX = 3e9  # 95 years; some logs count from 1970
_PROCESSORS_MAX = 1_000_000
_KIB_MAX = 1 << 33  # 8 TiB for each processor
_ID_MAX = 1e15  # a float has all integers up to there
# The fields that are read: place in a line, from 0, and the largest value.
_NUMBER = (0, _ID_MAX)
_SUBMIT = (1, _SECONDS_MAX)
_WAIT = (2, _SECONDS_MAX)
_RUN = (3, _SECONDS_MAX)
_ALLOCATED = (4, _PROCESSORS_MAX)
_REQUESTED = (7, _PROCESSORS_MAX)
_REQUESTED_S = (8, _SECONDS_MAX)
_REQUESTED_KIB = (9, _KIB_MAX)
_STATUS = (10, _ID_MAX)
_USER = (11, _ID_MAX)
_QUEUE = (14, _ID_MAX)
_PRECEDING = (16, _ID_MAX)
# Values of the status field.
_CONTINUED, _LAST_COMPLETED, _LAST_FAILED, _CANCELLED = 2, 3, 4, 5
_PARTIAL = (_CONTINUED, _LAST_COMPLETED, _LAST_FAILED)
# The headers that are read. Files spell them with other blanks and capitals, too.
_HEADERS = {name.casefold(): name for name in ("MaxProcs", "MaxNodes", "MaxMemory")}
_HEADER_MAX = {"MaxMemory": _KIB_MAX}
# A count, with the counts of the partitions in parentheses: 16 (8 8).
_COUNT = re.compile(r"([0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,20})(?:\.0*)?(?![\w.])\s*(?:\(([0-9\s,;+]*)\))?")
_SHOWN_CHARACTERS_MAX = 40


def read(path: Path) -> Workload:
    """Reads a file, also a gzipped one. The machines come from its header (MaxNodes, MaxProcs, MaxMemory).

    Raises InvalidWorkload if there is no file, or no job that can be played.
    """
    oddities = _Oddities()
    headers, jobs = _parse_lines(path, oddities)
    jobs = _merge_partial_executions(jobs, oddities)
    _repair_submit_times(jobs, oddities)
    jobs = _without_unplayable(jobs, oddities)
    _refuse_if_empty(path, jobs, oddities)
    pools = _pools(headers, jobs, oddities)
    jobs = _without_oversized(jobs, sum(pool.processors for pool in pools), oddities)
    _refuse_if_empty(path, jobs, oddities)
    kib = _memory_kib(headers, jobs, oddities)
    # What all machines' sizes are multiples of: larger tasks would leave cores of some machines unused.
    task_cores = math.gcd(*(pool.machine_cores for pool in pools))
    tasks: list[WorkloadTask] = []
    for job, name in _named(jobs, oddities):
        tasks += _tasks(job, name, task_cores)
    tasks.sort(key=lambda task: task.arrives_s)
    machines = _machines(pools, kib)
    sizes = Counter(pool.machine_cores for pool in pools for _ in range(pool.machines))
    facts = [
        " and ".join(f"{count:,} machines of {cores} cores" for cores, count in sorted(sizes.items()))
        + f" and {len(jobs):,} jobs of {path.name}",
        "the tasks of a job start one by one",
    ]
    if kib:
        facts.append(f"machines have {kib:,} KiB of memory for each core")
    return Workload(path.name, machines, tasks, _config(tasks), [*facts, *oddities.facts()])


class _Oddities:
    """Counts what differs from the format: each kind once, with its first line."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str, int]] = {}  # kind → (first line, what it has, count)

    def add(self, line: int, kind: str, example: str = "") -> None:
        """Adds one occurrence.

        :param line: 0: the whole file.
        :param example: what this line has; of the first one it is shown.
        """
        first, shown, count = self._found.get(kind, (line, example, 0))
        self._found[kind] = (first, shown, count + 1)

    def facts(self) -> list[str]:
        """Returns a sentence for each kind, in the order in which they were found."""
        return [
            (f"line {line}{f' and {count - 1:,} more' if count > 1 else ''}: " if line else "") + example + kind
            for kind, (line, example, count) in self._found.items()
        ]


@dataclass(slots=True)
class _Job:
    """A line of the file, or several that are one job. Unknown values are negative.

    :ivar kib: requested memory for each processor.
    """

    line: int
    number: float
    submit_s: float
    wait_s: float
    run_s: float
    processors: float
    requested_s: float
    kib: float
    status: float
    user: float
    queue: float

    @property
    def has_number(self) -> bool:
        return self.number >= 0 and self.number == int(self.number)

    @property
    def is_partial(self) -> bool:
        return self.status in _PARTIAL


@dataclass(frozen=True, slots=True)
class _Header:
    """A count of the header. ``parts``: those of the partitions."""

    line: int
    total: int
    parts: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class _Pool:
    """Machines that are alike. The last one may be smaller."""

    processors: int
    machine_cores: int

    @property
    def machines(self) -> int:
        return -(-self.processors // self.machine_cores)


# ---- lines -----------------------------------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers. The content says how it is compressed and encoded; a comment may be in any encoding."""
    try:
        with path.open("rb") as raw:
            file = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
            is_utf16 = file.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
            text = io.TextIOWrapper(file, "utf-16" if is_utf16 else "utf-8-sig", errors="replace")
            yield from enumerate(text, 1)
    except (OSError, EOFError, zlib.error, UnicodeError) as error:
        raise InvalidWorkload(f"{path}: {error}") from error


def _parse_lines(path: Path, oddities: _Oddities) -> tuple[dict[str, _Header], list[_Job]]:
    """Returns the headers by their names, and a job for each line that has one. Headers may be anywhere."""
    headers: dict[str, _Header] = {}
    jobs: list[_Job] = []
    for line, text in _lines(path):
        fields, _, comment = text.partition(";")
        words = fields.split()
        if words:
            jobs.append(_parse_job(line, words, oddities))
        elif comment:
            _parse_header(line, comment, headers, oddities)
    return headers, jobs


def _parse_header(line: int, comment: str, headers: dict[str, _Header], oddities: _Oddities) -> None:
    text, colon, value = comment.partition(":")
    name = _HEADERS.get("".join(text.split()).casefold())
    if name is None or not colon:
        return
    match = _COUNT.match(value.strip())
    total = int(match[1].replace(",", "")) if match else 0
    if match is None or not 0 < total <= _HEADER_MAX.get(name, _PROCESSORS_MAX):
        limit = _HEADER_MAX.get(name, _PROCESSORS_MAX)
        expected = f", expected a count from 1 to {limit:,}: it is ignored"
        oddities.add(line, expected, f"header {name} is {_quoted(value.strip())}")
    elif name in headers:
        if headers[name].total != total:
            oddities.add(line, ": the first one counts", f"header {name} is there again, as {total:,}")
    else:
        parts = [int(part) for part in re.findall(r"[0-9]{1,20}", match[2] or "")]
        headers[name] = _Header(line, total, parts)


def _parse_job(line: int, words: Sequence[str], oddities: _Oddities) -> _Job:
    if len(words) < _FIELDS:
        oddities.add(line, f" of {_FIELDS} fields: the others count as unknown", f"{len(words)}")
    elif len(words) > _FIELDS:
        oddities.add(line, f" fields, expected {_FIELDS}: the further ones are ignored", f"{len(words)}")

    def value(field: tuple[int, float]) -> float:
        index, most = field
        if index >= len(words):
            return _UNKNOWN
        word = words[index]
        try:
            number = float(word)
        except ValueError:
            number = math.nan
        if -most <= number <= most and "_" not in word:  # false for nan
            return number
        kind = ", expected a number in the field's bounds: it counts as unknown"
        oddities.add(line, kind, f"field {index + 1} is {_quoted(word)}")
        return _UNKNOWN

    allocated, requested = value(_ALLOCATED), value(_REQUESTED)
    processors = allocated if allocated > 0 else requested
    if processors > 0 and processors != int(processors):
        oddities.add(line, "a fraction of a processor counts as a whole one")
        processors = math.ceil(processors)
    if value(_PRECEDING) > 0:
        oddities.add(line, "the job names a preceding one: it arrives at its own submit time all the same")
    return _Job(
        line,
        value(_NUMBER),
        value(_SUBMIT),
        value(_WAIT),
        value(_RUN),
        processors,
        value(_REQUESTED_S),
        value(_REQUESTED_KIB),
        value(_STATUS),
        value(_USER),
        value(_QUEUE),
    )


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "…")


# ---- jobs ------------------------------------------------------------------------------------------------------------


def _merge_partial_executions(jobs: Sequence[_Job], oddities: _Oddities) -> list[_Job]:
    """Returns whole jobs. A job that was swapped out has a line for each partial execution, and mostly one for all."""
    summaries = {job.number for job in jobs if not job.is_partial}
    whole: list[_Job] = []
    unfinished: dict[float, _Job] = {}
    for job in jobs:
        if not job.is_partial or not job.has_number:
            whole.append(job)
        elif job.number in summaries:
            oddities.add(job.line, "a partial execution of a job that has a line for the whole: it is ignored")
        else:
            first = unfinished.get(job.number)
            if first is None:
                whole.append(job)
            else:
                oddities.add(job.line, "a further partial execution: its run time adds to that of the job's first line")
                if job.run_s >= 0:
                    first.run_s = max(first.run_s, 0) + job.run_s
                first.processors = max(first.processors, job.processors)
                first.kib = max(first.kib, job.kib)
            if job.status == _CONTINUED:
                unfinished.setdefault(job.number, job)
            else:
                unfinished.pop(job.number, None)
    return whole


def _repair_submit_times(jobs: Sequence[_Job], oddities: _Oddities) -> None:
    """Lines are in the order of their submit times, so an unknown one is near that of the line above."""
    before_s = 0.0
    for job in jobs:
        if job.submit_s < 0:
            oddities.add(job.line, "no submit time: the job arrives with the one above it, or at 0")
            job.submit_s = before_s
        elif job.submit_s < before_s:
            oddities.add(job.line, "submitted before the job above it: jobs arrive in the order of their submit times")
        before_s = job.submit_s


def _without_unplayable(jobs: Sequence[_Job], oddities: _Oddities) -> list[_Job]:
    playable = []
    for job in jobs:
        if job.run_s < 0:
            oddities.add(job.line, "no run time: the job is left out")
        elif job.processors <= 0:
            oddities.add(job.line, "no processors: the job is left out")
        elif job.status == _CANCELLED and job.run_s == 0:
            oddities.add(job.line, "cancelled before it ran: the job is left out")
        else:
            playable.append(job)
    return playable


def _without_oversized(jobs: Sequence[_Job], processors: int, oddities: _Oddities) -> list[_Job]:
    fitting = []
    for job in jobs:
        if job.processors > processors:
            kind = f" processors, and all machines have {processors:,}: the job is left out"
            oddities.add(job.line, kind, f"{int(job.processors):,}")
        else:
            fitting.append(job)
    return fitting


def _refuse_if_empty(path: Path, jobs: Sequence[_Job], oddities: _Oddities) -> None:
    if not jobs:
        raise InvalidWorkload("; ".join([f"{path}: no job that can be played", *oddities.facts()]))


def _named(jobs: Sequence[_Job], oddities: _Oddities) -> Iterator[tuple[_Job, str]]:
    """Jobs with names. A number that several have, or none, is no name: then the line is one."""
    named: set[float] = set()
    for job in jobs:
        if not job.has_number:
            oddities.add(job.line, "no job number: the job is named after its line")
            yield job, f"job-line-{job.line}"
        elif job.number in named:
            oddities.add(job.line, " is there again: a job of its own, named after its line", f"job {int(job.number)}")
            yield job, f"job-{int(job.number)}-line-{job.line}"
        else:
            named.add(job.number)
            yield job, f"job-{int(job.number)}"


def _tasks(job: _Job, name: str, task_cores: int) -> Iterator[WorkloadTask]:
    queue = f"root.swf.queue-{int(job.queue)}" if job.queue >= 0 else "root.swf.queue"
    user = f"user-{int(job.user)}" if job.user >= 0 else "nobody"
    declares_s = max(job.requested_s, job.run_s) if job.requested_s > 0 else 0.0
    remaining = int(job.processors)
    index = 0
    while remaining > 0:
        cores = min(remaining, task_cores)
        quantities = {CPU: _MILLI * cores}
        if job.kib > 0:
            quantities[MEMORY] = math.ceil(job.kib) * _KIB * cores
        yield WorkloadTask(
            f"{name}.{index}", name, queue, user, quantities, job.submit_s, job.run_s, declares_s=declares_s
        )
        remaining -= cores
        index += 1


# ---- machines --------------------------------------------------------------------------------------------------------


def _pools(headers: dict[str, _Header], jobs: Sequence[_Job], oddities: _Oddities) -> list[_Pool]:
    """Returns the machines: one pool, or one for each partition if both headers say its size."""
    processors, nodes = headers.get("MaxProcs"), headers.get("MaxNodes")
    if processors is None and nodes is None:
        oddities.add(0, "no header MaxProcs or MaxNodes: as many cores as the file's jobs had at the same time")
        return [_Pool(_busiest(jobs), 1)]
    if processors is None or nodes is None:  # MaxProcs is younger: without it, a node is a processor
        return [_Pool((processors or nodes).total, 1)]  # type: ignore[union-attr]
    counts = [(processors.total, nodes.total)]
    if processors.parts and nodes.parts:
        pairs = list(zip(processors.parts, nodes.parts, strict=False))
        is_consistent = all(
            sum(header.parts) == header.total and len(header.parts) == len(pairs) for header in (processors, nodes)
        )
        if is_consistent and all(of_processors and of_nodes for of_processors, of_nodes in pairs):
            counts = pairs
        else:
            text = "MaxProcs and MaxNodes have different partitions in parentheses: all machines are alike"
            oddities.add(processors.line, text)
    pools = []
    for of_processors, of_nodes in counts:
        pool = _Pool(of_processors, -(-of_processors // of_nodes))
        if pool.machines != of_nodes:
            text = f"MaxProcs {of_processors:,} is no multiple of MaxNodes {of_nodes:,}"
            oddities.add(processors.line, f"{text}: {pool.machines:,} machines of {pool.machine_cores} cores")
        pools.append(pool)
    return pools


def _busiest(jobs: Sequence[_Job]) -> int:
    """How many processors the jobs had at the most at the same time, as the file says, and at least the largest job."""
    changes = []
    for job in jobs:
        begin_s = job.submit_s + max(job.wait_s, 0.0)
        changes += [(begin_s, job.processors), (begin_s + job.run_s, -job.processors)]
    most, now = max((job.processors for job in jobs), default=1.0), 0.0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return min(int(most), _PROCESSORS_MAX)


def _memory_kib(headers: dict[str, _Header], jobs: Sequence[_Job], oddities: _Oddities) -> int:
    """Memory of a core: MaxMemory, and at least what a job requests for a processor, so that each job can start.

    The format says what a job may request, not what a machine has.
    """
    most = headers["MaxMemory"].total if "MaxMemory" in headers else 0
    needed = most
    for job in jobs:
        if job.kib > most > 0:
            oddities.add(job.line, f"more memory than MaxMemory {most:,}: machines have what the largest job requests")
        needed = max(needed, math.ceil(job.kib))
    return needed


def _machines(pools: Sequence[_Pool], kib: int) -> list[WorkloadNode]:
    is_uniform = len({pool.machine_cores for pool in pools}) == 1
    machines: list[WorkloadNode] = []
    for pool in pools:
        whole = _capacity(pool.machine_cores, pool.machine_cores, kib)
        for index in range(pool.machines):
            cores = min(pool.machine_cores, pool.processors - index * pool.machine_cores)
            capacity = whole if cores == pool.machine_cores else _capacity(cores, pool.machine_cores, kib)
            kind = "node" if is_uniform else f"node-{pool.machine_cores}"
            machines.append(WorkloadNode(f"node-{len(machines) + 1}", capacity, kind))
    return machines


def _capacity(cores: int, pods: int, kib: int) -> Quantities:
    capacity = {CPU: _MILLI * cores, "pods": pods}
    if kib:
        capacity[MEMORY] = kib * _KIB * cores
    return capacity


def _config(tasks: Sequence[WorkloadTask]) -> str:
    leaves = "".join(
        f"              - name: {name}\n" for name in sorted({task.queue.rpartition(".")[2] for task in tasks})
    )
    return (
        "partitions:\n  - name: default\n    queues:\n      - name: root\n        submitacl: '*'\n"
        "        queues:\n          - name: swf\n            parent: true\n            queues:\n" + leaves
    )
