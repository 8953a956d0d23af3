"""The newest position that each context's commands got, so that their next reads show what they changed.

A command that changes something stores the position of the change beside the file of contexts. The next command of the
context sends it. Without a context nothing is stored.
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


class ContextPositions:
    """The positions beside a file of contexts, of which one may be in force."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._name = ""

    def use(self, contexts: Path | None, name: str = "") -> None:
        """Puts a context in force for this command; None: no context is."""
        self._path = contexts.with_name(f"{contexts.stem}.positions.json") if contexts is not None else None
        self._name = name

    def stored(self) -> str:
        """Returns the position of the context in force; "" if none is stored."""
        return self._read().get(self._name, "")

    def store(self, position: str) -> None:
        """Stores a position for the context in force, if its file can be written."""
        if position and self._path is not None:
            positions = self._read()
            self._write({**positions, self._name: newest(positions.get(self._name, ""), position)})

    def forget(self) -> bool:
        """Drops the position of the context in force. Returns whether there was one."""
        positions = self._read()
        was_there = positions.pop(self._name, None) is not None
        if was_there:
            self._write(positions)
        return was_there

    def _read(self) -> dict[str, str]:
        if self._path is None:
            return {}
        try:
            content = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return {str(name): str(text) for name, text in content.items()} if isinstance(content, dict) else {}

    def _write(self, positions: Mapping[str, str]) -> None:
        assert self._path is not None, "a context is in force"
        try:
            durable.replace(self._path, json.dumps(positions).encode())
        except OSError:
            return


# Of the process, which runs one command.
POSITIONS = ContextPositions()


def admin_client(gateway: str, access: Access) -> AdminClient:
    """Returns a client that stores the position of what it changes."""
    from muster_client.admin import AdminClient

    class StoringClient(AdminClient):
        async def close(self) -> None:
            await super().close()
            POSITIONS.store(self.position)

    return StoringClient(gateway, access=access)
