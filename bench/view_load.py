"""Reads the HTTP front like many readers: the load of ``view_bench.py``, in a process of its own.

.venv/bin/python -m bench.view_load reads URL --rm ID --per-s 1000 --seconds 10 [--connections 64] [--seed 1]
.venv/bin/python -m bench.view_load dumps URL --rm ID --seconds 10

Standard output carries one JSON object. The HTTP client is its own, because a library's would use more CPU than the
measured services. It keeps connections alive, and reads and counts whole answers without keeping them.

reads
    Requests of :data:`MIX` at random (seeded) on a clock that does not wait for answers. A request without a free
    connection waits for one, and its latency counts from its due time.
dumps
    State dumps, one after the other, each read as fast as possible.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import socket
import sys
import time
import urllib.request
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from muster_replay.accounts import percentile  # noqa: E402

NODES, APPLICATIONS, QUEUES = 1_000, 100, 10
# An application with pending asks, and their number.
WAITING_APP, WAITING = "waiting", 100
PARTITION = "/ws/v1/partition/default"
GZIP = "Accept-Encoding: gzip\r\n"


class Kind(NamedTuple):
    """One kind of request.

    :ivar weight: share of requests, in thousandths.
    :ivar path: ``{node}``, ``{app}``, ``{queue}``, ``{key}`` are drawn for each; ``{rm}`` is the RM's id,
        ``{event}`` one of the last hundred events at the beginning, like a client that polls for new events.
    :ivar gzip: the request accepts compression, as browsers and Go's clients do.
    """

    name: str
    weight: int
    path: str
    gzip: bool = True


# The readers of a cluster of 1,000 nodes and 20,000 allocations. Of a thousand requests: the web UI's pages and our own
# (540), dashboards and scrapers (160), people and scripts that look for one object (300).
MIX = (
    # the web UI: its dashboard, and the requests that each of its pages repeats
    Kind("partitions", 120, "/ws/v1/partitions?rm={rm}"),
    Kind("clusters", 60, "/ws/v1/clusters?rm={rm}"),
    Kind("queues", 120, PARTITION + "/queues?rm={rm}"),
    Kind("queue applications", 6, PARTITION + "/queue/{queue}/applications?rm={rm}"),
    Kind("nodes", 2, PARTITION + "/nodes?rm={rm}"),
    Kind("applications", 1, PARTITION + "/applications/active?rm={rm}", gzip=False),
    Kind("node utilizations", 30, "/ws/v1/scheduler/node-utilizations?rm={rm}"),
    Kind("history", 60, "/ws/v1/history/apps?rm={rm}"),
    Kind("health check", 41, "/ws/v1/scheduler/healthcheck?rm={rm}"),
    Kind("events batch", 100, "/ws/v1/events/batch?rm={rm}&count=100&start={event}"),
    # dashboards and scrapers
    Kind("health", 100, "/health", gzip=False),
    Kind("figures", 20, "/ws/v1/metrics/snapshot?rm={rm}&nodes=50"),
    Kind("metrics", 2, "/ws/v1/metrics"),
    Kind("users", 20, PARTITION + "/usage/users?rm={rm}"),
    Kind("explain summary", 18, "/ws/v1/explain/summary?rm={rm}"),
    # one object
    Kind("application", 60, PARTITION + "/application/{app}?rm={rm}"),
    Kind("queue", 80, PARTITION + "/queue/{queue}?rm={rm}", gzip=False),
    Kind("node", 80, PARTITION + "/node/{node}?rm={rm}", gzip=False),
    Kind("explain ask", 40, "/ws/v1/explain/ask/{waiting}/{key}?rm={rm}"),
    Kind("explain application", 20, "/ws/v1/explain/application/{waiting}?rm={rm}"),
    Kind("explain queue", 20, "/ws/v1/explain/queue/{queue}?rm={rm}"),
)
assert sum(kind.weight for kind in MIX) == 1_000


@dataclass(frozen=True, slots=True)
class Cluster:
    """The names of the cluster's objects."""

    rm: str
    nodes: int = NODES
    event: int = 0

    def path(self, kind: Kind, chance: random.Random) -> str:
        return kind.path.format(
            rm=self.rm,
            event=self.event,
            node=f"node-{chance.randrange(self.nodes)}",
            app=f"app-{chance.randrange(APPLICATIONS)}",
            queue=f"root.q{chance.randrange(QUEUES)}",
            waiting=WAITING_APP,
            key=f"w-{chance.randrange(WAITING)}",
        )


