"""Measures the cost of external resources: the first listing, and changes.

.venv/bin/python -m bench.external_bench [--only core|framework|native|sync|load] [--backend embedded|kafka|both]
    [--rounds 3] [--seconds 20] [--quick] [--json FILE]

Standard output carries one JSON object, standard error the progress. Five parts:

core
    The scheduler alone (``external_core.py``): its core, and its machine with all protobuf. ``share_percent`` is the
    share of one core that 2,000 changes a second take.
framework
    Source to log (``external_framework.py``): informer, handler, cache.
native
    The cost of an event handler for the RM's own objects (``external_native.py``), and of none.
sync
    ``muster up`` with an informer that lists 5,000 nodes of a registered RM. ``synced_s``: from the informer's first
    record on the log (its start) until the log has the decision for the last change; ``visible_s``: until the view
    shows it (asked every 20 ms); ``process_s``: the same from the start of the process, with Python's.
load
    5,000 hosts of a ``redis`` informer, and 2,000 changes a second of them (use, size, VMs) from a process of its own,
    on and off in turns in one run: 10,000 asks up front again and again (``saturated``), and 500 asks/s, one in a
    message (``paced``). ``cpu_us_per_change``: the CPU of all of Muster for one change while nothing is asked, the
    figure with the least noise. ``slower_percent`` compares the medians; ``rounds`` has each, to show the noise.
    Muster, driver, Redis and the changes' writer share the machine's cores. The load of the last two is no part of the
    figure: without changes they do the same in an inventory that nobody reads (``aside``).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
sys.path.insert(0, str(ROOT))

import redis  # noqa: E402
import servers  # noqa: E402
from chaos.harness import Deployment, embedded, on_kafka, opened_log, records  # noqa: E402
from muster_informers.documents import as_document  # noqa: E402
from muster_proto.muster.bus.v1 import envelope_pb2, state_pb2  # noqa: E402
from rich.console import Console  # noqa: E402

from bench import external_core  # noqa: E402
from bench.driver import Driver, Shape  # noqa: E402
from bench.results import put  # noqa: E402
from bench.scenarios_bench import cpu_seconds, machine  # noqa: E402

MODULE = "bench.external_bench"
NODES, CHANGES_PER_S, TARGET_SYNC_S, TARGET_SLOWER_PERCENT = 5_000, 2_000, 2.0, 10.0
SOURCE = "hosts"
ASKS_PER_S = 500.0
POLL_S, PATIENCE_S = 0.02, 120.0

console = Console(stderr=True)


# ---- the other manager ---------------------------------------------------------------------------------------------


def documents(nodes: int) -> list[dict[str, object]]:
    """The inventory."""
    return [as_document(external_core.host(number), 1) for number in range(nodes)]


class HttpInventory:
    """A server that answers every request with the inventory."""

    def __init__(self, body: bytes) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.headers.get("If-None-Match") == '"1"'
                self.send_response(304 if known else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("ETag", '"1"')
                self.send_header("Content-Length", "0" if known else str(len(body)))
                self.end_headers()
                if not known:
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hosts.json"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def fill_redis(url: str, prefix: str, nodes: int) -> dict[str, object]:
    """Put the inventory into a hash; return the informer's table of settings."""
    client = redis.Redis.from_url(url)
    client.delete(f"{prefix}.hosts", f"{prefix}.changes")
    with client.pipeline() as pipeline:
        for document in documents(nodes):
            pipeline.hset(f"{prefix}.hosts", f"node/{document['id']}", json.dumps(document))
        pipeline.xadd(f"{prefix}.changes", {"id": "host-00000", "document": json.dumps(documents(1)[0])})
        pipeline.execute()
    client.close()
    return {"kind": "redis", "url": url, "key": f"{prefix}.hosts", "stream": f"{prefix}.changes"}


def aside(prefix: str) -> str:
    """An inventory that nobody reads."""
    return f"{prefix}-aside"


