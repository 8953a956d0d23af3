"""``muster config show``: the effective settings with their origins, secrets masked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from muster_runtime.terminal import Screen, escape_invisible, is_terminal, print_json
from rich.table import Table

from muster_cli.settings import embedded_defaults, load
from muster_cli.settings_loader import Origin

_PIPED_WIDTH = 200  # a file has no edge; wide enough for a description beside its value


def show_settings(
    file: Path | None, assignments: Sequence[str], data_dir: Path | None, *, as_json: bool, changed: bool
) -> int:
    """Prints the settings. Returns the exit code."""
    defaults = embedded_defaults(data_dir) if data_dir is not None else None
    effective = load(file, assignments, defaults=defaults).effective()
    shown = [setting for setting in effective if not changed or setting.origin is not Origin.DEFAULT]
    if as_json:
        print_json({setting.name: asdict(setting) for setting in shown})
        return 0
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("setting", "value", "origin", "description"):
        table.add_column(column, overflow="fold", no_wrap=column == "setting")
    section = ""
    for setting in shown:
        if section and setting.name.partition(".")[0] != section:
            table.add_section()
        section = setting.name.partition(".")[0]
        origin = setting.origin if not setting.place else f"{setting.origin} {setting.place}"
        style = "" if setting.origin is Origin.DEFAULT else "bold"
        table.add_row(
            *map(escape_invisible, (setting.name, setting.shown, str(origin), setting.description)), style=style
        )
    Screen(width=None if is_terminal() else _PIPED_WIDTH).print(table)
    return 0
