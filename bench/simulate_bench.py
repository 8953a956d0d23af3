"""How fast workloads are played in virtual time: one line of JSON for each workload."""

from __future__ import annotations

import argparse
import json
import resource
import time

from muster_whatif.scenario import Scenario
from muster_whatif.simulation import play
from muster_whatif.workload_source import WorkloadSource

CASES = (
    ("openb, each moment for itself", "examples/openb", 1.0, 0.0),
    ("openb, 20,000 times as fast, ticks of 10 s", "examples/openb", 20_000.0, 10.0),
    ("100,000 tasks on 1,500 nodes, load 0.9, ticks of 10 s", "generate:tasks=100000,nodes=1500,load=0.9", 1.0, 10.0),
    # (Few cores and long tasks, so that they arrive within a week. Every fifteenth task is larger than a node and
    # waits to the end: the lists grow all week.)
    (
        "a week of 1,000,000 tasks on 1,500 nodes, ticks of 10 s",
        "generate:tasks=1000000,nodes=1500,cores=4,load=0.97,median_run_s=1000",
        1.0,
        10.0,
    ),
    # (twice the cores and the run times: as many tasks in a week, and the largest ones fill a node)
    (
        "a week of 1,000,000 tasks that all fit, load 0.9",
        "generate:tasks=1000000,nodes=1500,cores=8,load=0.9,median_run_s=2000",
        1.0,
        10.0,
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    arguments = parser.parse_args()
    for name, text, speed, tick_s in CASES:
        if arguments.only not in name:
            continue
        workload = WorkloadSource(text, speed=speed).read()
        scenario = Scenario("as it is", workload.config)
        begin_s, cpu_s = time.perf_counter(), time.process_time()
        played = play(workload, scenario, tick_s=tick_s)
        took_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - cpu_s
        print(
            json.dumps(
                {
                    "case": name,
                    "tasks": len(workload.tasks),
                    "decisions": played.decisions,
                    "seconds": round(took_s, 2),
                    "cpu_s": round(cpu_s, 2),
                    "decisions_per_cpu_s": round(played.decisions / cpu_s),
                    "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024),
                    "virtual_days": round(played.until_s / 86_400, 2),
                }
            ),
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
