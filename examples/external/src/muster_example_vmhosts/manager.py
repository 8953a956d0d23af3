"""A small VM manager: hosts, the VMs on them, and a JSON API. Everything is in memory.

It stands for whatever runs VMs in your house, and like that it has never heard of Muster.

==========================================  ===========================================================================
``GET /v1/inventory``                       everything, and the cursor from which changes go on
``GET /v1/changes?after=CURSOR&wait_s=S``   what changed after the cursor, each with its own; waits up to S seconds
                                            for the first; 410 when the cursor is too old, or of another life
``PUT /v1/hosts/NAME``                      a host: {"cores", "memory_mib", "maintenance"}
``DELETE /v1/hosts/NAME``                   409 while VMs are on it
``PUT /v1/vms/NAME``                        a VM: {"host", "cores", "memory_mib", "state": "planned" or "running"}
``DELETE /v1/vms/NAME``                     it ended
==========================================  ===========================================================================

A VM is *planned* before it runs: it counts from then on, so that nobody takes its place while it is looked whether
there is room for it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import uuid
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import Any, NamedTuple

import uvicorn
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

KEPT_CHANGES = 1_000
WAIT_S_MAX = 30.0


class VmState(StrEnum):
    """How far a VM is."""

    PLANNED = "planned"
    RUNNING = "running"


class Host(BaseModel):
    """A machine with a hypervisor.

    :param maintenance: it takes nothing new.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    cores: int = Field(ge=0)
    memory_mib: int = Field(ge=0)
    maintenance: bool = False


