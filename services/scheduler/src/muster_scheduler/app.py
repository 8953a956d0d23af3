"""The scheduler service: one partition worker with a machine for each partition that this instance owns."""

from __future__ import annotations

import asyncio
import uuid
from functools import partial

import structlog
from muster_bus.clock import Clock, SystemClock
from muster_bus.log import Log
from muster_bus.partition_worker import PartitionWorker, Progress, WorkerState
from muster_bus.topics import Topics
from muster_informers.process import ExternalProcess
from muster_informers.service import ExternalService
from muster_queue_config.queue_yaml import load_queue_config

from muster_scheduler.dead_letters import without_secrets
from muster_scheduler.emit import decided_report
from muster_scheduler.errors import BadDefaultConfig
from muster_scheduler.machine import SchedulerMachine
from muster_scheduler.natives import Handlers, Natives, NativeSource
from muster_scheduler.policy_groups import PolicyGroups
from muster_scheduler.recorded_time import NoSteps, RecordedTime, Steps
from muster_scheduler.rm_quotas import ReachedQuotas
from muster_scheduler.settings import SchedulerSettings
from muster_scheduler.users import UserGroups

log = structlog.get_logger(__name__)


class SchedulerService:
    """The service that decides. The service has no socket: it reads requests and writes their outcomes, one transaction
    per batch.

    The informers of its RMs run in the same process or in a child. Their changes come over the log, like all requests.
    The constructor raises muster_core.external.errors.SettingsWrong if an informer or event handler cannot be made.
    """

    def __init__(self, settings: SchedulerSettings, bus: Log, topics: Topics, clock: Clock) -> None:
        self._settings = settings
        self._log = bus
        self._topics = topics
        self._clock = clock
        self._owned = settings.partitions or tuple(range(topics.partitions))
        life = str(uuid.uuid4())
        here = ExternalService(settings.external, bus, topics, clock, self._owned, life)
        self._external: ExternalService | ExternalProcess = here
        if settings.external.own_process and (here.tables or here.natives):
            if here.is_of_this_process:
                log.info("informers run in this process: one of them, or a handler, was registered here")
            else:
                self._external = ExternalProcess(here, settings.external, bus, topics, clock, self._owned, life)
        self._natives = natives_of(here, self._external, settings.external.sync_timeout_s, clock, life)
        self._steps = Steps(clock.monotonic)
        self._reached = ReachedQuotas(clock.monotonic)
        self._workers: list[PartitionWorker] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Takes the partitions over and starts the workers. Raises BadDefaultConfig."""
        policy_groups = PolicyGroups(
            self._default_config(), self._settings.policy_groups_dir, shared=self._settings.share_policy_groups
        )
        groups = UserGroups(self._settings.users)  # shared, so that a directory that hangs costs one wait
        for partition in self._owned:
            worker = PartitionWorker(
                self._log,
                self._topics,
                self._settings.group,
                partition,
                lambda: SchedulerMachine(
                    self._topics,
                    lambda: str(uuid.uuid4()),
                    policy_groups,
                    self._settings.max_allocations_batch,
                    round(self._settings.check_invariants_every_s * 1e9),
                    groups,
                    self._clock.monotonic,
                    self._external.gate,
                    RecordedTime(self._clock if isinstance(self._clock, SystemClock) else NoSteps()),
                    self._steps,
                    holds=True,
                    reached=self._reached,
                ),
                self._clock,
                self._settings.worker,
                None if self._natives is None else self._natives.consult,
                without_secrets,
                partial(decided_report, self._topics, partition),
            )
            self._workers.append(worker)
            self._tasks.append(asyncio.create_task(worker.run(), name=f"scheduler-{partition}"))
        await self._external.start()
        self._tasks.append(asyncio.create_task(self._external.wait(), name="external"))

    async def wait(self) -> None:
        """Returns when stopped. Raises the error that ended a worker (the process must then end: crash-only), and
        NotSynced.
        """
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Commits all decisions, then ends."""
        if self._natives is not None:  # a worker that waits for a handler must not start again
            for worker in self._workers:
                worker.stop()
        await self._external.stop()
        for worker in self._workers:
            worker.stop()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def healthy(self) -> bool:
        """Tells whether every owned partition is folded and makes progress, and every informer has listed.

        (A source that is lost later is a problem, but does not make the service unhealthy.)
        """
        return self._external.synced and not self._worker_problems()

    async def problems(self) -> list[str]:
        """Returns the present problems, one sentence each."""
        left_alone = self._natives.problems() if self._natives is not None else []
        said = [*self._steps.problems(), *self._reached.problems()]
        return [*self._worker_problems(), *said, *self._external.problems(), *left_alone]

    def _worker_problems(self) -> list[str]:
        if not self._workers:
            return ["no partition is owned"]
        return [_problem(progress) for progress in self.progress() if not progress.serving]

    def progress(self) -> list[Progress]:
        """Returns each worker's progress."""
        return [worker.progress() for worker in self._workers]

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


def natives_of(
    here: ExternalService, handlers: Handlers, sync_timeout_s: float, clock: Clock, life: str
) -> Natives | None:
    """Returns the bridge to native event handlers; None if no informer of kind ``native`` is configured."""
    sources = [
        NativeSource(
            judge.name, judge.table.rm, judge.table.partition_name, judge.handler_name, judge.drains, judge.timeout_s
        )
        for judge in here.natives.values()
    ]
    return Natives(sources, handlers, clock, life, sync_timeout_s) if sources else None


def _problem(progress: Progress) -> str:
    """Returns why a worker does not serve."""
    if progress.state is WorkerState.RUNNING:
        behind = progress.end_offset - progress.committed
        return f"partition {progress.partition} has not moved for {progress.idle_s:.0f} s, {behind} records wait"
    why = f": {progress.last_error}" if progress.last_error else ""
    return f"partition {progress.partition} is {progress.state.value.replace('_', ' ')}{why}"
