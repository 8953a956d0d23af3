"""`muster up` with informers, sources that do as a test says, and RMs whose nodes the sources know too."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
from muster_client import Callbacks, Rejection, RmClient, application, ask, node, release
from muster_proto.si.v1 import si_pb2 as si
from muster_replay.local_process import free_ports
from up import Up
from waiting import answered, eventually

PATIENCE_S = 60.0
SILENT = 0
TASK = {"vcore": 1_000, "memory": 1_000}
QUEUES = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - name: work
"""


def host(name: str, cores: int, **more: object) -> dict[str, object]:
    """A document of a node with plenty of memory."""
    return {"kind": "node", "id": name, "capacity": {"vcore": cores * 1_000, "memory": 1_000_000}, **more}


def vm(name: str, on: str, cores: int, **more: object) -> dict[str, object]:
    return {"kind": "allocation", "id": name, "node_id": on, "quantities": {"vcore": cores * 1_000}, **more}


# ---- sources --------------------------------------------------------------------------------------------------------


@dataclass
class Answer:
    """What a source's server answers.

    :ivar asked: how often.
    """

    body: bytes = b"[]"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    asked: int = 0

    def says(self, *documents: object, **headers: str) -> None:
        self.body, self.status, self.headers = json.dumps(documents).encode(), 200, headers

    def fails(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Answers with an error, or not at all (SILENT); ``_`` in a header's name is a dash."""
        self.body, self.status, self.headers = body, status, headers


class HttpSource:
    """A server with one answer. Its port stays the same over restarts."""

    def __init__(self, *documents: object) -> None:
        (self._port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self._port}/inventory.json"
        self.answer = Answer()
        self.answer.says(*documents)
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> HttpSource:
        answer = self.answer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer.asked += 1
                while answer.status == SILENT:
                    time.sleep(0.05)
                body, headers = answer.body, {name.replace("_", "-"): text for name, text in answer.headers.items()}
                tag = headers.setdefault("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
                known = answer.status == 200 and self.headers.get("If-None-Match") == tag
                self.send_response_only(304 if known else answer.status)
                for name, text in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, text)
                self.send_header("Content-Length", "0" if known else str(len(body)))
                self.end_headers()
                if not known:
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def stop(self) -> None:
        """Closes the port: connections are refused."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


def write(file: Path, text: str) -> None:
    """Writes the file atomically."""
    aside = file.with_suffix(".aside")
    aside.write_text(text)
    aside.rename(file)


# ---- Muster ---------------------------------------------------------------------------------------------------------


class ExternalUp(Up):
    """One with informers.

    :param informers: tables by name, as in the settings' file.
    """

    def __init__(
        self,
        directory: Path,
        informers: Mapping[str, Mapping[str, object]],
        *more: str,
        sync_timeout_s: float = 30,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = directory / "settings.toml"
        self.settings.write_text(settings_text(informers, sync_timeout_s))
        super().__init__(directory, "--settings", str(self.settings), *more, environment=environment)

    async def begin(self) -> None:
        """Starts it. Returns when it answers RMs and readers, ready or not."""
        self.process.start()

        async def listens() -> bool:
            assert self.process.running, await self.log()
            with suppress(OSError):
                for each in (self.grpc, self.http.removeprefix("http://")):
                    address, port = each.split(":")
                    _, writer = await asyncio.open_connection(address, int(port))
                    writer.close()
                return True
            return False

        await eventually(listens, f"{self.grpc} and {self.http} are listened at")

    async def ended(self) -> int:
        """Its exit code, when it has ended by itself. (One that no fork starts loads a thousand modules first.)"""
        async with asyncio.timeout(240):
            while self.process.running:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return self.process.stop()

    def rm(self, rm_id: str) -> Rm:
        return Rm(self.grpc, self.http, rm_id)

    async def health(self) -> str:
        async with _client(self.http) as http:
            return (await http.get("/health")).text

    async def source(self, rm_id: str, name: str) -> dict[str, Any]:
        """REST's answer about a source; {}: none."""
        found = [each for each in await get(self.http, "/ws/v1/external", rm=rm_id) if each["source"] == name]
        return found[0] if found else {}

    async def objects(self, rm_id: str, name: str) -> dict[str, dict[str, Any]]:
        """REST's answer about a source's objects, by id."""
        page = await get(self.http, f"/ws/v1/external/{name}", rm=rm_id)
        return {each["id"]: each for each in page["objects"]}

    async def log(self) -> str:
        return await asyncio.to_thread(self.process.log_file.read_text)


def settings_text(informers: Mapping[str, Mapping[str, object]], sync_timeout_s: float) -> str:
    lines = ["[log]", "partitions = 1", 'sqlite_synchronous = "normal"']
    lines += ["[scheduler.external]", f"sync_timeout_s = {sync_timeout_s}"]
    for name, table in informers.items():
        lines.append(f"[scheduler.external.informers.{name}]")
        # (JSON's texts, numbers and truths are TOML's.)
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    return "\n".join(lines)


class Rm:
    """An RM with nodes of its own, that asks for tasks of one core and remembers where they run.

    :ivar tasks: node by task, of those that run as far as it was told.
    """

    def __init__(self, grpc: str, http: str, rm_id: str) -> None:
        self._http, self.rm_id = http, rm_id
        self.tasks: dict[str, str] = {}
        self._asked, self._keys = 0, itertools.count()
        self._rejected: set[str] = set()
        callbacks = Callbacks(
            on_allocated=self._allocated, on_released=self._released, on_rejected_allocation=self._refused
        )
        self._client = RmClient(grpc, rm_id, config=QUEUES, callbacks=callbacks)

    async def __aenter__(self) -> Rm:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.__aexit__(None, None, None)

    async def joins(self, **cores: int) -> None:
        await self._client.register()
        await self.nodes(**cores)
        await self._client.send_applications([application("app", "root.work", user="me")])
        await self._client.applications_answered()

    async def nodes(self, *, action: si.NodeInfo.ActionFromRM.ValueType = si.NodeInfo.CREATE, **cores: int) -> None:
        if cores:
            size = {"memory": 1_000_000}
            infos = [node(name, {"vcore": count * 1_000, **size}, action=action) for name, count in cores.items()]
            await self._client.send_nodes(infos)
            await self._client.nodes_answered()

    async def asks(self, count: int) -> None:
        self._asked += count
        await self._client.send_asks([ask(f"task-{next(self._keys)}", "app", TASK) for _ in range(count)])

    async def heard_out(self) -> None:
        """Returns when everything that was asked before was taken in, and what was decided on it was told.

        (An ask of nobody's is rejected in its turn. Of two in a row, the second is so after all decisions on the first
        and on what was before.)
        """
        for _ in range(2):
            key = f"nobody-{next(self._keys)}"
            await self._client.send_asks([ask(key, "nobody", TASK)])

            async def is_so(key: str = key) -> bool:
                return key in self._rejected

            await eventually(is_so, f"{self.rm_id} is answered")

    async def ends(self, on: str) -> None:
        key = next(key for key, where in self.tasks.items() if where == on)
        await self._client.send_releases([release("app", key)])

        await eventually(lambda: key not in self.tasks, f"{key} has ended")

    async def settles(self) -> Counter[str]:
        """Tasks per node, once each requested task runs or is known to have no room."""

        async def all_told() -> bool:
            return await self._waiting() + len(self.tasks) == self._asked

        await eventually(all_told, f"{self.rm_id}: every task runs, or waits with a reason")
        return self.runs()

    async def fills(self, count: int) -> Counter[str]:
        """Asks for that many tasks. Returns the nodes of all its tasks."""
        await self.asks(count)
        return await self.settles()

    async def runs_all(self, **counts: int) -> None:
        """Waits until each node runs exactly that many tasks and the others are known to have no room."""
        await self.runs_now(**counts)
        assert await self.settles() == counts

    async def runs_now(self, **counts: int) -> None:
        """Waits until each node runs exactly that many tasks."""

        try:
            await eventually(lambda: self.runs() == counts, "")
        except AssertionError:
            assert self.runs() == counts

    def runs(self) -> Counter[str]:
        return Counter(self.tasks.values())

    async def _waiting(self) -> int:
        return len((await get(self._http, "/ws/v1/explain/pending", rm=self.rm_id))["pending"])

    async def node(self, name: str) -> dict[str, Any]:
        """REST's answer about a node; {}: unknown."""
        nodes = await get(self._http, "/ws/v1/partition/default/nodes", rm=self.rm_id)
        return next((each for each in nodes if each["nodeID"] == name), {})

    async def node_has(self, name: str, cores: int) -> dict[str, Any]:
        """Waits until REST shows a node with that capacity."""

        async def has() -> dict[str, Any] | None:
            shown = await self.node(name)
            return shown if shown and shown.get("capacity", {}).get("vcore", 0) == cores * 1_000 else None

        found: dict[str, Any] = await eventually(has, f"{name} of {self.rm_id} has {cores} cores")
        return found

    async def event(self, about: str, says: Callable[[str], bool]) -> list[str]:
        """Waits for an event about an object whose message is so, and returns all of these. (Events have a follower of
        their own.)
        """

        async def found() -> list[str]:
            with suppress(httpx.HTTPStatusError):  # 404: nothing was heard of the RM yet
                batch = await get(self._http, "/ws/v1/events/batch", rm=self.rm_id, count="10000")
                messages = [e.get("message", "") for e in batch["EventRecords"] or [] if e.get("objectID") == about]
                return [each for each in messages if says(each)]
            return []

        told: list[str] = await eventually(found, f"an event about {about}", every_s=0.05)
        return told

    def _allocated(self, items: Sequence[si.Allocation]) -> None:
        self.tasks.update({each.allocationKey: each.nodeID for each in items})

    def _refused(self, items: Sequence[Rejection]) -> None:
        self._rejected.update(each.allocation_key for each in items)

    def _released(self, items: Sequence[si.AllocationRelease]) -> None:
        for each in items:
            del self.tasks[each.allocationKey]
            self._asked -= 1


async def get(http: str, path: str, **query: str) -> Any:
    """REST's answer."""
    async with _client(http) as client:
        return (await answered(client, path, query)).raise_for_status().json()


def _client(http: str) -> httpx.AsyncClient:
    # (No certificates are read: that takes longer than an answer.)
    return httpx.AsyncClient(base_url=http, timeout=PATIENCE_S, verify=False)
