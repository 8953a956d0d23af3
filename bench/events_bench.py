"""Measures the publisher's memory for events and the speed of its answers, beside the figures of the event history
design.

.venv/bin/python -m bench.events_bench [--records 9000000] [--only ring|streams] [--seconds 30] [--json FILE]

Standard output carries one JSON line, standard error a table. Two parts:

ring
    In a process of its own, a ring takes 9,000,000 events of the design's mix (``events_mix.py``: 300,000 pods in 3,000
    gangs a day, for five days), in runs of 5,000 as the publisher reads them.

    * ``mib``: growth of the process's resident memory (``/proc/self/statm``), from before the first event to after the
      last; so allocator, interpreter and the generator's state are in it. ``packed_mib``: the blocks' bytes alone.
    * ``append_per_s``: events over the time of the ring's appends, with packing, without making the events.
    * ``batch_10000_ms``: the REST application's whole answer to ``?count=10000&start=…``, from the request to the last
      byte, uncompressed: the median over places in the ring's middle that no request has read before.
    * ``lossless``: the events read equal the events written (a digest over all of them).

streams
    ``muster up`` under 200 asks/s, and 100 stream clients in another process; ten of them stop reading.

    * ``latency_p50_ms``, ``latency_p99_ms``: from the decision (the event's time stamp) to the line in a client, over
      all lines of the 90 others. Scheduler, publisher, the driver and all clients share the machine's cores.
    * ``allocation_p50_ms``, ``allocation_p99_ms``: from ask to allocation meanwhile; ``server_cpu_percent``: the CPU
      of the whole of Muster, of one core.
    * ``in_order``: the 90 others got the same lines as a batch.
    * ``told_why``: stalled clients whose last line has the reason of their end; ``resumed``: clients that resumed at
      the id of that line and got every event.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import hashlib
import itertools
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from chaos.harness import embedded  # noqa: E402
from muster_bus.clock import SystemClock  # noqa: E402
from muster_bus.topics import Topics  # noqa: E402
from muster_event_publisher.event_source import EventSource  # noqa: E402
from muster_event_publisher.rest import EventsRest  # noqa: E402
from muster_event_publisher.rest_streams import EventStreams, StreamLimits  # noqa: E402
from muster_event_publisher.ring import EventRing, Rings  # noqa: E402
from muster_event_publisher.settings import PublisherSettings  # noqa: E402
from muster_rest import publisher_routes as routes  # noqa: E402
from muster_rest.system_health import ServiceFacts  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from bench.driver import Driver, Shape  # noqa: E402
from bench.events_mix import Mix, events  # noqa: E402
from bench.scenarios_bench import cpu_seconds  # noqa: E402

MIB = 1 << 20
RECORDS = 9_000_000
RUN = 5_000
BATCH = 10_000
BATCHES = 31
# The event history design, performance considerations: MiB by millions of records.
SEED_MIB = {
    "seed, []*si.EventRecord": {3: 805, 6: 1595, 9: 2380},
    "seed, []si.EventRecord": {3: 437, 6: 856, 9: 1280},
    "seed, []internalRecord": {3: 211, 6: 404, 9: 593},
}
CLIENTS, STALLED = 100, 10
ASKS_PER_S = 200.0
# Small, so that stalled clients are dropped within the time of a run.
LAG_RECORDS = 2_000
PATIENCE_S = 60.0
MODULE = "bench.events_bench"

console = Console(stderr=True)


# ---- the ring ------------------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    """The process's resident memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def measure_ring(records: int, mix: Mix) -> dict[str, Any]:
    """Fill a ring and read it; runs in a process of its own."""
    rings = Rings(records)
    ring, stream = rings.ring_for("rm", "b4751b7d-a1a3-4431-bb68-bff896adb9c2"), events(mix)
    # 1. warm up, so that one-time costs are not measured
    warm = EventRing("warm", "", records)
    warm.append(0, list(itertools.islice(events(mix), 50_000)))
    while warm.pack():
        pass
    next(stream)
    del warm
    before, digest, spent_s, wire_bytes = resident_bytes(), hashlib.sha256(), 0.0, 0
    milestones = {millions: millions * 1_000_000 for millions in (3, 6, 9)}
    mib: dict[int, float] = {}
    # 2. filling
    for start in range(0, records, RUN):
        values = list(itertools.islice(stream, min(RUN, records - start)))
        for value in values:
            digest.update(value)
            wire_bytes += len(value)
        began = time.perf_counter()
        ring.append(start, values)
        while ring.pack():
            pass
        spent_s += time.perf_counter() - began
        del values
        for millions, count in milestones.items():
            if ring.next_id == count:
                mib[millions] = (resident_bytes() - before) / MIB
    grown = (resident_bytes() - before) / MIB
    # 3. asking
    batches_ms = [await one_batch(rings, ring, start) for start in places(records)]
    # 4. comparing
    found = hashlib.sha256()
    for piece in ring.pieces(ring.lowest, len(ring)):
        for event in piece.values():
            found.update(event or b"")
    return {
        "records": len(ring),
        "mib": round(grown, 1),
        "mib_by_millions": {str(millions): round(value, 1) for millions, value in mib.items()},
        "packed_mib": round(ring.size_bytes / MIB, 1),
        "record_bytes": round(wire_bytes / records, 1),
        "append_per_s": round(records / spent_s),
        "batch_10000_ms": round(statistics.median(batches_ms), 1),
        "batch_10000_max_ms": round(max(batches_ms), 1),
        "lossless": found.digest() == digest.digest(),
    }


