"""Adds the stubs to what hatchling builds. In the repository they are in another folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

STUBS = ("muster_proto", "muster_si")


class StubsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts both packages beside muster_client: into a wheel, and into src/ of a source distribution."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # pyproject.toml names the folder
            return
        root = Path(self.root)
        beside = root / "src"
        source = beside if (beside / STUBS[0]).is_dir() else root.parents[1] / "proto/src"
        into = "src/" if self.target_name == "sdist" else ""
        build_data["force_include"].update({str(source / name): f"{into}{name}" for name in STUBS})
