"""The VM manager alone: its inventory over HTTP, and what changes in it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from muster_example_vmhosts import manager as module

if TYPE_CHECKING:
    from conftest import Manager

HOST = {"cores": 8, "memory_mib": 16_384}
VM = {"host": "host-1", "cores": 2, "memory_mib": 2_048}


async def put(manager: Manager, path: str, body: Any) -> tuple[int, Any]:
    answer = await manager.http.put(path, json=body)
    return answer.status_code, answer.json()


async def changes(manager: Manager, after: str, wait_s: float = 0) -> Any:
    answer = await manager.http.get("/v1/changes", params={"after": after, "wait_s": wait_s})
    answer.raise_for_status()
    return answer.json()["changes"]


async def test_what_is_put_is_listed(manager: Manager) -> None:
    assert await put(manager, "/v1/hosts/host-1", HOST) == (200, {"name": "host-1", "maintenance": False, **HOST})
    assert await put(manager, "/v1/vms/db", VM) == (200, {"name": "db", "state": "running", **VM})
    listed = (await manager.http.get("/v1/inventory")).json()
    assert [host["name"] for host in listed["hosts"]] == ["host-1"]
    assert [vm["name"] for vm in listed["vms"]] == ["db"]


async def test_changes_after_a_cursor_come_in_order_each_with_its_own(manager: Manager) -> None:
    start = manager.inventory.cursor
    await put(manager, "/v1/hosts/host-1", HOST)
    await put(manager, "/v1/vms/db", VM)
    assert (await manager.http.delete("/v1/vms/db")).status_code == 200
    first, second, third = await changes(manager, start)
    assert [(each["type"], each["name"]) for each in (first, second, third)] == [
        ("host", "host-1"),
        ("vm", "db"),
        ("vm", "db"),
    ]
    assert third["what"] is None
    assert await changes(manager, second["cursor"]) == [third]
    assert await changes(manager, third["cursor"]) == []


async def test_a_question_for_changes_is_answered_when_there_is_one(manager: Manager) -> None:
    asked = asyncio.create_task(changes(manager, manager.inventory.cursor, wait_s=4))
    await asyncio.sleep(0.05)
    assert not asked.done()
    manager.inventory.put_host(module.Host(name="host-1", cores=1, memory_mib=1))
    assert [each["name"] for each in await asked] == ["host-1"]


@pytest.mark.parametrize("cursor", ["", "other-0", "{life}-2", "{life}-x"])
async def test_a_cursor_that_means_nothing_is_gone(manager: Manager, cursor: str) -> None:
    manager.inventory.put_host(module.Host(name="host-1", cores=1, memory_mib=1))
    answer = await manager.http.get("/v1/changes", params={"after": cursor.format(life=manager.inventory.life)})
    assert answer.status_code == 410
    assert manager.inventory.cursor in answer.json()["error"]


async def test_a_cursor_that_is_too_old_is_gone(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_CHANGES", 2)
    start = manager.inventory.cursor
    for cores in (1, 2, 3):
        manager.inventory.put_host(module.Host(name="host-1", cores=cores, memory_mib=1))
    assert (await manager.http.get("/v1/changes", params={"after": start})).status_code == 410


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/v1/vms/db", {**VM, "host": "host-9"}, 404, "host-9"),
        ("/v1/vms/db", {**VM, "cores": -1}, 400, "cores"),
        ("/v1/vms/db", {**VM, "state": "gone"}, 400, "state"),
        ("/v1/hosts/host-2", {"cores": 1}, 400, "memory_mib"),
        ("/v1/hosts/host-2", {**HOST, "colour": "red"}, 400, "colour"),
        ("/v1/hosts/host-2", [], 400, "object"),
    ],
)
async def test_bad_input_is_refused_and_changes_nothing(
    manager: Manager, path: str, body: Any, status: int, said: str
) -> None:
    await put(manager, "/v1/hosts/host-1", HOST)
    before = manager.inventory.cursor
    code, answer = await put(manager, path, body)
    assert code == status
    assert said in answer["error"]
    assert manager.inventory.cursor == before


async def test_a_host_goes_after_its_vms(manager: Manager) -> None:
    await put(manager, "/v1/hosts/host-1", HOST)
    await put(manager, "/v1/vms/db", VM)
    refused = await manager.http.delete("/v1/hosts/host-1")
    assert (refused.status_code, "db" in refused.json()["error"]) == (409, True)
    for path in ("/v1/vms/db", "/v1/hosts/host-1"):
        assert [(await manager.http.delete(path)).status_code for _ in range(2)] == [200, 404]


def test_an_inventory_to_begin_with() -> None:
    inventory = module.read_inventory('{"hosts": [{"name": "h", "cores": 1, "memory_mib": 2}], "vms": []}')
    assert inventory.hosts["h"].cores == 1
