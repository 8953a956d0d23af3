"""The state of the whole: facts in, grades, ages, sentences and remedies out; the worst part counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from muster_rest.shapes.health import Grade, PartHealthDao, SystemHealthDao
from muster_rest.system_health import (
    CertificateFacts,
    DiskFacts,
    HealthFacts,
    LogFacts,
    OwnerFacts,
    OwnerState,
    Part,
    SchedulerFacts,
    ServiceFacts,
    duration,
    failed_cause,
    fault_for,
    lines,
    shown_to,
    system_health,
    unreachable,
    without_parts,
)

S = 1_000_000_000
NOW = 1_000_000 * S
DAY_S = 86_400
OK, DEGRADED, FAILED = Grade.OK, Grade.DEGRADED, Grade.FAILED


def owner(partition: int, state: OwnerState = OwnerState.SERVING, for_s: float = 0.0, why: str = "") -> OwnerFacts:
    return OwnerFacts(partition, state, for_s, limit_s=8.0, problem=why)


def owners(*those: OwnerFacts) -> HealthFacts:
    return replace(WELL, scheduler=SchedulerFacts(those))


WELL = HealthFacts(
    one_process=False,
    log=LogFacts(),
    scheduler=SchedulerFacts([owner(0), owner(1), owner(2), owner(3)]),
    disk=DiskFacts("/data", (), 50 << 30, 100 << 30),
    services={Part.VIEW: ServiceFacts(), Part.PUBLISHER: ServiceFacts(), Part.USAGE: ServiceFacts()},
    certificates=[CertificateFacts("gateway.tls.certificate /c.pem", NOW + 90 * DAY_S * S)],
)


def part(state: SystemHealthDao, name: str) -> PartHealthDao:
    return next(each for each in state.parts if each.part == name)


def test_all_is_well() -> None:
    state = system_health(WELL, NOW)
    assert (state.grade, state.part, state.sentence, state.remedy) == (OK, "", "all parts work", "")
    assert [each.part for each in state.parts] == [str(each) for each in Part]
    assert {each.grade for each in state.parts} == {OK}
    assert lines(state) == []


CASES = {
    "a scheduler is silent for a moment": (owners(owner(0, for_s=2.9)), OK, "", ""),
    "its take-over is under way": (
        owners(owner(0), owner(3, for_s=5)),
        DEGRADED,
        "scheduler",
        "no scheduler has answered for partition 3 for 5 s",
    ),
    "nobody took over": (
        owners(owner(0), owner(3, for_s=75)),
        FAILED,
        "scheduler",
        "no scheduler has answered for partition 3 for 75 s",
    ),
    "it has released it, and nobody came": (
        owners(owner(3, OwnerState.NONE, 9)),
        FAILED,
        "scheduler",
        "no scheduler has answered for partition 3 for 9 s",
    ),
    "several are without one": (
        owners(*(owner(each, for_s=20 + each) for each in range(32))),
        FAILED,
        "scheduler",
        "no scheduler has answered for 32 of 32 partitions for 51 s",
    ),
    "two are without one": (
        owners(owner(0), owner(1, for_s=20), owner(2, for_s=30)),
        FAILED,
        "scheduler",
        "no scheduler has answered for partitions 1 and 2 for 30 s",
    ),
    "one hangs": (
        owners(owner(0), owner(1, OwnerState.STUCK, 20, "partition 1 has not moved for 20 s, 7 records wait")),
        FAILED,
        "scheduler",
        "partition 1 has not moved for 20 s, 7 records wait",
    ),
    "one folds": (
        owners(owner(0, OwnerState.STARTING, 5)),
        DEGRADED,
        "scheduler",
        "a scheduler has been taking over partition 0 for 5 s",
    ),
    "one cannot take over": (
        owners(owner(0, OwnerState.STARTING, 30, "LogFull: no room")),
        FAILED,
        "scheduler",
        "a scheduler has been taking over partition 0 for 30 s: LogFull: no room",
    ),
    "the clock was set": (
        replace(WELL, scheduler=SchedulerFacts([owner(0)], ["the system clock was set back by 1 h"])),
        DEGRADED,
        "scheduler",
        "the system clock was set back by 1 h",
    ),
    "a source is away": (
        replace(WELL, scheduler=SchedulerFacts([owner(0)], (), ["informer vms (http) has not synced"])),
        DEGRADED,
        "external",
        "informer vms (http) has not synced",
    ),
    "a request waits": (
        replace(WELL, waiting={0: 1.0, 2: 12.0}),
        DEGRADED,
        "requests",
        "a request to partition 2 has waited for a decision for 12 s",
    ),
    "a request waits long": (
        replace(WELL, waiting={2: 31.0, 3: 300.0}),
        FAILED,
        "requests",
        "a request to partitions 2 and 3 has waited for a decision for 5 min",
    ),
    "the log is silent": (
        replace(WELL, log=LogFacts(silent_s=4)),
        DEGRADED,
        "log",
        "the log has not answered for 4 s",
    ),
    "the log is away": (replace(WELL, log=LogFacts(silent_s=9)), FAILED, "log", "the log has not answered for 9 s"),
    "the log takes nothing": (
        replace(WELL, log=LogFacts(refusal="2 of 3 copies are missing")),
        FAILED,
        "log",
        "2 of 3 copies are missing",
    ),
    "a part of the log is damaged": (
        replace(WELL, log=LogFacts(notes=["the log is damaged: x."])),
        DEGRADED,
        "log",
        "the log is damaged: x",
    ),
    "the disk is full": (
        replace(WELL, disk=DiskFacts("/data", ["the disk of log /data/log.db is full"], 0, 100 << 30)),
        FAILED,
        "disk",
        "the disk of log /data/log.db is full",
    ),
    "the disk is nearly full": (
        replace(WELL, disk=DiskFacts("/data", (), 100 << 20, 100 << 30)),
        DEGRADED,
        "disk",
        "the disk of /data is nearly full: 100 MiB of 102,400 MiB are free",
    ),
    "a small disk is half full": (replace(WELL, disk=DiskFacts("/data", (), 8 << 20, 16 << 20)), OK, "", ""),
    "the gateway cannot serve": (
        replace(WELL, gateway_problems=["the session store does not answer"]),
        FAILED,
        "gateway",
        "the session store does not answer",
    ),
    "a policy is wrong": (
        replace(WELL, gateway_notes=["gateway.policy_file: line 3"]),
        DEGRADED,
        "gateway",
        "gateway.policy_file: line 3",
    ),
    "the view is restarting": (
        replace(WELL, services={Part.VIEW: ServiceFacts(3, serves=False)}),
        DEGRADED,
        "view",
        "the view has not answered for 3 s",
    ),
    "the view is gone": (
        replace(WELL, services={Part.VIEW: ServiceFacts(6, serves=False, problems=["their process begins"])}),
        FAILED,
        "view",
        "the view has not answered for 6 s: their process begins",
    ),
    "the view is behind": (
        replace(WELL, services={Part.VIEW: ServiceFacts(serves=False, problems=["it lags"], behind=["it lags"])}),
        DEGRADED,
        "view",
        "it lags",
    ),
    "the view cannot follow": (
        replace(WELL, services={Part.VIEW: ServiceFacts(serves=False, problems=["p", "lag"], behind=["lag"])}),
        FAILED,
        "view",
        "p",
    ),
    "a store is away": (
        replace(WELL, services={Part.PUBLISHER: ServiceFacts(serves=False, problems=["pg"], behind=["pg"])}),
        DEGRADED,
        "publisher",
        "pg",
    ),
    "the publisher is gone": (
        replace(WELL, services={Part.PUBLISHER: ServiceFacts(60, serves=False)}),
        FAILED,
        "publisher",
        "the event publisher has not answered for 60 s",
    ),
    "usage is not derived": (
        replace(WELL, services={Part.USAGE: ServiceFacts(serves=False, problems=["usage is not followed"])}),
        DEGRADED,
        "usage",
        "usage is not followed",
    ),
    "a certificate ends soon": (
        replace(WELL, certificates=[CertificateFacts("c", NOW + 13 * DAY_S * S)]),
        DEGRADED,
        "certificates",
        "c ends in 13 days",
    ),
    "a certificate has ended": (
        replace(
            WELL, certificates=[CertificateFacts("a", NOW + 13 * DAY_S * S), CertificateFacts("c", NOW - 3600 * 3 * S)]
        ),
        FAILED,
        "certificates",
        "c ended 3 h ago",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_fault_is_graded_and_said(case: str) -> None:
    facts, grade, name, sentence = CASES[case]
    state = system_health(facts, NOW)
    assert (state.grade, state.part) == (grade, name)
    if grade is OK:
        return
    worst = state.parts[0]
    assert (state.sentence, worst.sentence) == (sentence, sentence)
    assert (state.since, state.remedy) == (worst.since, worst.remedy)
    assert state.remedy, "it says what to do"
    assert lines(state)[0] == f"{grade}: {name}: {sentence} ({worst.remedy})"


def test_the_cause_comes_before_what_follows_from_it() -> None:
    full = DiskFacts("/data", ["the disk of log /data/log.db is full"])
    stuck = SchedulerFacts([owner(0, OwnerState.STARTING, 60, "LogFull")])
    state = system_health(replace(WELL, disk=full, scheduler=stuck, waiting={0: 60.0}), NOW)
    assert [each.part for each in state.parts[:3]] == ["disk", "scheduler", "requests"]
    away = system_health(owners_while_the_log_is_away(), NOW)
    assert (away.part, part(away, "scheduler").grade) == ("log", DEGRADED)
    assert part(away, "scheduler").sentence == "not known while the log does not answer"


def owners_while_the_log_is_away() -> HealthFacts:
    return replace(owners(owner(0, for_s=60)), log=LogFacts(silent_s=60))


def test_what_else_is_the_matter_is_listed() -> None:
    state = system_health(replace(WELL, gateway_problems=["b"], gateway_notes=["a", "c"]), NOW)
    assert (state.parts[0].sentence, state.parts[0].others) == ("b", ["a", "c"])
    assert lines(state)[1:] == ["also: gateway: a", "also: gateway: c"]


def test_a_grade_is_as_old_as_its_fault_or_its_first_computation() -> None:
    state = system_health(owners(owner(3, for_s=75)), NOW)
    assert state.since == NOW - 75 * S
    wrong = replace(WELL, gateway_notes=["a"])
    first = system_health(wrong, NOW)
    second = system_health(wrong, NOW + 60 * S, first)
    assert (first.since, second.since) == (NOW, NOW)
    third = system_health(WELL, NOW + 70 * S, second)
    assert part(third, "gateway").since == NOW + 70 * S
    assert part(third, "view").since == NOW
    certificate = CertificateFacts("c", NOW + 13 * DAY_S * S)
    assert system_health(replace(WELL, certificates=[certificate]), NOW).since == NOW - DAY_S * S


def test_the_remedy_fits_the_deployment() -> None:
    apart, together = owners(owner(0, for_s=60)), replace(owners(owner(0, for_s=60)), one_process=True)
    assert "start one: muster scheduler" in system_health(apart, NOW).remedy
    assert "muster up" in system_health(together, NOW).remedy
    assert "takes over within 8 s" in system_health(owners(owner(0, for_s=5)), NOW).remedy


def test_a_request_without_a_decision_names_the_fault_of_its_partition() -> None:
    facts = owners(owner(0), owner(3, for_s=75))
    assert fault_for(facts, 3) == "no scheduler has answered for partition 3 for 75 s"
    assert fault_for(facts, 0) == ""
    away = owners_while_the_log_is_away()
    assert fault_for(away, 0) == "the log has not answered for 60 s"
    assert fault_for(WELL, 0) == ""


def test_a_reader_without_a_gateway_and_one_without_rights() -> None:
    state = unreachable("x does not answer", "start it", NOW, NOW - S)
    assert (state.grade, state.part, state.since, state.remedy) == (FAILED, "gateway", NOW - S, "start it")
    shown = without_parts(state)
    assert (shown.grade, shown.part, shown.sentence, shown.parts) == (FAILED, "", "", [])


def test_a_reader_of_some_rms_sees_no_name_of_others() -> None:
    notes = SchedulerFacts([owner(0, OwnerState.STARTING, 30, "rm-other")], ["rm-other: quota"], ["rm-other: source"])
    named = ["rm-other is away"]
    facts = replace(
        WELL,
        scheduler=notes,
        log=LogFacts(notes=named),
        gateway_problems=named,
        disk=DiskFacts("rm-other", named),
        services={each: ServiceFacts(serves=False, problems=named) for each in (Part.VIEW, Part.PUBLISHER, Part.USAGE)},
        certificates=[CertificateFacts("rm-other", 0)],
        waiting={0: 60.0},
    )
    state = system_health(facts, NOW)
    assert shown_to(state, inspects=True, reads=True) is state
    shown = shown_to(state, inspects=False, reads=True)
    assert "rm-other" not in str(shown)
    assert [(each.part, each.grade, each.since) for each in shown.parts] == [
        (each.part, each.grade, each.since) for each in state.parts
    ]
    assert {each.grade for each in shown.parts} == {FAILED, DEGRADED}, "every part is among them"
    assert (shown.grade, shown.part, shown.remedy) == (FAILED, "gateway", "ask an operator of this Muster")
    assert shown_to(state, inspects=False, reads=False) == without_parts(state)
    assert "rm-other" not in fault_for(replace(facts, disk=None), 0)


@pytest.mark.parametrize(
    ("length_s", "text"),
    [(0.4, "0 s"), (75, "75 s"), (119.9, "120 s"), (300, "5 min"), (7200, "2 h"), (172_800, "2 days")],
)
def test_durations(length_s: float, text: str) -> None:
    assert duration(length_s) == text


@pytest.mark.parametrize(
    ("part", "grade", "cause"),
    [
        ("disk", FAILED, "it does not work"),
        ("log", FAILED, "it does not work"),
        ("scheduler", FAILED, "it does not work"),
        ("gateway", FAILED, "it does not work"),
        ("scheduler", DEGRADED, ""),
        ("view", FAILED, ""),
        ("scheduler", OK, ""),
    ],
)
def test_nothing_is_decided_if_a_part_that_deciding_needs_has_failed(part: str, grade: Grade, cause: str) -> None:
    found = PartHealthDao(part=part, grade=grade, since=1, sentence="it does not work", remedy="", others=[])
    whole = SystemHealthDao(grade=grade, part=part, since=1, sentence="", remedy="", checked=2, parts=[found])
    assert failed_cause(whole) == cause
