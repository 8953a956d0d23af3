"""The newest position that each context's commands got, so that their next reads show what they changed.

A command that changes something keeps the position of the change beside the file of contexts; ``contexts.apply`` gives
it to the next command as ``MUSTER_AFTER``. Without a context nothing is kept.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from muster_runtime import durable
from muster_si.positions import newest

if TYPE_CHECKING:  # few commands call a gateway
    from muster_client.access import Access
    from muster_client.admin import AdminClient

# The context in force, for this process alone: ``contexts.apply`` sets it.
IN_FORCE_VARIABLE = "MUSTER_CONTEXT_IN_FORCE"
# The file of contexts whose positions are kept beside it.
BESIDE_VARIABLE = "MUSTER_CONTEXTS_IN_FORCE"


def load(contexts: Path, name: str) -> str:
    """Returns a context's position; "": none is kept."""
    return _load(contexts).get(name, "")


def keep(position: str, environment: Mapping[str, str] = os.environ) -> None:
    """Keeps a position for the context in force, if there is one. A file that cannot be written keeps nothing."""
    name, beside = environment.get(IN_FORCE_VARIABLE, ""), environment.get(BESIDE_VARIABLE, "")
    if not (position and name and beside):
        return
    kept = _load(Path(beside))
    _store(Path(beside), {**kept, name: newest(kept.get(name, ""), position)})


def forget(position: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Drops the position of the context in force, if it is this one. Returns whether it was."""
    name, beside = environment.get(IN_FORCE_VARIABLE, ""), environment.get(BESIDE_VARIABLE, "")
    kept = _load(Path(beside)) if name and beside else {}
    if kept.get(name) != position:
        return False
    del kept[name]
    _store(Path(beside), kept)
    return True


def admin_client(gateway: str, access: Access) -> AdminClient:
    """Returns a client that keeps the position of what it changes."""
    from muster_client.admin import AdminClient

    class Keeping(AdminClient):
        async def close(self) -> None:
            await super().close()
            keep(self.position)

    return Keeping(gateway, access=access)


def _path(contexts: Path) -> Path:
    return contexts.with_name(f"{contexts.stem}.positions.json")


def _load(contexts: Path) -> dict[str, str]:
    try:
        found = json.loads(_path(contexts).read_text())
    except (OSError, ValueError):
        return {}
    return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}


def _store(contexts: Path, kept: Mapping[str, str]) -> None:
    try:
        durable.replace(_path(contexts), json.dumps(kept).encode())
    except OSError:
        return
