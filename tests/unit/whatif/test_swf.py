"""What logs of the Parallel Workloads Archive have that the Standard Workload Format has not: said, and the rest runs.

Each oddity goes through ``muster simulate``. The lines are our own.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from muster_cli.main import run
from muster_whatif.errors import InvalidWorkload
from muster_whatif.scenario import Scenario
from muster_whatif.simulation import play
from muster_whatif.stats import figures
from muster_whatif.workload_source import WorkloadSource

ONE_BY_ONE = "the tasks of a job start one by one"


def job(number: object, submit: object, run_s: object, processors: object, **other: object) -> str:
    """A line: number, submit, wait, run, processors, CPU, memory, requested processors, time and memory, status, user,
    group, program, queue, partition, preceding job, think time."""
    names = ("wait", "cpu", "used", "asked", "asked_s", "kib", "status", "user", "group", "program", "queue", "part")
    at = {"wait": 2, "cpu": 5, "used": 6, "asked": 7, "asked_s": 8, "kib": 9}
    at |= {name: place for place, name in enumerate((*names[6:], "preceding", "think"), 10)}
    words = [str(number), str(submit), "-1", str(run_s), str(processors), *13 * ["-1"]]
    words[at["status"]] = "1"
    for name, value in other.items():
        words[at[name]] = str(value)
    return " ".join(words) + "\n"


def played(capsys: pytest.CaptureFixture[str], file: Path, *flags: str) -> dict[str, Any]:
    """What ``muster simulate`` says of a file as JSON."""
    assert run(["simulate", str(file), "--json", "-", *flags]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


@dataclass(frozen=True)
class Case:
    """:ivar odd: what is said besides machines, jobs and memory.
    :ivar starts: task → its start in seconds.
    :ivar sizes: of the machines, in cores, as the facts say them.
    """

    name: str
    file: str | bytes
    odd: Sequence[str]
    starts: dict[str, float]
    makespan_s: float
    sizes: str = "3 machines of 1 cores"
    jobs: int = 2
    kib: int = 0
    suffix: str = ".swf"


THREE = "; MaxProcs: 3\n"
# Two jobs that just fit side by side; the oddity of most cases changes nothing of them.
TWO_JOBS = job(1, 0, 40, 1) + job(2, 5, 60, 1)
TWO_STARTS = {"job-1.0": 0.0, "job-2.0": 5.0}


def plain(name: str, file: str | bytes, *odd: str, **other: Any) -> Case:
    """Two jobs that start at once, whatever is odd in the file."""
    return Case(name, file, odd, **{"starts": TWO_STARTS, "makespan_s": 65.0, **other})


CASES = [
    plain("the format as it is", THREE + TWO_JOBS),
    # ---- requested memory
    plain(
        "requested memory",
        THREE + job(1, 0, 40, 1, kib=300) + job(2, 5, 60, 1, kib=700.5),
        kib=701,
    ),
    plain("memory that a job may request", THREE + "; MaxMemory: 9000 KB\n" + TWO_JOBS, kib=9000),
    plain(
        "more memory than jobs may request",
        THREE + "; MaxMemory: 500\n" + job(1, 0, 40, 1, kib=400) + job(2, 5, 60, 1, kib=800),
        "line 4: more memory than MaxMemory 500: machines have what the largest job requests",
        kib=800,
    ),
    # ---- several lines of a job, or several jobs of a number
    plain(
        "partial executions after the line for the whole",
        THREE
        + job(1, 0, 40, 1)
        + job(1, -1, 10, 1, status=2)
        + job(1, -1, 10, 1, status=2)
        + job(1, -1, 20, 1, status=3)
        + job(2, 5, 60, 1, status=0)
        + job(2, 5, 20, 1, status=2)
        + job(2, -1, 40, 1, status=4),
        "line 3 and 4 more: a partial execution of a job that has a line for the whole: it is ignored",
    ),
    plain(
        "partial executions before the line for the whole",
        THREE + job(1, 0, 15, 1, status=2) + job(1, -1, 25, 1, status=3) + job(1, 0, 40, 1) + job(2, 5, 60, 1),
        "line 2 and 1 more: a partial execution of a job that has a line for the whole: it is ignored",
    ),
    plain(
        "partial executions alone",
        THREE
        + job(1, 0, 10, 1, status=2)
        + job(2, 5, 45, 1, status=2)
        + job(1, -1, 30, 1, status=4)
        + job(2, -1, -1, 1, status=2)
        + job(2, -1, 15, 1, status=3),
        "line 4 and 2 more: a further partial execution: its run time adds to that of the job's first line",
    ),
    Case(
        "a number again after its last partial execution",
        THREE + job(7, 0, 10, 1, status=2) + job(7, -1, 5, 1, status=3) + job(7, 90, 8, 2, status=3),
        [
            "line 3: a further partial execution: its run time adds to that of the job's first line",
            "line 4: job 7 is there again: a job of its own, named after its line",
        ],
        {"job-7.0": 0.0, "job-7-line-4.0": 90.0, "job-7-line-4.1": 90.0},
        98.0,
    ),
    Case(
        "equal numbers",
        THREE + job(4, 0, 700, 1) + job(4, 10, 20, 1) + job(4, 900, 30, 3),
        ["line 3 and 1 more: job 4 is there again: a job of its own, named after its line"],
        {
            "job-4.0": 0.0,
            "job-4-line-3.0": 10.0,
            "job-4-line-4.0": 900.0,
            "job-4-line-4.1": 900.0,
            "job-4-line-4.2": 900.0,
        },
        930.0,
        jobs=3,
    ),
    plain(
        "no number",
        THREE + job(-1, 0, 40, 1) + job(2.5, 5, 60, 1),
        "line 2 and 1 more: no job number: the job is named after its line",
        starts={"job-line-2.0": 0.0, "job-line-3.0": 5.0},
    ),
    # ---- sizes of the machine
    plain("partitions", "; MaxProcs: 24 (12 12)\n" + TWO_JOBS, sizes="24 machines of 1 cores"),
    plain(
        "partitions of one size",
        "; MaxNodes: 6 (4, 2)\n; MaxProcs: 24 (16, 8)\n" + TWO_JOBS,
        sizes="6 machines of 4 cores",
    ),
    Case(
        "partitions of several sizes: a job of all processors starts at once",
        "; MaxNodes: 5 (3 2)\n; MaxProcs: 26 (18 8)\n" + job(1, 0, 40, 26, part=1),
        [],
        {f"job-1.{number}": 0.0 for number in range(13)},
        40.0,
        sizes="2 machines of 4 cores and 3 machines of 6 cores",
        jobs=1,
    ),
    plain(
        "partitions that do not belong together",
        "; MaxNodes: 5 (3 1 1)\n; MaxProcs: 10 (6 4)\n" + TWO_JOBS,
        "line 2: MaxProcs and MaxNodes have different partitions in parentheses: all machines are alike",
        sizes="5 machines of 2 cores",
    ),
    plain("words in parentheses", "; MaxProcs: 7 (of 9 in all)\n" + TWO_JOBS, sizes="7 machines of 1 cores"),
    plain("nodes alone", "; MaxNodes: 5\n" + TWO_JOBS, sizes="5 machines of 1 cores"),
    plain(
        "a count with thousands",
        "; MaxNodes: 1,100\n; MaxProcs: 2,200.\n" + TWO_JOBS,
        sizes="1,100 machines of 2 cores",
    ),
    plain(
        "no whole number of processors on a node",
        "; MaxNodes: 6\n; MaxProcs: 16\n" + TWO_JOBS,
        sizes="6 machines of 3 cores",
    ),
    plain(
        "fewer machines than nodes",
        "; MaxNodes: 9\n; MaxProcs: 20\n" + TWO_JOBS,
        "line 2: MaxProcs 20 is no multiple of MaxNodes 9: 7 machines of 3 cores",
        sizes="7 machines of 3 cores",
    ),
    Case(
        "no size",
        "; Computer: ours\n" + job(1, 0, 40, 2) + job(2, 5, 60, 3) + job(3, 40, 10, 2, wait=5) + job(4, 65, 5, 1),
        ["no header MaxProcs or MaxNodes: as many cores as the file's jobs had at the same time"],
        {f"job-1.{number}": 0.0 for number in range(2)}
        | {f"job-2.{number}": 5.0 for number in range(3)}
        | {f"job-3.{number}": 40.0 for number in range(2)}
        | {"job-4.0": 65.0},
        70.0,
        sizes="5 machines of 1 cores",
        jobs=4,
    ),
    plain(
        "a size that is none",
        "; MaxProcs: UNKNOWN\n; MaxNodes: 3\n; MaxMemory: -1\n" + TWO_JOBS,
        "line 1: header MaxProcs is 'UNKNOWN', expected a count from 1 to 1,000,000: it is ignored",
        "line 3: header MaxMemory is '-1', expected a count from 1 to 8,589,934,592: it is ignored",
    ),
    plain(
        "sizes that no machine has",
        "; MaxProcs: 99999999999\n; MaxProcs: 1e3\n; MaxProcs: 0\n; MaxProcs: 3.5\n; MaxProcs: 3\n" + TWO_JOBS,
        "line 1 and 3 more: header MaxProcs is '99999999999', expected a count from 1 to 1,000,000: it is ignored",
    ),
    plain(
        "two sizes",
        "; MaxProcs: 3\n; MaxProcs: 3\n; MaxProcs: 8\n" + TWO_JOBS,
        "line 3: header MaxProcs is there again, as 8: the first one counts",
    ),
    Case(
        "a job that is larger than all machines",
        THREE + job(1, 0, 40, 4) + job(2, 5, 60, 3) + job(3, 6, 1, 1_000_000),
        ["line 2 and 1 more: 4 processors, and all machines have 3: the job is left out"],
        {f"job-2.{number}": 5.0 for number in range(3)},
        60.0,
        jobs=1,
    ),
    # ---- form of the file
    plain("byte order mark", b"\xef\xbb\xbf" + (THREE + TWO_JOBS).encode()),
    plain("byte order mark before a job", b"\xef\xbb\xbf" + (TWO_JOBS + THREE).encode()),
    plain("UTF-16", (THREE + TWO_JOBS).encode("utf-16")),
    plain(
        "Latin-1 in a comment", "; Installation: Universität Zürich\n".encode("latin-1") + (THREE + TWO_JOBS).encode()
    ),
    plain("blanks before ;", " \t" + THREE + "  ; Note: no job\n" + TWO_JOBS),
    plain("a header without blanks", ";MAXPROCS:3\n" + TWO_JOBS),
    plain("a header with blanks", ";    Max Procs :   3   \n" + TWO_JOBS),
    plain("a header at the end, comments between", job(1, 0, 40, 1) + ";\n; x\n" + job(2, 5, 60, 1) + THREE),
    plain("a comment after the fields", THREE + TWO_JOBS.replace("\n", " ; ours: 1 2 3\n")),
    plain("ends of lines of Windows", (THREE + TWO_JOBS).replace("\n", "\r\n")),
    plain("ends of lines of an old Macintosh", (THREE + TWO_JOBS).replace("\n", "\r")),
    plain("tabs, blank lines", THREE + "\n \t\n\t" + job(1, 0, 40, 1).replace(" ", "\t") + job(2, 5, 60, 1) + "\n"),
    plain("no end of the last line", (THREE + TWO_JOBS).rstrip("\n")),
    plain("compressed", gzip.compress((THREE + TWO_JOBS).encode()), suffix=".swf.gz"),
    plain("compressed, and not named so", gzip.compress((THREE + TWO_JOBS).encode())),
    plain("named as compressed", THREE + TWO_JOBS, suffix=".SWF.gz"),
    # ---- fields
    plain(
        "too few fields",
        THREE + "1 0 -1 40 1\n" + "2 5 -1 60 1 -1 -1 1\n" + "9 9 9\n",
        "line 2 and 2 more: 5 of 18 fields: the others count as unknown",
        "line 4: no run time: the job is left out",
    ),
    plain(
        "too many fields",
        THREE + TWO_JOBS.replace("\n", " 8 x\n"),
        "line 2 and 1 more: 20 fields, expected 18: the further ones are ignored",
    ),
    plain("fractions of a second", THREE + job(1, "0.0", "40.00", "1.0") + job(2, "5.0e0", 60, 1)),
    plain(
        "nan where it matters",
        THREE + job("nan", 0, 40, 1) + job(2, 5, 60, 1, asked_s="NaN") + job(3, 6, "nan", 1) + job(4, 7, 9, "nan"),
        "line 2 and 3 more: field 1 is 'nan', expected a number in the field's bounds: it counts as unknown",
        "line 4: no run time: the job is left out",
        "line 5: no processors: the job is left out",
        "line 2: no job number: the job is named after its line",
        starts={"job-line-2.0": 0.0, "job-2.0": 5.0},
    ),
    plain(
        "infinite, or beyond all bounds",
        THREE
        + job(1, 0, 40, 1, asked_s="inf")
        + job(2, 5, 60, 1, kib="1e999")
        + job(3, 6, "-inf", 1)
        + job(4, 7, 9, "1_0")
        + job(5, 8, 4e9, 1)
        + job(6, 8, 4, 1e7),
        "line 2 and 5 more: field 9 is 'inf', expected a number in the field's bounds: it counts as unknown",
        "line 4 and 1 more: no run time: the job is left out",
        "line 5 and 1 more: no processors: the job is left out",
    ),
    plain(
        "words",
        THREE + job(1, 0, 40, 1, user="ann", queue="batch", group="staff") + job(2, 5, 60, 1, program="a.out"),
        "line 2 and 1 more: field 12 is 'ann', expected a number in the field's bounds: it counts as unknown",
    ),
    plain(
        "a line of another kind",
        THREE + TWO_JOBS + "# the end\n",
        "line 4: 3 of 18 fields: the others count as unknown",
        "line 4 and 2 more: field 1 is '#', expected a number in the field's bounds: it counts as unknown",
        "line 4: no submit time: the job arrives with the one above it, or at 0",
        "line 4: no run time: the job is left out",
    ),
    plain(
        "fractions of a processor",
        THREE + job(1, 0, 40, 0.5) + job(2, 5, 60, -1, asked=1.5),
        "line 2 and 1 more: a fraction of a processor counts as a whole one",
        starts=TWO_STARTS | {"job-2.1": 5.0},
    ),
    plain("processors that are only requested", THREE + job(1, 0, 40, -1, asked=1) + job(2, 5, 60, 0, asked=1)),
    plain(
        "no processors",
        THREE + TWO_JOBS + job(3, 6, 10, 0, asked=0) + job(4, 7, 10, -1),
        "line 4 and 1 more: no processors: the job is left out",
    ),
    plain("a run time of 0", THREE + TWO_JOBS + job(3, 30, 0, 1), starts=TWO_STARTS | {"job-3.0": 30.0}, jobs=3),
    plain("no run time", THREE + TWO_JOBS + job(3, 6, -1, 1), "line 4: no run time: the job is left out"),
    plain(
        "cancelled before it ran, and after",
        THREE + job(1, 0, 40, 1, status=5) + job(2, 5, 60, 1) + job(3, 6, 0, 1, status=5) + job(4, 7, -1, -1, status=5),
        "line 4: cancelled before it ran: the job is left out",
        "line 5: no run time: the job is left out",
    ),
    plain("a status that is unknown", THREE + job(1, 0, 40, 1, status=-1) + job(2, 5, 60, 1, status=9)),
    # ---- times
    Case(
        "submit times out of order",
        THREE + job(2, 5, 60, 1) + job(1, 0, 40, 1) + job(3, 4, 7, 1),
        ["line 3: submitted before the job above it: jobs arrive in the order of their submit times"],
        TWO_STARTS | {"job-3.0": 4.0},
        65.0,
        jobs=3,
    ),
    Case(
        "submit times before the beginning, and unknown ones",
        THREE + job(1, -300, 40, 1) + job(2, 5, 60, 1) + job(3, -1, 7, 1),
        ["line 2 and 1 more: no submit time: the job arrives with the one above it, or at 0"],
        TWO_STARTS | {"job-3.0": 5.0},
        65.0,
        jobs=3,
    ),
    plain(
        "submit times since 1970",
        THREE + job(1, 1_700_000_000, 40, 1) + job(2, 1_700_000_005, 60, 1),
        starts={"job-1.0": 1_700_000_000.0, "job-2.0": 1_700_000_005.0},
    ),
    plain(
        "preceding jobs",
        THREE + job(1, 0, 40, 1) + job(2, 5, 60, 1, preceding=1, think=30),
        "line 3: the job names a preceding one: it arrives at its own submit time all the same",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_odd_is_said_and_the_rest_runs(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / f"log{case.suffix}"
    file.write_bytes(case.file if isinstance(case.file, bytes) else case.file.encode())
    told = played(capsys, file)
    ((figures,),) = [play["seeds"] for play in told["plays"]]
    assert figures["starts"] == case.starts
    assert figures["makespan_s"] == case.makespan_s
    machines_and_jobs, one_by_one, *odd = told["facts"]
    assert (machines_and_jobs, one_by_one) == (f"{case.sizes} and {case.jobs} jobs of {file.name}", ONE_BY_ONE)
    if case.kib:
        assert odd.pop(0) == f"machines have {case.kib:,} KiB of memory for each core"
    assert odd == list(case.odd)


def test_machines_are_added_by_the_size_of_their_partition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log.swf"
    file.write_text("; MaxNodes: 5 (3 2)\n; MaxProcs: 26 (18 8)\n; MaxMemory: 100\n" + TWO_JOBS)
    told = played(capsys, file, "--nodes", "+2:node-6", "--nodes=-1:node-4")
    use = [play["seeds"][0]["use"] for play in told["plays"]]
    assert [each["vcore"]["capacity"] for each in use] == [26_000, 38_000, 22_000]
    assert [each["memory"]["capacity"] for each in use] == [26 * 102_400, 38 * 102_400, 22 * 102_400]


def test_each_oddity_has_a_line_in_the_table_and_in_a_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, found = tmp_path / "log.swf", tmp_path / "found.json"
    file.write_text(THREE + TWO_JOBS + job(3, 6, -1, 1))
    said = "  line 4: no run time: the job is left out"
    assert run(["simulate", str(file)]) == 0
    assert said in capsys.readouterr().out.splitlines()
    assert run(["simulate", str(file), "--search", "node", "--goal", "max wait < 1 s", "--json", str(found)]) == 0
    assert said in capsys.readouterr().out.splitlines()
    assert said.strip() in json.loads(found.read_text())["facts"]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (b"", "no job that can be played"),
        (THREE.encode() + job(1, 0, -1, 1).encode(), "no job that can be played; line 2: no run time"),
        (b"FWS\x09\x10\x20\xff\x00" + bytes(range(256)), "no job that can be played; line 1 and "),
        (gzip.compress((THREE + 500 * TWO_JOBS).encode())[:-30], "end-of-stream marker"),
        (gzip.compress(TWO_JOBS.encode())[:10] + b"\xff" * 40, "invalid"),
    ],
    ids=["empty", "no job", "another format", "cut off", "damaged"],
)
def test_a_file_without_jobs_is_refused_with_what_it_has(
    tmp_path: Path, file: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.swf.gz"  # (the content says whether it is compressed)
    path.write_bytes(file)
    assert run(["simulate", str(path)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert message in " ".join(error.split())
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"name": "a"}, "task 'a' must be there once, got it again"),
        ({"arrives_s": -5.5}, "arrives_s of task 'b' must be at least 0, got -5.5"),
        ({"runs_s": -1}, "runs_s of task 'b' must be at least 0, got -1.0"),
    ],
)
def test_a_saved_workload_that_would_end_before_it_begins_is_refused(
    tmp_path: Path, task: dict[str, Any], message: str
) -> None:
    one = {"name": "a", "application_id": "x", "queue": "root.q", "user": "u", "quantities": {"vcore": 1}}
    one |= {"arrives_s": 0, "runs_s": 7}
    file = tmp_path / "kept.workload.json"
    workload = {"name": "kept", "machines": [{"name": "n", "quantities": {"vcore": 1}}]}
    file.write_text(json.dumps({**workload, "tasks": [one, {**one, "name": "b", **task}]}))
    with pytest.raises(InvalidWorkload, match=message):
        WorkloadSource(str(file)).read()


WORDS = st.sampled_from(["-1", "0", "1", "2", "3", "4", "5", "7", "60", "2.5", "nan", "x", "1e9", "-40"])
HEADER = st.sampled_from(["; MaxProcs: 5", "; MaxProcs: 8 (6 2)", "; MaxNodes: 3 (2 1)", "; MaxMemory: 9", ";", ""])
LINE = HEADER | st.lists(WORDS, min_size=4, max_size=20).map(" ".join)


@given(st.lists(LINE, min_size=3, max_size=25))
def test_any_file_that_is_read_runs_to_its_end(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    """Each task starts and ends once, no makespan is negative, and no job is lost without a word."""
    file = tmp_path_factory.mktemp("any") / "log.swf"
    file.write_text("\n".join(lines))
    try:
        workload = WorkloadSource(str(file)).read()
    except InvalidWorkload:  # no job
        return
    found = figures(play(workload, Scenario("s", workload.config)))
    assert len({task.name for task in workload.tasks}) == len(workload.tasks)
    assert set(found.starts) == {task.name for task in workload.tasks}
    assert (found.all.never, found.all.refused) == (0, 0)
    assert found.makespan_s >= max(task.runs_s for task in workload.tasks) - 1e-6
    assert all(task.arrives_s <= found.starts[task.name] < math.inf for task in workload.tasks)
    if sum(line[:1] not in ("", ";") for line in lines) > len({task.application_id for task in workload.tasks}):
        assert len(workload.facts) > 2