def change(url: str, prefix: str, nodes: int) -> int:
    """Change the inventory at the rate, between the words on and off on standard input. Print the count at the end.

    The word aside instead of on changes another inventory.
    """
    client = redis.Redis.from_url(url)
    stream, version, said, is_on = external_core.changes(nodes), itertools.count(2), 0, False
    place = prefix
    words: list[str] = []

    def listen() -> None:
        for line in sys.stdin:
            words.append(line.strip())  # noqa: PERF401 - one by one, as they come
        words.append("end")

    Thread(target=listen, daemon=True).start()
    began = due = 0.0
    while True:
        while words:
            word = words.pop(0)
            if word == "end":
                return 0
            if is_on and word == "off":
                print(json.dumps({"changes": said, "seconds": round(time.monotonic() - began, 2)}), flush=True)
            is_on, said = word in ("on", "aside"), 0
            place = prefix if word == "on" else aside(prefix)
            began = due = time.monotonic()
        if not is_on:
            time.sleep(0.01)
            continue
        with client.pipeline() as pipeline:
            for _ in range(external_core.PER_BATCH):
                each = next(stream)
                key = f"{each.kind.value}/{each.object_id}"
                entry = {"id": each.object_id, "kind": each.kind.value}
                if each.what is None:
                    pipeline.hdel(f"{place}.hosts", key)
                    entry |= {"op": "delete", "version": str(next(version))}
                else:
                    document = json.dumps(as_document(each.what, next(version)))
                    pipeline.hset(f"{place}.hosts", key, document)
                    entry["document"] = document
                pipeline.xadd(f"{place}.changes", entry, maxlen=200_000)  # type: ignore[arg-type]
            pipeline.execute()
        said += external_core.PER_BATCH
        due += external_core.PER_BATCH / CHANGES_PER_S
        time.sleep(max(due - time.monotonic(), 0.0))


# ---- Muster --------------------------------------------------------------------------------------------------------


def deploy(
    backend: str,
    place: Path,
    addresses: Mapping[str, str],
    table: Mapping[str, object] | None,
    rm_id: str,
    environment: Mapping[str, str] | None = None,
) -> Deployment:
    """Start Muster, with one informer or none."""
    place.mkdir(parents=True, exist_ok=True)
    is_kafka = backend == "kafka"
    if is_kafka:
        deployment = on_kafka(place, addresses["kafka"], addresses["redis"], environment)
    else:
        deployment = embedded(place, environment)
    if table is not None:
        rows = {**table, "rm": rm_id}
        lines = [f"[scheduler.external.informers.{SOURCE}]", *(f"{key} = {json.dumps(rows[key])}" for key in rows)]
        (place / "settings.toml").write_text("\n".join(lines) + "\n")
        name = "scheduler" if is_kafka else "up"
        deployment.processes[name].command += ["--settings", str(place / "settings.toml")]
    return deployment


def get(http: str, path: str) -> Any:
    """Return REST's answer; None: none yet."""
    with suppress(OSError, json.JSONDecodeError), urllib.request.urlopen(f"{http}{path}", timeout=10) as answer:
        return json.loads(answer.read())
    return None


async def until_live(http: str, rm_id: str, nodes: int) -> int:
    """Wait until the view shows the source complete; return that time."""
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        found = await asyncio.to_thread(get, http, f"/ws/v1/external?rm={rm_id}")
        for each in found or []:
            if each["source"] == SOURCE and each["state"] == "LIVE" and each["objects"].get("node", 0) >= nodes:
                return time.time_ns()
        await asyncio.sleep(POLL_S)
    raise TimeoutError(f"source {SOURCE} is not complete within {PATIENCE_S:.0f} s: {found}")


# ---- the first listing ---------------------------------------------------------------------------------------------


async def sync(
    backend: str, place: Path, addresses: Mapping[str, str], table: Mapping[str, object], nodes: int
) -> dict[str, float]:
    """Measure one start of an informer that lists everything."""
    rm_id = "bench-sync"
    # 1. an RM that registered before, in the same log
    first = deploy(backend, place, addresses, None, rm_id)
    async with first.running(), Driver(first.gateway, rm_id, Shape(nodes=10, asks=10)).client() as rm:
        await rm.register()
    # (The next start has the same topics or the same file.)
    same = {"MUSTER_LOG__TOPIC_PREFIX": first.log_settings.topic_prefix} if backend == "kafka" else None
    second = deploy(backend, place, addresses, table, rm_id, same)
    second.log_settings = first.log_settings
    # 2. Muster with its informer
    began_ns = time.time_ns()
    for process in second.processes.values():
        process.start()
    try:
        seen_ns = await until_live(second.http, rm_id, nodes)
        found = await asyncio.to_thread(get, second.http, f"/ws/v1/partition/default/nodes?rm={rm_id}")
        assert len(found) >= nodes, f"{len(found)} nodes in the view, expected {nodes}"
    except BaseException:
        console.print(second.logs(), markup=False, highlight=False)
        raise
    finally:
        await second.stop()
    # 3. the times of the log's records
    async with opened_log(second.log_settings) as (log, topics):
        partition = topics.partition_of(rm_id)
        started_ms = min(
            record.timestamp_ms
            for record in await records(log, topics.requests, partition)
            if envelope_pb2.RequestEnvelope.FromString(record.value or b"").WhichOneof("body") == "external"
        )
        live_ms = next(
            record.timestamp_ms
            for record in await records(log, topics.state, partition)
            if (record.key or b"").split(b"/")[1] == b"source"
            and state_pb2.SourceObject.FromString(record.value or b"").state == "LIVE"
        )
    return {
        "synced_s": round((live_ms - started_ms) / 1e3, 3),
        "visible_s": round(seen_ns / 1e9 - started_ms / 1e3, 3),
        "process_s": round((seen_ns - began_ns) / 1e9, 2),
    }


