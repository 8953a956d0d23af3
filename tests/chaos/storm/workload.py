"""RMs that ask, release, form gangs, change their nodes and reload, and that write down all that they hear.

Each takes its steps from dice of its own, so that the workload is a function of the seed as far as the answers allow.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from chaos.storm.evidence import Asked, Evidence, Heard
from e2e.external_rig import host, vm, write
from muster_client import (
    AdminClient,
    Callbacks,
    Rejection,
    RmClient,
    application,
    ask,
    confirmation,
    node,
    previous_ask,
    previous_ask_release,
    release,
    removal,
)
from muster_client.errors import AdminFailed
from muster_client.renewing_channel import Channel
from muster_client.settings import ClientSettings
from muster_proto.muster.v1 import callbacks_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si

TICK_S = 0.25
USERS = ("ann", "ben", "cat")
NODES, NODE_CORES = 10, 12
RUNNING = 90  # so many allocations an RM keeps; it ends the oldest ones above this
ASKS_OF_AN_APPLICATION = 60
GANG_SIZE = 4
GANG_EVERY_S = 4.0
FORMING_S = 20.0  # then the RM gives up a gang that has not formed
NODES_EVERY_S, RELOAD_EVERY_S, SOURCE_EVERY_S = 1.5, 9.0, 2.0
HOSTS = 4
SOURCE = "vms"
ALLOWED_OF_4 = 3  # the share of nodes that a predicate allows for an ask


def configuration(variant: int) -> str:
    """A queue configuration. Variants differ in maxima, guarantees and limits of users."""
    batch, service, user = ((60, 40, 24), (45, 40, 24), (60, 30, 15), (70, 50, 30))[variant % 4]

    return json.dumps(
        {
            "partitions": [
                {
                    "name": "default",
                    "preemption": {"enabled": True},
                    "queues": [
                        {
                            "name": "root",
                            "submitacl": "*",
                            "queues": [
                                {
                                    "name": "batch",
                                    "resources": {"max": {"vcore": batch}},
                                    "limits": [
                                        {"limit": "one", "users": ["ann"], "maxresources": {"vcore": user}},
                                        {"limit": "others", "users": ["*"], "maxresources": {"vcore": user + 5}},
                                    ],
                                },
                                {
                                    "name": "service",
                                    "resources": {"max": {"vcore": service}, "guaranteed": {"vcore": 20}},
                                    "properties": {"preemption.delay": "1s"},
                                },
                                {"name": "gangs", "resources": {"max": {"vcore": 30}}},
                            ],
                        }
                    ],
                }
            ]
        }
    )


def allows(key: str, node_id: str) -> bool:
    """The predicate of an RM that is asked."""
    return zlib.crc32(f"{key} {node_id}".encode()) % 4 < ALLOWED_OF_4


@dataclass
class _Gang:
    app: str
    size: int
    since_s: float
    is_real: bool = False
    held: set[str] = field(default_factory=set)
    work: set[str] = field(default_factory=set)


class StormRm:
    """One RM.

    :param address: of all gateways, as a gRPC target.
    :param goal: so many asks in all.
    :param pace: asks in a second.
    :param over: set when there are no faults any more: until then it works, even if it has asked for all.
    :param longest_s: it stops after so long, also before its goal: a busy machine takes fewer asks.
    :param is_asked: it answers predicates.
    :param source: an external source with its hosts and VMs: a file; None: it has no source.
    :param slower: all that it does every so often takes so many times as long.
    :param is_previous: it sends asks, and what ends them, in the previous generation.
    :param now_s: its clock.
    :param channel: makes a channel for a client, in place of one to ``address``.
    :ivar heard: all that its callbacks got, in order.
    :ivar asked: each ask by key.
    :ivar running: application and node of each allocation that it has not ended, by key.
    :ivar nodes: cores of its nodes.
    """

    def __init__(
        self,
        rm_id: str,
        address: str,
        seed: int,
        goal: int,
        pace: float,
        over: asyncio.Event,
        longest_s: float,
        *,
        is_asked: bool = False,
        source: object = None,
        slower: float = 1.0,
        is_previous: bool = False,
        now_s: Callable[[], float] = time.monotonic,
        channel: Callable[[], Channel | None] = lambda: None,
    ) -> None:
        self._slower, self._is_previous, self._now_s = slower, is_previous, now_s
        self.rm_id, self.goal, self._pace, self._over, self._longest_s = rm_id, goal, pace, over, longest_s
        self.is_asked, self.source = is_asked, source
        self._dice = random.Random(f"{seed}/{rm_id}")
        self._address = address
        self.heard: list[Heard] = []
        self.heard_at_s = self._now_s()
        self.asked: dict[str, Asked] = {}
        self.running: dict[str, tuple[str, str]] = {}
        self.nodes: dict[str, int] = {}
        self.drained: set[str] = set()
        self.vms: dict[str, str] = {}
        self.config = configuration(0)
        self.reloads = 0
        self._in_doubt: str | None = None  # a configuration whose answer was lost
        self._began_s = self._now_s()
        self._accepted: set[str] = set()
        self._removed: set[str] = set()
        self._ending: set[str] = set()
        self._gangs: dict[str, _Gang] = {}
        self._apps: list[tuple[str, str]] = []
        self._numbers = {"app": 0, "node": 0, "ask": 0, "gang": 0, "vm": 0, "nobody": 0}
        self._of_app = 0
        self._due: dict[str, float] = {}
        self._confirm: asyncio.Queue[si.AllocationRelease] = asyncio.Queue()
        self._reloading: asyncio.Task[None] | None = None
        self._confirming_task: asyncio.Task[None] | None = None
        self._rejected: set[str] = set()
        self._answered = 0
        more: dict[str, Any] = {"predicates": self._predicate} if is_asked else {}
        self.client = RmClient(
            address,
            rm_id,
            config=self.config,
            extra_config={"muster.callbacks.absent": "wait"} if is_asked else None,
            callbacks=Callbacks(
                on_allocated=self._on_allocated,
                on_released=self._on_released,
                on_rejected_allocation=self._on_rejected,
                on_application=self._on_application,
                **more,
            ),
            settings=ClientSettings(
                backoff_seed=seed, register_timeout_s=120.0, welcome_timeout_s=60.0, backoff_max_ms=1000
            ),
            channel=channel(),
            chance=random.Random(f"{seed}/{rm_id}/client"),
        )
        self._admin = AdminClient(address, channel=channel())

    @property
    def answered(self) -> int:
        """How many asks were allocated or rejected."""
        return self._answered

    @property
    def removed_applications(self) -> frozenset[str]:
        return frozenset(self._removed)

    # ---- life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Registers, and works until it has asked for all. Raises what ended its client."""
        confirming = self._confirming_task = asyncio.create_task(self._confirming())
        working = asyncio.create_task(self._working())
        failing = asyncio.create_task(self.client.wait())
        try:
            await asyncio.wait({confirming, working, failing}, return_when=asyncio.FIRST_COMPLETED)
            for task in (failing, confirming, working):
                if task.done():
                    task.result()
        finally:
            for task in (working, failing):
                task.cancel()
            await asyncio.gather(working, failing, return_exceptions=True)

    async def stop(self) -> None:
        tasks = [task for task in (self._confirming_task, self._reloading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.client.close()
        await self._admin.close()

    async def heard_out(self) -> None:
        """Ends its gangs and its reload. Returns when it has heard what was decided on all that it said."""
        for app in list(self._gangs):
            await self._remove(app)
        self._gangs.clear()
        if self._reloading is not None:
            await self._reloading
        for _ in range(2):
            key = self._next("nobody")
            await self._ask_one(self._ask(key, "nobody", {"vcore": 1000}))
            while key not in self._rejected:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def _working(self) -> None:
        # (A source lists before anything is decided.)
        if self.source is not None:
            self.change_source()
        await self.client.register()
        await self._add_nodes(NODES)
        await self._new_application()
        begin_s, done_s = self._now_s(), 0.0
        while not self._over.is_set() or (len(self.asked) < self.goal and self._now_s() - begin_s < self._longest_s):
            await self._step(self._now_s() - begin_s)
            done_s += TICK_S * self._slower
            await asyncio.sleep(max(0.0, begin_s + done_s - self._now_s()))
            # After a long silence it does not send all at once.
            done_s = max(done_s, self._now_s() - begin_s - 2 * TICK_S * self._slower)

    async def _step(self, at_s: float) -> None:
        await self._ask_some()
        await self._end_some()
        if self._is_due("node", at_s, NODES_EVERY_S):
            await self._change_nodes()
        if self._is_due("gang", at_s, GANG_EVERY_S):
            await self._begin_gang()
        await self._tend_gangs()
        if self._reloading is not None and self._reloading.done():
            self._reloading.result()
            self._reloading = None
        if self._reloading is None and self._is_due("reload", at_s, RELOAD_EVERY_S):
            self._reloading = asyncio.create_task(self._reload())
        if self.source is not None and self._is_due("source", at_s, SOURCE_EVERY_S):
            self.change_source()

    def _is_due(self, what: str, at_s: float, every_s: float) -> bool:
        every_s *= self._slower
        if at_s < self._due.get(what, every_s * 0.5):
            return False
        self._due[what] = at_s + every_s * self._dice.uniform(0.5, 1.5)
        return True

    def _next(self, what: str) -> str:
        self._numbers[what] += 1
        return f"{what}-{self._numbers[what]}"

    # ---- asks ------------------------------------------------------------------------------------------------------

    async def _ask_some(self) -> None:
        if self._apps and self._of_app >= ASKS_OF_AN_APPLICATION:
            await self._new_application()
        open_apps = [app for app, _ in self._apps[-3:] if app in self._accepted and app not in self._removed]
        if not open_apps:
            return
        # Asks that wait are not heaped up: there is more to see where things come and go.
        withdrawn = len(self._ending) - sum(key in self._ending for key in self.running)
        waiting = len(self.asked) - self._answered - withdrawn
        wanted = self._pace * TICK_S * self._slower
        count = int(wanted) + (self._dice.random() < wanted % 1)
        if waiting > 400:
            count = min(count, 2)
        items = []
        for _ in range(count):
            app = open_apps[self._dice.randrange(len(open_apps))]
            size = {"vcore": self._dice.choice((250, 500, 500, 1000, 2000)), "memory": 1 << 20}
            if self._dice.random() < 0.01:
                app = "nobody"
            items.append(self._ask(self._next("ask"), app, size, priority=self._dice.choice((0, 0, 0, 1, 5))))
        self._of_app += count
        if items:
            await self._send_asks(items)

    def _ask(self, *given: Any, **more: Any) -> si.Allocation | si.AllocationAsk:
        return previous_ask(*given, **more) if self._is_previous else ask(*given, **more)

    async def _ask_one(self, item: si.Allocation | si.AllocationAsk) -> None:
        await self._send_asks([item])

    async def _send_asks(self, items: Sequence[si.Allocation | si.AllocationAsk]) -> None:
        for item in items:
            self.asked[item.allocationKey] = Asked(
                item.allocationKey, item.applicationID, self._since_s(), item.placeholder
            )
        await self.client.send_asks(items)

    async def _end_some(self) -> None:
        """Ends the oldest allocations above the number that it keeps; now and then an ask that waits."""
        free = [key for key in self.running if key not in self._ending and key.startswith("ask")]
        ended = free[: max(0, len(free) - RUNNING)]
        ended += [key for key in free[len(ended) :] if self._dice.random() < 0.03]
        if self._dice.random() < 0.2:
            newest = list(islice(reversed(self.asked), 50))[::-1]
            recent = [key for key in newest if key not in self.running and key not in self._ending]
            if recent:
                ended.append(recent[self._dice.randrange(len(recent))])
        await self._release(ended)

    async def _release(self, keys: Iterable[str]) -> None:
        items = []
        for key in keys:
            self._ending.add(key)
            self.asked[key].released = True
            items.append(key)
        if not items:
            return
        # (The previous generation withdraws an ask with another message than an allocation.)
        withdrawn = [key for key in items if self._is_previous and key not in self.running]
        released = [release(self.asked[key].app, key) for key in items if key not in withdrawn]
        asks = [previous_ask_release(self.asked[key].app, key) for key in withdrawn]
        await self.client.send_releases(released, asks)

    async def _new_application(self) -> None:
        app, queue = self._next("app"), self._dice.choice(("root.batch", "root.batch", "root.service"))
        self._apps.append((app, queue))
        self._of_app = 0
        await self.client.send_applications([application(app, queue, user=self._dice.choice(USERS))])
        if len(self._apps) > 6:
            old, _ = self._apps.pop(0)
            await self._remove(old)

    async def _remove(self, app: str) -> None:
        self._removed.add(app)
        await self.client.send_applications(remove=[removal(app)])

    # ---- gangs -----------------------------------------------------------------------------------------------------

    async def _begin_gang(self) -> None:
        app = self._next("gang")
        size = self._dice.choice((500, 1000))
        style = self._dice.choice(("Soft", "Hard"))
        self._gangs[app] = _Gang(app, size, self._now_s())
        whole = {"vcore": size * GANG_SIZE}
        await self.client.send_applications(
            [
                application(
                    app,
                    "root.gangs",
                    user=self._dice.choice(USERS),
                    placeholder_ask=whole,
                    execution_timeout_ms=15_000,
                    gang_scheduling_style=style,
                )
            ]
        )

    async def _tend_gangs(self) -> None:
        for gang in list(self._gangs.values()):
            if not gang.held and gang.app in self._accepted:
                gang.held = {f"{gang.app}-hold-{number}" for number in range(GANG_SIZE)}
                await self._ask_gang(gang, sorted(gang.held), is_placeholder=True)
            elif gang.held and not gang.is_real and all(key in self.running for key in gang.held):
                gang.is_real = True
                gang.work = {f"{gang.app}-work-{number}" for number in range(GANG_SIZE)}
                await self._ask_gang(gang, sorted(gang.work), is_placeholder=False)
            is_at_work = gang.is_real and all(key in self.running for key in gang.work)
            if is_at_work or self._now_s() - gang.since_s > FORMING_S * self._slower:
                del self._gangs[gang.app]
                await self._remove(gang.app)

    async def _ask_gang(self, gang: _Gang, keys: Sequence[str], *, is_placeholder: bool) -> None:
        await self._send_asks(
            [
                self._ask(key, gang.app, {"vcore": gang.size}, task_group="workers", placeholder=is_placeholder)
                for key in keys
            ]
        )

    # ---- nodes, configuration, source ------------------------------------------------------------------------------

    async def _add_nodes(self, count: int) -> None:
        added = [self._next("node") for _ in range(count)]
        self.nodes.update(dict.fromkeys(added, NODE_CORES))
        await self.client.send_nodes([node(name, size_of_node(NODE_CORES)) for name in added])

    async def _change_nodes(self) -> None:
        names = sorted(self.nodes)
        name = names[self._dice.randrange(len(names))]
        what = self._dice.choice(("add", "remove", "drain", "resize", "resize"))
        if len(names) < NODES - 2 or (what == "add" and len(names) < NODES + 3):
            await self._add_nodes(1)
        elif what == "remove":
            del self.nodes[name]
            self.drained.discard(name)
            await self._act(name, si.NodeInfo.DECOMISSION)
        elif what == "drain":
            if name in self.drained:
                self.drained.remove(name)
                await self._act(name, si.NodeInfo.DRAIN_TO_SCHEDULABLE)
            else:
                self.drained.add(name)
                await self._act(name, si.NodeInfo.DRAIN_NODE)
        else:
            self.nodes[name] = self._dice.randint(NODE_CORES - 6, NODE_CORES + 6)
            await self.client.send_nodes([node(name, size_of_node(self.nodes[name]), action=si.NodeInfo.UPDATE)])

    async def _act(self, name: str, action: si.NodeInfo.ActionFromRM.ValueType) -> None:
        await self.client.send_nodes([node(name, {}, action=action)])

    async def _reload(self) -> None:
        """Gives another configuration. An answer that is lost leaves it in doubt, and the next one tries again."""
        wanted = self._in_doubt or configuration(self._dice.randrange(4))
        self._in_doubt = wanted
        with contextlib.suppress(AdminFailed):
            if self.is_asked:
                answer = await self.client.update_configuration(wanted, timeout_s=10)
            else:
                answer = await self._admin.update_configuration(self.rm_id, wanted, timeout_s=10)
            if not answer.accepted:
                raise AssertionError(f"{self.rm_id}: a valid configuration was refused: {answer.problems}")
            self.config, self._in_doubt = wanted, None
            self.reloads += 1

    @property
    def configuration_in_force(self) -> str | None:
        """None: the answer to the last change was lost."""
        return None if self._in_doubt else self.config

    def evidence(self) -> Evidence:
        """What this RM knows, for the auditor."""
        return Evidence(
            self.rm_id,
            heard=self.heard,
            asked=self.asked,
            running=self.running,
            removed=self.removed_applications,
            nodes=self.nodes,
            drained=self.drained,
            vms=self.vms if self.source is not None else None,
            config=self.configuration_in_force,
            is_asked=self.is_asked,
        )

    def change_source(self) -> None:
        """Hosts of another manager, with VMs that come, go and move."""
        assert self.source is not None
        for name in self._dice.sample(sorted(self.vms), len(self.vms) // 2):
            del self.vms[name]
        for _ in range(4):
            on = f"host-{self._dice.randrange(HOSTS)}"
            if list(self.vms.values()).count(on) < 3:
                self.vms[self._next("vm")] = on
        documents = [*(host(f"host-{number}", 8) for number in range(HOSTS))]
        documents += [vm(name, on, 1) for name, on in self.vms.items()]
        self._publish(documents)

    def _publish(self, documents: Sequence[dict[str, object]]) -> None:
        assert isinstance(self.source, Path)
        write(self.source, json.dumps(documents))

    # ---- what it hears ---------------------------------------------------------------------------------------------

    def _since_s(self) -> float:
        return self._now_s() - self._began_s

    def _note(self, what: str, key: str, app: str, more: str = "") -> None:
        self.heard_at_s = self._now_s()
        self.heard.append(Heard(round(self._since_s(), 3), what, key, app, more))

    def _on_allocated(self, items: Sequence[si.Allocation]) -> None:
        for each in items:
            self._note("new", each.allocationKey, each.applicationID, each.nodeID)
            self.running[each.allocationKey] = (each.applicationID, each.nodeID)
            self._answered += 1

    def _on_released(self, items: Sequence[si.AllocationRelease]) -> None:
        for each in items:
            kind = si.TerminationType.Name(each.terminationType)
            self._note("released", each.allocationKey, each.applicationID, kind)
            self.running.pop(each.allocationKey, None)
            if each.terminationType != si.STOPPED_BY_RM:
                self._confirm.put_nowait(confirmation(each))

    def _on_rejected(self, items: Sequence[Rejection]) -> None:
        for each in items:
            self._note("rejected", each.allocation_key, each.application_id, each.reason)
            self._rejected.add(each.allocation_key)
            self._answered += 1

    def _on_application(
        self,
        accepted: Sequence[si.AcceptedApplication],
        rejected: Sequence[si.RejectedApplication],
        updated: Sequence[si.UpdatedApplication],
    ) -> None:
        for yes in accepted:
            self._note("accepted", yes.applicationID, yes.applicationID)
            self._accepted.add(yes.applicationID)
        for no in rejected:
            self._note("refused", no.applicationID, no.applicationID, no.reason)
            self._gangs.pop(no.applicationID, None)
        for change in updated:
            self._note("state", change.applicationID, change.applicationID, change.state)

    def _predicate(self, question: pb.PredicatesQuestion) -> bool | str:
        args = question.args
        return allows(args.allocationKey, args.nodeID) or "not there"

    async def _confirming(self) -> None:
        while True:
            items = [await self._confirm.get()]
            while not self._confirm.empty() and len(items) < 100:
                items.append(self._confirm.get_nowait())
            await self.client.send_releases(items)


def size_of_node(cores: int) -> dict[str, int]:
    return {"vcore": cores * 1000, "memory": 1 << 30}
