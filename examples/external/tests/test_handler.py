"""The event handler with a cache that remembers: what hosts and VMs become."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest
from muster_bus.clock import SystemClock
from muster_example_vmhosts.handler import make_handler
from muster_example_vmhosts.informer import MAINTENANCE, make_informer
from muster_informers.plugin import (
    ExternalAllocation,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalPool,
    HandlerContext,
    HandlerSettingsWrong,
)

CONFIG = b"""
[kept_per_host]
vcore = 500
[added_per_vm]
memory = 100
"""
CONTEXT = HandlerContext("vmhosts", SystemClock())
HOST = ExternalNode("host-1", {"vcore": 8_000, "memory": 1_000}, attributes={MAINTENANCE: "false"}, whole=True)
VM = ExternalAllocation("db", "host-1", {"vcore": 2_000, "memory": 300})


class Cache:
    """The objects that a handler put there, as an ExternalCache takes them."""

    source = "vmhosts"

    def __init__(self) -> None:
        self.put_last: ExternalObject | None = None
        self.gone: list[tuple[ExternalKind, str]] = []

    def put(self, what: ExternalObject) -> None:
        self.put_last = what

    def delete(self, kind: ExternalKind, object_id: str) -> None:
        self.gone.append((kind, object_id))

    def distrust(self, kind: ExternalKind, object_id: str) -> None:
        raise AssertionError("distrusts nothing")


def test_a_host_is_a_node_without_what_its_hypervisor_keeps() -> None:
    cache = Cache()
    make_handler(cache, CONFIG, CONTEXT).add_node(HOST, initial=True)
    assert isinstance(cache.put_last, ExternalNode)
    assert cache.put_last.capacity == {"vcore": 7_500, "memory": 1_000}
    assert cache.put_last.schedulable
    assert cache.put_last.whole


def test_a_host_smaller_than_what_is_kept_has_nothing() -> None:
    cache = Cache()
    make_handler(cache, CONFIG, CONTEXT).add_node(ExternalNode("host-1", {"vcore": 100}), initial=False)
    assert isinstance(cache.put_last, ExternalNode)
    assert cache.put_last.capacity == {"vcore": 0}


def test_a_host_in_maintenance_takes_nothing_new() -> None:
    cache = Cache()
    handler = make_handler(cache, CONFIG, CONTEXT)
    handler.update_node(HOST, ExternalNode("host-1", {"vcore": 8_000}, attributes={MAINTENANCE: "true"}))
    assert isinstance(cache.put_last, ExternalNode)
    assert not cache.put_last.schedulable
    handler.update_node(HOST, HOST)
    assert cache.put_last.schedulable


def test_a_vm_takes_what_its_hypervisor_adds_too() -> None:
    cache = Cache()
    handler = make_handler(cache, CONFIG, CONTEXT)
    handler.add_allocation(VM, initial=False)
    assert isinstance(cache.put_last, ExternalAllocation)
    assert cache.put_last.quantities == {"vcore": 2_000, "memory": 400}
    handler.update_allocation(VM, ExternalAllocation("db", "host-1", {"vcore": 1_000}))
    assert cache.put_last.quantities == {"vcore": 1_000, "memory": 100}


def test_the_rest_is_as_the_default_handler_has_it() -> None:
    cache = Cache()
    handler = make_handler(cache, None, CONTEXT)
    handler.add_pool(ExternalPool("licence", 5), initial=True)
    assert cache.put_last == ExternalPool("licence", 5)
    handler.delete_node(HOST)
    handler.delete_allocation(VM)
    assert cache.gone == [(ExternalKind.NODE, "host-1"), (ExternalKind.ALLOCATION, "db")]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (b"{", "expected TOML"),
        (b"\xff", "expected TOML"),
        (b"[kept]\nvcore = 1", "kept: is not known"),
        (b"kept_per_host = 1", "kept_per_host 1: expected a table"),
        (b"[added_per_vm]\nvcore = -1", "added_per_vm.vcore -1: expected"),
        (b"[added_per_vm]\nvcore = '1'", "added_per_vm.vcore '1': expected"),
        (b"[added_per_vm]\nvcore = true", "added_per_vm.vcore True: expected"),
    ],
)
def test_a_configuration_that_cannot_be_used(config: bytes, said: str) -> None:
    with pytest.raises(HandlerSettingsWrong) as raised:
        make_handler(Cache(), config, CONTEXT)
    assert said in str(raised.value)


def test_it_has_no_options() -> None:
    with pytest.raises(HandlerSettingsWrong, match="handler_size"):
        make_handler(Cache(), None, HandlerContext("vmhosts", SystemClock(), {"size": 1}))


def test_the_file_beside_the_example_can_be_used() -> None:
    make_handler(Cache(), Path(__file__).parents[1].joinpath("vm-hosts.toml").read_bytes(), CONTEXT)


def test_muster_finds_both_by_their_names() -> None:
    (informer,) = entry_points(group="muster.informers", name="vmhosts")
    (handler,) = entry_points(group="muster.event_handlers", name="vm-hosts")
    assert (informer.load(), handler.load()) == (make_informer, make_handler)
