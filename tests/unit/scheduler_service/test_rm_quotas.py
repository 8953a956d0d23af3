"""Quotas at the machine: the log has the limits, each reached quota is one event, and a restart changes no answer."""

from __future__ import annotations

import pytest
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler import metrics
from muster_scheduler.machine import SchedulerMachine
from muster_scheduler.rm_quotas import ReachedQuotas
from unit.scheduler_service.rig import CONFIG, RM, Rig, envelope

# a configuration whose placement rules create queues
DYNAMIC = """
partitions:
  - name: default
    placementrules: [{name: provided, create: true}]
    queues: [{name: root, submitacl: '*', queues: [{name: users, parent: true}]}]
"""


def registration(rm_id: str, identity: str = "", config: str = CONFIG, **limits: int) -> bytes:
    request = si.RegisterResourceManagerRequest(rmID=rm_id, config=config)
    whole = pb.RequestEnvelope(rm_id=rm_id, request_id="r", identity=identity, register=request.SerializeToString())
    whole.quotas.CopyFrom(pb.Quotas(**limits))
    return whole.SerializeToString()


def register(rig: Rig, rm_id: str = RM, identity: str = "", config: str = CONFIG, **limits: int) -> str:
    """Register the RM. Return the refusal; "": registered."""
    rig.send(registration(rm_id, identity, config, **limits), rm_id=rm_id)
    answer = rig.registrations[-1]
    assert answer.accepted != answer.exhausted
    return "; ".join(problem.message for problem in answer.problems if problem.severity == pb.ConfigProblem.ERROR)


def changed(rm_id: str = RM, **limits: int) -> bytes:
    return pb.RequestEnvelope(rm_id=rm_id, quotas_changed=pb.Quotas(**limits)).SerializeToString()


def application(app_id: str, queue: str = "root.a", user: str = "alice") -> si.ApplicationRequest:
    new = si.AddApplicationRequest(
        applicationID=app_id, queueName=queue, partitionName="default", ugi=si.UserGroupInformation(user=user)
    )
    return si.ApplicationRequest(new=[new])


def node(node_id: str) -> si.NodeRequest:
    amounts = si.Resource(resources={"vcore": si.Quantity(value=4)})
    return si.NodeRequest(nodes=[si.NodeInfo(nodeID=node_id, action=si.NodeInfo.CREATE, schedulableResource=amounts)])


def rejected(rig: Rig) -> list[str]:
    """Return the reasons of all rejections so far."""
    found: list[str] = []
    for _, response in rig.responses:
        for kind in ("rejected", "rejectedAllocations"):
            found += [each.reason for each in getattr(response, kind, ())]
    return found


def told(rig: Rig) -> list[str]:
    return [event.message for _, event in rig.events if event.message.startswith("quota ")]


# ---- limits of what an RM has --------------------------------------------------------------------------------------


def test_what_is_over_a_quota_is_rejected_and_another_rm_goes_on() -> None:
    rig = Rig()
    assert register(rig, nodes=1) == ""
    assert register(rig, "rm-2") == ""
    for rm_id in (RM, "rm-2"):
        rig.send(node("n1"), node("n2"), rm_id=rm_id)
    assert rejected(rig) == ["node n2: quota nodes: 2 with this one, expected at most 1 for this resource manager"]


def test_limits_survive_a_restart_and_a_registration_brings_its_own() -> None:
    rig = Rig()
    register(rig, identity="team", nodes=1)
    rig.send(node("n1"))
    rig.rebuild()
    info = rig.machine.rms[RM].info
    assert (info.identity, info.quotas.nodes) == ("team", 1)
    rig.send(node("n2"))
    assert len(rejected(rig)) == 1
    register(rig, identity="team", nodes=2)
    rig.send(node("n1"), node("n2"), node("n3"))
    assert len(rejected(rig)) == 2


def test_other_limits_come_by_a_note_and_take_nothing_away() -> None:
    rig = Rig()
    register(rig, nodes=2)
    rig.send(node("n1"), node("n2"), changed(nodes=1), node("n3"))
    assert "3 with this one, expected at most 1" in rejected(rig)[0]
    assert len(rig.core.partitions["default"].nodes) == 2
    rig.rebuild()
    assert rig.machine.rms[RM].info.quotas.nodes == 1
    written = len(rig.written)
    rig.send(changed(nodes=1))  # the same limits again write nothing
    assert len(rig.written) == written
    rig.send(changed(), node("n3"))
    assert len(rig.core.partitions["default"].nodes) == 3


def test_the_same_requests_lead_to_the_same_rejections_wherever_a_restart_is() -> None:
    requests = [node(f"n{number}") for number in range(4)]
    requests += [application(f"app{number}", user=f"user{number % 3}") for number in range(6)]
    bodies: list[object] = [changed(nodes=2, applications=4, users=2), *requests, changed(nodes=3), node("n9")]
    answers = []
    for restart in (None, 3, 8, 11):
        rig = Rig()
        register(rig)
        for number, body in enumerate(bodies):
            if number == restart:
                rig.rebuild()
            rig.send(body)
        answers.append((rejected(rig), told(rig)))
    assert all(each == answers[0] for each in answers)
    assert len(answers[0][0]) == 4


def test_thousands_of_dynamic_queues_stop_at_the_quota() -> None:
    rig = Rig(budget=100)
    register(rig, config=DYNAMIC, queues=50)
    register(rig, "rm-2", config=DYNAMIC)
    before = metrics.quota_refused.labels(RM, "queues")._value.get()
    news = [application(f"app{number}", f"root.users.q{number}").new[0] for number in range(5_000)]
    rig.send(si.ApplicationRequest(new=news))
    assert len(rig.core.partitions["default"].queues) == 50
    assert metrics.quota_refused.labels(RM, "queues")._value.get() - before == 5_000 - 48
    assert len(told(rig)) == 1
    rig.send(application("app", "root.users.mine"), rm_id="rm-2")
    assert "root.users.mine" in rig.machine.rms["rm-2"].core.partitions["default"].queues


