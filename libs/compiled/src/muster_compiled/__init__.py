"""Lets Python import the compiled form of some modules in place of their source.

``muster_compiled.pth`` installs the finder when Python starts. The finder decides at the first import of a module that
has a compiled form. It decides once, and for all of them, because they call each other without Python.

The sources are imported instead if ``MUSTER_COMPILED`` is 0, or if they are not those that were compiled. With
``MUSTER_COMPILED=1`` such a difference is an ImportError.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

VARIABLE = "MUSTER_COMPILED"
_HERE = Path(__file__).parent
_SUFFIX = EXTENSION_SUFFIXES[0]


def digest(sources: Mapping[str, bytes]) -> str:
    """A digest of the sources of some modules, by the modules' names."""
    hasher = hashlib.sha256()
    for module in sorted(sources):
        hasher.update(b"%s %d\n" % (module.encode(), len(sources[module])))
        hasher.update(sources[module])
    return hasher.hexdigest()


def sources_in(package: Path, modules: list[str]) -> dict[str, bytes]:
    """The present sources of some modules of a package. Raises OSError.

    :param package: the package's directory.
    """
    return {module: package.joinpath(*module.split(".")[1:]).with_suffix(".py").read_bytes() for module in modules}


def entry_of(module: str) -> str:
    """The name of a module's entry, in the one library that has those of all modules."""
    return module.replace(".", "__")


class _Loader(ExtensionFileLoader):
    """Loads a module by its entry."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return super().create_module(ModuleSpec(entry_of(spec.name), self, origin=spec.origin))


class CompiledFinder:
    """Finds compiled modules.

    :ivar digests: by package, the digest of the sources that were compiled.
    :ivar modules: by package, its compiled modules.
    :ivar obstacle: why the sources are imported; "": they are not; None: that is not decided yet.
    """

    def __init__(self, modules: dict[str, list[str]], digests: dict[str, str], library: str, entries: str) -> None:
        self.modules = modules
        self.digests = digests
        self.obstacle: str | None = None
        self._library, self._entries = library, entries
        self._all = {library, *(module for names in modules.values() for module in names)}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Returns the spec of a compiled module; None: another finder is asked. Raises ImportError."""
        if name not in self._all:
            return None
        if self.obstacle is None:
            self.obstacle = self._find_obstacle()
        if self.obstacle:
            return None
        is_library = name == self._library
        location = str(_HERE / (self._library if is_library else self._entries)) + _SUFFIX
        loader = (ExtensionFileLoader if is_library else _Loader)(name, location)
        return spec_from_file_location(name, location, loader=loader)

    def _find_obstacle(self) -> str:
        mode = os.environ.get(VARIABLE, "")
        if mode == "0":
            return f"{VARIABLE} is 0"
        for package, modules in self.modules.items():
            spec = PathFinder.find_spec(package)
            if spec is None or not spec.submodule_search_locations:
                obstacle = f"{package} is not installed"
            elif self._is_other(Path(spec.submodule_search_locations[0]), package, modules):
                obstacle = f"{package} changed since it was compiled"
            else:
                continue
            if mode == "1":
                raise ImportError(f"{VARIABLE} is 1, but {obstacle}")
            return obstacle
        return ""

    def _is_other(self, directory: Path, package: str, modules: list[str]) -> bool:
        try:
            return digest(sources_in(directory, modules)) != self.digests[package]
        except OSError:
            return True


def install() -> None:
    """Puts the finder before all others, unless it is there or nothing was compiled for this Python."""
    if finder() is None:
        built = import_module("muster_compiled.built")
        if (_HERE / f"{built.LIBRARY}{_SUFFIX}").exists():
            sys.meta_path.insert(0, CompiledFinder(built.MODULES, built.DIGESTS, built.LIBRARY, built.ENTRIES))


def finder() -> CompiledFinder | None:
    """The finder that is installed; None: there is none."""
    return next((candidate for candidate in sys.meta_path if isinstance(candidate, CompiledFinder)), None)
