"""`muster up` with an event handler of the RM's own objects, and an RM that keeps its answers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from e2e.external_rig import QUEUES
from muster_client import Callbacks, RmClient, application, ask, node
from muster_client.builders import previous_ask
from muster_proto.si.v1 import si_pb2 as si
from up import Up
from waiting import eventually

RM = "my-cluster"
CORE, MEMORY = 1_000, 1 << 30


class NativeUp(Up):
    """A `muster up` with an event handler.

    :param settings: text of the settings' file; the rig adds partitions and pace of the log.
    :param path: directory of plugins.
    """

    def __init__(self, directory: Path, settings: str, path: Path, *more: str) -> None:
        file = directory / "settings.toml"
        file.write_text(f'[log]\npartitions = 1\nsqlite_synchronous = "normal"\n{settings}')
        super().__init__(directory, "--settings", str(file), *more, environment={**os.environ, "PYTHONPATH": str(path)})

    def informers_pid(self, times: int = 1) -> int:
        """Return the pid of the last started informers' process; 0: not started that often yet."""
        lines = [line for line in self.process.log_file.read_text().splitlines() if line.startswith("{")]
        begun = "the informers' process was started"
        pids = [said["pid"] for line in lines if (said := json.loads(line))["event"] == begun]
        return int(pids[-1]) if len(pids) >= times else 0

    async def get(self, path: str, **query: str) -> Any:
        async with httpx.AsyncClient(base_url=self.http, timeout=60, verify=False) as http:
            return (await http.get(path, params={"rm": RM, **query})).raise_for_status().json()

    async def health(self) -> str:
        async with httpx.AsyncClient(base_url=self.http, timeout=60, verify=False) as http:
            return (await http.get("/health")).text

    async def nodes(self) -> dict[str, dict[str, Any]]:
        return {each["nodeID"]: each for each in await self.get("/ws/v1/partition/default/nodes")}

    async def free_cores(self, *names: str) -> list[int]:
        nodes = await self.nodes()
        return [nodes[name]["available"]["vcore"] // CORE if name in nodes else -1 for name in names]


class Rm:
    """An RM of either generation of the interface.

    :ivar refused: the last rejection's reason, by id.
    :ivar runs: node of each allocation, by key.
    """

    def __init__(self, up: Up, generation: str = "current") -> None:
        self.refused: dict[str, str] = {}
        self.accepted: set[str] = set()
        self.runs: dict[str, str] = {}
        self._previous = generation == "previous"
        callbacks = Callbacks(
            on_allocated=lambda made: self.runs.update({each.allocationKey: each.nodeID for each in made}),
            on_rejected_allocation=lambda said: self.refused.update(
                {each.allocation_key: each.reason for each in said}
            ),
            on_node=self._on_node,
            on_application=self._on_application,
        )
        self.client = RmClient(up.grpc, RM, config=QUEUES, callbacks=callbacks)

    async def __aenter__(self) -> Rm:
        await self.client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.__aexit__(None, None, None)

    def _on_node(self, accepted: Any, rejected: Any) -> None:
        self.accepted.update(each.nodeID for each in accepted)
        self.refused.update({each.nodeID: each.reason for each in rejected})

    def _on_application(self, accepted: Any, rejected: Any, _updated: Any) -> None:
        self.accepted.update(each.applicationID for each in accepted)
        self.refused.update({each.applicationID: each.reason for each in rejected})

    async def node(
        self,
        name: str,
        cores: int,
        action: si.NodeInfo.ActionFromRM.ValueType = si.NodeInfo.CREATE,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        """Send a change of a node, and wait for the answer."""
        self._forget(name)
        size = {"vcore": cores * CORE, "memory": 64 * MEMORY}
        await self.client.send_nodes([node(name, size, action=action, attributes=attributes)])
        await self._answered(name)

    async def application(self, name: str, user: str = "me", **tags: str) -> None:
        self._forget(name)
        await self.client.send_applications([application(name, "root.work", user=user, tags=tags)])
        await self._answered(name)

    async def ask(self, key: str, app: str, cores: int) -> None:
        size = {"vcore": cores * CORE}
        await self.client.send_asks([previous_ask(key, app, size) if self._previous else ask(key, app, size)])

    async def runs_all(self, *keys: str) -> None:
        await eventually(lambda: self.runs.keys() >= set(keys), f"{keys} run")

    def _forget(self, name: str) -> None:
        self.accepted.discard(name)
        self.refused.pop(name, None)

    async def _answered(self, name: str) -> None:
        await eventually(lambda: name in self.accepted or name in self.refused, f"{name} is answered")


def install(place: Path, name: str, source: str, **entry_points: str) -> None:
    """Install a plugin of one module with the metadata of a package, so that its entry points are found."""
    (place / f"{name}.py").write_text(source)
    metadata = place / f"{name}-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    groups = [f"[muster.{group}]\n{value}\n" for group, value in entry_points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(groups))