class Vm(BaseModel):
    """A VM on a host."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    host: str
    cores: int = Field(ge=0)
    memory_mib: int = Field(ge=0)
    state: VmState = VmState.RUNNING


class Change(NamedTuple):
    """One change of the inventory.

    :param cursor: after it.
    :param what: the whole of it; None: it is gone.
    """

    cursor: str
    type: str
    name: str
    what: Host | Vm | None


class NotFound(Exception):
    """There is nothing of that name."""


class InUse(Exception):
    """VMs are on the host."""


class CursorGone(Exception):
    """What changed after that cursor is not known any more, or never was."""


class Inventory:
    """What there is, and what changed last.

    :ivar life: of this process: a cursor of another one means nothing here.
    """

    def __init__(self) -> None:
        self.life = uuid.uuid4().hex[:8]
        self.hosts: dict[str, Host] = {}
        self.vms: dict[str, Vm] = {}
        self._revision = 0
        self._changes: list[Change] = []
        self._changed = asyncio.Event()

    @property
    def cursor(self) -> str:
        """After the newest change."""
        return f"{self.life}-{self._revision}"

    def put_host(self, host: Host) -> None:
        """A host, new or other than before."""
        self.hosts[host.name] = host
        self._tell("host", host.name, host)

    def put_vm(self, vm: Vm) -> None:
        """A VM, new or other than before. Raises NotFound: there is no such host."""
        if vm.host not in self.hosts:
            raise NotFound(f"host {vm.host!r}: expected one of: {', '.join(sorted(self.hosts)) or 'there is none'}")
        self.vms[vm.name] = vm
        self._tell("vm", vm.name, vm)

    def drop_host(self, name: str) -> None:
        """Raises NotFound, InUse."""
        if there := sorted(vm.name for vm in self.vms.values() if vm.host == name):
            raise InUse(f"host {name!r}: VMs are on it: {', '.join(there)}")
        if self.hosts.pop(name, None) is None:
            raise NotFound(f"there is no host {name!r}")
        self._tell("host", name, None)

    def drop_vm(self, name: str) -> None:
        """Raises NotFound."""
        if self.vms.pop(name, None) is None:
            raise NotFound(f"there is no VM {name!r}")
        self._tell("vm", name, None)

    def after(self, cursor: str) -> list[Change]:
        """What changed after a cursor. Raises CursorGone."""
        life, _, revision = cursor.rpartition("-")
        oldest = self._revision - len(self._changes)
        if life != self.life or not revision.isdecimal() or not oldest <= int(revision) <= self._revision:
            raise CursorGone(f"cursor {cursor!r}: expected one from {self.life}-{oldest} to {self.cursor}")
        return self._changes[int(revision) - oldest :]

    async def changed(self) -> None:
        """Returns at the next change."""
        await self._changed.wait()

    def _tell(self, kind: str, name: str, what: Host | Vm | None) -> None:
        self._revision += 1
        self._changes = [*self._changes, Change(self.cursor, kind, name, what)][-KEPT_CHANGES:]
        self._changed.set()
        self._changed = asyncio.Event()


def make_app(inventory: Inventory) -> Starlette:
    """The JSON API over an inventory."""

    async def listing(_: Request) -> JSONResponse:
        return JSONResponse(
            {
                "cursor": inventory.cursor,
                "hosts": [host.model_dump() for host in inventory.hosts.values()],
                "vms": [vm.model_dump() for vm in inventory.vms.values()],
            }
        )

    async def changes(request: Request) -> JSONResponse:
        cursor, wait_s = request.query_params.get("after", ""), _wait_s(request.query_params.get("wait_s", "0"))
        if not inventory.after(cursor):
            with suppress(TimeoutError):
                await asyncio.wait_for(inventory.changed(), wait_s)
        found = inventory.after(cursor)
        told = [{**change._asdict(), "what": change.what and change.what.model_dump()} for change in found]
        return JSONResponse({"changes": told})

    async def put_host(request: Request) -> JSONResponse:
        host = Host.model_validate({**await _body(request), "name": request.path_params["name"]})
        inventory.put_host(host)
        return JSONResponse(host.model_dump())

    async def put_vm(request: Request) -> JSONResponse:
        vm = Vm.model_validate({**await _body(request), "name": request.path_params["name"]})
        inventory.put_vm(vm)
        return JSONResponse(vm.model_dump())

    async def drop_host(request: Request) -> JSONResponse:
        inventory.drop_host(request.path_params["name"])
        return JSONResponse({})

    async def drop_vm(request: Request) -> JSONResponse:
        inventory.drop_vm(request.path_params["name"])
        return JSONResponse({})

    return Starlette(
        routes=[
            Route("/v1/inventory", listing),
            Route("/v1/changes", changes),
            Route("/v1/hosts/{name}", put_host, methods=["PUT"]),
            Route("/v1/hosts/{name}", drop_host, methods=["DELETE"]),
            Route("/v1/vms/{name}", put_vm, methods=["PUT"]),
            Route("/v1/vms/{name}", drop_vm, methods=["DELETE"]),
        ],
        exception_handlers={
            ValidationError: _refused(400),
            HTTPException: _refused(400),
            NotFound: _refused(404),
            InUse: _refused(409),
            CursorGone: _refused(410),
        },
    )


async def _body(request: Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError as error:
        raise HTTPException(400, f"body: expected JSON: {error}") from error
    if not isinstance(body, dict):
        raise HTTPException(400, f"body {body!r}: expected an object")
    return body


def _wait_s(text: str) -> float:
    with suppress(ValueError):
        if float(text) >= 0:
            return min(float(text), WAIT_S_MAX)
    raise HTTPException(400, f"wait_s {text!r}: expected seconds, 0 or more")


def _refused(status: int) -> Callable[[Request, Exception], JSONResponse]:
    def answer(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, HTTPException):
            return JSONResponse({"error": error.detail}, status_code=error.status_code)
        return JSONResponse({"error": str(error)}, status_code=status)

    return answer


def read_inventory(text: str) -> Inventory:
    """{"hosts": [...], "vms": [...]} with their names, as the JSON API gives them."""
    inventory, given = Inventory(), json.loads(text)
    for host in given.get("hosts", []):
        inventory.put_host(Host.model_validate(host))
    for vm in given.get("vms", []):
        inventory.put_vm(Vm.model_validate(vm))
    return inventory


def main() -> None:
    """Serves an inventory until it is interrupted."""
    parser = argparse.ArgumentParser(prog="example-vm-manager", description="A small VM manager.")
    parser.add_argument("--port", type=int, default=7080, help="of 127.0.0.1 [%(default)s]")
    parser.add_argument("--inventory", default="{}", help="JSON: hosts and VMs to begin with [%(default)s]")
    arguments = parser.parse_args()
    app = make_app(read_inventory(arguments.inventory))
    # Long polls that are open do not keep it from ending.
    uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="warning", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main()
