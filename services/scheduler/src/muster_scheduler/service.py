"""The scheduler service: a partition worker with a machine for each partition that this instance owns, and a standby
for each one that it follows.

On Kafka a group of schedulers shares the partitions out (``muster_bus.membership``). ``ownership.py`` decides what a
new share, an ended worker and the time mean; this module does it. With ``scheduler.partitions``, or on the embedded
log, the instance owns its partitions for ever, and a fenced worker ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random

import structlog
from muster_bus.clock import Clock, SystemClock
from muster_bus.contention import Contention
from muster_bus.errors import Fenced
from muster_bus.log import Log
from muster_bus.membership import Assignment, FixedMembership, GroupLog, GroupTerms, Membership
from muster_bus.partition_worker import PartitionWorker
from muster_bus.standby import Standby
from muster_bus.topics import Topics
from muster_bus.worker_progress import WorkerProgress
from muster_queue_config.queue_yaml import load_queue_config
from muster_rest.system_health import TAKE_OVER_S, SchedulerFacts
from muster_runtime.chance import SYSTEM, new_id, new_uuid
from muster_runtime.disposal import Disposal
from muster_runtime.ending import Ending, error_of
from muster_runtime.processor_time import own_usage
from muster_runtime.watchdog import Usage

from muster_scheduler import metrics
from muster_scheduler.dead_letters import without_secrets
from muster_scheduler.emit import decided_report
from muster_scheduler.errors import BadDefaultConfig
from muster_scheduler.group_configuration import GroupConfigurations
from muster_scheduler.group_resolution import UserGroups
from muster_scheduler.heartbeats import Heartbeats
from muster_scheduler.informer_host import InformerHost
from muster_scheduler.machine import SchedulerMachine
from muster_scheduler.owned import OwnedPartitions, problem_of
from muster_scheduler.ownership import ActionKind, Ownership, OwnershipAction, PartitionPhase
from muster_scheduler.recorded_time import ClockSteps, NoSteps, RecordedTime, difference_text
from muster_scheduler.rm_quotas import ReachedQuotas
from muster_scheduler.settings import SchedulerSettings

log = structlog.get_logger(__name__)


class SchedulerService:
    """The service that decides. The service has no socket: it reads requests and writes their outcomes, one transaction
    per batch.

    The informers of its RMs run in the same process or in a child. Their changes come over the log, like all requests.
    The constructor raises muster_core.external.errors.InvalidExternalSettings if an informer or event handler cannot be
    made.

    :param chance: makes the ids of allocations, and its own.
    :param usage: of this process, for watchdogs.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        bus: Log,
        topics: Topics,
        clock: Clock,
        *,
        chance: Random = SYSTEM,
        usage: Callable[[], Usage] = own_usage,
    ) -> None:
        self._settings = settings
        self._log = bus
        self._topics = topics
        self._clock, self._chance, self._usage = clock, chance, usage
        every = tuple(range(topics.partitions))
        self._membership: Membership = FixedMembership(settings.partitions or every)
        self._is_grouped = not settings.partitions and isinstance(bus, GroupLog)
        if self._is_grouped and isinstance(bus, GroupLog):
            terms = GroupTerms(
                settings.group,
                topics.requests,
                topics.partitions,
                settings.standby_partitions,
                settings.session_timeout_s,
                settings.heartbeat_s,
            )
            self._membership = bus.membership(terms, clock)
        # In a group, the informers of a partition live as long as it is owned. Otherwise all of them have one life.
        whole = InformerHost(settings.external, bus, topics, clock, settings.partitions or every, chance, usage)
        self._whole = whole if whole.is_empty or not self._is_grouped else None
        self._outside: dict[int, InformerHost] = {}
        self._steps = ClockSteps(clock.monotonic)
        self._times: dict[int, RecordedTime] = {}  # by partition, of its latest machine
        self._reached = ReachedQuotas(clock.monotonic)
        self._disposal = Disposal(clock.processor_s)
        self._contention = Contention()
        self._make_machine: Callable[[int], SchedulerMachine] | None = None
        self._ownership = Ownership()
        self._owned = OwnedPartitions(topics.partitions, settings.session_timeout_s + TAKE_OVER_S, clock.monotonic())
        # (On a log of one process, its gateway asks this object.)
        shared = isinstance(bus, GroupLog)
        self._heartbeats = (
            Heartbeats(bus, topics, self.health_facts, settings.session_timeout_s, new_id(chance, 16))
            if shared
            else None
        )
        self._beating: asyncio.Task[None] | None = None
        self._workers: dict[int, PartitionWorker] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._standbys: dict[int, Standby] = {}
        self._news = asyncio.Event()  # a share, an ended worker
        self._ends: deque[int | None] = deque()  # partitions whose workers ended, in this order; None: no more shares
        self._tasks: list[asyncio.Task[None]] = []  # of the service; each runs until the end
        self._closing: list[asyncio.Task[None]] = []  # dropped standbys

    # ---- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begins to work on the partitions, or to join the group. Raises BadDefaultConfig."""
        policy_groups = GroupConfigurations(
            self._default_config(), self._settings.policy_groups_dir, shared=self._settings.share_policy_groups
        )
        groups = UserGroups(self._settings.users)  # shared, so that a directory that hangs costs one wait
        self._make_machine = lambda partition: SchedulerMachine(
            self._topics,
            lambda: new_uuid(self._chance),
            policy_groups,
            self._settings.max_allocations_batch,
            round(self._settings.check_invariants_every_s * 1e9),
            groups,
            self._clock.monotonic,
            self._outside_of(partition).gate,
            self._time_of(partition),
            self._steps,
            holds=True,
            reached=self._reached,
            dispose=self._disposal.add,
        )
        metrics.clock_difference_seconds.set_function(lambda: self._difference_ns() / 1e9)
        if self._heartbeats is not None:
            self._beating = asyncio.create_task(self._heartbeats.run(), name="heartbeats")
        await self._membership.start()
        if self._membership.assignment is not None:
            self._take_share(self._membership.assignment)
        if self._whole is not None:
            await self._whole.start()
            self._tasks.append(asyncio.create_task(self._whole.wait(), name="external"))
        self._tasks.append(asyncio.create_task(self._steer(), name="scheduler-steering"))

    async def wait(self) -> None:
        """Returns when stopped. Raises the error that ended a worker (the process must then end: crash-only), and
        NotSynced.
        """
        ending: Ending[BaseException] = Ending("the scheduler")
        for task in self._tasks:
            ending.watch(task, error_of)
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        if ending.cause is not None:
            raise ending.cause

    async def stop(self) -> None:
        """Gives the partitions to others of the group, commits all decisions, then ends."""
        if self._is_grouped:
            await self._hand_over()
        steering = [task for task in self._tasks if task.get_name() == "scheduler-steering"]
        for task in steering:
            task.cancel()
        every = [*self._outside.values(), *([self._whole] if self._whole is not None else [])]
        if any(outside.natives is not None for outside in every):
            for worker in self._workers.values():  # one that waits for a handler must not start again
                worker.stop()
        for outside in every:
            await outside.stop()
        for worker in self._workers.values():
            worker.stop()
        for standby in self._standbys.values():
            await standby.close()
        tasks = [*self._running.values(), *self._tasks, *self._closing]
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._heartbeats is not None and self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            await self._heartbeats.close()
        await self._membership.close()

    async def _hand_over(self) -> None:
        """Waits until other members have the partitions. A lone member keeps them."""
        began_s = self._clock.monotonic()
        self._membership.retire()
        share = self._membership.assignment
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.hand_over_s):
                while share is not None and share.members > 1 and (share.owned or self._running):
                    changed = asyncio.ensure_future(self._membership.changed(share))
                    try:
                        await asyncio.wait({changed, *self._running.values()}, return_when=asyncio.FIRST_COMPLETED)
                        share = changed.result() if changed.done() else share
                    finally:
                        changed.cancel()
                    await asyncio.sleep(0)  # the steering sees it, too
        log.info(
            "scheduler.handed_over", kept=sorted(self._running), took_s=round(self._clock.monotonic() - began_s, 3)
        )

    # ---- steering ----------------------------------------------------------------------------------------------------

    async def _steer(self) -> None:
        """Follows the group and the workers. Raises the error that ended a worker, and NotSynced."""
        listening = asyncio.create_task(self._listen(), name="scheduler-shares")
        listening.add_done_callback(lambda _: self._note_end(None))
        try:
            while True:
                self._news.clear()
                while self._ends:
                    partition = self._ends.popleft()
                    if partition is None:
                        listening.result()
                    else:
                        await self._take_end(partition, self._running[partition])
                self._do(self._ownership.on_time(self._clock.monotonic()))
                due_s = self._ownership.next_due_s()
                wait_s = None if due_s is None else max(0.0, due_s - self._clock.monotonic())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._news.wait()
        finally:
            listening.cancel()

    async def _listen(self) -> None:
        share = self._membership.assignment if not self._is_grouped else None
        while True:
            share = await self._membership.changed(share)
            self._take_share(share)

    def _take_share(self, share: Assignment) -> None:
        self._do(self._ownership.on_assignment(share.owned, share.standbys, self._clock.monotonic()))
        self._report_warm()

    async def _take_end(self, partition: int, task: asyncio.Task[None]) -> None:
        """Takes the end of a worker."""
        error = task.exception() if not task.cancelled() else None
        if error is not None and not (self._is_grouped and isinstance(error, Fenced)):
            raise error
        if not self._is_grouped:
            return  # it was stopped with the service
        del self._running[partition], self._workers[partition]
        self._reached.drop(lambda rm_id: self._topics.partition_of(rm_id) == partition)
        outside = self._outside.pop(partition, None)
        if outside is not None:
            await outside.stop()
        log.info("scheduler.gave_up", partition=partition, fenced=error is not None)
        self._do(self._ownership.on_worker_ended(partition, self._clock.monotonic(), fenced=error is not None))

    def _note_end(self, partition: int | None) -> None:
        self._ends.append(partition)
        self._news.set()

    def _do(self, actions: list[OwnershipAction]) -> None:
        for action, of in actions:
            match action:
                case ActionKind.OWN:
                    self._own(of)
                case ActionKind.RELEASE:
                    self._workers[of].stop()
                case ActionKind.FOLLOW:
                    self._follow(of)
                case ActionKind.DROP:
                    self._outside.pop(of, None)
                    self._drop(self._standbys.pop(of))
                case ActionKind.REJOIN:
                    self._membership.rejoin()
        if actions:
            self._count()

    def _own(self, partition: int) -> None:
        assert self._make_machine is not None, "start comes first"
        outside = self._outside_of(partition)
        worker = PartitionWorker(
            self._log,
            self._topics,
            self._settings.group,
            partition,
            partial(self._make_machine, partition),
            self._clock,
            self._settings.worker,
            None if outside.natives is None else outside.natives.consult,
            without_secrets,
            partial(decided_report, self._topics, partition),
            self._standbys.pop(partition, None),
            self._contention,
            self._usage,
        )
        self._workers[partition] = worker
        task = asyncio.create_task(self._run(worker, outside), name=f"scheduler-{partition}")
        task.add_done_callback(lambda _: self._note_end(partition))
        self._running[partition] = task

    async def _run(self, worker: PartitionWorker, outside: InformerHost) -> None:
        """Runs a worker, and the informers that live as long as it."""
        if outside is self._whole:
            await worker.run()
            return
        await outside.start()
        listing = asyncio.create_task(outside.wait(), name=f"external-{worker.partition}")
        working = asyncio.create_task(worker.run(), name=f"worker-{worker.partition}")
        ending: Ending[BaseException] = Ending(f"partition {worker.partition}")
        for task in (listing, working):
            ending.watch(task, error_of)
        try:
            await asyncio.wait({listing, working}, return_when=asyncio.FIRST_COMPLETED)
            if ending.cause is None:  # (the worker ends, too, when the partition is given up, the informers at a stop)
                await asyncio.wait({working})
            if ending.cause is not None:
                raise ending.cause
        finally:
            for task in (listing, working):
                task.cancel()
            await asyncio.gather(listing, working, return_exceptions=True)

    def _outside_of(self, partition: int) -> InformerHost:
        if self._whole is not None:
            return self._whole
        host = self._outside.get(partition)
        if host is None:
            settings, of = self._settings.external, (partition,)
            host = InformerHost(settings, self._log, self._topics, self._clock, of, self._chance, self._usage)
            self._outside[partition] = host
        return host

    def _follow(self, partition: int) -> None:
        assert self._make_machine is not None, "start comes first"
        self._standbys[partition] = standby = Standby(
            self._log,
            self._topics,
            partition,
            partial(self._make_machine, partition),
            self._clock,
            self._settings.worker,
            self._report_warm,
        )
        standby.start()

    def _drop(self, standby: Standby) -> None:
        task = asyncio.create_task(standby.close())
        self._closing.append(task)
        task.add_done_callback(self._closing.remove)

    def _report_warm(self) -> None:
        self._membership.report_warm([partition for partition, standby in self._standbys.items() if standby.warm])
        self._count()

    def _count(self) -> None:
        metrics.partitions.labels("owner").set(len(self._running))
        metrics.partitions.labels("standby").set(len(self._standbys))
        metrics.partitions.labels("warm").set(sum(standby.warm for standby in self._standbys.values()))

    # ---- health ------------------------------------------------------------------------------------------------------

    async def healthy(self) -> bool:
        """Tells whether every owned partition is folded and makes progress, and every informer has listed. A member
        that owns none is healthy.

        (A source that is lost later is a problem, but does not make the service unhealthy.)
        """
        return all(outside.synced for outside in self._in_use()) and not self._worker_problems()

    async def problems(self) -> list[str]:
        """Returns the present problems, one sentence each."""
        return [*self._worker_problems(), *self._notes(), *self._outside_problems()]

    def health_facts(self) -> SchedulerFacts:
        """Returns the same, and what it owns, for the state of the whole."""
        owners = self._owned.facts(self.progress(), self._clock.monotonic())
        return SchedulerFacts(owners, self._notes(), self._outside_problems())

    def _notes(self) -> list[str]:
        """Returns what an operator must know although partitions are decided."""
        notes = [*self._steps.problems(), *self._reached.problems()]
        if difference := difference_text(self._difference_ns()):
            notes.append(difference)
        for partition, standby in sorted(self._standbys.items()):
            if standby.last_error:
                notes.append(f"the standby of partition {partition} cannot follow: {standby.last_error}")
        problem = self._membership.error_text() if self._membership.assignment is not None else ""
        return [*notes, problem] if problem else notes

    def _outside_problems(self) -> list[str]:
        return [problem for outside in self._in_use() for problem in outside.problems()]

    def _time_of(self, partition: int) -> RecordedTime:
        source = self._clock if isinstance(self._clock, SystemClock) else NoSteps()
        self._times[partition] = times = RecordedTime(source)
        return times

    def _difference_ns(self) -> int:
        """Returns the largest difference of the wall clock and recorded time, of the owned partitions."""
        self._clock.now_ns()  # an idle scheduler has not read it for a while
        owned = (self._times[partition].difference_ns for partition in self._running if partition in self._times)
        return max(owned, key=abs, default=0)

    def facts(self) -> dict[str, object]:
        """Returns what this instance owns and follows, for people."""
        share = self._membership.assignment
        return {
            "partitions": sorted(self._running),
            "standbys": sorted(self._standbys),
            "warm": sorted(partition for partition, standby in self._standbys.items() if standby.warm),
            "schedulers": share.members if share is not None else 0,
        }

    def _in_use(self) -> list[InformerHost]:
        """Returns the external sources of the owned partitions."""
        if self._whole is not None:
            return [self._whole]
        return [outside for partition, outside in self._outside.items() if partition in self._running]

    def _worker_problems(self) -> list[str]:
        if self._membership.assignment is None:
            return [self._membership.error_text() or "the group of schedulers has not shared the partitions out yet"]
        problems = [problem_of(progress) for progress in self.progress() if not progress.serving]
        problems += [
            f"partition {partition} was taken over by a scheduler outside of the group (with scheduler.partitions?); "
            "it is taken again after a wait"
            for partition in self._ownership.partitions_in(PartitionPhase.FENCED)
        ]
        if not self._running and not self._is_grouped:
            problems.append("no partition is owned")
        return problems

    def progress(self) -> list[WorkerProgress]:
        """Returns each worker's progress."""
        return [worker.progress() for worker in self._workers.values()]

    def _default_config(self) -> str:
        path = self._settings.default_queue_config
        if path is None:
            return ""
        try:
            text = path.read_text()
        except OSError as error:
            raise BadDefaultConfig(f"{path}: {error.strerror}") from error
        config, problems = load_queue_config(text)
        if config is None:
            raise BadDefaultConfig("; ".join(f"{path}: {problem}" for problem in problems))
        return text
