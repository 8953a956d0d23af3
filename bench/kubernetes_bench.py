"""Pods per second and ask -> bound on a Kubernetes control plane, beside YuniKorn with its core in process.

Both systems are YuniKorn's shim 1.8.0 from the same Go module, with the rights and the priority level of the packages:

* ``muster``: deploy/kubernetes/shim with Muster (embedded, durable log) behind gRPC.
* ``yunikorn``: YuniKorn's own scheduler command (``kubernetes_peer``), its core in process and in memory.

They run alternately, each time on a new control plane (tests/kubernetes/cluster.py). Deployments make the pods, and
nodes have no kubelets. "seen" is the moment at which a watch brings the pod, "bound" the one at which it brings the
pod's node; both are taken by the same watch in this process. Control plane, system and this process share the machine.
A run ends when the pods' events are written, too: they take most of the apiserver's time, and may come after bindings.

.venv/bin/python -m bench.kubernetes_bench [--rounds 3] [--only small,large,steady] [--on muster,yunikorn]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import httpx  # noqa: E402
from kubernetes.api import Api, Json  # noqa: E402
from kubernetes.cluster import ControlPlane, kubeconfig_of  # noqa: E402
from kubernetes.kubelets import node  # noqa: E402
from kubernetes.rig import (  # noqa: E402
    ACCOUNT,
    NAMESPACE,
    PACKAGED,
    RIGHTS,
    SHIM_PROGRAM,
    build_shim,
    deployment,
    eventually,
    packaged,
    pod,
)
from muster_replay.local_process import LocalProcess, free_ports, muster_command  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from bench.results import put  # noqa: E402
from bench.scenarios_bench import machine  # noqa: E402

PEER = Path(__file__).parent / "kubernetes_peer"
PEER_PROGRAM = ROOT / ".cache" / "kubernetes-peer-scheduler"
SYSTEMS = ("muster", "yunikorn")
QUEUES = """
partitions:
- name: default
  placementrules: [{name: tag, value: namespace, create: true}]
  queues: [{name: root, submitacl: '*'}]
"""
SPACE = "bench"
RUN_S = 900.0
EVENTS_QUIET_S = 5.0

console = Console(stderr=True, width=160)


@dataclass(frozen=True, slots=True)
class Scenario:
    """:ivar per_s: pods made in a second; 0: by Deployments, as fast as Kubernetes makes them."""

    name: str
    nodes: int
    pods: int
    per_s: float = 0.0


SCENARIOS = (Scenario("small", 100, 4_000), Scenario("large", 1_000, 10_000), Scenario("steady", 100, 600, 20.0))


@dataclass(slots=True)
class Result:
    """Figures of one run. Latencies are milliseconds, from seen to bound; ``cpu_s`` is processor time by process.

    :ivar observed: pods that were seen before they were bound; latencies are theirs. Fewer than all: the apiserver
        ended the watch, and the next one began with pods that were bound meanwhile.
    :ivar events: those that the system wrote; ``written_s``: seconds from the first pod seen to the last event.
    """

    pods_per_s: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    made_per_s: float
    allocation_ms: float | None  # from ask to allocation, the mean; None: the core in process says nothing of it
    share: float | None  # the part of allocation_ms in the mean of seen to bound
    observed: int
    events: int
    written_s: float
    cpu_s: dict[str, float]


class Watch:
    """When each pod was seen and bound, by UID."""

    def __init__(self, kubeconfig: Path) -> None:
        self.seen: dict[str, float] = {}
        self.bound: dict[str, float] = {}
        self._ended = threading.Event()
        self._api = Api(kubeconfig)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        for change, found in self._api.watch("Pod", self._ended):
            now, meta = time.monotonic(), found["metadata"]
            if meta["namespace"] != SPACE or change == "DELETED":
                continue
            self.seen.setdefault(meta["uid"], now)
            if found["spec"].get("nodeName"):
                self.bound.setdefault(meta["uid"], now)

    def close(self) -> None:
        self._ended.set()


def build() -> None:
    """Builds what is missing. Needs Go."""
    build_shim()
    if shutil.which("go") is None:
        raise SystemExit("Go is not here: both systems have Go programs")
    sources = [PEER / "go.mod", PEER / "go.sum"]
    if not PEER_PROGRAM.exists() or PEER_PROGRAM.stat().st_mtime < max(each.stat().st_mtime for each in sources):
        console.print("building YuniKorn's scheduler (once; minutes)")
        package = "github.com/apache/yunikorn-k8shim/pkg/cmd/shim"
        command = ["go", "build", "-buildvcs=false", "-ldflags", "-s -w", "-o", str(PEER_PROGRAM), package]
        subprocess.run(command, cwd=PEER, check=True)


@contextmanager
def control_plane(directory: Path, scenario: Scenario) -> Iterator[tuple[Api, Path, dict[str, int]]]:
    """A new control plane with the scenario's nodes, the kubeconfig of the shim's account, and its processes."""
    plane = ControlPlane(directory / "cluster")
    plane.start()
    api = Api(plane.kubeconfig)
    try:
        for name in (NAMESPACE, SPACE):
            api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for thing in packaged("muster.yaml"):
            if thing["kind"] in RIGHTS and thing["metadata"]["name"] in PACKAGED:
                api.apply(thing)
        data = {"service.clusterId": "bench", "queues.yaml": QUEUES}
        meta = {"name": "yunikorn-configs", "namespace": NAMESPACE}
        api.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
        api.create_all([node(f"bench-{i}", cpu="64", memory="256Gi") for i in range(scenario.nodes)])
        kubeconfig = directory / "shim.kubeconfig"
        kubeconfig.write_text(json.dumps(kubeconfig_of(api.cluster, api.token(ACCOUNT, NAMESPACE))))
        yield api, kubeconfig, plane.pids
    finally:
        api.close()
        plane.stop()


@contextmanager
def system(
    name: str, directory: Path, kubeconfig: Path, program: Path = SHIM_PROGRAM
) -> Iterator[tuple[dict[str, LocalProcess], str]]:
    """Starts a system. Yields its processes by role, and the address of the shim's metrics ("": none)."""
    environment = {"KUBECONFIG": str(kubeconfig), "NAMESPACE": NAMESPACE}
    processes: dict[str, LocalProcess] = {}
    if name == "yunikorn":
        metrics = ""
        processes["shim and core"] = LocalProcess([str(PEER_PROGRAM)], directory / "yunikorn.log", environment)
    else:
        grpc_port, http_port, shim_port = free_ports(3)
        metrics = f"http://127.0.0.1:{shim_port}/metrics"
        grpc = f"127.0.0.1:{grpc_port}"
        up = ["up", "--data-dir", str(directory / "data"), "--grpc-address", grpc]
        up += ["--http-address", f"127.0.0.1:{http_port}"]
        processes["muster"] = LocalProcess(muster_command(*up), directory / "muster.log")
        shim = [str(program), "-gateway", grpc, "-http-address", f"127.0.0.1:{shim_port}"]
        shim += ["-lease-duration", "120s", "-renew-deadline", "90s"]
        processes["shim"] = LocalProcess(shim, directory / "shim.log", environment)
    try:
        for process in processes.values():
            process.start()
        yield processes, metrics
    finally:
        for process in reversed(processes.values()):
            process.stop(10.0)


