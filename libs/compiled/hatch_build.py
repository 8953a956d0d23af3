"""Compiles modules of Muster with mypyc, from their typed source, and puts them into the wheel.

All modules are one group: they call each other without Python. mypyc does not take three things of the source. A copy
of the source is changed for these, by a rule and without a change of any line's number:

* ``dataclass(slots=True)`` makes the class a second time. Classes that mypyc compiles have slots anyway.
* A class of :data:`MARKS` gets a mark that mypyc needs: other code derives from it, or refers to it weakly.
* A module of :data:`PLAIN` stays as it is.

A statement that mypy finds unreachable fails the build: mypyc leaves it out, and mypy takes an attribute for unchanged
after a call that changes it.

Objects are kept in ``build/compiled`` by the digest of their C source, so that building again is fast.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GROUP = "muster"
GROUP_LIBRARY, ENTRIES = f"{GROUP}__mypyc", f"{GROUP}_entries"
# Of the core, all modules but those of PLAIN are compiled; of other packages those that every ask passes.
PACKAGES = {
    "muster_bus": "libs/bus/src",
    "muster_core": "libs/core/src",
    "muster_gateway": "services/gateway/src",
    "muster_scheduler": "services/scheduler/src",
    "muster_state": "libs/state/src",
}
WHOLE = {"muster_core"}
PASSED = {
    *(
        f"muster_bus.{name}"
        for name in ("topics", "backends.blocks", "backends.record_limits", "backends.sqlite_work_items")
    ),
    *(
        f"muster_gateway.{name}"
        for name in (
            "admission",
            "codec",
            "item_checks",
            "item_lists",
            "record_parts",
            "stream_kind",
            "stream_fairness",
            "undecided",
            "wire_fields",
        )
    ),
    *(
        f"muster_scheduler.{name}"
        for name in (
            "audit",
            "callback_ingest",
            "callback_encoding",
            "deadlines",
            "emit",
            "event_wire",
            "generation",
            "ingest",
            "machine",
            "recorded_time",
            "rm_quotas",
            "rm_table",
            "tally",
        )
    ),
    *(
        f"muster_state.{name}"
        for name in (
            "encoding",
            "event_layout",
            "fold",
            "state_folder",
            "message_dedup",
            "snapshot",
            "external_codec",
            "state_codec",
            "tally",
            "protobuf_wire",
        )
    ),
}
PLAIN = {
    "muster_core.config.queue_config": "msgspec reads its dataclasses, and finds no fields in those that mypyc makes",
    "muster_core.external.validation": "judges values of any type",
    "muster_core.external.model": "other packages give it values of any type, which validation.py judges",
    "muster_core.invariants": "derives from AssertionError",
    "muster_core.preemption.rule": "its protocols are checked at run time",
}
MARKS = {
    "muster_core.model.resources": {"Shape": "native_class=False"},  # it is referred to weakly
    "muster_core.nodes.node_index": {"NodeIndex": "allow_interpreted_subclasses=True"},
    "muster_core.nodes.policies.shape_index": {"ShapeIndex": "allow_interpreted_subclasses=True"},
}
# (The third level takes longer, and what it makes is no faster.)
LEVEL = os.environ.get("MUSTER_COMPILE_LEVEL", "2")
# Other packages, which are only read for their types.
_TYPES = (
    "proto/src",
    "libs/client/src",
    "libs/queue-config/src",
    "libs/rest/src",
    "libs/runtime/src",
    "services/informers/src",
)
# A constant is read from memory then, not from the module's dictionary.
_CONSTANT = re.compile(r"^(_?[A-Z][A-Z0-9_]+) = (?!TypeVar)", re.MULTILINE)
_SLOTS = re.compile(r"^(@dataclass\([^)\n]*?)(?:, slots=True|slots=True, |slots=True)", re.MULTILINE)
_FUTURE = "from __future__ import annotations"
_SETTINGS = """\
[mypy]
strict = true
explicit_package_bases = true
namespace_packages = true
ignore_missing_imports = true
warn_unreachable = true
follow_imports = silent
"""


def _finder_module() -> Any:
    """Returns muster_compiled of this tree; another one may be installed."""
    spec = spec_from_file_location("muster_compiled_here", Path(__file__).parent / "src/muster_compiled/__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_HERE = _finder_module()


class CompiledHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled modules to a wheel, which is then for one Python on one platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root).parents[1]
        files = Build(root, root / "build/compiled").run()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update({str(path): f"muster_compiled/{name}" for name, path in files.items()})


class Build:
    """One build.

    :param root: of the repository.
    :param directory: for everything that is made.
    """

    def __init__(self, root: Path, directory: Path) -> None:
        self.root = root
        self.directory = directory
        self.modules = {package: sorted(self._modules(package)) for package in PACKAGES}
        self._compiled: dict[str, dict[str, bytes]] = {package: {} for package in PACKAGES}  # sources, by module

    def run(self) -> dict[str, Path]:
        """Compiles. Returns the files by their path in the package ``muster_compiled``."""
        begun = time.monotonic()
        self.directory.mkdir(parents=True, exist_ok=True)
        sources = self._sources()
        _progress(f"{len(sources)} modules become C, in a minute or so")
        extensions = self._translate(sources)
        middle = time.monotonic()
        files = self._compile(extensions)
        files["built.py"] = self._listing()
        sys.stderr.write(
            f"muster-compiled: {len(sources)} modules with -O{LEVEL}: to C in {middle - begun:.0f} s, "
            f"to machine code in {time.monotonic() - middle:.0f} s\n"
        )
        return files

    def digests(self) -> dict[str, str]:
        """Returns the digests of the present sources, by package."""
        return {
            package: _HERE.digest(_HERE.sources_in(self.root / PACKAGES[package] / package, modules))
            for package, modules in self.modules.items()
        }

    def _modules(self, package: str) -> list[str]:
        base = self.root / PACKAGES[package]
        names = [".".join(path.relative_to(base).with_suffix("").parts) for path in base.glob(f"{package}/**/*.py")]
        if package not in WHOLE:
            return [name for name in names if name in PASSED]
        return [name for name in names if not name.endswith("__init__") and name not in PLAIN]

    def _sources(self) -> list[str]:
        """Copies the packages. Returns the paths of what to compile, from :attr:`directory`."""
        paths = []
        for package, modules in self.modules.items():
            base = self.root / PACKAGES[package]
            for path in sorted(base.glob(f"{package}/**/*.py")):
                name = ".".join(path.relative_to(base).with_suffix("").parts)
                copy = self.directory / path.relative_to(base)
                source = path.read_bytes()
                text = source.decode()
                if name in modules:
                    self._compiled[package][name] = source
                    text = adapted(name, text)
                    paths.append(str(copy.relative_to(self.directory)))
                copy.parent.mkdir(parents=True, exist_ok=True)
                _write(copy, text)
        return paths

    def _translate(self, sources: list[str]) -> list[Any]:
        """Runs mypyc, which gives descriptions of extensions in C."""
        import setuptools  # noqa: F401  (mypyc looks whether it is there)
        from mypyc.build import mypycify

        settings = self.directory / "mypy.ini"
        _write(settings, _SETTINGS)
        os.chdir(self.directory)
        os.environ["MYPYPATH"] = ":".join([".", *(str(self.root / folder) for folder in _TYPES)])
        options = [f"--config-file={settings}", f"--cache-dir={self.directory / 'mypy'}"]
        output = io.StringIO()  # (a warning for each generator that becomes a list: of no use unless it fails)
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                extensions: list[Any] = mypycify(
                    [*options, *sources],
                    opt_level=LEVEL,
                    debug_level="0",
                    multi_file=True,
                    target_dir="c",
                    group_name=GROUP,
                )
        except BaseException:
            sys.stderr.write(output.getvalue())
            raise
        return extensions

    def _compile(self, extensions: list[Any]) -> dict[str, Path]:
        group, entries = self._entries(extensions)
        headers = _digest(*sorted(self.directory.glob("c/**/*.h")))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            sources = [*group.sources, entries]
            objects = {}
            paths = pool.map(lambda source: self._object(source, group, headers), sources)
            for source, path in zip(sources, paths, strict=True):
                objects[source] = path
                _progress(f"{len(objects)} of {len(sources)} files in machine code")
            _progress("")
        return {
            self._file(GROUP_LIBRARY): self._link(GROUP_LIBRARY, [objects[source] for source in group.sources]),
            self._file(ENTRIES): self._link(ENTRIES, [objects[entries]]),
        }

    def _entries(self, extensions: list[Any]) -> tuple[Any, str]:
        """Returns the group, and the path of one C source with the entries of all modules.

        For each module mypyc makes a library that only calls the group's. Their one function each goes into one source.
        """
        parts, group = [], None
        for extension in extensions:
            if extension.name == GROUP_LIBRARY:
                group = extension
                continue
            (source,) = extension.sources
            text = Path(source).read_text()
            last, whole = extension.name.rpartition(".")[2], _HERE.entry_of(extension.name)
            text = text.replace(f"\nPyInit_{last}(void)", f"\nPyInit_{whole}(void)", 1)
            parts.append(text[: text.index("// distutils sometimes")])
        assert group is not None
        assert len(parts) == sum(map(len, self.modules.values()))
        path = self.directory / "entries.c"
        _write(path, "".join(parts))
        return group, str(path)

    def _object(self, source: str, extension: Any, headers: str) -> Path:
        command = [
            *sysconfig.get_config_var("CC").split(),
            *_flags("CCSHARED"),
            f"-I{sysconfig.get_path('include')}",
            *(f"-I{folder}" for folder in extension.include_dirs),
            *extension.extra_compile_args,
            "-fvisibility=hidden",  # calls and variables between the files need no tables of the linker then
            "-DNDEBUG",
            "-c",
        ]
        path = self.directory / "objects" / f"{_digest(Path(source), headers, *command)}.o"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent) as beside:
                subprocess.run([*command, source, "-o", beside.name], check=True)
                os.link(beside.name, path)
        return path

    def _link(self, name: str, objects: list[Path]) -> Path:
        path = self.directory / "libraries" / self._file(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        linker = sysconfig.get_config_var("LDSHARED").split()
        subprocess.run([*linker, "-s", *map(str, objects), "-o", str(path)], check=True)
        return path

    def _file(self, name: str) -> str:
        return f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"

    def _listing(self) -> Path:
        digests = {package: _HERE.digest(self._compiled[package]) for package in PACKAGES}
        path = self.directory / "built.py"
        _write(
            path,
            f'"""What was compiled."""\n\nLIBRARY = "{GROUP_LIBRARY}"\nENTRIES = "{ENTRIES}"\n'
            f"MODULES = {self.modules}\nDIGESTS = {digests}\nBY = {built_by()!r}\n",
        )
        return path


def built_by() -> str:
    """Returns a digest of what compiles, and its level."""
    return _digest(Path(__file__), LEVEL)


def adapted(module: str, text: str) -> str:
    """The source of a module as mypyc takes it."""
    text = _SLOTS.sub(r"\1", text)
    text = _CONSTANT.sub(r"\1: _typing.Final = ", text)
    marks = MARKS.get(module, {})
    text = text.replace(_FUTURE, f"{_FUTURE}; import typing as _typing{', mypy_extensions' if marks else ''}", 1)
    for name, mark in marks.items():
        changed = text.replace(f"\n\nclass {name}", f"\n@mypy_extensions.mypyc_attr({mark})\nclass {name}", 1)
        assert changed != text, f"{module} has no class {name}"
        text = changed
    return text


def _progress(text: str) -> None:
    """Shows to people how far it is, on a line that the next call replaces."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def _flags(variable: str) -> list[str]:
    flags: str = sysconfig.get_config_var(variable) or ""
    return flags.split()


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def _digest(*contents: Path | str) -> str:
    hasher = hashlib.sha256()
    for content in contents:
        hasher.update(content.read_bytes() if isinstance(content, Path) else content.encode())
    return hasher.hexdigest()


if __name__ == "__main__":  # without a wheel
    repository = Path(__file__).parents[2]
    for name in Build(repository, repository / "build/compiled").run():
        sys.stdout.write(f"{name}\n")
