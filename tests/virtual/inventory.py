"""Another manager's inventory, in memory: the source of an informer that runs in a simulated scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from muster_core.external.errors import CursorExpired, SourceUnavailable
from muster_informers.contract import ChangeType, Delta, InformerContext, Listing
from muster_informers.registry import informers

KIND = "virtual"
_KEPT = 50  # changes that a watch may be behind


class Inventory:
    """What the other manager has, with its last changes.

    :ivar is_away: it does not answer.
    """

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str], Mapping[str, object]] = {}
        self._changes: list[tuple[int, Delta]] = []
        self._version = 1
        self._waiting: dict[asyncio.Future[None], None] = {}
        self.is_away = False

    def set(self, documents: Sequence[Mapping[str, object]]) -> None:
        """Replaces all objects."""
        new = {(str(each["kind"]), str(each["id"])): each for each in documents}
        for key, old in list(self._objects.items()):
            if key not in new:
                self._change(ChangeType.DELETED, old)
        for key, each in new.items():
            if self._objects.get(key) != each:
                self._change(ChangeType.MODIFIED if key in self._objects else ChangeType.ADDED, each)
        self._objects = new
        self._changes = self._changes[-_KEPT:]
        self.wake()

    def wake(self) -> None:
        """Lets all watches look again."""
        waiting, self._waiting = self._waiting, {}
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def listing(self) -> Listing:
        self._check()
        return Listing(list(self._objects.values()), str(self._version))

    def since(self, version: int) -> list[Delta]:
        """Returns the changes behind a version. Raises CursorExpired, SourceUnavailable."""
        self._check()
        found = [delta for number, delta in self._changes if number > version]
        if len(found) < self._version - version:
            raise CursorExpired(f"version {version} is too old")
        return found

    async def changed(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        await waiter

    def _change(self, kind: ChangeType, document: Mapping[str, object]) -> None:
        self._version += 1
        self._changes.append((self._version, Delta(kind, document, str(self._version))))

    def _check(self) -> None:
        if self.is_away:
            raise SourceUnavailable("the inventory does not answer")


class _Source:
    """See ``muster_informers.contract.ListWatch``."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory

    async def list(self) -> Listing:
        await asyncio.sleep(0.002)
        return self._inventory.listing()

    async def watch(self, cursor: str) -> AsyncIterator[Sequence[Delta]]:
        version = int(cursor)
        while True:
            deltas = self._inventory.since(version)
            if deltas:
                version = int(deltas[-1].cursor)
                yield deltas
            else:
                await self._inventory.changed()

    async def close(self) -> None:
        """Nothing is open."""


def register() -> None:
    """Makes the kind known to this process."""
    if not informers.is_registered(KIND):
        informers.register(KIND, _make)


def _make(options: Mapping[str, Any], _: InformerContext) -> _Source:
    return _Source(options["inventory"])
