"""Flags that every command with settings has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

_SETTINGS = Group("Settings", sort_key=100)


@Parameter(name="*", group=_SETTINGS)
@dataclass(frozen=True, slots=True)
class Common:
    """Where settings come from beside a command's own flags: file, then environment, then ``--set``, the last wins."""

    settings: Path | None = None
    """TOML file with a table per section; MUSTER_SETTINGS names one as well."""
    set: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """One setting as section.field=value (`muster config show` lists them); may be repeated."""
