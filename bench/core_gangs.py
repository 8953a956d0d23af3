"""Gangs in the core alone: a part of ``core_bench.py``.

* ``gangs,NODES,GANGS,MEMBERS``: gangs in ten queues, each with one task group. First, all placeholders are submitted
  (in requests of 1,000) and placed; then all real asks, in the same way. The RM confirms every PLACEHOLDER_REPLACED at
  once, those of an outcome in requests of 1,000. ``ordinary_per_s`` is the rate of the same number of asks of the same
  applications, without placeholders. ``longest_ms``: the longest single call, with its outcome.
* ``gang-room,NODES,GANGS,MEMBERS``: all gangs wait for room in one full queue. Its allocations are released one by one,
  with a cycle after each, until all gangs are placed. ``ordinary_release_us`` is the same with ordinary asks.
  ``idle_release_us``: a release and an ask that takes the room again, while all gangs wait;
  ``idle_release_few_us``: the same while a hundredth of them waits.
* ``gang-sizes,…``: the same, but each gang announces another size (the ordinary asks are equal).
* ``gang-held,NODES,ASKS,MEMBERS``: one member of a gang has no room, and real asks wait for it. The figures are the
  cost at rest, and the rate of ordinary allocations with the held asks and without.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from muster_core.model.commands import ReleaseItem, Termination, UpdateAllocations
from muster_core.model.outcome import Outcome, RejectedApplication, ReleasedAllocation
from muster_core.scheduler import SchedulerCore
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler import ingest

from bench.core_parts import (
    ASKS_PER_REQUEST,
    CREATED_S,
    HEADROOM,
    MIB,
    PODS_PER_NODE,
    START_NS,
    at_rest,
    budget,
    chunks,
    clock,
    drain,
    resource,
    started,
)

KINDS = ("gangs", "gang-room", "gang-sizes", "gang-held")
QUEUES = 10
MEMBER = {"vcore": 1_000, "memory": 4_096 * MIB}
TASK_GROUP = "workers"
BESIDE_ASKS = 10_000
IDLE_RELEASES = 1_000
FEW = 100  # a hundredth


@dataclass(frozen=True)
class GangScenario:
    """One line of the table. ``gangs``: the number of gangs, or (gang-held) of held real asks."""

    scenario: str
    nodes: int
    gangs: int
    members: int

    @classmethod
    def parse(cls, text: str) -> GangScenario:
        """``gangs,1000,200,64``."""
        name, *numbers = text.split(",")
        if name not in KINDS or len(numbers) != 3 or not all(map(str.isdecimal, numbers)):
            raise argparse.ArgumentTypeError(f"{text!r}: expected {'|'.join(KINDS)},NODES,GANGS,MEMBERS")
        return cls(name, *map(int, numbers))

    def __str__(self) -> str:
        return f"{self.scenario},{self.nodes},{self.gangs},{self.members}"


SCENARIOS = [
    GangScenario("gangs", 1_000, 200, 64),
    GangScenario("gangs", 5_000, 200, 64),
    GangScenario("gangs", 1_000, 1, 10_000),
    GangScenario("gang-room", 1_000, 2_000, 8),
    GangScenario("gang-sizes", 1_000, 2_000, 8),
    GangScenario("gang-held", 1_000, 10_000, 64),
]


# ---- the RM's requests -----------------------------------------------------------------------------------------------


def gang_id(number: int) -> str:
    """The application of a gang."""
    return f"gang-{number:05}"


def add_applications(
    core: SchedulerCore, announced: Iterable[tuple[str, str, dict[str, int] | None]], now_ns: int
) -> None:
    """Submit (id, queue, placeholderAsk), and check that all are accepted."""
    request = si.ApplicationRequest(
        new=[
            si.AddApplicationRequest(
                applicationID=app_id,
                queueName=queue,
                partitionName="default",
                ugi=si.UserGroupInformation(user="bench", groups=["bench"]),
                placeholderAsk=resource(asked) if asked is not None else None,
            )
            for app_id, queue, asked in announced
        ]
    )
    out = core.apply(ingest.applications(request.SerializeToString()), now_ns)
    refused = [fact.reason for fact in out.facts if isinstance(fact, RejectedApplication)]
    assert not refused, refused[0]
    drain(out)


def ask_of(
    app_id: str, key: str, quantities: dict[str, int], *, task_group: str = "", placeholder: bool = False
) -> si.Allocation:
    """One ask."""
    return si.Allocation(
        allocationKey=key,
        applicationID=app_id,
        partitionName="default",
        resourcePerAlloc=resource(quantities),
        taskGroupName=task_group,
        placeholder=placeholder,
        allocationTags={"creationTime": str(CREATED_S)},
    )


def placeholder_of(app_id: str, member: int, quantities: dict[str, int]) -> si.Allocation:
    """One member's placeholder ask."""
    return ask_of(app_id, f"{app_id}-p{member:05}", quantities, task_group=TASK_GROUP, placeholder=True)


