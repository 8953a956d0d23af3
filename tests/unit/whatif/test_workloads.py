"""Traces are read as their formats say, or refused with the file, the line and what was expected."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest
from muster_whatif.errors import InvalidWorkload
from muster_whatif.workload import total
from muster_whatif.workload_source import ROUND_S, WorkloadSource, user_of
from muster_whatif.workloads.generator import Generator, generate

ROOT = Path(__file__).parents[3]
# Our own lines in the archive's format: number, submit, wait, run, processors, CPU, memory, asked processors, asked
# time, asked memory, status, user, group, program, queue, partition, job before, think time.
SWF = """; Version: 2.2
; MaxNodes: 4
; MaxProcs: 16
1 0 -1 100 6 -1 -1 6 200 1024 1 7 1 -1 2 -1 -1 -1
2 30 -1 50 1 -1 -1 -1 -1 -1 1 8 1 -1 2 -1 -1 -1
3 10 -1 -1 1 -1 -1 1 -1 -1 0 8 1 -1 1 -1 -1 -1
4 5 -1 20 -1 -1 -1 2 -1 -1 1 -1 -1 -1 -1 -1 -1 -1
"""


@pytest.mark.parametrize("name", ["jobs.swf", "jobs.swf.gz"])
def test_the_standard_workload_format(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(gzip.compress(SWF.encode()) if name.endswith("gz") else SWF.encode())
    found = WorkloadSource(str(file)).read()
    assert [machine.quantities["vcore"] for machine in found.machines] == 4 * [4_000]
    assert [(each.name, each.arrives_s, each.runs_s, each.quantities["vcore"]) for each in found.tasks] == [
        ("job-1.0", 0, 100, 4_000),
        ("job-1.1", 0, 100, 2_000),
        ("job-4.0", 5, 20, 2_000),
        ("job-2.0", 30, 50, 1_000),
    ]
    first, *_, last = found.tasks
    assert (first.application_id, first.user, first.queue) == ("job-1", "user-7", "root.swf.queue-2")
    assert first.quantities["memory"] == 1024 * 1024 * 4
    assert "memory" not in last.quantities
    assert found.tasks[2].user == "nobody"
    assert [each.declares_s for each in found.tasks] == [200, 200, 0, 0], "the requested time"
    assert "line 6: no run time: the job is left out" in found.facts


def test_a_job_declares_its_requested_time_and_at_least_its_run_time(tmp_path: Path) -> None:
    file = tmp_path / "jobs.swf"
    file.write_text("; MaxProcs: 4\n1 0 -1 100 1 -1 -1 1 60 -1 1 1 1 1 1 1 -1 -1\n")
    assert [each.declares_s for each in WorkloadSource(str(file)).read().tasks] == [100.0]
    assert [each.declares_s for each in WorkloadSource(str(file), declare=1.5).read().tasks] == [300.0], (
        "--declare comes first"
    )


def test_tasks_declare_users_share_them_and_machines_are_thinned_as_wanted() -> None:
    plain = WorkloadSource("generate:tasks=200,nodes=20,users=2").read()
    found = WorkloadSource("generate:tasks=200,nodes=20,users=2", declare=0.5, users=5, part=0.25).read()
    rounded = [min(time for time in ROUND_S if time >= each.runs_s) for each in plain.tasks]
    assert [each.declares_s for each in found.tasks] == rounded, "at least once, rounded up"
    assert [each.name for each in found.machines] == [plain.machines[place].name for place in (3, 7, 11, 15, 19)]
    of_user = Counter(each.user for each in found.tasks)
    assert set(of_user) <= {f"u{rank}" for rank in range(1, 6)}
    many = Counter(user_of(f"app-{number}", 5) for number in range(2_000))
    assert [user for user, _ in many.most_common()] == [f"u{rank}" for rank in range(1, 6)]
    assert 1.7 < many["u1"] / many["u2"] < 2.3
    users_of = {each.application_id: set[str]() for each in found.tasks}
    for each in found.tasks:
        users_of[each.application_id].add(each.user)
    assert all(len(users) == 1 for users in users_of.values()), "an application has one user"
    assert {"5 users share the tasks: the user of rank k has a part like 1 / k", "5 of the machines, taken evenly"} <= {
        *found.facts
    }


def test_the_openb_trace() -> None:
    found = WorkloadSource(str(ROOT / "examples/openb")).read()
    assert (len(found.machines), len(found.tasks)) == (1_523, 8_152)
    assert total(found.machines)["nvidia.com/gpu-milli"] == 6_212_000
    assert found.kinds()["G3"] > 0
    first = found.tasks[0]
    assert (first.name, first.arrives_s, first.runs_s) == ("openb-pod-0000", 0, 12_537_496)
    assert min(task.runs_s for task in found.tasks) >= 0
    twice = WorkloadSource(str(ROOT / "examples/openb"), speed=2.0).read()
    assert twice.tasks[-1].arrives_s == found.tasks[-1].arrives_s / 2
    assert twice.tasks[-1].runs_s == found.tasks[-1].runs_s


def test_a_generated_workload_is_that_of_its_seed() -> None:
    assert generate(Generator(tasks=50)) == generate(Generator(tasks=50))
    assert generate(Generator(tasks=50)).tasks != generate(Generator(tasks=50, seed=2)).tasks
    found = generate(Generator(tasks=20_000, nodes=100, cores=32, load=0.8, seed=1))
    asked = sum(task.quantities["vcore"] * task.runs_s for task in found.tasks)
    assert asked / (found.tasks[-1].arrives_s * total(found.machines)["vcore"]) == pytest.approx(0.8, rel=0.05)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("generate:tasks=many", "tasks: must be a whole number from 1 to 10,000,000, got 'many'"),
        ("generate:rocks=3", "'rocks', expected one of tasks, nodes"),
        ("generate:load=-1", "load: must be a number from 0.001 to 1,000, got '-1'"),
        ("somewhere", "expected a folder with nodes.csv.gz"),
    ],
)
def test_a_source_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidWorkload, match=message):
        WorkloadSource(text).read()
