"""Informers and handlers by name: each name once, imports on demand, clear errors."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from manual_clock import ManualClock
from muster_core.external.errors import (
    DuplicateName,
    HandlerSettingsWrong,
    InformerSettingsWrong,
    InvalidExternalSettings,
    UnknownName,
)
from muster_informers import registry
from muster_informers.contract import EVENT_HANDLERS_GROUP, EventHandler, HandlerContext, InformerContext
from muster_informers.handlers.base import BaseEventHandler
from muster_informers.handlers.default import DefaultEventHandler
from muster_informers.handlers.two_level import TwoLevelEventHandler
from muster_informers.registry import CONFIG_BYTES_MAX, Registry, get_event_handler, get_informer, read_config

CONTEXT = HandlerContext("file", ManualClock())


class Cache:
    source = "vms"

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


CACHE: Any = Cache()


def point(name: str, value: str, package: str = "acme-vms") -> EntryPoint:
    found = EntryPoint(name, value, EVENT_HANDLERS_GROUP)
    vars(found).update(dist=SimpleNamespace(name=package, version="1.2"))
    return found


def handlers(*points: EntryPoint) -> Registry:
    methods = [name for name in vars(EventHandler) if name.startswith(("add_", "update_", "delete_"))]
    return Registry("event handler", EVENT_HANDLERS_GROUP, HandlerSettingsWrong, methods, lambda: points)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType("acme_vms_module")
    monkeypatch.setitem(sys.modules, "acme_vms_module", made)
    return made


def test_the_shipped_informers_are_registered() -> None:
    assert set(registry.informers.names()) >= {"empty", "file", "http", "kafka", "redis"}
    assert set(registry.event_handlers.names()) >= {"default", "two-level"}
    assert isinstance(get_event_handler("default", None, CACHE, CONTEXT), DefaultEventHandler)
    assert isinstance(get_event_handler("two-level", "", CACHE, CONTEXT), TwoLevelEventHandler)
    assert registry.event_handlers.origin("default").endswith("(muster_informers.handlers.default:make_handler)")
    assert get_informer("empty", {}, InformerContext("none", ManualClock())) is not None


def test_an_unknown_name_says_what_is_known() -> None:
    with pytest.raises(UnknownName) as caught:
        get_event_handler("defualt", None, CACHE, CONTEXT, handlers(point("default", "a:b"), point("other", "a:c")))
    assert str(caught.value) == "event handler 'defualt' is not known, expected one of: default, other"
    with pytest.raises(UnknownName, match=r"informer 'nosql' is not known, expected one of: .*file.*redis"):
        get_informer("nosql", {}, InformerContext("x", ManualClock()))


def test_two_packages_with_one_name() -> None:
    twice = handlers(point("vms", "a:make"), point("vms", "b:make", "other-vms"), point("fine", "c:make"))
    for ask in (twice.names, lambda: twice.make("fine")):
        with pytest.raises(DuplicateName) as caught:
            ask()
        assert str(caught.value) == (
            "event handler 'vms' was registered twice: by acme-vms 1.2 (a:make) and by other-vms 1.2 (b:make)"
        )


def test_one_package_that_is_found_twice_is_one() -> None:
    assert handlers(point("vms", "a:make"), point("vms", "a:make")).names() == ["vms"]


def test_a_handler_of_this_process() -> None:
    class Mine(BaseEventHandler):
        def __init__(self, *arguments: object) -> None:
            self.arguments = arguments

    known = handlers(point("default", "a:b"))
    known.register("mine", Mine)
    made = get_event_handler("mine", None, CACHE, CONTEXT, known)
    assert isinstance(made, Mine)
    assert made.arguments == (CACHE, None, CONTEXT)
    with pytest.raises(DuplicateName) as caught:
        known.register("mine", Mine)
    assert str(caught.value).count("Mine") == 2
    with pytest.raises(DuplicateName, match=r"'default' was registered twice: by .*Mine\) and by acme-vms 1.2 \(a:b\)"):
        known.register("default", Mine)
    assert known.names() == ["default", "mine"], "the second one changed nothing"


def test_the_public_doors_know_the_same_names() -> None:
    with pytest.raises(DuplicateName, match=r"by muster .*default:make_handler"):
        registry.register_event_handler("default", lambda *_: BaseEventHandler())
    with pytest.raises(DuplicateName, match="informer 'file'"):
        registry.register_informer("file", lambda *_: None)  # type: ignore[arg-type, return-value]
    assert "default" in registry.event_handlers.names()


def test_only_what_is_asked_for_is_imported(module: ModuleType) -> None:
    module.make = lambda *_: BaseEventHandler()  # type: ignore[attr-defined]
    known = handlers(point("good", "acme_vms_module:make"), point("broken", "no_such_module:make"))
    assert known.make("good")
    with pytest.raises(
        HandlerSettingsWrong,
        match=r"event handler 'broken' of acme-vms 1\.2 \(no_such_module:make\) cannot be loaded: ModuleNotFoundError",
    ):
        known.make("broken")


def test_a_factorys_settings_error_is_passed_on(module: ModuleType) -> None:
    def make(*_: object) -> None:
        raise HandlerSettingsWrong("idle: 'often', expected a duration")

    module.make = make  # type: ignore[attr-defined]
    with pytest.raises(HandlerSettingsWrong, match=r"^idle: 'often', expected a duration$"):
        handlers(point("vms", "acme_vms_module:make")).make("vms")


def test_a_factory_that_fails_otherwise_is_named_and_its_words_are_not_repeated(module: ModuleType) -> None:
    def make(*_: object) -> None:
        raise KeyError("postgres://user:hunter2@db")

    module.make = make  # type: ignore[attr-defined]
    with pytest.raises(InvalidExternalSettings) as caught:
        handlers(point("vms", "acme_vms_module:make")).make("vms")
    text = str(caught.value)
    assert text.startswith("event handler 'vms' of acme-vms 1.2 (acme_vms_module:make) failed: KeyError at ")
    assert "test_registry.py" in text
    assert "hunter2" not in text
    assert caught.value.__cause__ is None


def test_invalid_factories_and_wrong_handlers_are_refused(module: ModuleType) -> None:
    module.make = 5  # type: ignore[attr-defined]
    with pytest.raises(HandlerSettingsWrong, match="is no factory: int"):
        handlers(point("vms", "acme_vms_module:make")).make("vms")
    module.make = lambda *_: None  # type: ignore[attr-defined]
    with pytest.raises(HandlerSettingsWrong, match="made a NoneType without add_node, update_node"):
        handlers(point("vms", "acme_vms_module:make")).make("vms")
    with pytest.raises(InformerSettingsWrong, match="made a int without list, watch, close"):
        Registry(
            "informer", "x", InformerSettingsWrong, ["list", "watch", "close"], lambda: [point("n", "builtins:int")]
        ).make("n")


def test_the_configuration_is_read_for_the_handler(tmp_path: Path, module: ModuleType) -> None:
    given: list[object] = []

    def make(*arguments: object) -> BaseEventHandler:
        given.extend(arguments)
        return BaseEventHandler()

    module.make = make  # type: ignore[attr-defined]
    file = tmp_path / "handler.bin"
    file.write_bytes(b"\x00\xff")
    get_event_handler("vms", file, CACHE, CONTEXT, handlers(point("vms", "acme_vms_module:make")))
    assert given == [CACHE, b"\x00\xff", CONTEXT]
    with pytest.raises(HandlerSettingsWrong, match=r"config_path: '.*absent': No such file"):
        read_config(tmp_path / "absent")
    with pytest.raises(HandlerSettingsWrong, match="Is a directory"):
        read_config(tmp_path)
    file.write_bytes(b"x" * (CONFIG_BYTES_MAX + 1))
    with pytest.raises(HandlerSettingsWrong, match="expected at most 1048576 bytes"):
        read_config(file)
    assert read_config(None) is read_config("") is None
