"""The newest position that each context's commands got, so that their next reads show what they changed.

A command that changes something keeps the position of the change beside the file of contexts. The next command of the
context sends it. Without a context nothing is kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from muster_runtime import durable
from muster_si.positions import newest

if TYPE_CHECKING:  # few commands call a gateway
    from muster_client.access import Access
    from muster_client.admin import AdminClient


class KeptPositions:
    """The positions beside a file of contexts, of which one may be in force."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._name = ""

    def use(self, contexts: Path | None, name: str = "") -> None:
        """Puts a context in force for this command; None: no context is."""
        self._path = contexts.with_name(f"{contexts.stem}.positions.json") if contexts is not None else None
        self._name = name

    def kept(self) -> str:
        """Returns the position of the context in force; "": none is kept."""
        return self._load().get(self._name, "")

    def keep(self, position: str) -> None:
        """Keeps a position for the context in force. (A file that cannot be written keeps nothing.)"""
        if position and self._path is not None:
            kept = self._load()
            self._store({**kept, self._name: newest(kept.get(self._name, ""), position)})

    def forget(self) -> bool:
        """Drops the position of the context in force. Returns whether there was one."""
        kept = self._load()
        was_there = kept.pop(self._name, None) is not None
        if was_there:
            self._store(kept)
        return was_there

    def _load(self) -> dict[str, str]:
        if self._path is None:
            return {}
        try:
            found = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}

    def _store(self, kept: Mapping[str, str]) -> None:
        assert self._path is not None, "a context is in force"
        try:
            durable.replace(self._path, json.dumps(kept).encode())
        except OSError:
            return


# Of the process, which runs one command.
KEPT = KeptPositions()


def admin_client(gateway: str, access: Access) -> AdminClient:
    """Returns a client that keeps the position of what it changes."""
    from muster_client.admin import AdminClient

    class Keeping(AdminClient):
        async def close(self) -> None:
            await super().close()
            KEPT.keep(self.position)

    return Keeping(gateway, access=access)
