"""``muster history app``: prints a life."""

from __future__ import annotations

import dataclasses
from typing import Any

from muster_runtime.terminal import print_json

from muster_cli.history import output
from muster_cli.history.app_timeline import ApplicationTimeline
from muster_cli.history.app_timeline_view import screen


def show(life: ApplicationTimeline, rows: int, *, as_json: bool) -> None:
    """Prints a life as a timeline, or as JSON."""
    if as_json:
        print_json(as_plain(life))
        return
    out = output.console()
    output.show(screen(life, out.width, rows, plain=not out.is_terminal))


def as_plain(life: ApplicationTimeline) -> dict[str, Any]:
    """Returns all data in JSON's types; times in ns."""
    fields = {name: value for name, value in dataclasses.asdict(life).items() if not isinstance(value, list)}
    fields["state"] = life.state
    fields["resource_seconds"] = {name: round(value, 3) for name, value in life.resource_seconds().items()}
    for name in ("states", "allocations", "waiting", "happenings"):
        fields[name] = [record._asdict() for record in getattr(life, name)]
    return fields
