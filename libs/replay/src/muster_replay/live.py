"""`muster demo --live`: a resource manager whose users start tasks until somebody ends it.

Tasks run for a while and end, gangs form, production preempts batch, a node is drained and comes back. The lines say
what happens; the page shows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from muster_client import AdminClient, Callbacks, RmClient, application, ask, confirmation, node, release, removal
from muster_client.clock import Clock, SystemClock
from muster_client.errors import AdminFailed
from muster_proto.si.v1 import si_pb2 as si
from muster_si.constants import CPU

from muster_replay.live_plan import (
    BATCH,
    GPU,
    NODES,
    PRODUCTION,
    QUEUES,
    RESEARCH,
    TRAINING,
    Drain,
    Job,
    PlanStep,
    Undrain,
    plan,
)
from muster_replay.trace import total

RM_ID = "demo"
# Users of a queue wait with new jobs while so many of their tasks are pending.
_BACKLOG = {BATCH: 240, RESEARCH: 60, TRAINING: 12, PRODUCTION: 60}
_STATUS_S = 10.0
# What happens within this time is one line.
_GATHER_S = 1.0
_TURN_S = 0.05
# A gang that gets no room for so long gives up.
_GANG_TIMEOUT_MS = 120_000

Say = Callable[[str], None]


@dataclass(slots=True)
class _RunningJob:
    """A job that was sent.

    :ivar left: tasks that have not ended.
    :ivar rooms: of a gang: placeholders that are allocated.
    :ivar sent_at: seconds, for a gang's wait.
    :ivar works: of a gang: its real tasks were asked for.
    """

    job: Job
    left: set[str]
    sent_at: float
    rooms: set[str] = field(default_factory=set)
    works: bool = False
    again: int = 0


class LiveDemo:
    """One run.

    :param gateway: gRPC address of a gateway.
    :param say: takes each line.
    :param seed: of everything that varies.
    :ivar counts: what happened so far: submitted, placed, ended, preempted, gangs, drained, undrained.
    """

    def __init__(self, gateway: str, say: Say, *, seed: int = 1, clock: Clock | None = None) -> None:
        self._gateway, self._say, self._clock = gateway, say, clock or SystemClock()
        self._chance = random.Random(seed)  # noqa: S311 - a demo
        self._steps = plan(seed)
        self._jobs: dict[str, _RunningJob] = {}
        self._placed: dict[tuple[str, str], si.Allocation] = {}
        self._ends: list[tuple[float, str, str]] = []
        self._asked: set[tuple[str, str]] = set()
        self._preempted: Counter[str] = Counter()
        self._formed: list[str] = []
        self._began = self._gathered_at = self._status_at = 0.0
        self.counts: Counter[str] = Counter()
        self._rm = RmClient(
            gateway,
            RM_ID,
            config=QUEUES,
            version="demo",
            extra_config={"muster.applications.end": "true"},
            callbacks=Callbacks(
                on_allocated=self._on_allocated, on_released=self._on_released, on_application=self._on_application
            ),
            clock=self._clock,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Works until ``stop`` is set. Raises the error that ended the client."""
        async with self._rm, _admin(self._gateway) as admin:
            await self._rm.register()
            await self._rm.send_nodes([node(name, resources) for name, resources in NODES.items()])
            await self._rm.nodes_answered()
            self._began = self._gathered_at = self._status_at = self._clock.monotonic()
            ended = asyncio.ensure_future(self._rm.wait())
            stopped = asyncio.ensure_future(stop.wait())
            try:
                following = next(self._steps)
                while not stop.is_set() and not ended.done():
                    while self._seconds() >= following.at_s:
                        await self._do(following, admin)
                        following = next(self._steps)
                    await self._end_tasks()
                    self._tell()
                    await asyncio.wait({ended, stopped}, timeout=_TURN_S, return_when=asyncio.FIRST_COMPLETED)
                if ended.done() and not stop.is_set():
                    ended.result()
            finally:
                for task in (ended, stopped):
                    task.cancel()
                await asyncio.gather(ended, stopped, return_exceptions=True)

    # ---- what users and operators do -----------------------------------------------------------------------------

    async def _do(self, step: PlanStep, admin: AdminClient) -> None:
        match step.what:
            case Job() as job if self._pending(job.queue) > _BACKLOG[job.queue]:
                pass  # its user waits
            case Job() as job:
                await self._submit(job)
            case Drain(name):
                await self._drain(admin, name, schedulable=False)
            case Undrain(name):
                await self._drain(admin, name, schedulable=True)

    async def _submit(self, job: Job) -> None:
        keys = [f"{job.name}-{number}" for number in range(1, job.tasks + 1)]
        self._jobs[job.name] = _RunningJob(job, set(keys), self._clock.monotonic())
        room = total([job.resources] * job.tasks) if job.gang else None
        await self._rm.send_applications(
            [
                application(
                    job.name,
                    job.queue,
                    user=job.user,
                    groups=[job.queue.rpartition(".")[2]],
                    placeholder_ask=room,
                    execution_timeout_ms=_GANG_TIMEOUT_MS if job.gang else 0,
                )
            ]
        )
        await self._rm.applications_answered()
        self.counts["submitted"] += job.tasks
        if job.gang:
            rooms = [f"room-{key}" for key in keys]
            await self._ask(job, rooms, placeholder=True)
            self._line(f"{job.user} wants a gang of {job.tasks}: {_amounts(job)} each, all or none")
        else:
            await self._ask(job, keys)
            if job.may_preempt and job.tasks > 20:
                self._line(f"{job.user} needs {job.tasks} tasks of {_amounts(job)} now, within production's guarantee")

    async def _ask(self, job: Job, keys: Sequence[str], *, placeholder: bool = False) -> None:
        policy = si.PreemptionPolicy(allowPreemptOther=job.may_preempt, allowPreemptSelf=not job.may_preempt)
        self._asked.update((job.name, key) for key in keys)
        await self._rm.send_asks(
            [
                ask(
                    key,
                    job.name,
                    job.resources,
                    placeholder=placeholder,
                    task_group="members" if job.gang else "",
                    preemption_policy=policy,
                )
                for key in keys
            ]
        )

    async def _drain(self, admin: AdminClient, name: str, *, schedulable: bool) -> None:
        with contextlib.suppress(AdminFailed):  # a busy machine; the next round drains another one
            result = await admin.drain_node(RM_ID, name, schedulable=schedulable)
            self.counts["undrained" if schedulable else "drained"] += 1
            if schedulable:
                self._line(f"node {name} is back")
            else:
                self._line(f"an operator drains node {name}: its {result.allocations} tasks stay, no new ones come")

    async def _end_tasks(self) -> None:
        now, ending = self._clock.monotonic(), []
        while self._ends and self._ends[0][0] <= now:
            _, name, key = heapq.heappop(self._ends)
            if self._placed.pop((name, key), None) is not None:  # else it was preempted
                ending.append((name, key))
        if not ending:
            return
        await self._rm.send_releases([release(name, key) for name, key in ending])
        self.counts["ended"] += len(ending)
        done = []
        for name, key in ending:
            running = self._jobs.get(name)
            if running is None:  # an operator ends it
                continue
            running.left.discard(key)
            if not running.left:
                done.append(removal(name))
                del self._jobs[name]
        if done:
            await self._rm.send_applications(remove=done)

    # ---- what the scheduler says ---------------------------------------------------------------------------------

    async def _on_allocated(self, allocations: Sequence[si.Allocation]) -> None:
        now = self._clock.monotonic()
        for item in allocations:
            name, key = item.applicationID, item.allocationKey
            self._asked.discard((name, key))
            if (running := self._jobs.get(name)) is None:
                continue
            if item.placeholder:
                running.rooms.add(key)
                if len(running.rooms) == running.job.tasks and not running.works:
                    running.works = True
                    self.counts["gangs"] += 1
                    self._formed.append(
                        f"{name} has room for all {running.job.tasks} after {now - running.sent_at:.1f} s"
                    )
                    await self._ask(running.job, sorted(running.left))
                continue
            self.counts["placed"] += 1
            self._placed[name, key] = item
            heapq.heappush(self._ends, (now + self._chance.uniform(*running.job.runs_s), name, key))

    async def _on_released(self, releases: Sequence[si.AllocationRelease]) -> None:
        ours = [item for item in releases if item.terminationType != si.STOPPED_BY_RM]
        if not ours:
            return
        await self._rm.send_releases([confirmation(item) for item in ours])
        for item in ours:
            name, key = item.applicationID, item.allocationKey
            self._asked.discard((name, key))
            preempted = self._placed.pop((name, key), None)
            running = self._jobs.get(name)
            if running is None or item.terminationType != si.PREEMPTED_BY_SCHEDULER or preempted is None:
                continue
            # Its task begins again, under another key.
            running.again += 1
            again = f"{name}-again-{running.again}"
            running.left = running.left - {key} | {again}
            self.counts["preempted"] += 1
            self._preempted[running.job.queue.rpartition(".")[2]] += 1
            await self._ask(running.job, [again])

    def _on_application(
        self,
        _accepted: Sequence[si.AcceptedApplication],
        rejected: Sequence[si.RejectedApplication],
        updated: Sequence[si.UpdatedApplication],
    ) -> None:
        for item in rejected:
            self._line(f"{item.applicationID} is rejected: {item.reason}")
            self._jobs.pop(item.applicationID, None)
        for change in updated:
            if change.state == "Failing" and self._jobs.pop(change.applicationID, None) is not None:
                self._line(f"{change.applicationID} fails: {change.message}")

    # ---- lines ---------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        now = self._clock.monotonic()
        if now - self._gathered_at >= _GATHER_S:
            self._gathered_at = now
            for queue, count in self._preempted.items():
                self._line(f"{count} {'task' if count == 1 else 'tasks'} of {queue} preempted, to begin again later")
            for formed in self._formed:
                self._line(formed)
            self._preempted.clear()
            self._formed.clear()
        if now - self._status_at >= _STATUS_S:
            self._status_at = now
            self._line(self._status())

    def _status(self) -> str:
        used, capacity = Counter[str](), total(list(NODES.values()))
        for name, key in self._placed:
            if (running := self._jobs.get(name)) is not None and key in running.left:
                used.update(running.job.resources)
        return (
            f"== {len(self._placed)} tasks run on {used[CPU] // 1000:,} of {capacity[CPU] // 1000:,} vcores "
            f"and {used[GPU]} of {capacity[GPU]} GPUs; {len(self._asked)} pending, {self.counts['ended']:,} ended, "
            f"{self.counts['preempted']} preempted"
        )

    def _pending(self, queue: str) -> int:
        return sum(1 for name, _ in self._asked if name in self._jobs and self._jobs[name].job.queue == queue)

    def _seconds(self) -> float:
        return self._clock.monotonic() - self._began

    def _line(self, text: str) -> None:
        self._say(f"{self._seconds():5.0f} s  {text}")


def _amounts(job: Job) -> str:
    gpus = job.resources.get(GPU, 0)
    return f"{job.resources[CPU] // 1000} vcores" + (f" and {gpus} GPUs" if gpus else "")


@contextlib.asynccontextmanager
async def _admin(gateway: str) -> AsyncIterator[AdminClient]:
    admin = AdminClient(gateway)
    try:
        yield admin
    finally:
        await admin.close()
