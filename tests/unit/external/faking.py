"""A fake manager to watch, a handler that keeps its calls, and a manual clock."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from manual_clock import ManualClock
from muster_core.external.errors import CursorExpired
from muster_core.external.model import ExternalAllocation, ExternalKind, ExternalObject, SourceState
from muster_informers.contract import ChangeType, Delta, Document, Listing
from muster_informers.indexer import SourceKey, key_of
from muster_informers.informer import SharedIndexInformer
from muster_runtime.watchdog import Usage


async def settled() -> None:
    """Run every task as far as it goes without time passing."""
    for _ in range(60):
        await asyncio.sleep(0)


class ManualTime:
    """A clock that the test moves, and sleep by that clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    async def sleep(self, seconds: float) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self.clock.monotonic() + seconds, self._count, done))
        await done

    async def advance(self, seconds: float) -> None:
        """Move the clock on, and wake each sleeper at its time."""
        until = self.clock.monotonic() + seconds
        await settled()
        while self._sleepers and self._sleepers[0][0] <= until:
            due, _, done = heapq.heappop(self._sleepers)
            if done.done():
                continue
            self.clock.advance(max(0.0, due - self.clock.monotonic()))
            done.set_result(None)
            await settled()
        self.clock.advance(max(0.0, until - self.clock.monotonic()))
        await settled()


def node(node_id: str, vcore: int = 1000, **more: object) -> dict[str, object]:
    return {"id": node_id, "capacity": {"vcore": f"{vcore}m"}, **more}


