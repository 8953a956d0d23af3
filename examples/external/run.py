"""VMs and containers on the same hosts, each started by a manager that knows nothing of the other.

Starts a VM manager, a Muster with this plugin, and a resource manager (RM) with a node of its own. Containers are
asked for while VMs start and end and a host goes into maintenance. After each act there is a table of the hosts. It
ends with 1 if a host was ever asked for more than it has.

    make example-external                     installs the plugin and runs this
    python examples/external/run.py           the same, where the plugin is installed
    python examples/external/run.py --blind   without the informer, to see what becomes of the hosts then
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
from muster_client import Callbacks, RmClient, application, ask, node
from muster_example_vmhosts.handler import read_overheads
from muster_replay.local_process import LocalProcess, free_ports, muster_command
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
TIMEOUT_S = 180.0  # on a machine that has other work; about ten seconds otherwise
POLL_S = 0.05

OVERHEADS = HERE / "vm-hosts.toml"
RM_ID, SOURCE = "containers", "vmhosts"
MIB = 2**20

# The RM's own node, and the VM manager's hosts. Containers may run on all of them, VMs on hosts only. The RM knows
# host-1 too: its agent runs there. It sees all of the host's cores and none of its VMs.
RM_NODE, SHARED = "rm-1", "host-1"
CORES = {RM_NODE: 4, SHARED: 8, "host-2": 8, "host-3": 8}
MEMORY_MIB = 16_384
INVENTORY: dict[str, list[dict[str, Any]]] = {
    "hosts": [{"name": name, "cores": CORES[name], "memory_mib": MEMORY_MIB} for name in CORES if name != RM_NODE],
    "vms": [
        {"name": "db-1", "host": "host-1", "cores": 4, "memory_mib": 4_096},
        {"name": "web-1", "host": "host-2", "cores": 2, "memory_mib": 2_048},
    ],
}
CONTAINER = {"vcore": 1_000, "memory": 512 * MIB}

QUEUES = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - name: work
"""


class WentWrong(Exception):
    """What the example promises does not hold."""


