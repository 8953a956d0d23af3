"""An RM's event settings in extraConfig apply at once and survive restarts. Bad values change nothing."""

from __future__ import annotations

import pytest
from muster_bus.topics import HEADER_EVENT_ID, HEADER_STORE_CAPACITY, HEADER_TRACKING
from muster_core.allocation.ask_events import LOOKS_MAX
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from unit.scheduler_service import rig as make
from unit.scheduler_service.rig import CONFIG, RM, Rig

ON, OFF = "true", "false"
TRACKING, REQUESTS = "service.event.trackingEventsEnabled", "service.event.requestEventsEnabled"


def registered(**extra: str) -> Rig:
    rig = Rig()
    rig.send(_registration(extra))
    rig.send(make.node("n", vcore=10), make.application("x", "root.c"))
    return rig


def _registration(extra: dict[str, str]) -> si.RegisterResourceManagerRequest:
    request = make.registration()
    request.extraConfig.update(extra)
    return request


def update(rig: Rig, **extra: str) -> pb.RegistrationResult:
    rig.send(si.UpdateConfigurationRequest(rmID=RM, config=CONFIG, extraConfig=extra))
    return rig.registrations[-1]


def people(rig: Rig) -> list[si.EventRecord]:
    return [
        si.EventRecord.FromString(record.value or b"")
        for record in rig.written
        if record.topic == rig.topics.events and dict(record.headers)[HEADER_TRACKING] == b"0"
    ]


def said(result: pb.RegistrationResult) -> list[tuple[str, str]]:
    assert result.accepted
    assert {problem.severity for problem in result.problems} <= {pb.ConfigProblem.WARNING}
    return [(problem.path, problem.message) for problem in result.problems]


@pytest.mark.parametrize("key", [TRACKING, "event.trackingEnabled", "event.ringBufferCapacity"])
def test_with_tracking_off_nothing_is_made_and_ids_stand_still(key: str) -> None:
    rig = registered(**{key: "0"})
    rig.send(make.asks(make.allocation("x", "k1", vcore=4)))
    assert rig.keys("new") == ["k1"]
    rig.send(make.release("x", "k1"), make.node("n", si.NodeInfo.UPDATE, vcore=20))
    rig.rebuild()
    rig.send(make.asks(make.allocation("x", "k2", vcore=15)))
    assert rig.keys("new") == ["k1", "k2"]
    assert rig.events == []
    assert rig.machine.rms[RM].info.next_event_id == 0
    assert rig.machine.rms[RM].info.tally.released == 1, "it is counted all the same"


def test_turned_off_and_on_ids_go_on_without_a_gap() -> None:
    rig = registered()
    before = len(rig.events)
    assert before
    assert said(update(rig, **{TRACKING: OFF})) == []
    rig.send(make.asks(make.allocation("x", "k1", vcore=1)))
    rig.rebuild()
    rig.send(make.asks(make.allocation("x", "k2", vcore=1)))
    assert len(rig.events) == before
    update(rig, **{TRACKING: ON})
    rig.send(make.asks(make.allocation("x", "k3", vcore=1)))
    assert {event.referenceID for _, event in rig.events[before:]} == {"k3", "root.c"}
    rig.check_counters()


def test_a_reload_that_turns_tracking_off_says_nothing_of_itself() -> None:
    rig = registered()
    before = len(rig.events)
    text = CONFIG.replace("maxapplications: 2", "maxapplications: 9")
    rig.send(si.UpdateConfigurationRequest(rmID=RM, config=text, extraConfig={TRACKING: OFF}))
    assert rig.registrations[-1].changes
    assert len(rig.events) == before


def test_by_default_there_are_no_events_for_people() -> None:
    rig = registered()
    rig.send(make.asks(make.allocation("x", "k1", vcore=1)))
    rig.send(make.asks(make.allocation("x", "k2", "n", vcore=100)))  # larger than its node
    assert people(rig) == []


def test_events_for_people_include_asks_that_waited_before() -> None:
    rig = registered()
    rig.send(make.application("y", "root.b.x"))
    rig.send(make.asks(make.allocation("y", "k1", memory=900), make.allocation("y", "k2", memory=900)))
    assert people(rig) == []
    update(rig, **{REQUESTS: ON})
    rig.settle()
    assert [(event.objectID, event.referenceID) for event in people(rig)] == [("k1", "y"), ("k2", "y")]
    assert "does not fit in queue 'root.b.x'" in people(rig)[0].message
    update(rig, **{REQUESTS: OFF})
    rig.send(make.asks(make.allocation("y", "k3", memory=900)))
    assert len(people(rig)) == 2