def run(name: str, scenario: Scenario, directory: Path, program: Path = SHIM_PROGRAM) -> Result:
    """One scenario on one system; ``program``: Muster's shim."""
    with (
        control_plane(directory, scenario) as (api, kubeconfig, sessions),
        system(name, directory, kubeconfig, program) as (processes, metrics),
    ):
        # The shim takes pods when all nodes are registered.
        api.create(pod("probe", SPACE, app="probe"))
        eventually(lambda: api.get("Pod", "probe", SPACE)["spec"].get("nodeName"), "a probe is bound", 300.0)
        sessions.update({role: process.pid for role, process in processes.items()})
        before = {role: cpu_s(session) for role, session in sessions.items()}
        waits_before = _allocation_waits(metrics)
        watch = Watch(directory / "cluster" / "admin.kubeconfig")
        eventually(lambda: watch.seen, "the watch works")
        probe = next(iter(watch.seen))
        _make(api, scenario)
        done = scenario.pods + 1
        eventually(lambda: len(watch.bound) >= done, f"{scenario.pods} pods are bound", RUN_S)
        events, written = _events_end(api)
        cpu = {role: round(cpu_s(session) - before[role], 1) for role, session in sessions.items()}
        waits = _allocation_waits(metrics)
        watch.close()
    seen = {uid: at for uid, at in watch.seen.items() if uid != probe}
    latencies = sorted((watch.bound[uid] - at) * 1e3 for uid, at in seen.items() if watch.bound[uid] > at)
    first, last = min(seen.values()), max(watch.bound[uid] for uid in seen)
    allocation_ms = share = None
    if metrics:
        count, total = (now - then for now, then in zip(waits, waits_before, strict=True))
        allocation_ms = total / count * 1e3
        share = allocation_ms / (sum(latencies) / max(len(latencies), 1) or math.nan)
    return Result(
        pods_per_s=round(len(seen) / (last - first), 1),
        p50_ms=_percentile(latencies, 0.5),
        p90_ms=_percentile(latencies, 0.9),
        p99_ms=_percentile(latencies, 0.99),
        made_per_s=round(len(seen) / max(max(seen.values()) - first, 1e-3), 1),
        allocation_ms=None if allocation_ms is None else round(allocation_ms, 1),
        share=None if share is None else round(share, 3),
        observed=len(latencies),
        events=events,
        written_s=round(written - first, 1),
        cpu_s=cpu,
    )


