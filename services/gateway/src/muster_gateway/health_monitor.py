"""The state of the whole, computed at intervals from the facts that a gateway collects (``muster_rest.system_health``).

Readers get the last computed state, so that any number of them costs nothing, and all of them see the same one. A
change of a part's grade is one line of the log.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import structlog
from muster_bus.clock import Clock
from muster_bus.errors import BusError
from muster_bus.log import Log, LogHealth, LogOnDisk
from muster_rest.shapes.health import Grade, PartHealthDao, SystemHealthDao
from muster_rest.shapes.measures import ProcessHealthDao
from muster_rest.system_health import (
    CertificateFacts,
    DiskFacts,
    HealthFacts,
    LogFacts,
    Part,
    SchedulerFacts,
    ServiceCheck,
    ServiceFacts,
    failed_cause,
    fault_for,
    system_health,
)
from muster_runtime.read_scope import EVERYTHING

from muster_gateway import metrics
from muster_gateway.errors import GatewayError
from muster_gateway.http_front import HttpBackend
from muster_gateway.view_client import ViewClient

log = structlog.get_logger(__name__)

# A service that does not answer a check for so long has not answered. Below a prober's usual five seconds.
CHECK_S = 2.0
_CHECK_BYTES = 1 << 20
_OK = 200


class GatewayFacts(NamedTuple):
    """The gateway, as it sees itself.

    :ivar log_answers: whether the log answered just now.
    :ivar problems: why the gateway cannot serve, without those of log and disk.
    :ivar notes: what an operator must know although it serves.
    :ivar log_notes: the same about the log.
    :ivar disk_full: what cannot be written because a disk is full; "": nothing.
    """

    log_answers: bool
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()
    log_notes: Sequence[str] = ()
    disk_full: str = ""


def check_of(target: HttpBackend) -> ServiceCheck:
    """Returns the check of a service that answers ``/health`` over HTTP."""
    client = ViewClient(target, CHECK_S, _CHECK_BYTES)

    async def check() -> ServiceFacts:
        answer = await client.get("/health", reach=EVERYTHING, any_status=True)
        try:
            health = msgspec.json.decode(answer.body, type=ProcessHealthDao)
        except msgspec.MsgspecError:
            raise ConnectionError("") from None  # the front's own answer, for a target that is away
        return ServiceFacts(serves=answer.status == _OK, problems=health.problems, behind=health.behind)

    return check


class HealthMonitor:
    """See the module's docstring.

    :param gateway: the gateway's own facts; bounded in time.
    :param scheduler: the facts about the schedulers.
    :param waiting: by partition, how long its oldest undecided request has waited (s).
    :param certificates: those that this process serves with, or trusts.
    :param services: the checks of the view, the event publisher and others.
    :param one_process: all services belong to one ``muster up``.
    """

    def __init__(
        self,
        bus: Log,
        clock: Clock,
        gateway: Callable[[], Awaitable[GatewayFacts]],
        scheduler: Callable[[], SchedulerFacts],
        waiting: Callable[[], dict[int, float]],
        certificates: Callable[[], Awaitable[Sequence[CertificateFacts]]],
        services: Mapping[Part, ServiceCheck],
        *,
        one_process: bool,
    ) -> None:
        self._bus, self._clock, self._one_process = bus, clock, one_process
        self._gateway, self._scheduler, self._waiting = gateway, scheduler, waiting
        self._certificates = certificates
        self._checks = {part: _Check(check, clock) for part, check in services.items()}
        self._log_s = clock.monotonic()  # it answered
        self._facts: HealthFacts | None = None
        self._state: SystemHealthDao | None = None
        self._computing: asyncio.Task[SystemHealthDao] | None = None

    async def state(self) -> SystemHealthDao:
        """Returns the last computed state; the first time it is computed. Bounded in time; never raises."""
        return self._state if self._state is not None else await self.compute()

    async def compute(self) -> SystemHealthDao:
        """Computes the state now. Several callers at once share one computation."""
        if self._computing is None or self._computing.done():
            self._computing = asyncio.create_task(self._compute(), name="state of the whole")
        return await asyncio.shield(self._computing)

    def fault(self, partition: int) -> str:
        """Returns why a request to a partition is not decided, in a clause; "": nothing is known."""
        return fault_for(self._facts, partition) if self._facts is not None else ""

    def unscheduled(self) -> dict[int, str]:
        """Returns the log partitions for which no scheduler decides, each with the reason in a clause."""
        if self._state is None or self._facts is None or not failed_cause(self._state):
            return {}
        faults = {owner.partition: self.fault(owner.partition) for owner in self._facts.scheduler.owners}
        return {partition: reason for partition, reason in faults.items() if reason}

    async def _compute(self) -> SystemHealthDao:
        gateway, certificates, _ = await asyncio.gather(self._gateway(), self._certificates(), self._ask_services())
        facts = self._facts = self._collected(gateway, certificates)
        before, self._state = self._state, system_health(facts, self._clock.now_ns(), self._state)
        _note(before, self._state)
        _measure(self._state, facts)
        return self._state

    async def _ask_services(self) -> None:
        await asyncio.gather(*(check.ask() for check in self._checks.values()))

    def _collected(self, gateway: GatewayFacts, certificates: Sequence[CertificateFacts]) -> HealthFacts:
        now_s = self._clock.monotonic()
        if gateway.log_answers:
            self._log_s = now_s
        on_disk = self._bus if isinstance(self._bus, LogOnDisk) else None
        refusal = self._bus.refusal() if isinstance(self._bus, LogHealth) else ""
        notes = self._bus.problems() if isinstance(self._bus, LogHealth) else []
        return HealthFacts(
            one_process=self._one_process,
            log=LogFacts(
                silent_s=now_s - self._log_s,
                refusal="" if on_disk is not None else refusal,
                notes=[*notes, *gateway.log_notes],
            ),
            scheduler=self._scheduler(),
            waiting=self._waiting(),
            gateway_problems=gateway.problems,
            gateway_notes=gateway.notes,
            disk=_disk(on_disk, [problem for problem in (refusal if on_disk else "", gateway.disk_full) if problem]),
            services={part: check.facts() for part, check in self._checks.items()},
            certificates=certificates,
        )


class _Check:
    """The check of one service, and its last answer."""

    def __init__(self, check: ServiceCheck, clock: Clock) -> None:
        self._check, self._clock = check, clock
        self._answered_s = clock.monotonic()
        self._answer: ServiceFacts | None = None
        self._silence = ""

    async def ask(self) -> None:
        """Asks the service. Bounded in time; never raises."""
        try:
            async with asyncio.timeout(CHECK_S):
                self._answer = await self._check()
        except (GatewayError, BusError, OSError, TimeoutError, msgspec.MsgspecError) as error:
            self._answer, self._silence = None, str(error)
        except Exception as error:  # a failed check is an answer
            log.warning("health check failed", error=repr(error))
            self._answer, self._silence = None, f"its check failed: {type(error).__name__}"
        else:
            self._answered_s = self._clock.monotonic()

    def facts(self) -> ServiceFacts:
        """Returns what the last answer says."""
        answer = self._answer
        if answer is None:
            problems = [self._silence] if self._silence else []
            return ServiceFacts(
                max(self._clock.monotonic() - self._answered_s, _LEAST_S), serves=False, problems=problems
            )
        return answer


_LEAST_S = 1e-3  # a service that has just become silent is silent


def _disk(on_disk: LogOnDisk | None, full: Sequence[str]) -> DiskFacts | None:
    if on_disk is None:
        return DiskFacts("", full) if full else None
    directory = on_disk.path.parent
    try:
        stat = os.statvfs(directory)
    except OSError:
        return DiskFacts(str(directory), full)
    return DiskFacts(str(directory), full, stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize)


def _note(before: SystemHealthDao | None, now: SystemHealthDao) -> None:
    """Writes a line for each part whose grade is another one."""
    previous: dict[str, PartHealthDao] = {part.part: part for part in before.parts} if before is not None else {}
    for part in now.parts:
        was = previous[part.part].grade if part.part in previous else Grade.OK
        if part.grade is was:
            continue
        tell = {Grade.OK: log.info, Grade.DEGRADED: log.warning, Grade.FAILED: log.error}[part.grade]
        tell(
            "health changed",
            part=part.part,
            grade=str(part.grade),
            was=str(was),
            sentence=part.sentence,
            remedy=part.remedy,
        )


def _measure(state: SystemHealthDao, facts: HealthFacts) -> None:
    for part in state.parts:
        metrics.health_grade.labels(part.part).set(part.grade.rank)
    for owner in facts.scheduler.owners:
        metrics.partition_owner.labels(str(owner.partition)).set(int(facts.has_owner(owner)))
        age_s = facts.waiting.get(owner.partition, 0.0)
        metrics.oldest_request_seconds.labels(str(owner.partition)).set(age_s)
