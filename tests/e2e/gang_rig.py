"""Muster as `muster up` runs it, in this process, with a clock that tests put forward; and a resource manager."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import httpx
import muster_gateway.sessions
import pytest
from muster_bus.clock import NO_ANCHOR, Anchor, SystemClock
from muster_bus.log import Log
from muster_bus.log_factory import make_log
from muster_bus.topics import Topics
from muster_cli.bootstrap import _everything
from muster_cli.settings import embedded_defaults, load
from muster_client import (
    Callbacks,
    ClientSettings,
    RmClient,
    application,
    ask,
    confirmation,
    existing_allocation,
    node,
    previous_ask,
    release,
)
from muster_client.access import PLAIN, Access
from muster_client.callbacks import Rejection
from muster_proto.si.v1 import si_pb2 as si
from muster_replay.local_process import free_ports
from virtual.loop import VirtualLoop
from virtual.stores import log_at, sessions_at
from waiting import answered, eventually

PATIENCE_S = 60.0
P = "/ws/v1/partition/default"
E = "/ws/v1/explain"
QUICK = ClientSettings(backoff_min_ms=20, backoff_max_ms=200, close_timeout_s=1, linger_s=0.2)


class Told(NamedTuple):
    """One message item that the resource manager received.

    :param kind: new, released, dropped (an ask that the scheduler gave up), rejected, application (its ``name`` is
        then its state, "Rejected", or "accepted").
    :param name: the allocation's, see :meth:`Rm.name`.
    :param how: the termination type of a release, the node of an allocation.
    """

    kind: str
    name: str
    how: str = ""
    message: str = ""


class MovableClock(SystemClock):
    """The system's time plus an offset."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_s = 0.0

    def now_ns(self) -> int:
        return super().now_ns() + round(self.ahead_s * 1e9)

    def anchor(self) -> Anchor:
        """None: its time goes on beside the machine's."""
        return NO_ANCHOR

    def forward(self, seconds: float) -> None:
        self.ahead_s += seconds


class Muster(NamedTuple):
    """The addresses and the services of a Muster.

    :ivar services: by name, as in a process of its own: scheduler, view, event-publisher, gateway.
    """

    gateway: str
    http: str
    clock: MovableClock
    log: Log
    topics: Topics
    services: dict[str, Any]


@asynccontextmanager
async def muster_here(
    directory: Path, assignments: Sequence[str] = (), clock: MovableClock | None = None
) -> AsyncIterator[Muster]:
    """Gateway, scheduler, view and publisher; on the embedded log unless told otherwise.

    In virtual time they are on the log in memory.

    :param assignments: further settings, each as ``--set`` takes it: "section.field=value".
    """
    grpc_port, http_port = free_ports(2)
    gateway, http = f"127.0.0.1:{grpc_port}", f"127.0.0.1:{http_port}"
    given = [("gateway.grpc_address", "", gateway), ("gateway.http_address", "", http)]
    # The clock is this process's; so everything is in it. However slow the machine is, an answer shows what was written
    # before its request. (The events have a follower of their own, which answers with what it has.)
    defaults = {
        **embedded_defaults(directory),
        "process.followers_own_process": False,
        "view.fresh_wait_s": PATIENCE_S,
        "view.whole_wait_s": PATIENCE_S,
    }
    is_virtual = isinstance(asyncio.get_running_loop(), VirtualLoop)
    if is_virtual:  # (SQLite has threads)
        defaults |= {"log.backend": "memory", "gateway.sessions_url": "memory:"}
    settings = load(None, assignments, given, defaults).values
    clock = clock or MovableClock()
    log = log_at(directory, settings.log.topics(), clock) if is_virtual else make_log(settings.log, clock)
    with pytest.MonkeyPatch.context() as patch:
        if is_virtual:
            patch.setattr(muster_gateway.sessions, "make_sessions", lambda _, clock: sessions_at(directory, clock))
        _, parts, checks = _everything(settings, log, clock)
    async with AsyncExitStack() as stack:
        await log.start()
        stack.push_async_callback(log.close)

        async def stop() -> None:  # all at once: it is nobody's loss here, and quicker
            await asyncio.gather(*(part.service.stop() for part in parts))

        for part in parts:
            await part.service.start()
        stack.push_async_callback(stop)
        for check in checks:
            await eventually(check, "Muster is ready")
        services = {part.name: part.service for part in parts}
        yield Muster(gateway, f"http://{http}", clock, log, settings.log.topics(), services)