class Manager:
    """A source that keeps objects and the changes that led to them. The test adds faults.

    :ivar objects: the documents, by (kind, id).
    :ivar faults: of the next calls of ``list`` or of the next steps of a watch: each raises one of them.
    :ivar spoilt: documents that listings give instead of an object's.
    :ivar extra: documents at the end of listings.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, object]] = {}
        self.history: list[Delta] = []
        self.list_faults: list[Exception] = []
        self.watch_faults: list[Exception] = []
        self.spoilt: dict[tuple[str, str], Document] = {}
        self.extra: list[Document] = []
        self.lists = self.watches = 0
        self.cursors: list[str] = []
        self.first = 0  # cursors before this are gone
        self.says_versions = True
        self.holds_list = False
        self.is_closed = False
        self.open_watches = 0
        self._version = 0
        self._changed = asyncio.Event()

    # -- changes of its objects

    def set(self, document: dict[str, object]) -> None:
        key = (str(document.get("kind", "node")), str(document["id"]))
        self._version += 1
        if self.says_versions:
            document = {**document, "version": self._version}
        self.tell(ChangeType.MODIFIED if key in self.objects else ChangeType.ADDED, document)
        self.objects[key] = document

    def delete(self, kind: str, object_id: str) -> None:
        if self.objects.pop((kind, object_id), None) is not None:
            self._version += 1
            version = {"version": self._version} if self.says_versions else {}
            self.tell(ChangeType.DELETED, {"kind": kind, "id": object_id, **version})

    def tell(self, kind: ChangeType, document: Document) -> None:
        """Send a change to watches, true or not."""
        self.history.append(Delta(kind, document, str(len(self.history) + 1)))
        self.wake()

    def expire(self) -> None:
        """Expire all cursors: no watch can continue."""
        self.first = len(self.history) + 1
        self.watch_faults.append(CursorExpired("that was long ago"))
        self.wake()

    def wake(self) -> None:
        self._changed.set()

    # -- as a ListWatch

    async def list(self) -> Listing:
        self.lists += 1
        await asyncio.sleep(0)
        while self.holds_list:
            await self._until_changed()
        if self.list_faults:
            raise self.list_faults.pop(0)
        self.first = min(self.first, len(self.history))
        documents = [self.spoilt.get(key, document) for key, document in self.objects.items()]
        return Listing([*documents, *self.extra], str(len(self.history)))

    async def watch(self, cursor: str) -> AsyncIterator[Sequence[Delta]]:
        self.watches += 1
        self.cursors.append(cursor)
        self.open_watches += 1
        try:
            place = int(cursor)
            if place < self.first:
                raise CursorExpired(cursor)
            while True:
                if self.watch_faults:
                    raise self.watch_faults.pop(0)
                news = self.history[place:]
                place += len(news)
                yield news
                if place == len(self.history) and not self.watch_faults:
                    await self._until_changed()
        finally:
            self.open_watches -= 1

    async def close(self) -> None:
        self.is_closed = True

    async def _until_changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class Recorder:
    """A handler that keeps its calls, and checks the informer's order of add, update and delete.

    :ivar known: by key.
    :ivar told: (method, id) of each call; ``initials``: which adds were said to be initial.
    :ivar fails: id → error that a call for it raises.
    """

    def __init__(self) -> None:
        self.known: dict[SourceKey, ExternalObject] = {}
        self.told: list[tuple[str, str]] = []
        self.initials: list[str] = []
        self.distrusted: list[SourceKey] = []
        self.believed: list[ExternalAllocation | None] = []
        self.forgotten: list[SourceKey] = []
        self.fails: dict[str, Exception] = {}
        for kind in ExternalKind:
            setattr(self, f"add_{kind}", self._add)
            setattr(self, f"update_{kind}", self._update)
            setattr(self, f"delete_{kind}", self._delete)

    def __getattr__(self, name: str) -> Callable[..., None]:
        raise AttributeError(name)

    def distrust(self, kind: ExternalKind, object_id: str, believed: ExternalAllocation | None = None) -> None:
        self.distrusted.append(SourceKey(kind, object_id))
        self.believed.append(believed)

    def forget(self, kind: ExternalKind, object_id: str) -> None:
        self.forgotten.append(SourceKey(kind, object_id))

    def _add(self, what: ExternalObject, *, initial: bool) -> None:
        key = self._call("add", what)
        assert key not in self.known, f"{key} was added before"
        self.known[key] = what
        if initial:
            self.initials.append(key.object_id)

    def _update(self, old: ExternalObject, new: ExternalObject) -> None:
        key = self._call("update", new)
        assert self.known[key] == old, f"{key} differs from the call's old object"
        self.known[key] = new

    def _delete(self, what: ExternalObject) -> None:
        key = self._call("delete", what)
        assert self.known.pop(key) == what

    def _call(self, method: str, what: ExternalObject) -> SourceKey:
        key = key_of(what)
        if key.object_id in self.fails:
            raise self.fails[key.object_id]
        self.told.append((method, key.object_id))
        return key


class Running:
    """An informer in a task, with its manager, one handler and a manual clock."""

    def __init__(self, **arguments: Any) -> None:
        self.time = ManualTime()
        self.manager = Manager()
        self.handler = Recorder()
        self.states: list[tuple[SourceState, str]] = []
        handled = {name: arguments.pop(name) for name in ("predicate", "ready") if name in arguments}
        self.informer = SharedIndexInformer(
            "vms",
            self.manager,
            self.time.clock,
            sleep=self.time.sleep,
            usage=arguments.pop("usage", Usage),
            on_state=lambda state, reason: self.states.append((state, reason)),
            **arguments,
        )
        self.registration = self.informer.add_event_handler(
            self.handler,  # type: ignore[arg-type]
            distrust=self.handler.distrust,
            forget=self.handler.forget,
            **handled,
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Running:
        return self

    async def start(self) -> None:
        self._task = asyncio.create_task(self.informer.run())
        await settled()

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            outcome = (await asyncio.gather(self._task, return_exceptions=True))[0]
            assert isinstance(outcome, asyncio.CancelledError), outcome
            assert self.manager.is_closed
            assert not self.manager.open_watches

    @property
    def ids(self) -> list[str]:
        return sorted(key.object_id for key in self.handler.known)
