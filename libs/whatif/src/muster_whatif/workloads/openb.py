"""The openb trace (examples/openb): creation, start and end of each task on a production cluster."""

from __future__ import annotations

from pathlib import Path

from muster_replay.errors import TraceError
from muster_replay.trace import queue_of, read_trace

from muster_whatif.errors import InvalidWorkload
from muster_whatif.workload import Workload, WorkloadNode, WorkloadTask


def read(directory: Path) -> Workload:
    """Reads nodes.csv.gz, pods.csv.gz and queues.yaml. Raises InvalidWorkload."""
    try:
        trace = read_trace(directory)
    except TraceError as error:
        raise InvalidWorkload(str(error)) from error
    machines = [
        WorkloadNode(item.name, item.resources, item.gpu_model or "cpu", item.as_node().attributes)
        for item in trace.nodes
    ]
    tasks = [
        WorkloadTask(
            task.name,
            task.application_id,
            queue_of(task),
            "openb",
            task.resources,
            float(task.created_s),
            float(task.runs_s),
        )
        for task in trace.tasks
    ]
    facts = [
        f"{len(machines):,} machines and {len(tasks):,} tasks of {directory.name}",
        "a task runs as long as it ran in the trace, from its start there to its end",
    ]
    return Workload(directory.name, machines, tasks, trace.queue_config, facts)
