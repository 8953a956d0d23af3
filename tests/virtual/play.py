"""Plays a seed: RMs work while everything goes wrong, then all gets well, and the auditor looks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import logging
import marshal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import structlog
from chaos.storm.auditor import LAWS, Finding, shown_by_state
from chaos.storm.evidence import Evidence, row_of
from chaos.storm.plan import Fault, under_way
from chaos.storm.workload import StormRm
from event_books_shown import of_rest
from muster_bus.errors import BusError
from muster_bus.topics import Topics
from muster_client.resumable_stream import RESUME_METADATA
from muster_proto.si.v1 import si_pb2 as si
from prometheus_client import REGISTRY
from prometheus_client import Counter as Metered

from virtual import module_state
from virtual.calls import Channel, Line
from virtual.faults import CALM, STORMY, Rates
from virtual.http import fetch
from virtual.incarnations import Incarnation
from virtual.loop import OWNER, VirtualLoop
from virtual.operator import Operator
from virtual.rms import VirtualRm
from virtual.trouble import Trouble, plan_of
from virtual.world import PARTITIONS, World

SLOWER = 8.0  # what an RM does every so often is rarer than in a storm, whose hours are real
QUIET_S = 20.0
RMS = 4
ASKS_PER_HOUR = 5_800  # the RMs go on until there are no faults any more: they ask for more than half as much again
Detail = si.EventRecord.ChangeDetail
PLAIN = frozenset({RESUME_METADATA})  # what a plain client of the interface does not name
_MARSHALLED = 2  # the last version whose bytes do not depend on how often an object is referred to
_SHOWN = 20  # findings that are told
PROCESSES = ("scheduler-1", "scheduler-2", "view", "event-publisher", "gateway-1", "gateway-2")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is played: a function of the seed, and of nothing else.

    :param seconds: virtual seconds in which the RMs work, and there are faults.
    :param asks: of all RMs together.
    """

    seed: int
    seconds: float
    asks: int
    rms: int = RMS
    rates: Rates = CALM
    slower: float = SLOWER
    faults: tuple[Fault, ...] = ()

    def without_faults(self) -> Plan:
        """The same work in a calm world."""
        return replace(self, rates=CALM, faults=())


@dataclass(slots=True)
class Played:
    """What came of a plan."""

    plan: Plan
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    asks: int = 0
    events: int = 0
    turns: int = 0
    digest: str = ""  # of all records, and of the lines

    def story(self) -> list[str]:
        """What was found, with the faults around each finding, and the records."""
        told = []
        for each in self.findings[:_SHOWN]:
            when = f"{each.at_s:.3f} s" if each.at_s >= 0 else f"{each.at_ns} ns" if each.at_ns else "the end"
            told.append(f"[{each.law}] {each.rm_id}, {when}: {each.what}")
            around = under_way(self.plan.faults, each.at_s) if each.at_s >= 0 else []
            told += [f"    fault {fault}" for fault in around]
            told += [f"    {line}" for line in each.records]
        return told


def stormy(seed: int, seconds: float, asks: int = 0) -> Plan:
    """Returns the plan of a seed: all faults at once.

    :param asks: of all RMs together; 0: by the length.
    """
    faults = plan_of(seed, seconds, PROCESSES, RMS)
    return Plan(seed, seconds, asks or round(seconds / 3600 * ASKS_PER_HOUR), RMS, STORMY, faults=faults)


def play(plan: Plan) -> Played:
    """Plays a plan from its begin to the auditor's verdict."""
    module_state.reset()
    metered = _metered()
    loop = VirtualLoop(plan.seed)
    played = Played(plan)
    with _counting(played), _collected():
        asyncio.set_event_loop(loop)
        try:
            world = World(plan.seed, loop, plan.rates, rm_of_source=rm_ids(plan.rms)[-1])
            loop.set_exception_handler(world.unhandled)
            try:
                loop.run_until_complete(_play(world, plan, played))
            except Exception as error:
                played.findings.append(Finding("run", "all", f"{type(error).__name__}: {error}", at_s=world.now_s))
                world.say(f"the run failed: {error!r}")
                import traceback

                played.lines.append(traceback.format_exc())
            played.lines = [*world.lines, *played.lines]
            played.turns = loop.turns
            played.counts.update(world.counts)
            played.counts["asks"] = played.asks
            played.counts.update(_metered() - metered)
            played.digest = _digest(world)
            played.findings += [Finding("process", "all", each) for each in world.failures]
        finally:
            asyncio.set_event_loop(None)
            loop.close()
    return played