async def live_through(rm: Rm, queue: str, gangs: Sequence[str]) -> None:
    """Gangs of four: each asks for its placeholders and for what is real, works once, and ends what it runs.

    Returns when all are Completing.
    """
    reals: dict[str, list[str]] = {}
    rm.confirms = True
    for app in gangs:
        await rm.application(app, queue, 3_000)
        await rm.placeholders(app, 4, 750, group=f"{app}-workers")
        reals[app] = [await rm.real(app, f"{app}-{number}", 700, group=f"{app}-workers") for number in range(4)]
    waiting = set(gangs)
    while waiting:
        done: list[str] = await eventually(
            lambda: [app for app in waiting if all(name in rm.runs for name in reals[app])],
            f"one of {waiting} works; heard: {rm.heard}",
        )
        for app in done:
            waiting.remove(app)
            await rm.ends(*reals[app])


def _vcore(held: si.Allocation) -> int:
    return held.resourcePerAlloc.resources["vcore"].value


def timeless(value: Any) -> Any:
    """An explanation without its time and without durations."""
    if isinstance(value, dict):
        return {name: timeless(each) for name, each in value.items() if name not in ("at", "sentence", "message")}
    return [timeless(each) for each in value] if isinstance(value, list) else value


class Rm:
    """A resource manager that remembers what it heard, in order, and confirms nothing by itself.

    :param previous: it speaks as previous generation: AllocationAsks with maxAllocations, UUIDs, nodes with their
        allocations.
    :param callbacks: further ones, of its callback stream.
    :ivar heard: everything, in the order of each stream.
    :ivar runs: what was allocated and not released, by name; no node may ever have more of it than it has room for.
    :ivar confirms: it confirms at once whatever it is told to end.
    :cvar EXTRA: the extraConfig of its registration.
    """

    confirms = False
    EXTRA: ClassVar[dict[str, str]] = {}

    def __init__(
        self,
        gateway: str,
        http: str,
        rm_id: str,
        queues: str,
        *,
        previous: bool = False,
        access: Access = PLAIN,
        **callbacks: Any,
    ) -> None:
        self.rm_id, self.previous = rm_id, previous
        self.heard: list[Told] = []
        self.runs: dict[str, si.Allocation] = {}
        self._told: dict[str, si.AllocationRelease] = {}
        self._uuids: dict[str, list[str]] = {}
        self._known: set[Told] = set()  # what the process before it heard, which is told again
        self._barriers = 0
        self._vcores: dict[str, int] = {}
        self.overcommitted: list[str] = []
        self._callbacks = Callbacks(
            on_allocated=self._allocated,
            on_released=self._released,
            on_released_asks=self._dropped,
            on_rejected_allocation=self._rejected,
            on_application=self._application,
            **callbacks,
        )
        self._gateway, self._queues, self._access = gateway, queues, access
        self.client = self._new_client()
        self._http = httpx.AsyncClient(base_url=http, timeout=60)

    def _new_client(self) -> RmClient:
        return RmClient(
            self._gateway,
            self.rm_id,
            config=self._queues,
            extra_config=self.EXTRA,
            callbacks=self._callbacks,
            settings=QUICK,
            access=self._access,
        )

    async def comes_back(self) -> None:
        """Replaces the RM's process by another one, which does not register."""
        await self.client.close()
        await self.shows("/ws/v1/explain/summary", lambda said: said["life"] == "DISCONNECTED")
        self._known = set(self.heard)
        self.client = self._new_client()
        await self.client.attach()

    async def __aenter__(self) -> Rm:
        await self.client.register()
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        await self.client.close()
        await self._http.aclose()
        assert kind is not None or not self.overcommitted, self.overcommitted

    # ---- what it hears ---------------------------------------------------------------------------------------------

    def name(self, item: si.Allocation | si.AllocationRelease) -> str:
        """The key; of the previous generation's repeats, which share it, ``key/n`` in the order of hearing of them."""
        if not self.previous or not item.UUID:
            return item.allocationKey
        repeats = self._uuids.setdefault(item.allocationKey, [])
        if item.UUID not in repeats:
            repeats.append(item.UUID)
        return f"{item.allocationKey}/{repeats.index(item.UUID)}"

    def _allocated(self, items: Sequence[si.Allocation]) -> None:
        for item in items:
            name = self.name(item)
            told = Told("new", name, item.nodeID)
            if told in self._known:
                continue
            self.runs[name] = item
            self.heard.append(told)
            used = sum(_vcore(held) for held in self.runs.values() if held.nodeID == item.nodeID)
            has = self._vcores.get(item.nodeID, 0)  # (nodes of another kind have none)
            if used > has:
                self.overcommitted.append(f"{name} on {item.nodeID}: {used} of {has} vcores")

    async def _released(self, items: Sequence[si.AllocationRelease]) -> None:
        for item in items:
            name = self.name(item)
            if item.terminationType == si.STOPPED_BY_RM:
                self.runs.pop(name, None)
            elif name in self.runs:
                self._told[name] = item
            how = si.TerminationType.Name(item.terminationType)
            kind = "released" if name in self.runs or item.terminationType == si.STOPPED_BY_RM else "dropped"
            self.heard.append(Told(kind, name, how, item.message))
        if self.confirms and self._told:
            await self.confirm(*self._told)

    def _dropped(self, items: Sequence[si.AllocationAskRelease]) -> None:
        for item in items:
            how = si.TerminationType.Name(item.terminationType)
            self.heard.append(Told("dropped", item.allocationKey, how, item.message))

    def _rejected(self, items: Sequence[Rejection]) -> None:
        self.heard += [Told("rejected", item.allocation_key, "", item.reason) for item in items]

    def _application(
        self,
        accepted: Sequence[si.AcceptedApplication],
        rejected: Sequence[si.RejectedApplication],
        updated: Sequence[si.UpdatedApplication],
    ) -> None:
        self.heard += [Told("application", item.applicationID, "accepted") for item in accepted]
        self.heard += [Told("application", item.applicationID, "Rejected", item.reason) for item in rejected]
        self.heard += [Told("application", item.applicationID, item.state, item.message) for item in updated]

    async def hears(self, kind: str, name: str, how: str = "", *, times: int = 1) -> Told:
        """Waits until that was received ``times`` times. Returns the last one."""

        def found() -> list[Told]:
            alike = [told for told in self.heard if told[:2] == (kind, name) and (not how or told.how == how)]
            return alike if len(alike) >= times else []

        last: Told = (await eventually(found, f"{kind} {name} {how}; heard: {self.heard}"))[-1]
        return last

    async def runs_these(self, *names: str) -> None:
        await eventually(lambda: set(self.runs) == set(names), f"{names} run; heard: {self.heard}")

    async def barrier(self) -> None:
        """Waits until everything sent before on the allocations' stream was decided and answered."""
        self._barriers += 1
        key = f"barrier-{self._barriers}"
        await self.client.send_asks([ask(key, "nobody", {"vcore": 1})])
        await self.hears("rejected", key)

    # ---- what it says ----------------------------------------------------------------------------------------------

    async def nodes(self, *, existing: Sequence[si.Allocation] = (), **vcores: int) -> None:
        """Creates nodes with that many thousandths of a vcore, by name."""
        self._vcores.update(vcores)
        await self.client.send_nodes(
            [node(name, {"vcore": vcore}, existing_allocations=existing) for name, vcore in vcores.items()]
        )
        async with asyncio.timeout(PATIENCE_S):
            await self.client.nodes_answered()

    async def node_action(self, name: str, action: si.NodeInfo.ActionFromRM.ValueType) -> None:
        await self.client.send_nodes([node(name, {}, action=action)])

    async def application(
        self, app: str, queue: str, total: int = 0, *, style: str = "", timeout_ms: int = 0, user: str = "ann"
    ) -> Told:
        asked = {"vcore": total} if total else None
        before = len(self.heard)
        await self.client.send_applications(
            [
                application(
                    app,
                    queue,
                    user=user,
                    placeholder_ask=asked,
                    gang_scheduling_style=style,
                    execution_timeout_ms=timeout_ms,
                )
            ]
        )

        def answer() -> list[Told]:
            answers = ("accepted", "Rejected")
            return [told for told in self.heard[before:] if told[:2] == ("application", app) and told.how in answers]

        first: Told = (await eventually(answer, f"an answer for {app}"))[0]
        return first

    async def placeholders(self, app: str, count: int, vcore: int, group: str = "workers") -> list[str]:
        """Asks for placeholders. Returns their names."""
        if self.previous:
            asked = previous_ask(
                f"{group}-p", app, {"vcore": vcore}, max_allocations=count, task_group=group, placeholder=True
            )
            await self.client.send_asks([asked])
            return [f"{group}-p/{number}" for number in range(count)]
        names = [f"{group}-p{number}" for number in range(count)]
        await self.client.send_asks(
            [ask(name, app, {"vcore": vcore}, task_group=group, placeholder=True) for name in names]
        )
        return names

    async def real(self, app: str, key: str, vcore: int, group: str = "workers") -> str:
        """Asks for a real allocation. Returns its name."""
        make = previous_ask if self.previous else ask
        await self.client.send_asks([make(key, app, {"vcore": vcore}, task_group=group)])
        return f"{key}/0" if self.previous else key

    async def confirm(self, *names: str) -> None:
        """Confirms a release."""
        for name in names:
            self.runs.pop(name, None)
        await self.client.send_releases([confirmation(self._told.pop(name)) for name in names])

    async def swaps(self, placeholder: str, real: str) -> None:
        """Waits for the placeholder's release, confirms it, and waits for the replacement."""
        await self.hears("released", placeholder, "PLACEHOLDER_REPLACED")
        await self.confirm(placeholder)
        await self.hears("new", real)

    async def ends(self, *names: str) -> None:
        ended = [self.runs[name] for name in names]
        await self.client.send_releases(
            [release(held.applicationID, held.allocationKey, uuid=held.UUID if self.previous else "") for held in ended]
        )
        await eventually(lambda: self.runs.keys().isdisjoint(names), f"the end of {names}")

    def reports(self, name: str) -> si.Allocation:
        """Reports running allocations after a registration."""
        held = self.runs[name]
        return existing_allocation(
            held.allocationKey,
            held.applicationID,
            held.nodeID,
            {kind: quantity.value for kind, quantity in held.resourcePerAlloc.resources.items()},
            uuid=held.UUID,
            task_group=held.taskGroupName,
            placeholder=held.placeholder,
        )

    # ---- what it sees ----------------------------------------------------------------------------------------------

    async def get(self, path: str, **parameters: str) -> Any:
        """REST's answer; None: 404."""
        answer = await answered(self._http, path, {"rm": self.rm_id, **parameters})
        if answer.status_code == 404:
            return None
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def shows(self, path: str, what: Callable[[Any], Any], said: str = "") -> Any:
        """Waits until REST's answer satisfies the condition, and returns it. (The view follows the log.)"""
        last: Any = None

        async def look() -> Any:
            nonlocal last
            last = await self.get(path)
            return [last] if last is not None and what(last) else None

        try:
            return (await eventually(look, said or path))[0]
        except AssertionError as error:
            raise AssertionError(f"{error}; it says {last}") from None

    async def app(self, app: str, what: Callable[[Any], Any] = lambda _: True) -> Any:
        return await self.shows(f"{P}/application/{app}", what)

    async def explains(self, app: str, what: Callable[[Any], Any] = lambda _: True) -> Any:
        return await self.shows(f"{E}/application/{app}", what)

    async def events(self, app: str, detail: int, count: int = 1) -> list[dict[str, Any]]:
        """Waits for that many events, or more, of the application with that detail."""

        async def found() -> list[dict[str, Any]]:
            batch = await self.get("/ws/v1/events/batch", count="1000")
            mine = [
                each
                for each in (batch or {}).get("EventRecords") or []
                if each.get("type") == 2 and each["objectID"] == app and each.get("eventChangeDetail") == detail
            ]
            return mine if len(mine) >= count else []

        events: list[dict[str, Any]] = await eventually(found, f"events {detail} of {app}")
        return events
