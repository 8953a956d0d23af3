"""Packages from outside, as pip leaves them: a folder on the path with a module and its entry points."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def install(folder: Path, package: str, module: str, code: str, group: str, *points: str) -> None:
    """Installs a package for this process. (The caller restores ``sys.path`` and ``sys.modules``.)"""
    folder.mkdir()
    (folder / f"{module}.py").write_text(code)
    information = folder / f"{package}-1.2.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (information / "entry_points.txt").write_text("\n".join([f"[{group}]", *points, ""]))
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
