"""Answers for scripts/compiled: is there a compiler, and is what is built of the present sources?

.venv/bin/python libs/compiled/compiler.py                       prints why nothing can be compiled here, or nothing
.venv/bin/python libs/compiled/compiler.py --is-built installed  prints yes or no: of what this Python would import
.venv/bin/python libs/compiled/compiler.py --is-built DIRECTORY  the same of the wheel there
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def obstacle() -> str:
    """Why nothing can be compiled here; "": it can."""
    command = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(command) is None:
        return f"no C compiler: {command} is not on the PATH (Debian: apt-get install gcc)"
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        return f"no Python.h in {headers} (Debian: apt-get install python3-dev)"
    return ""


def is_built(where: str) -> bool:
    """Tells whether the compiled form there is of the present sources, for this Python."""
    try:
        listing, files = _installed() if where == "installed" else _in_wheel(Path(where))
    except (OSError, ValueError):
        return False
    built: dict[str, Any] = {}
    exec(listing, built)  # noqa: S102 - what hatch_build.py wrote
    if not {f"{built['LIBRARY']}{suffix()}", f"{built['ENTRIES']}{suffix()}"} <= files:
        return False
    sys.path.insert(0, str(HERE))
    from hatch_build import Build, built_by

    return built["DIGESTS"] == Build(ROOT, ROOT / "build/compiled").digests() and built["BY"] == built_by()


def suffix() -> str:
    extension_suffix: str = sysconfig.get_config_var("EXT_SUFFIX")
    return extension_suffix


def _installed() -> tuple[str, set[str]]:
    directory = Path(sysconfig.get_path("platlib")) / "muster_compiled"
    return (directory / "built.py").read_text(), {file.name for file in directory.iterdir()}


def _in_wheel(directory: Path) -> tuple[str, set[str]]:
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        return content.read("muster_compiled/built.py").decode(), {name.rpartition("/")[2] for name in names}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--is-built"]:
        sys.stdout.write("yes\n" if is_built(sys.argv[2]) else "no\n")
    else:
        sys.stdout.write(obstacle())