def test_without_a_store_there_are_no_events_for_people() -> None:
    rig = registered(**{REQUESTS: ON, "service.event.requestStoreCapacity": "0"})
    rig.send(make.asks(make.allocation("x", "k1", vcore=1)))
    assert people(rig) == []


def test_events_for_people_do_not_need_tracking() -> None:
    rig = registered(**{REQUESTS: ON, TRACKING: OFF})
    rig.send(make.asks(make.allocation("x", "k1", vcore=1)))
    assert [event.message for event in people(rig)] == ["New application added", "Successful allocation"]
    assert rig.events == []


def test_events_for_people_say_how_many_the_rm_wants_kept() -> None:
    rig = registered(**{REQUESTS: ON})
    rig.send(make.asks(make.allocation("x", "k1", vcore=1)))
    update(rig, **{"event.requestCapacity": "7"})
    rig.send(make.asks(make.allocation("x", "k2", vcore=1)))
    rig.rebuild()
    rig.send(make.asks(make.allocation("x", "k3", vcore=1)))
    headers = [dict(record.headers) for record in rig.written if record.topic == rig.topics.events]
    untracked = [each for each in headers if each[HEADER_TRACKING] == b"0"]
    assert [each[HEADER_STORE_CAPACITY] for each in untracked] == [b"1000", b"1000", b"7", b"7"]
    assert not any(HEADER_STORE_CAPACITY in each for each in headers if HEADER_EVENT_ID in each)


def test_a_bad_value_is_reported_and_the_old_one_stays_over_a_restart() -> None:
    rig = registered(**{TRACKING: OFF})
    ((path, message),) = said(update(rig, **{TRACKING: "maybe"}))
    assert path == f"extraConfig[{TRACKING}]"
    assert message.startswith('"maybe" is not one of 1, t, T')
    assert message.endswith("false stays in use")
    rig.rebuild()
    rig.send(make.asks(make.allocation("x", "k1", vcore=1)))
    assert rig.events == []
    assert rig.machine.rms[RM].info.extra_config[TRACKING] == OFF


def test_a_bad_value_at_the_registration_is_reported_and_the_default_holds() -> None:
    rig = Rig()
    rig.send(_registration({REQUESTS: "yes", "event.ringbufferCapacity": "5", "log.level": "DEBUG"}))
    assert [path for path, _ in said(rig.registrations[-1])] == [
        f"extraConfig[{REQUESTS}]",
        "extraConfig[event.ringbufferCapacity]",
    ]
    assert rig.events


def test_registering_again_begins_with_the_defaults() -> None:
    rig = registered(**{TRACKING: OFF})
    rig.send(_registration({}))
    assert len(rig.events) == 8, "events of the queues only: the ended objects had none"


def test_a_validation_reports_bad_event_settings_too() -> None:
    rig = registered()
    wanted = si.UpdateConfigurationRequest(rmID=RM, config=CONFIG, extraConfig={TRACKING: "2"})
    outputs = rig.send(pb.AdminCommand(validate=wanted.SerializeToString()))
    answers = [
        pb.ResponseEnvelope.FromString(record.value or b"")
        for record in outputs
        if record.topic == rig.topics.responses
    ]
    (problem,) = (problem for answer in answers for problem in answer.admin.problems)
    assert problem.path == f"extraConfig[{TRACKING}]"
    assert rig.machine.rms[RM].info.extra_config == {}


def test_many_waiting_asks_get_their_events_in_bounded_parts_each_once() -> None:
    rig = registered(**{REQUESTS: ON})
    count = 2 * LOOKS_MAX + 500
    rig.send(make.application("y", "root.b.x"))
    rig.send(make.asks(*(make.allocation("y", f"k{number:05}", memory=900) for number in range(count))))
    told = [event for event in people(rig) if "does not fit" in event.message]
    assert len(told) == LOOKS_MAX, "the rest comes in the next cycles"
    rig.tick()
    rig.rebuild()
    rig.settle()
    told = [event.objectID for event in people(rig) if "does not fit" in event.message]  # type: ignore[misc]
    assert told == [f"k{number:05}" for number in range(count)]
    rig.rebuild()
    rig.settle()
    assert len([event for event in people(rig) if "does not fit" in event.message]) == count