async def all_syncs(
    backend: str, work: Path, addresses: Mapping[str, str], rounds: int, nodes: int
) -> dict[str, dict[str, Any]]:
    """Measure every kind of informer, some rounds each."""
    body = json.dumps(documents(nodes)).encode()
    (work / "hosts.json").write_bytes(body)
    server = HttpInventory(body)
    tables: dict[str, Mapping[str, object]] = {
        "file": {"kind": "file", "path": str(work / "hosts.json")},
        "http": {"kind": "http", "url": server.url},
    }
    if "redis" in addresses:
        tables["redis"] = fill_redis(addresses["redis"], f"bench-{time.time_ns()}", nodes)
    result: dict[str, dict[str, Any]] = {}
    try:
        for kind, table in tables.items():
            runs = []
            for number in range(rounds):
                runs.append(await sync(backend, work / f"{backend}-{kind}-{number}", addresses, table, nodes))
                console.print(f"sync, {backend}, {kind}: {runs[-1]}")
            result[kind] = {name: statistics.median(run[name] for run in runs) for name in runs[0]} | {"rounds": runs}
            result[kind]["good"] = result[kind]["visible_s"] < TARGET_SYNC_S
    finally:
        server.stop()
    return result


# ---- changes -------------------------------------------------------------------------------------------------------


async def load(
    backend: str, work: Path, addresses: Mapping[str, str], rounds: int, seconds: float, nodes: int, per_s_max: int
) -> dict[str, Any]:
    """Measure decisions without and with changes, in turns.

    :param per_s_max: the informer's changes_per_s_max.
    """
    rm_id, prefix = "bench-load", f"bench-{time.time_ns()}"
    table = {**fill_redis(addresses["redis"], prefix, nodes), "changes_per_s_max": per_s_max}
    deployment = deploy(backend, work / f"{backend}-load", addresses, table, rm_id)
    command = [sys.executable, "-m", MODULE, "--change", addresses["redis"], prefix, str(nodes)]
    changer = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs yet
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert changer.stdin is not None
    assert changer.stdout is not None

    def tell(word: str) -> None:
        assert changer.stdin is not None
        changer.stdin.write(f"{word}\n")
        changer.stdin.flush()

    segments: list[dict[str, Any]] = []
    try:
        async with deployment.running():
            driver = Driver(deployment.gateway, rm_id, Shape())
            async with driver.client() as rm:
                await driver.set_up(rm)
                await until_live(deployment.http, rm_id, nodes)
                await driver.ask_up_front(rm, "warm")
                await driver.release_all(rm, "warm")
                # 1. the cost of changes without asks
                cpu_us = await changes_alone(deployment, tell, changer, seconds)
                console.print(f"load, {backend}: {cpu_us:.0f} µs of CPU for one change")
                # 2. asks, in turns
                for number in range(2 * rounds):
                    # (without, with; with, without; …: so drift affects both)
                    with_changes = number % 4 in (1, 2)
                    tell("on" if with_changes else "aside")
                    await asyncio.sleep(0.5)
                    cpu = sum(cpu_seconds(deployment).values())
                    began, rates, waves = time.monotonic(), [], 0
                    while time.monotonic() - began < seconds:
                        waves += 1
                        rates.append((await driver.ask_up_front(rm, f"s{number}.{waves}"))["allocations_per_s"])
                        await driver.release_all(rm, f"s{number}.{waves}")
                    saturated_cpu = sum(cpu_seconds(deployment).values()) - cpu
                    paced = await driver.ask_on_a_clock(rm, f"p{number}", ASKS_PER_S, seconds)
                    tell("off")
                    made: dict[str, Any] = json.loads(await asyncio.to_thread(changer.stdout.readline))
                    await asyncio.sleep(1.0)
                    segments.append(
                        {
                            "with_changes": with_changes,
                            "allocations_per_s": round(statistics.median(rates)),
                            "waves": waves,
                            "cpu_us_per_allocation": round(saturated_cpu / waves / driver.shape.asks * 1e6, 1),
                            "paced_p50_ms": paced["latency_p50_ms"],
                            "paced_p95_ms": paced["latency_p95_ms"],
                            **made,
                        }
                    )
                    console.print(f"load, {backend}: {segments[-1]}")
    finally:
        changer.terminate()
        changer.wait()
        with redis.Redis.from_url(addresses["redis"]) as client:
            for each in (prefix, aside(prefix)):
                client.delete(f"{each}.hosts", f"{each}.changes")
    return {"cpu_us_per_change": round(cpu_us, 1), **compared(segments)}


