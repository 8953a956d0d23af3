"""The openb trace: reads nodes and tasks from CSV, as nodes, applications and asks."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from muster_client.builders import application, ask, node
from muster_proto.si.v1 import si_pb2 as si
from muster_si.constants import CPU, HOST_NAME, INSTANCE_TYPE, MEMORY, RACK_NAME

from muster_replay.errors import TraceError

# The trace that comes with Muster.
OPENB = Path(__file__).parent / "openb"

GPU = "nvidia.com/gpu-milli"  # thousandths of a GPU; a node's GPUs are one pool (examples/openb/README.md)

_SECONDS_PER_DAY = 86_400
_MIB = 1 << 20
_MILLI_PER_GPU = 1_000

Resources = dict[str, int]


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A line of nodes.csv."""

    name: str
    resources: Resources
    gpu_model: str

    def as_node(self) -> si.NodeInfo:
        """Returns a node to create."""
        attributes = {HOST_NAME: self.name, RACK_NAME: "/rack-default"}
        if self.gpu_model:
            attributes[INSTANCE_TYPE] = self.gpu_model
        return node(self.name, self.resources, attributes=attributes)


@dataclass(frozen=True, slots=True)
class TraceTask:
    """A line of pods.csv.

    :param application_id: of the tasks with the same shape, class of service and day.
    :param runs_s: from its start to its end; from its creation if it never started.
    """

    name: str
    resources: Resources
    quality_of_service: str
    created_s: int
    application_id: str
    runs_s: int = 0

    def as_ask(self) -> si.Allocation:
        """Returns an ask of the current generation."""
        return ask(self.name, self.application_id, self.resources)


@dataclass(slots=True)
class Trace:
    """A trace, in its order of creation."""

    nodes: list[TraceNode]
    tasks: list[TraceTask]
    queue_config: str
    applications: dict[str, TraceTask] = field(default_factory=dict)

    def capacity(self) -> Resources:
        """Returns the sum over the nodes."""
        return total(item.resources for item in self.nodes)

    def as_applications(self) -> list[si.AddApplicationRequest]:
        """Returns one application for each applicationID, in order of its first task."""
        return [
            application(application_id, queue_of(task), user="openb", groups=["openb"])
            for application_id, task in self.applications.items()
        ]


def queue_of(task: TraceTask) -> str:
    """Returns the leaf for the task's class of service."""
    return f"root.openb.{task.quality_of_service.lower()}"


def total(items: Iterator[Resources] | Sequence[Resources]) -> Resources:
    """Returns the sum by type."""
    sums: Resources = {}
    for resources in items:
        for name, quantity in resources.items():
            sums[name] = sums.get(name, 0) + quantity
    return sums


def read_trace(directory: Path) -> Trace:
    """Reads nodes.csv.gz, pods.csv.gz and queues.yaml. Without the last one each class of service has an open queue.

    Raises: TraceError, naming file, line, column and value.
    """
    nodes = [_node(row) for row in _rows(directory / "nodes.csv.gz")]
    tasks = sorted((_task(row) for row in _rows(directory / "pods.csv.gz")), key=lambda task: task.created_s)
    _must_be_unique(directory / "nodes.csv.gz", [item.name for item in nodes])
    _must_be_unique(directory / "pods.csv.gz", [item.name for item in tasks])
    trace = Trace(nodes, tasks, _queue_config(directory / "queues.yaml", tasks))
    for task in tasks:
        trace.applications.setdefault(task.application_id, task)
    return trace


def _queue_config(file: Path, tasks: Iterable[TraceTask]) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        leaves = sorted({queue_of(task).rpartition(".")[2] for task in tasks})
        queues = ", ".join(f"{{name: {leaf}}}" for leaf in leaves)
        return (
            "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: [{name: openb, parent: true, "
            f"queues: [{queues}]}}]}}]}}]\n"
        )
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{file}: {getattr(error, 'strerror', None) or error}") from error


@dataclass(frozen=True, slots=True)
class _Row:
    path: Path
    line: int
    values: dict[str, str]

    def text(self, column: str) -> str:
        if self.values.get(column) is None:
            raise TraceError(f"{self.path} line {self.line}: column {column} is missing")
        return self.values[column]

    def name(self, column: str) -> str:
        if not self.text(column):
            raise TraceError(f"{self.path} line {self.line}: column {column} is empty, expected a name")
        return self.text(column)

    def number(self, column: str) -> int:
        """Returns a count from 0; empty is 0."""
        text = self.text(column)
        if text and not text.isdecimal():
            raise TraceError(f"{self.path} line {self.line}: column {column} is {text!r}, expected a count")
        return int(text or 0)


def _rows(path: Path) -> Iterator[_Row]:
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            for values in reader:
                yield _Row(path, reader.line_num, values)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error


def _node(row: _Row) -> TraceNode:
    return TraceNode(
        name=row.name("sn"),
        resources=_resources(row, row.number("gpu") * _MILLI_PER_GPU),
        gpu_model=row.text("model"),
    )


def _task(row: _Row) -> TraceTask:
    resources = _resources(row, row.number("num_gpu") * row.number("gpu_milli"))
    service, created_s = row.name("qos"), row.number("creation_time")
    started_s = row.number("scheduled_time") if row.text("scheduled_time") else created_s
    shape = "-".join(row.text(column) or "0" for column in ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli"))
    return TraceTask(
        name=row.name("name"),
        resources=resources,
        quality_of_service=service,
        created_s=created_s,
        application_id=f"{service.lower()}-day{created_s // _SECONDS_PER_DAY:03d}-{shape}",
        runs_s=max(row.number("deletion_time") - started_s, 0),
    )


def _resources(row: _Row, gpu_milli: int) -> Resources:
    resources = {CPU: row.number("cpu_milli"), MEMORY: row.number("memory_mib") * _MIB, GPU: gpu_milli}
    return {name: quantity for name, quantity in resources.items() if quantity}


def _must_be_unique(path: Path, names: Sequence[str]) -> None:
    unique_names: set[str] = set()
    for name in names:
        if name in unique_names:
            raise TraceError(f"{path}: {name} is there twice")
        unique_names.add(name)