def places(records: int) -> Iterator[int]:
    """Return beginnings of batches in the ring's middle, far from each other."""
    step = max(records // 2 // BATCHES, 1)
    return (records // 4 + number * step for number in range(BATCHES))


async def one_batch(rings: Rings, ring: EventRing, start: int) -> float:
    """Measure one answer of the REST application in milliseconds."""
    source = EventSource(rings, [], Topics())
    streams = EventStreams(StreamLimits(1, 1, 1, 1.0, 1.0), SystemClock())

    async def well() -> ServiceFacts:
        return ServiceFacts()

    rest = EventsRest(source, streams, PublisherSettings(), well)
    scope = {
        "type": "http", "method": "GET", "path": routes.BATCH.path, "root_path": "", "scheme": "http", "headers": [],
        "query_string": f"count={BATCH}&start={start}".encode(), "client": ("127.0.0.1", 1), "server": ("", 80),
        "http_version": "1.1",
    }  # fmt: skip
    body = bytearray()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        body.extend(message.get("body", b""))

    began = time.perf_counter()
    await rest.app(scope, receive, send)
    spent_ms = (time.perf_counter() - began) * 1e3
    assert len(json.loads(bytes(body))["EventRecords"]) == min(BATCH, ring.next_id - start)
    return spent_ms


# ---- streams -------------------------------------------------------------------------------------------------------


_TIME = re.compile(rb'"timestampNano":([0-9]+)')


class Client:
    """One stream over a plain socket; ``digest`` covers its event lines and their number."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.lines = 0
        self.digest = hashlib.sha256()
        self.latencies_ms: list[float] = []
        self.last = b""
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, start: int, receive_bytes: int | None = None) -> None:
        connection = socket.socket()
        if receive_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (self.host, self.port))
        limit = receive_bytes or 1 << 20
        self._reader, self._writer = await asyncio.open_connection(sock=connection, limit=limit)
        self._writer.write(f"GET {routes.STREAM.path}?start={start} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.splitlines()[0], head

    async def read(self) -> None:
        """Read until the stream or the connection ends."""
        with contextlib.suppress(asyncio.IncompleteReadError):
            await self._read()

    async def _read(self) -> None:
        assert self._reader is not None, "open() must be called first"
        rest = b""
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            chunk = await self._reader.readexactly(size + 2)
            now_ns = time.time_ns()
            *lines, rest = (rest + chunk[:-2]).split(b"\n")
            for line in lines:
                self.last = line
                if line.startswith(b'{"type"'):
                    self.lines += 1
                    self.digest.update(line)
                    found = _TIME.search(line)
                    assert found is not None, line
                    self.latencies_ms.append((now_ns - int(found[1])) / 1e6)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


async def run_clients(host: str, port: int) -> dict[str, Any]:
    """The clients' process: opens all streams, prints a line, and ends at a line on standard input."""
    first = _batch(host, port, 0, 1)
    next_id = int(first["HighestID"]) + 1
    readers = [Client(host, port) for _ in range(CLIENTS - STALLED)]
    stalled = [Client(host, port) for _ in range(STALLED)]
    for client in readers:
        await client.open(next_id)
    for client in stalled:
        await client.open(next_id, receive_bytes=4096)
    reading = [asyncio.create_task(client.read()) for client in readers]
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    # 1. the others have all events
    end = int(_batch(host, port, 0, 1)["HighestID"]) + 1
    wanted = end - next_id
    for _ in range(int(PATIENCE_S / 0.05)):
        if all(client.lines >= wanted for client in readers):
            break
        await asyncio.sleep(0.05)
    truth = hashlib.sha256()
    for start in range(next_id, end, BATCH):
        for record in _batch(host, port, start, min(BATCH, end - start))["EventRecords"]:
            truth.update(json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode())
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    # 2. the stalled clients read, resume at the id that they get, and so have the missed events
    told = resumed = 0
    for client in stalled:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(client.read(), 5)
        go_on = re.search(rb"behind.*go on with \?start=([0-9]+)", client.last)
        if go_on is not None:
            told += int(go_on[1]) == next_id + client.lines
            client.close()
            await client.open(int(go_on[1]))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.read(), 2)
        resumed += client.lines == wanted and client.digest.digest() == truth.digest()
        client.close()
    latencies = sorted(value for client in readers for value in client.latencies_ms)
    return {
        "clients": CLIENTS,
        "stalled": STALLED,
        "stream_events": wanted,
        "in_order": all(c.lines == wanted and c.digest.digest() == truth.digest() for c in readers),
        "told_why": told,
        "resumed": resumed,
        "latency_p50_ms": round(latencies[len(latencies) // 2], 1),
        "latency_p99_ms": round(latencies[len(latencies) * 99 // 100], 1),
    }


def _batch(host: str, port: int, start: int, count: int) -> dict[str, Any]:
    url = f"http://{host}:{port}{routes.BATCH.path}?count={count}&start={start}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


async def measure_streams(seconds: float) -> dict[str, Any]:
    """Start Muster, the clients and the driver."""
    with tempfile.TemporaryDirectory() as directory:
        environment = {
            "MUSTER_PUBLISHER__MAX_STREAMS": str(2 * CLIENTS),
            "MUSTER_PUBLISHER__MAX_STREAMS_PER_HOST": str(2 * CLIENTS),
            "MUSTER_PUBLISHER__STREAM_LAG_RECORDS_MAX": str(LAG_RECORDS),
        }
        deployment = embedded(Path(directory), environment)
        await deployment.start()
        driver = Driver(deployment.gateway, "bench-events", Shape(nodes=100, asks=int(ASKS_PER_S * seconds)))
        try:
            async with driver.client() as rm:
                await driver.set_up(rm)
                host, _, port = deployment.http.removeprefix("http://").rpartition(":")
                clients = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", MODULE, "--clients", f"{host}:{port}",
                    cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                )  # fmt: skip
                assert clients.stdout is not None
                assert clients.stdin is not None
                assert await clients.stdout.readline() == b"open\n"
                cpu_before = cpu_seconds(deployment)["up"]
                asked = await driver.ask_on_a_clock(rm, "k", ASKS_PER_S, seconds)
                cpu_s = cpu_seconds(deployment)["up"] - cpu_before
                answer, _ = await clients.communicate(b"end\n")
        except BaseException:
            console.print(deployment.logs(), markup=False, highlight=False)
            raise
        finally:
            await deployment.stop()
    return {
        "asks_per_s": ASKS_PER_S,
        **json.loads(answer),
        "allocation_p50_ms": asked["latency_p50_ms"],
        "allocation_p99_ms": asked["latency_p99_ms"],
        "server_cpu_percent": round(100 * cpu_s / seconds, 1),
    }


# ---- both ----------------------------------------------------------------------------------------------------------


def show(found: dict[str, Any]) -> None:
    """Print the table beside the event history design's figures."""
    if "mib" in found:
        table = Table("events in memory, MiB", "3M", "6M", "9M", title="Rings of the design's mix")
        for name, seed_mib in SEED_MIB.items():
            table.add_row(name, *(str(seed_mib[millions]) for millions in (3, 6, 9)))
        own = found["mib_by_millions"]
        table.add_row("Muster, packed blocks", *(str(own.get(str(millions), "-")) for millions in (3, 6, 9)))
        console.print(table)
        console.print(
            f"{found['records']:,} records of {found['record_bytes']} bytes in {found['mib']} MiB; "
            f"{found['append_per_s']:,} appended/s; a batch of {BATCH:,} in {found['batch_10000_ms']} ms "
            f"(at most {found['batch_10000_max_ms']})"
        )
    if "latency_p50_ms" in found:
        console.print(
            f"{found['clients']} streams, {found['stalled']} of them stalled: from decision to client "
            f"{found['latency_p50_ms']} ms (p50), {found['latency_p99_ms']} ms (p99); in order: {found['in_order']}; "
            f"told why: {found['told_why']}, resumed: {found['resumed']}; meanwhile from ask to allocation "
            f"{found['allocation_p50_ms']} ms (p50), {found['allocation_p99_ms']} ms (p99), "
            f"{found['server_cpu_percent']} % of a core"
        )


def child(*arguments: str) -> dict[str, Any]:
    """Run one part in a new process."""
    done = subprocess.run(
        [sys.executable, "-m", MODULE, *arguments], cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=3600
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=RECORDS, help="events in the ring")
    parser.add_argument("--replaced-s", type=float, default=Mix().replaced_s, help="mean wait of a placeholder")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the streams are measured")
    parser.add_argument("--only", choices=("ring", "streams"))
    parser.add_argument("--json", type=Path, help="writes the JSON line to this file too")
    parser.add_argument("--ring", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--clients", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ring:
        mix = Mix(replaced_s=options.replaced_s)
        print(json.dumps(asyncio.run(measure_ring(options.records, mix))))
        return
    if options.clients:
        host, _, port = options.clients.rpartition(":")
        print(json.dumps(asyncio.run(run_clients(host, int(port)))))
        return
    found: dict[str, Any] = {}
    if options.only in (None, "ring"):
        found |= child("--ring", "--records", str(options.records), "--replaced-s", str(options.replaced_s))
    if options.only in (None, "streams"):
        found |= asyncio.run(measure_streams(options.seconds))
    show(found)
    line = json.dumps(found)
    print(line)
    if options.json is not None:
        options.json.write_text(line + "\n")


if __name__ == "__main__":
    main()