class Broken(Exception):
    """Raised for an invalid answer, or a connection that ended within one."""


class Connection(asyncio.Protocol):
    """One keep-alive connection: a request, then its answer."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._head = bytearray()
        self._answer: asyncio.Future[tuple[int, int]] | None = None
        self._status = 0
        # Bytes left of the body, or of a chunk with its line feed; None: a head or size is next.
        self._left: int | None = None
        self._is_chunked = False
        self._in_body = False
        self._size = 0

    @classmethod
    async def open(cls, host: str, port: int) -> Connection:
        _, protocol = await asyncio.get_running_loop().create_connection(cls, host, port)
        return protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = transport

    def connection_lost(self, _: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Broken("the connection ended"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def ask(self, request: bytes) -> asyncio.Future[tuple[int, int]]:
        """Send a request; return (status, bytes of the body as received)."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._size = 0
        self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        if self._left is not None and len(data) < self._left:  # (in the middle of a large answer)
            self._left -= len(data)
            self._size += len(data)
            return
        self._head += data
        while self._step():
            pass

    def _step(self) -> bool:
        head = self._head
        if self._left is not None:
            taken = min(self._left, len(head))
            del head[:taken]
            self._left -= taken
            self._size += taken
            if self._left:
                return False
            self._left = None
            if not self._is_chunked:
                self._done()
            return bool(head)
        if not self._in_body:
            end = head.find(b"\r\n\r\n")
            if end < 0:
                return False
            lines = bytes(head[:end]).lower()
            del head[: end + 4]
            self._status = int(lines[9:12])
            self._is_chunked = b"transfer-encoding: chunked" in lines
            self._in_body = True
            if not self._is_chunked:
                self._left = int(lines.partition(b"content-length:")[2].partition(b"\r\n")[0])
            return True
        end = head.find(b"\r\n")
        if end < 0:
            return False
        size = int(head[:end], 16)
        if not size:
            if len(head) < end + 4:
                return False
            del head[: end + 4]
            self._done()
            return False
        del head[: end + 2]
        self._left = size + 2
        return True

    def _done(self) -> None:
        self._in_body, self._left = False, None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._status, self._size))


@dataclass(slots=True)
class Counted:
    """The results of a run."""

    latencies_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    statuses: Counter[int] = field(default_factory=Counter)
    bytes_in: Counter[str] = field(default_factory=Counter)
    broken: int = 0

    def figures(self, seconds: float) -> dict[str, object]:
        every = [value for values in self.latencies_s.values() for value in values]
        return {
            "requests_per_s": round(len(every) / seconds, 1),
            "statuses": dict(self.statuses),
            "broken": self.broken,
            "mb_per_s": round(sum(self.bytes_in.values()) / seconds / 1e6, 1),
            **percentiles(every),
            "kinds": {
                name: {
                    "count": len(values),
                    "kb": round(self.bytes_in[name] / len(values) / 1e3, 1),
                    **percentiles(values),
                }
                for name, values in sorted(self.latencies_s.items())
            },
        }


def percentiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    found = {f"p{percent}_ms": percentile(values, percent) * 1e3 for percent in (50, 95, 99)}
    return {name: round(value, 2) for name, value in {**found, "max_ms": max(values) * 1e3}.items()}


def request(host: str, path: str, *, gzip: bool) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{GZIP if gzip else ''}\r\n".encode()


