"""The state of the whole: facts about each part in, grades out. Pure: time is an argument.

Only this module grades. A gateway collects the facts (``muster_gateway.health_monitor``); every reader shows what
:func:`system_health` made of them. A reader whose own way to the gateway is gone shows :func:`unreachable`.

===========  ==========================================  ====================================================
part         degraded                                    failed
===========  ==========================================  ====================================================
log          silent for a moment; few copies; damaged    silent; takes no record
disk         less than 1 GiB and a tenth is free         full
scheduler    a partition is without one for a moment     a partition is without one, or its owner is stuck
requests     one has waited for 10 s                     one has waited for 30 s
gateway      a file or a limit needs an operator         it cannot serve
view         it lags; silent for a moment                silent; it cannot follow
publisher    it lags; silent for a moment                silent; it cannot follow or export
usage        its process has a problem                   –
certificates one ends within 14 days                     one has ended
external     a source is away                            –
===========  ==========================================  ====================================================
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from muster_rest.shapes.health import Grade, PartHealthDao, SystemHealthDao

_NS = 1_000_000_000
# A service or a log that is silent for less is well, and for less than the second degraded: it may be restarting.
BLIP_S, PATIENCE_S = 1.0, 5.0
# Owners report so often; three reports are missing.
HEARTBEAT_S = 1.0
SILENT_S = 3 * HEARTBEAT_S
# A take-over has the session's time-out, and as long again for folding, at least this.
TAKE_OVER_S = 5.0
# An idle cluster decides within milliseconds, and a busy one within a second.
WAITING_DEGRADED_S, WAITING_FAILED_S = 10.0, 30.0
CERTIFICATE_S = 14 * 24 * 3600
DISK_FREE_BYTES, DISK_FREE_PART = 1 << 30, 0.1
_LISTED_MAX = 4
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400


class Part(StrEnum):
    """The parts; of equally bad ones, the first is probably the cause of the others."""

    GATEWAY = "gateway"
    DISK = "disk"
    LOG = "log"
    SCHEDULER = "scheduler"
    REQUESTS = "requests"
    VIEW = "view"
    PUBLISHER = "publisher"
    USAGE = "usage"
    CERTIFICATES = "certificates"
    EXTERNAL = "external"


class OwnerState(StrEnum):
    """What the owner of a partition last reported."""

    SERVING = "serving"
    STARTING = "starting"
    """It takes the partition over, or tries to again after an error."""
    STUCK = "stuck"
    """It has the partition, and does not move."""
    NONE = "none"
    """Nobody has reported, or the last owner has released it."""


# --- facts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnerFacts:
    """The owner of one partition of the log.

    :ivar for_s: how long it has been in this state; for ``serving``: since its last report.
    :ivar limit_s: how long a take-over may take.
    :ivar problem: why it does not serve; "": it is not known.
    """

    partition: int
    state: OwnerState
    for_s: float
    limit_s: float
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SchedulerFacts:
    """The schedulers.

    :ivar owners: one for each partition of the log.
    :ivar problems: what an operator must know although they decide.
    :ivar external: the external sources that are away.
    """

    owners: Sequence[OwnerFacts]
    problems: Sequence[str] = ()
    external: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The log, as the gateway sees it.

    :ivar silent_s: how long it has not answered; 0: it answers.
    :ivar refusal: why it takes no record; "": it takes records.
    :ivar notes: what an operator must know although it works.
    """

    name: str = "the log"
    silent_s: float = 0.0
    refusal: str = ""
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """The disk of the embedded log and of the sessions.

    :ivar full: what cannot be written, one sentence each.
    :ivar free_bytes, size_bytes: of the file system.
    """

    directory: str
    full: Sequence[str] = ()
    free_bytes: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """A service behind the gateway.

    :ivar silent_s: how long it has not answered; 0: it answers.
    :ivar serves: it works in spite of its problems.
    :ivar behind: those of the problems that only delay its work: it lags, or a store is away.
    """

    silent_s: float = 0.0
    serves: bool = True
    problems: Sequence[str] = ()
    behind: Sequence[str] = ()