def commands_of(asks: Iterable[si.Allocation], each: int = ASKS_PER_REQUEST) -> list[UpdateAllocations]:
    """The asks in requests, decoded: decoding is the shell's work."""
    messages = (si.AllocationRequest(allocations=part) for part in chunks(list(asks), each))
    return [ingest.allocations(message.SerializeToString()) for message in messages]


def release_of(app_id: str, key: str, termination: Termination = Termination.STOPPED_BY_RM) -> ReleaseItem:
    """The RM's release of an allocation, or the confirmation of one."""
    return ReleaseItem("default", app_id, key, termination)


def times(quantities: dict[str, int], count: int) -> dict[str, int]:
    """Multiply quantities."""
    return {name: value * count for name, value in quantities.items()}


def roomy(nodes: int, members: int) -> dict[str, int]:
    """The capacity of each node, so that all nodes have 1.25 times the demand of so many members."""
    return {"pods": PODS_PER_NODE, **times(MEMBER, max(1, -(-int(HEADROOM * members) // nodes)))}


# ---- placed and replaced ---------------------------------------------------------------------------------------------


@dataclass
class Rm:
    """Drives a core like the service, as an RM that confirms each release at once.

    :ivar made: allocations of the last run; ``ended``: the moment of the last one.
    :ivar rounds: (moment, how many allocations so far) at the end of each cycle with its confirmations, of the last
        run; first the moment of the first cycle.
    :ivar submitted: the moment of the first request of the last run.
    :ivar longest_s: the longest call, with its outcome drained.
    """

    core: SchedulerCore
    now_ns: Callable[[], int]
    rounds: list[tuple[float, int]] = field(default_factory=list)
    submitted: float = 0.0
    made: int = 0
    ended: float = 0.0
    longest_s: float = 0.0

    def run(self, commands: list[UpdateAllocations]) -> None:
        """Submit the commands (the list is emptied), and run until nothing is left to do."""
        commands.reverse()
        self.made, self.rounds, self.submitted = 0, [], time.perf_counter()
        while commands:
            self._apply(commands.pop())
        self.rounds.append((time.perf_counter(), 0))
        while True:
            begun = time.perf_counter()
            out = self.core.cycle(self.now_ns(), budget())
            told = [fact for fact in out.facts if isinstance(fact, ReleasedAllocation)]
            self._take(out, begun)
            for part in chunks(told, ASKS_PER_REQUEST):
                self._apply(
                    UpdateAllocations((), [release_of(fact.app_id, fact.key, fact.termination) for fact in part])
                )
            if self.made > self.rounds[-1][1]:
                self.rounds.append((self.ended, self.made))
            if not told and self.core.exhausted:
                return

    def _apply(self, command: UpdateAllocations) -> None:
        begun = time.perf_counter()
        self._take(self.core.apply(command, self.now_ns()), begun)

    def _take(self, out: Outcome, begun: float) -> None:
        made = drain(out)
        now = time.perf_counter()
        self.longest_s = max(self.longest_s, now - begun)
        if made:
            self.made, self.ended = self.made + made, now

    def rates(self, name: str, expected: int) -> dict[str, float]:
        """Per second: all, from the first request on; the first and the last tenth, from the first cycle on."""
        assert self.made == expected, f"{self.made} of {expected} {name} were placed"
        tenth = self.made / 10
        first_s = when(self.rounds, tenth) - self.rounds[0][0]
        last_s = self.ended - when(self.rounds, self.made - tenth)
        return {
            f"{name}_per_s": round(self.made / (self.ended - self.submitted), 1),
            f"{name}_first_decile_per_s": round(tenth / first_s, 1),
            f"{name}_last_decile_per_s": round(tenth / last_s, 1),
        }


def when(rounds: list[tuple[float, int]], count: float) -> float:
    """Return the time at which so many were placed, interpolated within a round."""
    for (before, low), (after, high) in itertools.pairwise(rounds):
        if high >= count > low:
            return before + (after - before) * (count - low) / (high - low)
    raise AssertionError(f"{count} allocations were never made")


def flat_queues(properties: str = "") -> str:
    """Ten leaves, nodes in fair order."""
    leaves = ", ".join(f"{{name: q{number}}}" for number in range(QUEUES))
    return (
        "partitions: [{name: default, nodesortpolicy: {type: fair}, "
        f"queues: [{{name: root, submitacl: '*', {properties}queues: [{leaves}]}}]}}]"
    )


def gangs(scenario: GangScenario, profile: Path | None) -> dict[str, float]:
    """Measure all placeholders, then all real asks; and the same asks without placeholders."""
    members, wanted = range(scenario.members), scenario.gangs * scenario.members
    found: dict[str, float] = {}
    for kind in ("gangs", "ordinary"):
        core = started(flat_queues(), scenario.nodes, roomy(scenario.nodes, wanted))
        ids = [gang_id(number) for number in range(scenario.gangs)]
        whole = times(MEMBER, scenario.members) if kind == "gangs" else None
        add_applications(core, [(each, f"root.q{n % QUEUES}", whole) for n, each in enumerate(ids)], START_NS)
        placeholders = commands_of(placeholder_of(each, member, MEMBER) for each in ids for member in members)
        real = commands_of(
            ask_of(each, f"{each}-r{member:05}", MEMBER, task_group=TASK_GROUP) for each in ids for member in members
        )
        gc.collect()
        gc.freeze()  # a service does not keep decoded requests
        rm = Rm(core, clock())
        if kind == "ordinary":
            rm.run(real)
            found["ordinary_per_s"] = rm.rates("ordinary", wanted)["ordinary_per_s"]
            break
        with profiled(profile):
            rm.run(placeholders)
            found |= rm.rates("placeholders", wanted)
            rm.run(real)
            found |= rm.rates("replacements", wanted)
        found["longest_ms"] = round(rm.longest_s * 1_000, 1)
        (partition,) = core.partitions.values()
        groups = [group for app in partition.apps.values() if app.gang for group in app.gang.groups.values()]
        assert all(group.replaced == group.asked == scenario.members for group in groups), "not all were replaced"
    return found


@contextmanager
def profiled(path: Path | None) -> Iterator[None]:
    """Write cProfile's statistics of the block to a file; None: do not profile."""
    if path is None:
        yield
        return
    with cProfile.Profile() as profiler:
        yield
    profiler.dump_stats(str(path))


# ---- waiting for room ------------------------------------------------------------------------------------------------


def full_queue(
    nodes: int, gangs_waiting: int, members: int, *, sizes: bool, room: int
) -> tuple[SchedulerCore, Callable[[], int]]:
    """A queue filled with ``room`` allocations of the application "filler", for which gangs (or asks) wait.

    :param sizes: no two gangs announce the same.
    :param members: 0: ordinary applications of one ask each.
    """
    config = (
        "partitions: [{name: default, nodesortpolicy: {type: fair}, queues: [{name: root, submitacl: '*', "
        f"queues: [{{name: full, resources: {{max: {{vcore: {room}}}}}}}]}}]}}]"
    )
    core = started(config, nodes, roomy(nodes, 2 * room))
    now_ns = clock()
    ids = [gang_id(number) for number in range(gangs_waiting)]
    memory = [MEMBER["memory"] - number * sizes for number in range(gangs_waiting)]
    asked = [{"vcore": members * 1_000, "memory": members * each} if members else None for each in memory]
    add_applications(core, [("filler", "root.full", None)], now_ns())
    fill = commands_of(ask_of("filler", f"filler-{number:06}", MEMBER) for number in range(room))
    for command in fill:
        drain(core.apply(command, now_ns()))
    assert settle(core, now_ns) == room, "the queue is not full"
    add_applications(core, [(each, "root.full", whole) for each, whole in zip(ids, asked, strict=True)], now_ns())
    if members:
        asks = [
            placeholder_of(each, member, {"vcore": 1_000, "memory": own})
            for each, own in zip(ids, memory, strict=True)
            for member in range(members)
        ]
    else:
        asks = [
            ask_of(each, f"{each}-r", {"vcore": 1_000, "memory": own}) for each, own in zip(ids, memory, strict=True)
        ]
    for command in commands_of(asks):
        drain(core.apply(command, now_ns()))
    assert settle(core, now_ns) == 0, "an ask was placed in the full queue"
    gc.collect()
    gc.freeze()
    return core, now_ns


def settle(core: SchedulerCore, now_ns: Callable[[], int]) -> int:
    """Run cycles until nothing more fits; return the number of placed asks."""
    made = 0
    while True:
        made += drain(core.cycle(now_ns(), budget()))
        if core.exhausted:
            return made


def released_one_by_one(core: SchedulerCore, now_ns: Callable[[], int], count: int) -> tuple[list[float], int]:
    """Release the filler's allocations, a cycle after each. Return the seconds of each, and the number placed."""
    took, made = [], 0
    for number in range(count):
        command = UpdateAllocations((), [release_of("filler", f"filler-{number:06}")])
        begun = time.perf_counter()
        made += drain(core.apply(command, now_ns()))
        made += settle(core, now_ns)
        took.append(time.perf_counter() - begun)
    return took, made


def idle_release_us(nodes: int, gangs_waiting: int, members: int, *, sizes: bool) -> float:
    """Measure a release and an ask that takes the room again, after which all gangs wait as before: microseconds."""
    room = max(IDLE_RELEASES, members)
    core, now_ns = full_queue(nodes, gangs_waiting, members, sizes=sizes, room=room)
    swaps = []
    for number, command in enumerate(
        commands_of((ask_of("filler", f"again-{number:06}", MEMBER) for number in range(IDLE_RELEASES)), each=1)
    ):
        swaps.append(UpdateAllocations(command.asks, [release_of("filler", f"filler-{number:06}")]))
    begun, made = time.perf_counter(), 0
    for swap in swaps:
        made += drain(core.apply(swap, now_ns()))
        made += settle(core, now_ns)
    ended = time.perf_counter()
    assert made == IDLE_RELEASES, f"{made} of {IDLE_RELEASES} were placed"
    return round((ended - begun) / IDLE_RELEASES * 1e6, 1)


def gang_room(scenario: GangScenario, profile: Path | None) -> dict[str, float]:
    """Measure gangs that wait for room while it becomes free."""
    sizes = scenario.scenario == "gang-sizes"
    members, count = scenario.members, scenario.gangs * scenario.members
    core, now_ns = full_queue(scenario.nodes, scenario.gangs, members, sizes=sizes, room=count)
    with profiled(profile):
        took, made = released_one_by_one(core, now_ns, count)
    assert made == count, f"{made} of {count} were placed"
    tenth = max(1, count // 10)
    core, now_ns = full_queue(scenario.nodes, count, 0, sizes=False, room=count)
    ordinary, made = released_one_by_one(core, now_ns, count)
    assert made == count, f"{made} of {count} ordinary asks were placed"
    few = max(1, scenario.gangs // FEW)
    return {
        "releases": count,
        "release_us": micros(took),
        "first_decile_us": micros(took[:tenth]),
        "last_decile_us": micros(took[-tenth:]),
        "longest_us": round(max(took) * 1e6, 1),
        "ordinary_release_us": micros(ordinary),
        "idle_release_us": idle_release_us(scenario.nodes, scenario.gangs, members, sizes=sizes),
        "idle_release_few_us": idle_release_us(scenario.nodes, few, members, sizes=sizes),
    }


def micros(took: list[float]) -> float:
    """The mean, in microseconds."""
    return round(sum(took) / len(took) * 1e6, 1)


# ---- held asks -------------------------------------------------------------------------------------------------------


def gang_held(scenario: GangScenario, profile: Path | None, idle_s: float) -> dict[str, float]:
    """Measure real asks that wait for a gang's last member, and ordinary asks beside them."""
    beside = {}
    for held in (0, scenario.gangs):
        core = started(flat_queues(), scenario.nodes, roomy(scenario.nodes, BESIDE_ASKS + scenario.members))
        whole = {"vcore": scenario.members * 1_000 + 1_000_000_000}
        applications: list[tuple[str, str, dict[str, int] | None]] = [("gang", "root.q0", whole)]
        applications += [(f"beside-{number}", f"root.q{number % QUEUES}", None) for number in range(100)]
        now_ns = time.time_ns
        add_applications(core, applications, now_ns())
        asks = [placeholder_of("gang", member, MEMBER) for member in range(scenario.members - 1)]
        asks.append(placeholder_of("gang", scenario.members - 1, {"vcore": 1_000_000_000}))
        asks += [ask_of("gang", f"real-{number:06}", MEMBER, task_group=TASK_GROUP) for number in range(held)]
        held_commands = commands_of(asks)
        beside_commands = commands_of(
            ask_of(f"beside-{number % 100}", f"beside-{number:06}", MEMBER) for number in range(BESIDE_ASKS)
        )
        gc.collect()
        gc.freeze()
        begun = time.perf_counter()
        with profiled(profile if held else None):
            for command in held_commands:
                drain(core.apply(command, now_ns()))
            made = settle(core, now_ns)
        submitted_s = time.perf_counter() - begun
        assert made == scenario.members - 1, f"{made} placed; expected all members but one"
        if held:
            beside["held_submitted_per_s"] = round(len(asks) / submitted_s, 1)
            beside |= at_rest(core, idle_s)
        rm = Rm(core, now_ns)
        rm.run(beside_commands)
        beside["beside_per_s" if held else "alone_per_s"] = rm.rates("x", BESIDE_ASKS)["x_per_s"]
    return beside


# ---- one run ---------------------------------------------------------------------------------------------------------


def measured(scenario: GangScenario, profile: Path | None, idle_s: float) -> dict[str, Any]:
    """Measure one scenario once."""
    match scenario.scenario:
        case "gangs":
            figures = gangs(scenario, profile)
        case "gang-held":
            figures = gang_held(scenario, profile, idle_s)
        case _:
            figures = gang_room(scenario, profile)
    return {**asdict(scenario), **figures}
