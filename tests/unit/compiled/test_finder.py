"""The finder of compiled modules (libs/compiled), without a compiler: whether it takes them, and why not."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[3] / "libs/compiled/src/muster_compiled/__init__.py"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of two modules that Python can import."""
    made = tmp_path / "thing_compiled_once"
    (made / "inner").mkdir(parents=True)
    for name in ("__init__", "inner/__init__", "inner/part", "whole"):
        made.joinpath(name).with_suffix(".py").write_text(f"NAME = {name!r}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("MUSTER_COMPILED", raising=False)
    return made


@pytest.fixture(scope="module")
def compiled() -> ModuleType:
    spec = importlib.util.spec_from_file_location("muster_compiled_as_source", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODULES = ["thing_compiled_once.inner.part", "thing_compiled_once.whole"]


def a_finder(compiled: ModuleType, package: Path):
    digests = {package.name: compiled.digest(compiled.sources_in(package, MODULES))}
    return compiled.CompiledFinder({package.name: MODULES}, digests, "thing__mypyc", "thing_entries")


def test_modules_of_the_same_sources_are_found_compiled(compiled: ModuleType, package: Path) -> None:
    finder = a_finder(compiled, package)
    spec = finder.find_spec("thing_compiled_once.inner.part")
    entries, library = (
        str(SOURCE.parent / f"{name}{EXTENSION_SUFFIXES[0]}") for name in ("thing_entries", "thing__mypyc")
    )
    assert (spec.origin, finder.obstacle) == (entries, "")
    assert finder.find_spec("thing__mypyc").origin == library


def test_other_modules_are_left_to_other_finders(compiled: ModuleType, package: Path) -> None:
    finder = a_finder(compiled, package)
    others = ("thing_compiled_once", "thing_compiled_once.inner", "json")
    assert [finder.find_spec(name) for name in others] == [None] * 3
    assert finder.obstacle is None, "nothing was asked about a compiled module"


def test_changed_sources_are_imported_as_they_are(compiled: ModuleType, package: Path) -> None:
    finder = a_finder(compiled, package)
    (package / "whole.py").write_text("NAME = 'another'\n")
    assert finder.find_spec("thing_compiled_once.inner.part") is None
    assert finder.obstacle == "thing_compiled_once changed since it was compiled"
    assert finder.find_spec("thing__mypyc") is None


def test_a_missing_source_is_a_change(compiled: ModuleType, package: Path) -> None:
    finder = a_finder(compiled, package)
    (package / "whole.py").unlink()
    assert finder.find_spec("thing_compiled_once.inner.part") is None
    assert finder.obstacle == "thing_compiled_once changed since it was compiled"


def test_a_missing_package_is_an_obstacle(compiled: ModuleType, package: Path) -> None:
    finder = compiled.CompiledFinder(
        {"thing_never_there": ["thing_never_there.a"]}, {"thing_never_there": ""}, "x", "y"
    )
    assert finder.find_spec("thing_never_there.a") is None
    assert finder.obstacle == "thing_never_there is not installed"


def test_the_variable_asks_for_the_sources(
    compiled: ModuleType, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finder = a_finder(compiled, package)
    monkeypatch.setenv("MUSTER_COMPILED", "0")
    assert finder.find_spec("thing_compiled_once.whole") is None
    assert finder.obstacle == "MUSTER_COMPILED is 0"
    monkeypatch.delenv("MUSTER_COMPILED")
    assert finder.find_spec("thing_compiled_once.whole") is None, "half of the modules would be compiled"


def test_the_variable_insists_on_the_compiled_form(
    compiled: ModuleType, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_COMPILED", "1")
    assert a_finder(compiled, package).find_spec("thing_compiled_once.whole") is not None
    finder = a_finder(compiled, package)
    (package / "whole.py").write_text("NAME = 'another'\n")
    with pytest.raises(ImportError, match="MUSTER_COMPILED is 1, but thing_compiled_once changed"):
        finder.find_spec("thing_compiled_once.whole")


def test_nothing_is_installed_where_nothing_was_compiled(compiled: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = ModuleType("muster_compiled.built")
    listing.LIBRARY, listing.MODULES, listing.DIGESTS = "thing__mypyc", {}, {}  # type: ignore[attr-defined]
    package = ModuleType("muster_compiled")
    package.built = listing  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "muster_compiled", package)
    monkeypatch.setitem(sys.modules, "muster_compiled.built", listing)
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if type(each).__name__ != "CompiledFinder"])
    before = list(sys.meta_path)
    compiled.install()
    assert (sys.meta_path, compiled.finder()) == (before, None)