# Returns the present facts about a service. Raises if it does not answer.
ServiceCheck = Callable[[], Awaitable[ServiceFacts]]


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """A certificate that Muster serves with, or trusts.

    :ivar name: its setting and file.
    :ivar end_ns: when it ends, since the epoch.
    """

    name: str
    end_ns: int


@dataclass(frozen=True, slots=True)
class HealthFacts:
    """All that a gateway knows. A part whose facts are None is not there.

    :ivar one_process: all services belong to one ``muster up``, which restarts what ends.
    :ivar waiting: by partition, how long its oldest undecided request has waited (s).
    :ivar gateway_problems: why the gateway cannot serve.
    :ivar gateway_notes: what an operator must know although it serves.
    :ivar services: the view, the event publisher and others.
    """

    one_process: bool
    log: LogFacts
    scheduler: SchedulerFacts
    waiting: dict[int, float] = field(default_factory=dict)
    gateway_problems: Sequence[str] = ()
    gateway_notes: Sequence[str] = ()
    disk: DiskFacts | None = None
    services: dict[Part, ServiceFacts] = field(default_factory=dict)
    certificates: Sequence[CertificateFacts] = ()

    def has_owner(self, owner: OwnerFacts) -> bool:
        """Tells whether a partition has an owner that decides."""
        return self.log.silent_s <= BLIP_S and not _owner(owner, "", 0)