def test_a_configuration_with_too_many_queues_is_refused() -> None:
    rig = Rig()
    why = register(rig, queues=3)
    assert why == "quota queues: 6 with this configuration, expected at most 3"
    assert not rig.machine.rms


# ---- one event for each reached quota --------------------------------------------------------------------------------


def test_a_reached_quota_is_told_once_until_it_has_room_again() -> None:
    reached = ReachedQuotas()
    rig = Rig()
    rig._factory = lambda: SchedulerMachine(rig.topics, lambda: "uuid", reached=reached)
    rig.rebuild()
    register(rig, applications=2)
    rig.send(application("one"), application("two"))
    assert told(rig) == []  # exactly the limit is allowed
    for number in range(5):
        rig.send(application(f"more{number}"))
    story = "quota applications reached: 2 of 2; what would be over it is rejected until there is room"
    assert told(rig) == [story]
    assert reached.problems() == [f"rm {RM}: {story}"]
    rig.rebuild()
    rig.send(application("more"))
    assert told(rig) == [story]
    assert reached.problems() == [f"rm {RM}: {story}"]
    # room again, but for less than a minute
    rig.send(si.ApplicationRequest(remove=[si.RemoveApplicationRequest(applicationID="one", partitionName="default")]))
    assert reached.problems() == []
    rig.send(application("three"), application("four"))
    assert told(rig) == [story]
    rig.send(si.ApplicationRequest(remove=[si.RemoveApplicationRequest(applicationID="two", partitionName="default")]))
    rig.wait(61)
    rig.send(application("five"), application("six"))
    assert told(rig) == [story]  # reached again before the minute was over
    rig.send(si.ApplicationRequest(remove=[si.RemoveApplicationRequest(applicationID="five", partitionName="default")]))
    rig.wait(61)
    rig.send(node("n1"))
    assert rig.machine.rms[RM].info.quotas_reached == {}
    rig.send(application("seven"), application("eight"))
    assert told(rig) == [story, story]


def test_nothing_is_shown_of_a_forgotten_rm() -> None:
    reached = ReachedQuotas()
    rig = Rig()
    rig._factory = lambda: SchedulerMachine(rig.topics, lambda: "uuid", reached=reached)
    rig.rebuild()
    register(rig, nodes=1)
    rig.send(node("n1"), node("n2"))
    assert len(reached.problems()) == 1
    reached.drop(lambda rm_id: rm_id != RM)
    assert len(reached.problems()) == 1
    forget = pb.RequestEnvelope(
        rm_id=RM, request_id="f", admin=pb.AdminCommand(forget=pb.AdminCommand.Forget(force=True))
    )
    rig.send(forget.SerializeToString())
    assert reached.problems() == []


# ---- limits of RMs ---------------------------------------------------------------------------------------------------


def test_an_rm_more_than_an_identity_may_have_is_refused() -> None:
    rig = Rig()
    limits = {"resource_managers": 2}
    assert register(rig, "rm-a", "team", **limits) == ""
    assert register(rig, "rm-b", "team", **limits) == ""
    why = register(rig, "rm-c", "team", **limits)
    assert why == (
        "quota resource_managers: 3 resource managers of identity team with this one, expected at most 2: an operator "
        "can forget those that are gone (muster admin forget), or raise the limit"
    )
    assert register(rig, "rm-a", "team", **limits) == ""  # again
    assert register(rig, "rm-d", "others", **limits) == ""
    assert "quota resource_managers" in register(rig, "rm-d", "team", **limits)
    rig.rebuild()
    assert "quota resource_managers" in register(rig, "rm-c", "team", **limits)
    forget = pb.RequestEnvelope(
        rm_id="rm-b", request_id="f", admin=pb.AdminCommand(forget=pb.AdminCommand.Forget(force=True))
    )
    rig.send(forget.SerializeToString(), rm_id="rm-b")
    assert register(rig, "rm-c", "team", **limits) == ""


@pytest.mark.parametrize("elsewhere", [0, 2])
def test_all_rms_together_stay_below_their_limit(elsewhere: int) -> None:
    rig = Rig()
    limits = {"all_resource_managers": 4, "all_elsewhere": elsewhere}
    refused = [bool(register(rig, f"rm-{number}", f"team-{number}", **limits)) for number in range(6)]
    assert refused == [False] * (4 - elsewhere) + [True] * (2 + elsewhere)
    assert register(rig, "rm-0", "another", **limits) == ""


def test_rms_of_the_identity_in_other_partitions_count() -> None:
    rig = Rig()
    assert "3 resource managers of identity team" in register(rig, RM, "team", resource_managers=2, elsewhere=2)


def test_health_shows_a_refused_registration_for_a_while() -> None:
    now_s = 0.0
    reached = ReachedQuotas(lambda: now_s)
    for number in range(50):
        reached.refuse_rm("resource_managers", f"story {number}")
    assert len(reached.problems()) == 21
    assert reached.problems()[-1] == "30 more"
    now_s = 700.0
    assert reached.problems() == []


def test_a_request_of_an_older_gateway_has_no_limits() -> None:
    rig = Rig()
    rig.send(envelope(si.RegisterResourceManagerRequest(rmID=RM, config=CONFIG), RM).SerializeToString())
    rig.send(node("n1"))
    assert rejected(rig) == []