class RmProcess:
    """An RM, which is one incarnation."""

    def __init__(self, world: World, plan: Plan, number: int, rm_id: str, over: asyncio.Event) -> None:
        self.life = Incarnation(world.loop, rm_id)
        self.rm: VirtualRm = self.life.run(
            lambda: VirtualRm(
                rm_id,
                "virtual",
                plan.seed,
                -(-plan.asks // plan.rms),
                plan.asks / plan.rms / (plan.seconds * 0.8),
                over,
                plan.seconds * 3,
                is_asked=number == 1,
                slower=plan.slower,
                is_previous=number >= 2,
                source=world.inventory if rm_id == world.rm_of_source else None,
                now_s=world.loop.time,
                channel=lambda: world.channel(number, number + 1, PLAIN if number == 0 else frozenset()),
            )
        )
        self.working = self.life.task(self.rm.run())

    def line(self) -> Line | None:
        """The connection of its streams."""
        channel = self.rm.client._channel
        assert isinstance(channel, Channel)
        return channel.line


def rm_ids(count: int) -> list[str]:
    """RMs, one after the other in each partition of the log."""
    topics, found = Topics(partitions=PARTITIONS), list[str]()
    number = 0
    while len(found) < count:
        name = f"rm-{number}"
        if topics.partition_of(name) == len(found) % PARTITIONS:
            found.append(name)
        number += 1
    return found


async def _play(world: World, plan: Plan, played: Played) -> None:
    over = asyncio.Event()
    async with world.running():
        await world.until(lambda: all(each.is_up for each in world.processes.values()), "all processes serve")
        rms = [RmProcess(world, plan, number, rm_id, over) for number, rm_id in enumerate(rm_ids(plan.rms))]
        troubling = world.loop.create_task(Trouble(world, rms).run(plan.faults))
        operator = Operator(world, [each.rm for each in rms])
        operating = operator.life.task(operator.run())
        working = [*(each.working for each in rms), operating]
        await asyncio.wait([*working, troubling], timeout=plan.seconds, return_when=asyncio.FIRST_EXCEPTION)
        _raise([*working, troubling])
        await asyncio.wait([*working, troubling], timeout=30.0, return_when=asyncio.FIRST_EXCEPTION)
        _raise([operating])
        troubling.result()
        operating.cancel()
        await asyncio.wait({operating})
        world.rates = CALM
        over.set()
        world.say("the faults are over")
        await world.until(lambda: all(each.is_up for each in world.processes.values()), "all processes serve again")
        await asyncio.wait({operator.life.task(operator.resume_all())})
        done = asyncio.gather(*(asyncio.shield(each.working) for each in rms))
        await asyncio.wait({done}, timeout=plan.seconds * 3)
        assert done.done(), "the RMs did not ask for all"
        done.result()
        hearing = [each.life.task(each.rm.heard_out()) for each in rms]
        await asyncio.wait(hearing, timeout=600.0)
        for each, task in zip(rms, hearing, strict=True):
            assert task.done(), f"{each.rm.rm_id} did not hear all answers"
            task.result()
        await _until_quiet(world, rms)
        found = [_evidence(world, each.rm) for each in rms]
        for one in found:
            await _shown(world, one)
        for each in rms:
            await asyncio.wait({each.life.task(each.rm.stop())})
    played.asks = sum(len(each.rm.asked) for each in rms)
    played.events = sum(len(each.events) for each in found)
    for one in found:
        for law in LAWS:
            played.findings += law(one)
    for one in found:
        world.counts["VMs at the end"] += len(one.vms or ())
        world.counts.update(f"event: {Detail.Name(each.record.eventChangeDetail)}" for each in one.events)
        world.counts.update(f"heard: {each.what}" for each in one.heard)
    for each in rms:
        world.counts["streams lost"] += each.rm.client.metrics.streams_lost
        world.counts["allocated"] += sum(heard.what == "new" for heard in each.rm.heard)
        world.counts["reloads"] += each.rm.reloads
        each.life.die()


def _metered() -> Counter[str]:
    """The product's counters of what happened."""
    counters = {each for each in REGISTRY._names_to_collectors.values() if isinstance(each, Metered)}
    found: Counter[str] = Counter()
    for each in counters:
        for family in each.collect():
            for sample in family.samples:
                if sample.name.endswith("_total"):
                    about = [value for value in sample.labels.values() if not value.startswith("rm-")]
                    found[" ".join(["metric:", sample.name.removesuffix("_total"), *about])] += round(sample.value)
    return found


def _digest(world: World) -> str:
    found = hashlib.sha256("\n".join(world.lines).encode())
    for (topic, partition), tail in sorted(world.store.tails.items()):
        found.update(f"{topic}/{partition}/{tail.end}".encode())
        found.update(marshal.dumps([tuple(each) for each in world.records(topic, partition)], _MARSHALLED))
    return found.hexdigest()[:16]


def _raise(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Raises what ended one of them."""
    for each in tasks:
        if each.done():
            each.result()


async def _until_quiet(world: World, rms: list[RmProcess]) -> None:
    """Returns when nothing is written any more."""
    topics = world.settings.topics()

    def ends() -> list[int]:
        tails = [world.store.tails[topic, p].end for topic in (topics.requests, topics.state, topics.events)
                 for p in range(PARTITIONS)]  # fmt: skip
        return [*tails, *(len(each.rm.heard) for each in rms)]

    before, since_s = ends(), world.now_s
    while world.now_s - since_s < QUIET_S:
        await asyncio.sleep(1.0)
        now = ends()
        if now != before:
            before, since_s = now, world.now_s


def _evidence(world: World, rm: StormRm) -> Evidence:
    topics = world.settings.topics()
    partition = topics.partition_of(rm.rm_id)
    one = rm.evidence()
    one.take_events(world.records(topics.events, partition))
    one.take_responses(world.records(topics.responses, partition))
    one.take_state(world.records(topics.state, partition))
    letters = world.records(topics.dead_letters, partition)
    one.dead_letters = [dict(each.headers).get("error", b"").decode() for each in letters]
    one.history = [
        (event_id, row_of(si.EventRecord.FromString(value)))
        for (_, rm_id, event_id), value in world.history.events.items()
        if rm_id == rm.rm_id
    ]
    return one


async def _shown(world: World, evidence: Evidence) -> None:
    """What the view shows of an RM, when that is what the state has, or after a long time."""
    import json

    async def get(path: str) -> Any:
        joint = "&" if "?" in path else "?"
        answer = await fetch(world.web.target("view"), f"{path}{joint}rm={quote(evidence.rm_id)}")
        assert answer.status == 200, f"{path}: {answer.status} {answer.body[:200]!r}"
        return json.loads(answer.body)

    async def look() -> bool:
        evidence.shown = await of_rest(get)
        pending = (await get("/ws/v1/explain/pending"))["pending"]
        evidence.shown_pending = {(each["applicationID"], each["allocationKey"]) for each in pending}
        wanted = {name for name, ask in evidence.asks_in_state().items() if ask.pending > 0}
        same = {name: +each for name, each in evidence.shown.figures["allocated on node"].items() if +each}
        state = shown_by_state(evidence).figures["allocated on node"]
        return wanted == evidence.shown_pending and same == {name: +each for name, each in state.items() if +each}

    with contextlib.suppress(AssertionError):  # (the auditor says what is wrong)
        await world.until(look, "the view has caught up", within_s=30.0)


@contextlib.contextmanager
def _counting(played: Played) -> Iterator[None]:
    """Log lines are counted, not written. One with a traceback is a finding: the product did not expect that."""
    counts = played.counts

    def count(_: Any, __: str, line: MutableMapping[str, Any]) -> Any:
        owner = OWNER.get()
        if owner is None or not owner.dead:  # (what is dropped says something, too)
            if line.get("exc_info"):
                error = line["exc_info"] if isinstance(line["exc_info"], BaseException) else sys.exc_info()[1]
                if not isinstance(error, BusError):
                    played.findings.append(Finding("log", "all", f"{line['event']}: {error!r}"))
            if line["event"] == "worker.rebuild" and line.get("reason") == "machine":  # (nothing was damaged)
                played.findings.append(Finding("log", "all", f"a machine failed: {line['error']}"))
            about = line.get("reason") or str(line.get("status") or "").partition(":")[0]
            counts[f"log: {line['event']}{about and f' ({about})'}"] += 1
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[count], wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    try:
        yield
    finally:
        structlog.configure(**before)


@contextlib.contextmanager
def _collected() -> Iterator[None]:
    """Garbage is not collected meanwhile: when a finalizer ran would depend on what ran before."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