async def reads(url: str, cluster: Cluster, per_s: float, seconds: float, connections: int, seed: int) -> Counted:
    """Send the mix on a clock."""
    host = url.removeprefix("http://").rstrip("/")
    name, _, port = host.partition(":")
    # 1. prepare everything that costs time
    chance = random.Random(seed)
    kinds = chance.choices(MIX, [kind.weight for kind in MIX], k=int(per_s * seconds))
    requests = [(kind.name, request(host, cluster.path(kind, chance), gzip=kind.gzip)) for kind in kinds]
    free = deque([await Connection.open(name, int(port)) for _ in range(connections)])
    waiting: deque[tuple[str, bytes, float]] = deque()
    counted = Counted()
    left, done = len(requests), asyncio.Event()

    def send(connection: Connection, kind: str, text: bytes, due_s: float) -> None:
        connection.ask(text).add_done_callback(lambda answer: taken(connection, kind, due_s, answer))

    def taken(connection: Connection, kind: str, due_s: float, answer: asyncio.Future[tuple[int, int]]) -> None:
        nonlocal left
        left -= 1
        if answer.exception() is not None:
            counted.broken += 1
        else:
            status, size = answer.result()
            counted.statuses[status] += 1
            counted.bytes_in[kind] += size
            counted.latencies_s[kind].append(time.monotonic() - due_s)
            if waiting:
                send(connection, *waiting.popleft())
            else:
                free.append(connection)
        if not left:
            done.set()

    # 2. on a clock
    began_s = time.monotonic() + 0.05
    for number, (kind, text) in enumerate(requests):
        due_s = began_s + number / per_s
        if (wait_s := due_s - time.monotonic()) > 0:
            await asyncio.sleep(wait_s)
        if free:
            send(free.popleft(), kind, text, due_s)
        else:
            waiting.append((kind, text, due_s))
        if number % 16 == 15:
            await asyncio.sleep(0)  # answers are read also while we are behind
    # 3. the last ones
    try:
        await asyncio.wait_for(done.wait(), 60.0)
    except TimeoutError:
        counted.broken += left
    for connection in free:
        connection.close()
    return counted


async def dumps(url: str, rm: str, seconds: float) -> dict[str, object]:
    """Read state dumps until the time is over; the last one is read to its end."""
    host = url.removeprefix("http://").rstrip("/")
    name, _, port = host.partition(":")
    connection = await Connection.open(name, int(port))
    text = request(host, f"/debug/fullstatedump?rm={rm}", gzip=False)
    taken_s, sizes = [], []
    began_s = time.monotonic()
    while time.monotonic() - began_s < seconds:
        sent_s = time.monotonic()
        status, size = await connection.ask(text)
        if status != 200:
            raise Broken(f"a dump was answered with {status}")
        taken_s.append(time.monotonic() - sent_s)
        sizes.append(size)
    connection.close()
    return {"dumps": len(taken_s), "mb": round(max(sizes) / 1e6, 1), "longest_s": round(max(taken_s), 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("reads", "dumps"))
    parser.add_argument("url")
    parser.add_argument("--rm", required=True)
    parser.add_argument("--per-s", type=float, default=1_000.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=NODES)
    options = parser.parse_args()
    gc.disable()  # (the run is short, and the collector's pauses would count as the server's)
    if options.what == "dumps":
        print(json.dumps(asyncio.run(dumps(options.url, options.rm, options.seconds))))
        return 0
    with urllib.request.urlopen(f"{options.url}/ws/v1/events/batch?rm={options.rm}&count=1") as answer:
        event = max(0, int(json.loads(answer.read())["HighestID"]) - 100)
    cluster = Cluster(options.rm, options.nodes, event)
    began = time.process_time()
    counted = asyncio.run(
        reads(options.url, cluster, options.per_s, options.seconds, options.connections, options.seed)
    )
    found = counted.figures(options.seconds)
    found["own_cpu_percent"] = round(100 * (time.process_time() - began) / options.seconds, 1)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
