"""The informer against a real VM manager: documents, changes, and what goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from muster_bus.clock import SystemClock
from muster_example_vmhosts.informer import MAINTENANCE, VM_STATE, VmHosts, make_informer
from muster_example_vmhosts.manager import Host, Vm
from muster_informers.plugin import (
    ChangeType,
    CursorExpired,
    InformerContext,
    InformerSettingsWrong,
    SourceSaysNonsense,
    SourceUnavailable,
    read_document,
)

if TYPE_CHECKING:
    from conftest import Manager

CONTEXT = InformerContext("vmhosts", SystemClock())


@pytest.fixture
async def source(served: Manager) -> Any:
    made = make_informer({"url": str(served.http.base_url), "wait_s": 0.05}, CONTEXT)
    yield made
    await made.close()


def furnish(served: Manager) -> None:
    served.inventory.put_host(Host(name="host-1", cores=8, memory_mib=1_024, maintenance=True))
    served.inventory.put_vm(Vm(name="db", host="host-1", cores=2, memory_mib=512))


async def test_hosts_and_vms_are_listed_as_nodes_and_allocations(served: Manager, source: VmHosts) -> None:
    furnish(served)
    listing = await source.list()
    node, vm = (read_document(document).what for document in listing.documents)
    assert (node.node_id, node.capacity, node.whole) == ("host-1", {"vcore": 8_000, "memory": 2**30}, True)
    assert node.attributes == {MAINTENANCE: "true"}
    assert (vm.key, vm.node_id, vm.quantities) == ("db", "host-1", {"vcore": 2_000, "memory": 2**29})
    assert vm.tags == {VM_STATE: "running"}
    assert listing.cursor == served.inventory.cursor


async def test_what_changes_is_told_and_silence_too(served: Manager, source: VmHosts) -> None:
    watch = source.watch((await source.list()).cursor)
    assert await anext(watch) == []
    furnish(served)
    served.inventory.drop_vm("db")
    deltas = list(await anext(watch))
    assert [(each.type, each.document["kind"], each.document["id"]) for each in deltas] == [
        (ChangeType.MODIFIED, "node", "host-1"),
        (ChangeType.MODIFIED, "allocation", "db"),
        (ChangeType.DELETED, "allocation", "db"),
    ]
    assert deltas[-1].cursor == served.inventory.cursor
    assert await anext(watch) == []


async def test_a_watch_that_broke_off_goes_on_where_it_was(served: Manager, source: VmHosts) -> None:
    watch = source.watch((await source.list()).cursor)
    furnish(served)
    first, second = await anext(watch)
    assert await anext(source.watch(first.cursor)) == [second]


async def test_a_manager_that_started_again_has_to_be_listed_again(served: Manager, source: VmHosts) -> None:
    listing = await source.list()
    served.inventory.life = "other"
    with pytest.raises(CursorExpired):
        await anext(source.watch(listing.cursor))


async def test_a_manager_that_is_away_is_unavailable() -> None:
    source = make_informer({"url": "http://127.0.0.1:9"}, CONTEXT)
    with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.1:9"):
        await source.list()
    await source.close()


async def test_answers_that_are_no_inventory_are_nonsense(
    served: Manager, source: VmHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Host, "model_dump", lambda _: {"name": "host-1"})
    furnish(served)
    with pytest.raises(SourceSaysNonsense, match="cores"):
        await source.list()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "url: expected"),
        ({"url": "vm-manager:7080"}, "url: expected"),
        ({"url": "http://x", "wait_s": 0}, "wait_s 0: expected"),
        ({"url": "http://x", "wait_s": "5"}, "wait_s '5': expected"),
        ({"url": "http://x", "wait": 5}, "wait: is no option"),
    ],
)
def test_options_that_cannot_be_used(options: Mapping[str, object], said: str) -> None:
    with pytest.raises(InformerSettingsWrong) as raised:
        make_informer(options, CONTEXT)
    assert "informer vmhosts: " in str(raised.value)
    assert said in str(raised.value)


def test_what_is_wrong_with_a_url_does_not_tell_its_password() -> None:
    with pytest.raises(InformerSettingsWrong) as raised:
        make_informer({"url": "ftp://me:secret@vms"}, CONTEXT)
    assert "secret" not in str(raised.value)