# --- grades -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is the matter.

    :ivar since_ns: 0: the part's grade is as old as its first computation.
    """

    grade: Grade
    sentence: str
    remedy: str
    since_ns: int = 0


def system_health(facts: HealthFacts, now_ns: int, before: SystemHealthDao | None = None) -> SystemHealthDao:
    """Returns the state of the whole.

    :param before: the state computed last: a grade that has not changed is as old as there.
    """
    findings: dict[Part, list[Finding]] = {
        Part.GATEWAY: _gateway(facts),
        Part.LOG: _log(facts.log, now_ns),
        Part.SCHEDULER: _scheduler(facts, now_ns),
        Part.REQUESTS: _requests(facts, now_ns),
    }
    if facts.disk is not None:
        findings[Part.DISK] = _disk(facts.disk)
    for part, service in facts.services.items():
        findings[part] = _service(part, service, now_ns, one_process=facts.one_process)
    if facts.certificates:
        findings[Part.CERTIFICATES] = _certificates(facts.certificates, now_ns)
    findings[Part.EXTERNAL] = [
        Finding(Grade.DEGRADED, problem, "see the source, and the scheduler's log")
        for problem in facts.scheduler.external
    ]
    parts_before = {part_before.part: part_before for part_before in before.parts} if before is not None else {}
    return _whole(
        [_part(part, findings[part], parts_before.get(part), now_ns) for part in Part if part in findings], now_ns
    )


def unreachable(sentence: str, remedy: str, now_ns: int, since_ns: int = 0) -> SystemHealthDao:
    """Returns the state for a reader that has no way to the gateway."""
    finding = Finding(Grade.FAILED, sentence, remedy, since_ns)
    return _whole([_part(Part.GATEWAY, [finding], None, now_ns)], now_ns)


def shown_to(health: SystemHealthDao, *, inspects: bool, reads: bool) -> SystemHealthDao:
    """Returns the state as a caller may see it.

    :param inspects: it may see the process's own affairs, with the names of all RMs in them.
    :param reads: it may read some RM: it gets each part's grade and age, in general words.
    """
    if inspects:
        return health
    if not reads:
        return without_parts(health)
    parts = [
        PartHealthDao(
            part=part.part,
            grade=part.grade,
            since=part.since,
            sentence=part.sentence if part.grade is Grade.OK else _IN_GENERAL[Part(part.part)],
            remedy="" if part.grade is Grade.OK else _ASK,
            others=[],
        )
        for part in health.parts
    ]
    return _whole(parts, health.checked)


_ASK = "ask an operator of this Muster"
_IN_GENERAL = {
    Part.GATEWAY: "the gateway needs an operator",
    Part.DISK: "the disk is full, or nearly so",
    Part.LOG: "the log does not take or give everything",
    Part.SCHEDULER: "a scheduler is missing, or needs an operator",
    Part.REQUESTS: "requests wait for their decisions",
    Part.VIEW: "what is shown may be old",
    Part.PUBLISHER: "events may be missing or late",
    Part.USAGE: "usage may be missing or late",
    Part.CERTIFICATES: "a certificate ends or has ended",
    Part.EXTERNAL: "an external source is away",
}


def without_parts(health: SystemHealthDao) -> SystemHealthDao:
    """Returns the state for a caller that may read nothing."""
    return SystemHealthDao(
        grade=health.grade, part="", since=0, sentence="", remedy="", checked=health.checked, parts=[]
    )


def fault_for(facts: HealthFacts, partition: int) -> str:
    """Returns what is at fault if a request to a partition is not decided, in a clause; "": nothing is known.

    It is for RMs: nothing of other RMs is in it.
    """
    if facts.disk is not None and facts.disk.full:
        return facts.disk.full[0]
    if facts.log.silent_s > BLIP_S:
        return _log(facts.log, 0)[0].sentence
    if facts.log.refusal:
        return facts.log.refusal
    for owner in facts.scheduler.owners:
        if owner.partition == partition:
            return next((finding.sentence for finding in _owner(replace(owner, problem=""), "", 0)), "")
    return ""


def failed_cause(health: SystemHealthDao) -> str:
    """Returns why nothing is decided, in a clause; "": something is decided, or nothing is known."""
    causes = (Part.GATEWAY, Part.DISK, Part.LOG, Part.SCHEDULER)
    return next((part.sentence for part in health.parts if part.grade is Grade.FAILED and part.part in causes), "")


def lines(health: SystemHealthDao) -> list[str]:
    """Returns lines for the parts that are not well, worst first: grade, part, sentence and remedy."""
    texts = []
    for part in health.parts:
        if part.grade is Grade.OK:
            continue
        remedy = f" ({part.remedy})" if part.remedy else ""
        texts.append(f"{part.grade}: {part.part}: {part.sentence}{remedy}")
        texts += [f"also: {part.part}: {sentence}" for sentence in part.others]
    return texts


def _whole(parts: Iterable[PartHealthDao], now_ns: int) -> SystemHealthDao:
    ordered = sorted(parts, key=lambda part: -part.grade.rank)  # (stable: the order of Part otherwise)
    worst = ordered[0]
    well = worst.grade is Grade.OK
    return SystemHealthDao(
        grade=worst.grade,
        part="" if well else worst.part,
        since=max((part.since for part in ordered), default=0) if well else worst.since,
        sentence="all parts work" if well else worst.sentence,
        remedy=worst.remedy,
        checked=now_ns,
        parts=ordered,
    )


def _part(part: Part, findings: Sequence[Finding], before: PartHealthDao | None, now_ns: int) -> PartHealthDao:
    ordered = sorted(findings, key=lambda finding: -finding.grade.rank) or [Finding(Grade.OK, _WELL[part], "")]
    worst, *others = ordered
    since_ns = worst.since_ns
    if not since_ns:
        same = before is not None and before.grade is worst.grade
        since_ns = before.since if before is not None and same else now_ns
    return PartHealthDao(
        part=part,
        grade=worst.grade,
        since=since_ns,
        sentence=_clause(worst.sentence),
        remedy=worst.remedy,
        others=[_clause(finding.sentence) for finding in others],
    )


def _clause(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


_WELL = {
    Part.GATEWAY: "it serves",
    Part.DISK: "there is room",
    Part.LOG: "it answers, and takes records",
    Part.SCHEDULER: "every partition has one",
    Part.REQUESTS: "none waits for long",
    Part.VIEW: "it shows the present state",
    Part.PUBLISHER: "it publishes each event",
    Part.USAGE: "it is derived",
    Part.CERTIFICATES: "none ends soon",
    Part.EXTERNAL: "every source is connected",
}


# --- each part --------------------------------------------------------------------------------------------------------


def _gateway(facts: HealthFacts) -> list[Finding]:
    remedy = "see the gateway's log"
    return [
        *(Finding(Grade.FAILED, problem, remedy) for problem in facts.gateway_problems),
        *(Finding(Grade.DEGRADED, note, remedy) for note in facts.gateway_notes),
    ]


def _log(log: LogFacts, now_ns: int) -> list[Finding]:
    findings = []
    if log.silent_s > BLIP_S:
        findings.append(
            Finding(
                _impatient(log.silent_s),
                f"{log.name} has not answered for {duration(log.silent_s)}",
                "start its servers, or see their logs; Muster goes on by itself",
                _ago(log.silent_s, now_ns),
            )
        )
    if log.refusal:
        findings.append(Finding(Grade.FAILED, log.refusal, "start the missing servers of the log"))
    return findings + [Finding(Grade.DEGRADED, note, "see docs/operating.md") for note in log.notes]


def _disk(disk: DiskFacts) -> list[Finding]:
    remedy = f"make room: df -h {disk.directory}"
    if disk.full:
        return [Finding(Grade.FAILED, problem, remedy) for problem in disk.full]
    if disk.size_bytes and disk.free_bytes < min(DISK_FREE_BYTES, DISK_FREE_PART * disk.size_bytes):
        free = f"{disk.free_bytes >> 20:,} MiB of {disk.size_bytes >> 20:,} MiB are free"
        return [Finding(Grade.DEGRADED, f"the disk of {disk.directory} is nearly full: {free}", remedy)]
    return []


def _scheduler(facts: HealthFacts, now_ns: int) -> list[Finding]:
    remedy = (
        "see the log of muster up, and restart it"
        if facts.one_process
        else "start one: muster scheduler, with the settings of this log; if one runs, see its log"
    )
    if facts.log.silent_s > BLIP_S:
        return [] if not facts.scheduler.owners else [_unknown(facts.log)]
    alike: dict[tuple[Grade, OwnerState, str], list[OwnerFacts]] = {}
    for owner in facts.scheduler.owners:
        for finding in _owner(owner, remedy, now_ns):
            alike.setdefault((finding.grade, owner.state, owner.problem), []).append(owner)
    findings = [
        _owners(grade, owners, len(facts.scheduler.owners), remedy, now_ns) for (grade, _, _), owners in alike.items()
    ]
    return findings + [
        Finding(Grade.DEGRADED, problem, "see the scheduler's log") for problem in facts.scheduler.problems
    ]


def _unknown(log: LogFacts) -> Finding:
    return Finding(Grade.DEGRADED, f"not known while {log.name} does not answer", "")


def _owner(owner: OwnerFacts, remedy: str, now_ns: int) -> list[Finding]:
    """Returns what is the matter with one owner."""
    if owner.for_s <= SILENT_S and owner.state is not OwnerState.STUCK:
        return []
    failed = owner.for_s > owner.limit_s or owner.state is OwnerState.STUCK
    return [_owners(Grade.FAILED if failed else Grade.DEGRADED, [owner], 0, remedy, now_ns)]


def _owners(grade: Grade, owners: Sequence[OwnerFacts], of: int, remedy: str, now_ns: int) -> Finding:
    """Returns one finding about owners in the same state.

    :param of: the number of all partitions.
    """
    longest = max(owners, key=lambda owner: owner.for_s)
    where, age = _partitions([owner.partition for owner in owners], of), duration(longest.for_s)
    match longest.state:
        case OwnerState.STUCK:
            sentence = longest.problem or f"the scheduler has decided nothing for {where} for {age}"
        case OwnerState.STARTING:
            sentence = f"a scheduler has been taking over {where} for {age}"
            sentence += f": {longest.problem}" if longest.problem else ""
        case _:
            sentence = f"no scheduler has answered for {where} for {age}"
    if grade is Grade.DEGRADED:
        remedy = f"none yet: another one takes over within {duration(longest.limit_s)}"
    return Finding(grade, sentence, remedy, _ago(longest.for_s, now_ns))


def _requests(facts: HealthFacts, now_ns: int) -> list[Finding]:
    late = {partition: age_s for partition, age_s in facts.waiting.items() if age_s > WAITING_DEGRADED_S}
    if not late:
        return []
    worst_s = max(late.values())
    where = _partitions(sorted(late), len(facts.scheduler.owners))
    return [
        Finding(
            Grade.FAILED if worst_s > WAITING_FAILED_S else Grade.DEGRADED,
            f"a request to {where} has waited for a decision for {duration(worst_s)}",
            "see the scheduler's log; if it hangs, restart it",
            _ago(worst_s, now_ns),
        )
    ]


def _service(part: Part, service: ServiceFacts, now_ns: int, *, one_process: bool) -> list[Finding]:
    name, command = _SERVICES[part]
    remedy = "see the log of muster up" if one_process else f"see its log, and start it: {command}"
    findings: list[Finding] = []
    if 0 < service.silent_s <= BLIP_S:
        return []
    if service.silent_s:
        cause = f": {service.problems[0]}" if service.problems else ""
        sentence = f"{name} has not answered for {duration(service.silent_s)}{cause}"
        return [Finding(_impatient(service.silent_s), sentence, remedy, _ago(service.silent_s, now_ns))]
    for problem in service.problems:
        # Usage is not needed by anybody who decides or looks.
        failed = not service.serves and problem not in service.behind and part is not Part.USAGE
        findings.append(Finding(Grade.FAILED if failed else Grade.DEGRADED, problem, remedy))
    return findings


_SERVICES = {
    Part.VIEW: ("the view", "muster view"),
    Part.PUBLISHER: ("the event publisher", "muster event-publisher"),
    Part.USAGE: ("usage", "muster derive"),
}


def _certificates(certificates: Sequence[CertificateFacts], now_ns: int) -> list[Finding]:
    findings = []
    for certificate in sorted(certificates, key=lambda facts: facts.end_ns):
        left_s = (certificate.end_ns - now_ns) / _NS
        if left_s <= 0:
            sentence = f"{certificate.name} ended {duration(-left_s)} ago"
            findings.append(
                Finding(Grade.FAILED, sentence, "replace the file; it is read again by itself", certificate.end_ns)
            )
        elif left_s < CERTIFICATE_S:
            sentence = f"{certificate.name} ends in {duration(left_s)}"
            since_ns = certificate.end_ns - CERTIFICATE_S * _NS
            findings.append(Finding(Grade.DEGRADED, sentence, "replace the file; it is read again by itself", since_ns))
    return findings


# --- words ------------------------------------------------------------------------------------------------------------


def duration(length_s: float) -> str:
    """Returns a length of time in one unit: ``75 s``, ``4 min``, ``3 h``, ``2 days``."""
    if length_s < 2 * _MINUTE_S:
        return f"{length_s:.0f} s"
    if length_s < 2 * _HOUR_S:
        return f"{length_s // _MINUTE_S:.0f} min"
    if length_s < 2 * _DAY_S:
        return f"{length_s // _HOUR_S:.0f} h"
    return f"{length_s // _DAY_S:.0f} days"


def _partitions(partitions: Sequence[int], of: int) -> str:
    if len(partitions) == 1:
        return f"partition {partitions[0]}"
    if len(partitions) <= _LISTED_MAX:
        listed = ", ".join(map(str, partitions[:-1]))
        return f"partitions {listed} and {partitions[-1]}"
    return f"{len(partitions)} of {of} partitions"


def _impatient(silent_s: float) -> Grade:
    return Grade.FAILED if silent_s > PATIENCE_S else Grade.DEGRADED


def _ago(length_s: float, now_ns: int) -> int:
    return now_ns - round(length_s * _NS)