class Hosts:
    """What really runs where: VMs that were started, containers as the RM was told. Neither manager sees all of this.

    :ivar broken: in words, the first time that a host was asked for more than it has; "" while that never was.
    """

    def __init__(self) -> None:
        self.vms: dict[str, dict[str, Any]] = {vm["name"]: vm for vm in INVENTORY["vms"]}
        self.containers: dict[str, str] = {}
        self.maintenance = ""
        self.broken = ""
        self._overheads = read_overheads(OVERHEADS.read_bytes())

    def uses(self, name: str) -> dict[str, Counter[str]]:
        """Of a host, who uses how much."""
        vms, containers, hypervisor = Counter[str](), Counter[str](), Counter[str]()
        for vm in self.vms.values():
            if vm["host"] == name:
                vms.update({"vcore": vm["cores"] * 1_000, "memory": vm["memory_mib"] * MIB})
                hypervisor.update(self._overheads.added_per_vm)
        for where in self.containers.values():
            if where == name:
                containers.update(CONTAINER)
        if name != RM_NODE:
            hypervisor.update(self._overheads.kept_per_host)
        return {"hypervisor": hypervisor, "VMs": vms, "containers": containers}

    def check(self) -> None:
        """To be called whenever something started."""
        for name, cores in CORES.items():
            uses = self.uses(name)
            for kind, has in (("vcore", cores * 1_000), ("memory", MEMORY_MIB * MIB)):
                if not self.broken and sum(used[kind] for used in uses.values()) > has:
                    shares = ", ".join(f"{who} {used[kind]}" for who, used in uses.items())
                    self.broken = f"{name} has {has} of {kind} and is asked for more: {shares}"

    def table(self, title: str) -> Table:
        """A row for each host, in cores."""
        table = Table(title=title, title_justify="left", title_style="bold", min_width=88)
        for heading in ("host", "VMs"):
            table.add_column(heading)
        for heading in ("cores", "hypervisor", "VMs", "containers", "free"):
            table.add_column(heading, justify="right")
        for name, cores in CORES.items():
            used = [each["vcore"] // 1_000 for each in self.uses(name).values()]
            free = cores - sum(used)
            vms = ", ".join(vm["name"] for vm in self.vms.values() if vm["host"] == name)
            note = " (maintenance)" if name == self.maintenance else ""
            shown = f"[bold red]{free}[/]" if free < 0 else str(free)
            table.add_row(name + note, vms, *map(str, (cores, *used)), shown)
        return table


class Play:
    """The acts.

    :param blind: there is no informer. Then the RM is told of all hosts, since nobody else tells of them.
    """

    def __init__(self, rm: RmClient, manager: httpx.AsyncClient, rest: httpx.AsyncClient, hosts: Hosts, blind: bool):
        self._rm, self._manager, self._rest, self._hosts, self._blind = rm, manager, rest, hosts, blind
        self._console = Console(width=100, highlight=False)
        self._asked = 0

    async def run(self) -> None:
        await self._rm.register()
        known = list(CORES) if self._blind else [RM_NODE, SHARED]
        size = {name: {"vcore": CORES[name] * 1_000, "memory": MEMORY_MIB * MIB} for name in known}
        await self._rm.send_nodes([node(name, size[name]) for name in known])
        await self._rm.nodes_answered()
        await self._rm.send_applications([application("app-1", "root.work", user="me")])
        await self._rm.applications_answered()
        await until(self._all_hosts_known, "the scheduler knows all hosts")
        self._show("1. VMs run already")

        await self._ask(8)
        await until(lambda: len(self._hosts.containers) == 8, "8 containers run")
        self._show("2. Containers around the VMs: 8 were asked for")

        more = asyncio.create_task(self._ask(18, pause_s=0.1))
        for vm, cores in (("db-2", 2), ("ci-1", 3), ("ci-2", 2)):
            await self._start_vm(vm, cores)
        await more
        await until(self._settled, "each container runs, or waits with a reason")
        self._show(f"3. VMs started while 18 more containers were asked for; {self._waiting} wait for room")

        await self._maintain("host-3")
        await until(self._settled, "each container runs, or waits with a reason")
        there = self._hosts.uses("host-3")["containers"]
        await self._end_vm("db-1", 4)
        self._show(f"4. host-3 is in maintenance, db-1 has ended; {self._waiting} containers wait")
        if self._hosts.uses("host-3")["containers"] != there:
            raise WentWrong("host-3 took a container while it was in maintenance")
        if not self._blind:
            await self._tell_rule()

    # ---- containers ----------------------------------------------------------------------------------------------

    @property
    def _waiting(self) -> int:
        return self._asked - len(self._hosts.containers)

    async def _ask(self, count: int, pause_s: float = 0.0) -> None:
        for _ in range(count):
            self._asked += 1
            await self._rm.send_asks([ask(f"container-{self._asked}", "app-1", CONTAINER)])
            await asyncio.sleep(pause_s)

    async def _settled(self) -> bool:
        known: list[object] = (await self._get("/ws/v1/explain/pending"))["pending"]
        return len(known) == self._waiting

    # ---- VMs -----------------------------------------------------------------------------------------------------

    async def _start_vm(self, name: str, cores: int) -> None:
        """Plans a VM, looks whether it fits beside everything else that the scheduler knows of, and only then runs it.

        From the plan on it counts, so no container takes its room between the look and the start.
        """
        for host in (each["name"] for each in INVENTORY["hosts"]):
            vm = {"host": host, "cores": cores, "memory_mib": 1_024}
            if not self._vms_fit(vm):
                continue
            await self._put(f"/v1/vms/{name}", {**vm, "state": "planned"})
            if self._blind or await self._room_for(name, host):
                await self._put(f"/v1/vms/{name}", {**vm, "state": "running"})
                self._hosts.vms[name] = {"name": name, **vm}
                self._hosts.check()
                self._console.print(f"   {name} ({cores} cores) starts on {host}")
                return
            await self._delete(f"/v1/vms/{name}")
        self._console.print(f"   {name} ({cores} cores) is not started: there is no room for it")

    def _vms_fit(self, vm: dict[str, Any]) -> bool:
        """What a VM manager can say by itself: whether its host has room beside hypervisor and VMs."""
        host: str = vm["host"]
        wanted: int = vm["cores"] * 1_000
        uses = self._hosts.uses(host)
        return uses["hypervisor"]["vcore"] + uses["VMs"]["vcore"] + wanted <= CORES[host] * 1_000

    async def _room_for(self, vm: str, host: str) -> bool:
        """Whether the host holds all that is on it, now that the scheduler knows of the planned VM."""
        await until(lambda: self._on_host(vm, host), f"the scheduler knows of {vm} on {host}")
        free: dict[str, int] = (await self._node(host))["available"]
        return min(free.values()) >= 0

    async def _end_vm(self, name: str, cores: int) -> None:
        host = self._hosts.vms[name]["host"]
        wanted = len(self._hosts.containers) + min(cores, self._waiting)
        await self._delete(f"/v1/vms/{name}")
        del self._hosts.vms[name]
        await until(lambda: len(self._hosts.containers) >= wanted, f"containers use what {name} left on {host}")
        await until(self._settled, "each container runs, or waits with a reason")

    async def _maintain(self, host: str) -> None:
        self._hosts.maintenance = host
        await self._put(f"/v1/hosts/{host}", {"cores": CORES[host], "memory_mib": MEMORY_MIB, "maintenance": True})

        async def takes_nothing() -> bool:
            return not (await self._node(host))["schedulable"]

        if not self._blind:
            await until(takes_nothing, f"the scheduler knows that {host} is in maintenance")

    # ---- what the scheduler says ---------------------------------------------------------------------------------

    async def _all_hosts_known(self) -> bool:
        nodes: set[str] = {each["nodeID"] for each in await self._get("/ws/v1/partition/default/nodes")}
        seen = self._blind or all([await self._on_host(vm["name"], vm["host"]) for vm in INVENTORY["vms"]])
        return seen and nodes.issuperset(CORES)

    async def _on_host(self, vm: str, host: str) -> bool:
        foreign: list[dict[str, Any]] = (await self._node(host)).get("foreignAllocations") or []
        return any(each["allocationKey"] == f"{SOURCE}/{vm}" for each in foreign)

    async def _node(self, name: str) -> dict[str, Any]:
        return next((each for each in await self._get("/ws/v1/partition/default/nodes") if each["nodeID"] == name), {})

    async def _tell_rule(self) -> None:
        """The event that says by which rule host-1's two sizes became one."""
        events: list[dict[str, Any]] = (await self._get("/ws/v1/events/batch"))["EventRecords"] or []
        messages = [each.get("message", "") for each in events if each["objectID"] == SHARED]
        rule = next((each for each in messages if f"source {SOURCE} says" in each), "")
        if not rule:
            raise WentWrong(f"no event says which of the two sizes of {SHARED} counts")
        self._console.print(f"\nAn event says why {SHARED} has the size it has: {rule}", soft_wrap=True)

    def _show(self, title: str) -> None:
        self._console.print("", self._hosts.table(title), sep="\n")
        if self._hosts.broken:
            raise WentWrong(self._hosts.broken)

    async def _get(self, path: str) -> Any:
        return (await self._rest.get(path, params={"rm": RM_ID})).raise_for_status().json()

    async def _put(self, path: str, body: dict[str, Any]) -> None:
        (await self._manager.put(path, json=body)).raise_for_status()

    async def _delete(self, path: str) -> None:
        (await self._manager.delete(path)).raise_for_status()


async def until(holds: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    """Asks until it holds; the whole run has a time-out."""
    while True:
        answer = holds()
        if answer if isinstance(answer, bool) else await answer:
            return
        await asyncio.sleep(POLL_S)


async def main(blind: bool) -> None:
    manager_port, grpc_port, http_port = free_ports(3)
    hosts = Hosts()

    def on_allocated(allocations: Any) -> None:
        hosts.containers.update({each.allocationKey: each.nodeID for each in allocations})
        hosts.check()

    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        manager_url = f"http://127.0.0.1:{manager_port}"
        vm_manager = [sys.executable, "-m", "muster_example_vmhosts.manager", "--port", str(manager_port)]
        settings = directory / "settings.toml"
        settings.write_text("" if blind else SETTINGS.format(source=SOURCE, rm=RM_ID, url=manager_url))
        addresses = ["--grpc-address", f"127.0.0.1:{grpc_port}", "--http-address", f"127.0.0.1:{http_port}"]
        handler = ["--event-handler", "vm-hosts", "--config-path", str(OVERHEADS)]
        muster = ["up", "--data-dir", str(directory / "data"), "--settings", str(settings), *addresses, *handler]

        first = LocalProcess([*vm_manager, "--inventory", json.dumps(INVENTORY)], directory / "vm-manager.log")
        second = LocalProcess(muster_command(*muster), directory / "muster.log")
        for process in (first, second):
            stack.callback(process.stop)
            process.start()
        await second.serving(f"127.0.0.1:{grpc_port}")

        http = [httpx.AsyncClient(base_url=url) for url in (manager_url, f"http://127.0.0.1:{http_port}")]
        manager, rest = [await stack.enter_async_context(client) for client in http]
        callbacks = Callbacks(on_allocated=on_allocated)
        rm = RmClient(f"127.0.0.1:{grpc_port}", RM_ID, config=QUEUES, callbacks=callbacks)
        await Play(await stack.enter_async_context(rm), manager, rest, hosts, blind).run()


SETTINGS = """
[scheduler.external.informers.{source}]
kind = "vmhosts"
rm = "{rm}"
url = "{url}"
wait_s = 2.0
stale_after_s = 10.0
"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="VMs and containers on the same hosts.")
    parser.add_argument("--blind", action="store_true", help="without the informer")
    try:
        asyncio.run(asyncio.wait_for(main(parser.parse_args().blind), TIMEOUT_S))
    except (WentWrong, TimeoutError) as wrong:
        sys.exit(f"\nnot as promised: {wrong or 'it took too long'}")
    print("\nall as promised: at no time was a host asked for more than it has")