async def changes_alone(
    deployment: Deployment, tell: Callable[[str], None], changer: subprocess.Popen[str], seconds: float
) -> float:
    """Measure the CPU of all of Muster for one change, less its CPU at rest: µs."""
    assert changer.stdout is not None
    taken = []
    for word in ("aside", "on"):
        tell(word)
        await asyncio.sleep(0.5)
        before, began = sum(cpu_seconds(deployment).values()), time.monotonic()
        await asyncio.sleep(seconds / 2)
        taken.append((sum(cpu_seconds(deployment).values()) - before) / (time.monotonic() - began))
    tell("off")
    made = json.loads(await asyncio.to_thread(changer.stdout.readline))
    await asyncio.sleep(2.0)
    return (taken[1] - taken[0]) / (made["changes"] / made["seconds"]) * 1e6


def compared(segments: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians without and with changes, and the difference in %."""

    def of(name: str, which: bool) -> float:
        return statistics.median(each[name] for each in segments if each["with_changes"] is which)

    names = ("allocations_per_s", "paced_p50_ms", "paced_p95_ms")
    result: dict[str, Any] = {
        "without": {name: of(name, False) for name in names},
        "with": {name: of(name, True) for name in names},
    }
    slower = 100 * (1 - of("allocations_per_s", True) / of("allocations_per_s", False))
    result["slower_percent"] = round(slower, 1)
    for name in names[1:]:
        result[f"{name}_more_percent"] = round(100 * (of(name, True) / of(name, False) - 1), 1)
    changed = [each for each in segments if each["with_changes"]]
    result["changes_per_s"] = round(sum(each["changes"] for each in changed) / sum(each["seconds"] for each in changed))
    result["good"] = slower <= TARGET_SLOWER_PERCENT
    result["rounds"] = segments
    return result


# ---- all of it -----------------------------------------------------------------------------------------------------


def in_a_process(*arguments: str) -> dict[str, Any]:
    """Run a part in a process of its own, which prints one JSON object."""
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout.decode().strip().splitlines()[-1])
    return found


def alone(quick: bool) -> dict[str, dict[str, Any]]:
    """Measure the scheduler's own costs."""
    result = {}
    for which in ("core", "machine"):
        more = ["--rounds", "1", "--asks", "5000"] if quick else []
        result[which] = found = in_a_process("bench.external_core", which, *more)
        found["share_percent"] = round(found["change_us"] * CHANGES_PER_S / 1e4, 1)
        console.print(f"{which}: { {name: found[name] for name in found if name != 'rounds_per_s'} }")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("core", "framework", "native", "sync", "load"), default="")
    parser.add_argument("--backend", choices=("embedded", "kafka", "both"), default="both")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each segment of load, saturated and paced each")
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--changes-per-s-max", type=int, default=0, help="the informer's, under load; 0: all")
    parser.add_argument("--quick", action="store_true", help="one round, three seconds: to see that it works")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--change", nargs=3, metavar=("URL", "PREFIX", "NODES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.change:
        return change(options.change[0], options.change[1], int(options.change[2]))
    rounds, seconds = (1, 3.0) if options.quick else (options.rounds, options.seconds)
    backends = ("embedded", "kafka") if options.backend == "both" else (options.backend,)
    result: dict[str, Any] = {"machine": machine(), "nodes": options.nodes}

    def wanted(part: str) -> bool:
        return options.only in ("", part)

    if wanted("core"):
        result["core"] = alone(options.quick)
    if wanted("framework"):
        result["framework"] = in_a_process("bench.external_framework")
    if wanted("native"):
        more = ["--rounds", "1", "--asks", "2000"] if options.quick else []
        result["native"] = found = in_a_process("bench.external_native", *more)
        console.print(f"native: { {name: found[name] for name in found if name != 'rounds_per_s'} }")
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-bench-")))
        addresses: dict[str, str] = {}
        if wanted("sync") or wanted("load"):
            directory = servers.session_directory()
            stack.callback(servers.stop_all, directory)
            for kind in ("redis", "kafka") if "kafka" in backends else ("redis",):
                addresses[kind] = servers.find(kind, directory).address
        parts: list[tuple[str, Callable[[str], Any]]] = [
            ("sync", lambda backend: all_syncs(backend, work, addresses, rounds, options.nodes)),
            (
                "load",
                lambda backend: load(
                    backend, work, addresses, rounds, seconds, options.nodes, options.changes_per_s_max
                ),
            ),
        ]
        for name, part in parts:
            for backend in backends if wanted(name) else ():
                result.setdefault(name, {})[backend] = asyncio.run(part(backend))
    put(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
