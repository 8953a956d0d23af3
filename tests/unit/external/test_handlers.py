"""The handlers that come with Muster, and their statements in the cache."""

from __future__ import annotations

from typing import Any

import pytest
from manual_clock import ManualClock
from muster_core.external.errors import HandlerSettingsWrong, NotTaken
from muster_core.external.model import (
    ExternalAllocation,
    ExternalApplication,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
    id_of,
    kind_of,
)
from muster_informers.contract import EventHandler, HandlerContext
from muster_informers.handlers import default, two_level
from muster_informers.handlers.base import BaseEventHandler

SECOND = 10**9
EVERY: tuple[ExternalObject, ...] = (
    ExternalNode("h1"),
    ExternalAllocation("vm", "h1", {"vcore": 1}),
    ExternalQueue("root.a", {}),
    ExternalApplication("app", "root.a"),
    ExternalOffer("o", "h1", {"vcore": 1}),
    ExternalPool("licence", 3),
)


class Cache:
    source = "vms"

    def __init__(self) -> None:
        self.known: dict[tuple[ExternalKind, str], ExternalObject] = {}
        self.puts = 0

    def put(self, what: ExternalObject) -> None:
        self.puts += 1
        self.known[kind_of(what), id_of(what)] = what

    def delete(self, kind: ExternalKind, object_id: str) -> None:
        del self.known[kind, object_id]

    def distrust(self, kind: ExternalKind, object_id: str) -> None:
        raise NotImplementedError


def context(**options: object) -> HandlerContext:
    return HandlerContext("file", ManualClock(), options)


def call(handler: EventHandler, method: str, what: ExternalObject) -> None:
    called: Any = getattr(handler, f"{method}_{kind_of(what)}")
    match method:
        case "add":
            called(what, initial=True)
        case "update":
            called(what, what)
        case _:
            called(what)


@pytest.mark.parametrize("what", EVERY, ids=lambda what: str(kind_of(what)))
def test_the_default_handler_passes_everything_on(what: ExternalObject) -> None:
    cache = Cache()
    handler = default.make_handler(cache, b"whatever: it is", context())
    call(handler, "add", what)
    assert cache.known == {(kind_of(what), id_of(what)): what}
    call(handler, "update", what)
    assert cache.puts == 2, "a resync puts it again"
    call(handler, "delete", what)
    assert not cache.known


def test_the_default_handler_has_no_options() -> None:
    with pytest.raises(HandlerSettingsWrong, match="handler_idle: the handler 'default' has no options"):
        default.make_handler(Cache(), None, context(idle="3s"))


@pytest.mark.parametrize("what", EVERY, ids=lambda what: str(kind_of(what)))
def test_the_base_does_nothing(what: ExternalObject) -> None:
    for method in ("add", "update", "delete"):
        call(BaseEventHandler(), method, what)


@pytest.mark.parametrize("what", EVERY, ids=lambda what: str(kind_of(what)))
def test_two_level_takes_offers_only(what: ExternalObject) -> None:
    cache = Cache()
    handler = two_level.make_handler(cache, None, context())
    if isinstance(what, ExternalOffer):
        call(handler, "add", what)
        call(handler, "update", what)
        assert list(cache.known) == [(ExternalKind.OFFER, "o")]
        call(handler, "delete", what)
    else:
        with pytest.raises(NotTaken, match=f"kind: '{kind_of(what)}', expected 'offer'"):
            call(handler, "add", what)
    assert not cache.known


@pytest.mark.parametrize(
    ("config", "options", "idle_ns", "grace_ns"),
    [
        (None, {}, 0, 30 * SECOND),
        (b"", {}, 0, 30 * SECOND),
        (b"# nothing\n", {}, 0, 30 * SECOND),
        (b"idle: 2m\n", {}, 120 * SECOND, 30 * SECOND),
        (b"{idle_s: 1.5, grace_s: 0}", {}, 3 * SECOND // 2, 0),
        (b"two-level: {grace: 5s}\nother: {of: another handler}", {}, 0, 5 * SECOND),
        (b"idle: 2m\ngrace: 1m", {"idle": "3m"}, 180 * SECOND, 60 * SECOND),
    ],
)
def test_missing_durations_of_an_offer_come_from_the_configuration(
    config: bytes | None, options: dict[str, object], idle_ns: int, grace_ns: int
) -> None:
    cache = Cache()
    handler = two_level.make_handler(cache, config, context(**options))
    handler.add_offer(ExternalOffer("o", "h", {}), initial=False)
    said = ExternalOffer("said", "h", {}, idle_ns=7, grace_ns=8)
    handler.add_offer(said, initial=False)
    assert cache.known == {
        (ExternalKind.OFFER, "o"): ExternalOffer("o", "h", {}, idle_ns=idle_ns, grace_ns=grace_ns),
        (ExternalKind.OFFER, "said"): said,
    }


@pytest.mark.parametrize(
    ("config", "options", "text"),
    [
        (b"\xff", {}, "config_path: the file is not UTF-8 text, expected YAML"),
        (b"idle: [", {}, "config_path: line 2"),
        (b"- idle", {}, "config_path: expected a mapping with keys among idle"),
        (b"just text", {}, "config_path: expected a mapping"),
        (b"two-level: 5", {}, "config_path: expected a mapping"),
        (b"idle: often", {}, "config_path: idle: 'often', expected a duration such as 30s"),
        (b"idle: 5", {}, "config_path: idle: 5, expected a duration such as 30s"),
        (b"idle: [5s]", {}, "config_path: idle: a list of 0, expected a duration"),
        (b"grace_s: -1", {}, "config_path: grace_s: -1, expected seconds from 0"),
        (b"idle: 5s\nidle: 6s", {}, "config_path: line 2, column 1: found duplicate key"),
        (b"ttl: 5s", {}, "config_path: ttl: unknown key, expected one of idle, idle_s, grace, grace_s"),
        (None, {"grace": 5}, "handler_grace: 5, expected a duration"),
        (None, {"gracious": 5}, "handler_gracious: unknown key"),
    ],
)
def test_a_configuration_that_cannot_be_used(config: bytes | None, options: dict[str, object], text: str) -> None:
    with pytest.raises(HandlerSettingsWrong) as caught:
        two_level.make_handler(Cache(), config, context(**options))
    assert text in str(caught.value)