def _make(api: Api, scenario: Scenario) -> None:
    if not scenario.per_s:
        for i in range(40):
            made = pod(f"d{i}", SPACE, app=f"bench-{i}", cpu="50m", memory="64Mi")
            api.create(deployment(f"d{i}", made, scenario.pods // 40))
        return
    begin = time.monotonic()
    for i in range(scenario.pods):
        time.sleep(max(begin + i / scenario.per_s - time.monotonic(), 0.0))
        api.create(pod(f"p{i}", SPACE, app=f"bench-{i % 40}", cpu="50m", memory="64Mi"))


def _events_end(api: Api) -> tuple[int, float]:
    """How many events there are when no more come, and when the last one came."""
    count, at = 0, time.monotonic()
    while time.monotonic() - at < EVENTS_QUIET_S:
        if (now := api.count("Event", SPACE)) > count:
            count, at = now, time.monotonic()
        time.sleep(0.25)
    return count, at


def _allocation_waits(metrics: str) -> tuple[float, float]:
    """Count and sum (seconds) of the shim's histogram."""
    if not metrics:
        return 0.0, 0.0
    text = httpx.get(metrics, timeout=30.0).text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return tuple(float(lines[f"muster_shim_allocation_seconds_{part}"]) for part in ("count", "sum"))  # type: ignore[return-value]


def _percentile(values: Sequence[float], part: float) -> float:
    if not values:
        return math.nan
    return round(values[min(math.ceil(len(values) * part), len(values)) - 1], 1)


def cpu_s(session: int) -> float:
    """Processor time of a session's living processes and their collected children, in seconds."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if int(fields[3]) == session:
            ticks += sum(int(each) for each in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def medians(results: Sequence[Result]) -> Json:
    """The median of each figure over rounds."""
    found: Json = {}
    for field in (each.name for each in fields(Result) if each.name != "cpu_s"):
        values = [value for each in results if (value := getattr(each, field)) is not None]
        found[field] = median(values) if values else None
    found["cpu_s"] = {role: median(each.cpu_s[role] for each in results) for role in results[0].cpu_s}
    return found


def show(found: dict[str, dict[str, Any]]) -> None:
    """Prints the medians."""
    table = Table(title="medians", title_justify="left")
    columns = "scenario, system, pods/s, made/s, p50 ms, p90 ms, p99 ms, allocation ms, share, events s, processor s"
    for column in columns.split(", "):
        table.add_column(column, justify="left" if column in ("scenario", "system", "processor s") else "right")
    for scenario, systems in found.items():
        for name, entry in systems.items():
            m = entry["median"]
            cpu = ", ".join(f"{role} {value:g}" for role, value in m["cpu_s"].items())
            figures = [m[f] for f in ("pods_per_s", "made_per_s", "p50_ms", "p90_ms", "p99_ms", "allocation_ms")]
            share = "" if m["share"] is None else f"{m['share']:.1%}"
            written = f"{m['written_s']:.1f}"
            row = ("" if f is None else f"{f:,.0f}" for f in figures)
            table.add_row(scenario, name, *row, share, written, cpu)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(each.name for each in SCENARIOS))
    parser.add_argument("--on", default=",".join(SYSTEMS))
    parser.add_argument("--before", type=Path, help="another build of Muster's shim, as one more system")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    build()
    systems = dict.fromkeys(given.on.split(","), SHIM_PROGRAM)
    if given.before:
        systems["before"] = given.before.resolve()
    facts = machine()
    found: dict[str, dict[str, Any]] = {}
    for scenario in SCENARIOS:
        if scenario.name not in given.only.split(","):
            continue
        runs: dict[str, list[Result]] = {name: [] for name in systems}
        for round_ in range(given.rounds):
            # The first one of a round changes: none always finds the warmer machine.
            for name in list(runs)[:: -1 if round_ % 2 else 1]:
                with tempfile.TemporaryDirectory() as directory:
                    result = run(name, scenario, Path(directory), systems[name])
                runs[name].append(result)
                console.print(f"{scenario.name}, round {round_ + 1}, {name}: {asdict(result)}")
                found[scenario.name] = {
                    each: {"median": medians(results), "rounds": [asdict(one) for one in results]}
                    for each, results in runs.items()
                    if results
                }
                if given.json:  # (Whoever ends a long measurement has what was measured.)
                    put(_report(facts, found), given.json)
    show(found)
    if not given.json:
        put(_report(facts, found), None)


def _report(facts: Json, found: Json) -> Json:
    return {"machine": {**facts, "load_after": round(os.getloadavg()[0], 2)}, "scenarios": found}


if __name__ == "__main__":
    main()
