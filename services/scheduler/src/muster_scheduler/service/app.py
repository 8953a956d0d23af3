"""The scheduler service: a partition worker with its machine for each partition that this instance owns."""

from __future__ import annotations

import asyncio
import uuid

import structlog
from muster_bus.clock import Clock
from muster_bus.log import Log
from muster_bus.partition_worker import PartitionWorker, Progress, WorkerState
from muster_bus.topics import Topics

from muster_scheduler.external.process import ExternalProcess
from muster_scheduler.external.service import ExternalService
from muster_scheduler.queue_yaml import load_queue_config
from muster_scheduler.service.errors import BadDefaultConfig
from muster_scheduler.service.machine import SchedulerMachine
from muster_scheduler.service.policy_groups import PolicyGroups
from muster_scheduler.service.settings import SchedulerSettings
from muster_scheduler.service.users import UserGroups

log = structlog.get_logger(__name__)


class SchedulerService:
    """Decides. Knows no socket: it reads requests and writes what follows, in one transaction for each batch.

    Beside it run the informers of the RMs that it decides for: what they bring comes in by the log, as all requests.

    Raises muster_scheduler.external.errors.SettingsWrong: an informer or event handler cannot be made.
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
        if settings.external.own_process and here.tables:
            if here.is_of_this_process:
                log.info("informers run in this process: one of them, or a handler, was registered here")
            else:
                self._external = ExternalProcess(here, settings.external, bus, topics, clock, self._owned, life)
        self._workers: list[PartitionWorker] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Takes the partitions over and begins. Raises BadDefaultConfig."""
        policy_groups = PolicyGroups(
            self._default_config(), self._settings.policy_groups_dir, shared=self._settings.share_policy_groups
        )
        groups = UserGroups(self._settings.users)  # one for all: a directory that hangs costs one wait
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
                ),
                self._clock,
                self._settings.worker,
            )
            self._workers.append(worker)
            self._tasks.append(asyncio.create_task(worker.run(), name=f"scheduler-{partition}"))
        await self._external.start()
        self._tasks.append(asyncio.create_task(self._external.wait(), name="external"))

    async def wait(self) -> None:
        """Returns when stopped; raises what ended a worker (the process must then end: crash-only), and NotSynced."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Commits what was decided, and ends."""
        await self._external.stop()
        for worker in self._workers:
            worker.stop()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def healthy(self) -> bool:
        """Whether every owned partition is folded and makes progress, and no informer is waited for any longer.

        (A source that is lost later is a problem, and nothing that keeps the rest from being served.)
        """
        return self._external.synced and not self._worker_problems()

    async def problems(self) -> list[str]:
        """What does not work now, one sentence each."""
        return [*self._worker_problems(), *self._external.problems()]

    def _worker_problems(self) -> list[str]:
        if not self._workers:
            return ["no partition is owned"]
        return [_problem(progress) for progress in self.progress() if not progress.serving]

    def progress(self) -> list[Progress]:
        """Where each worker stands."""
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


def _problem(progress: Progress) -> str:
    """Why a worker does not serve."""
    if progress.state is WorkerState.RUNNING:
        behind = progress.end_offset - progress.committed
        return f"partition {progress.partition} has not moved for {progress.idle_s:.0f} s, {behind} records wait"
    why = f": {progress.last_error}" if progress.last_error else ""
    return f"partition {progress.partition} is {progress.state.value.replace('_', ' ')}{why}"
