"""Recovery between any two batches gives the same answers as no recovery.

One machine takes a random log of requests. Others take the same log and are rebuilt from the state topic between random
batches. Answers, events and the last state must be the same. Sequences and event ids have no gap.
"""

from __future__ import annotations

import os
import random

import pytest
from builders import snapshot
from muster_bus.log import Record
from muster_core import invariants
from muster_core.model.outcome import Outcome
from muster_core.model.pending_reason import group_reason
from muster_core.model.steps import finish
from muster_core.scheduler import SchedulerCore
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from muster_state.state_folder import StateFolder
from unit.scheduler_service import rig as make
from unit.scheduler_service.rig import RM, Rig

SEEDS = range(int(os.environ.get("MUSTER_SIMULATION_SEEDS", "5")))
STEPS = 50
LEAVES = ("root.a", "root.b.x", "root.b.y", "root.c")


class Requests:
    """A random RM. Its requests depend on its dice only, not on answers."""

    def __init__(self, seed: int, config: str = make.CONFIG) -> None:
        self.dice = random.Random(seed)
        self.config = config
        self.number = 0

    def batch(self) -> list[object]:
        return [self.request() for _ in range(self.dice.choice([1, 1, 2, 4]))]

    def request(self) -> object:
        dice = self.dice
        self.number += 1
        kind = dice.choices(
            ["ask", "old", "app", "end", "node", "change", "release", "adopt", "foreign", "life", "garbage", "again"],
            [8, 3, 4, 1, 2, 2, 6, 1, 1, 1, 1, 0.3],
        )[0]
        app, key, node = f"app{dice.randint(1, 6)}", f"k{dice.randint(1, 30)}", f"n{dice.randint(1, 6)}"
        match kind:
            case "ask":
                items = [
                    make.allocation(app, f"k{dice.randint(1, 30)}", tags=self.tags(), **self.quantities())
                    for _ in range(dice.randint(1, 4))
                ]
                for item in items:
                    item.priority = dice.choice([0, 0, 0, 3])
                return make.asks(*items)
            case "old":
                return make.old_ask(app, key, dice.randint(1, 4), **self.quantities())
            case "app":
                return make.application(app, dice.choice(LEAVES))
            case "end":
                return make.removal(app)
            case "node":
                return make.node(node, vcore=dice.randint(1, 9) * 1000, memory=dice.randint(1, 30))
            case "change":
                action = dice.choice([2, 2, 3, 4, 5, 6, 77])
                capacity = {"vcore": dice.randint(1, 12) * 1000, "memory": dice.randint(1, 40)} if action == 2 else {}
                return make.node(node, action, **capacity)
            case "release":
                if dice.random() < 0.2:
                    return make.release(app, uuid=f"{dice.randint(1, 200):x}-{dice.randint(0, 2)}")
                if dice.random() < 0.1:
                    return make.ask_release(dice.choice([app, ""]), key)
                chosen = dice.choice([key, key, key, key, key, ""])
                return make.release(app, chosen, dice.choice([0, 1, 1, 1, 2, 3, 5, 99]))
            case "adopt":
                return make.asks(make.allocation(app, key, node, **self.quantities()))
            case "foreign":
                if dice.random() < 0.4:
                    return make.release("", f"f{dice.randint(1, 4)}")
                tags = {"foreign": "static"}
                return make.asks(make.allocation("", f"f{dice.randint(1, 4)}", node, tags, **self.quantities()))
            case "life":
                return make.life(
                    dice.choice([pb.RmLifecycle.DISCONNECTED, pb.RmLifecycle.RUNNING, pb.RmLifecycle.STOPPED])
                )
            case "garbage":
                return dice.choice([b"\xff\xff", b"", make.asks(), make.node("")])
        return make.registration(self.config)

    def tags(self) -> dict[str, str]:
        return {"creationTime": str(self.dice.randint(900, 1000))} if self.dice.random() < 0.2 else {}

    def quantities(self) -> dict[str, int]:
        dice = self.dice
        wanted = {"vcore": dice.randint(1, 5) * 1000, "memory": dice.randint(1, 8)}
        if dice.random() < 0.1:
            wanted["gpu"] = 1
        return wanted


# A machine does not record that a waitlist had its turn in vain. After a restart it may therefore reserve at
# another moment. So the comparison to the byte leaves reservations out (the simulation checks their promises).
NO_RESERVATIONS = make.CONFIG.replace("- name: default\n", "- name: default\n    reservation: {enabled: false}\n")

# After a restart every ask is tried again, also those that wait for room. A maximum of applications may then be found
# and reported earlier, but never twice (see below).
MAYBE_EARLIER = (
    si.EventRecord.APP_CANNOTRUN_QUEUE,
    si.EventRecord.APP_RUNNABLE_QUEUE,
    si.EventRecord.APP_CANNOTRUN_QUOTA,
    si.EventRecord.APP_RUNNABLE_QUOTA,
)


def _run(
    seed: int, *, rebuilding: bool, follows: bool = False, config: str = make.CONFIG, kind: type[Requests] = Requests
) -> tuple[Rig, list[object]]:
    requests = kind(seed, config)
    pace = random.Random(f"pace {seed}")
    borders = random.Random(f"borders {seed}")
    rig = Rig(budget=pace.choice([1, 3, 2000]))
    if follows:
        rig.follow()
    rig.register(config)
    answers: list[object] = []
    for _ in range(STEPS):
        heard, seen = len(rig.responses), len(rig.events)
        rig.send(*requests.batch())
        for _ in range(pace.choice([0, 1, 1, 3])):
            rig.tick()
        answers.append(_meaning(rig, heard, seen))
        rig.now_ns += pace.choice([0, 1, 10**9, 25 * 10**9])
        if rebuilding and borders.random() < 0.4:
            rig.rebuild(borders)
    rig.send(make.life(pb.RmLifecycle.RUNNING))  # the waitlists of a stopped RM are not tidied
    rig.settle()
    answers.append(_meaning(rig, 0, 0))
    return rig, answers


def _meaning(rig: Rig, heard: int, seen: int) -> object:
    """Return a batch's items one by one: their grouping into responses carries no meaning."""
    items: list[str] = []
    for _, response in rig.responses[heard:]:
        for field, values in response.ListFields():  # type: ignore[attr-defined]
            if field.name != "responseSequence":
                items.extend(f"{field.name}: {value}" for value in values)
    return items, [str(event) for _, event in rig.events[seen:] if event.eventChangeDetail not in MAYBE_EARLIER]


def _state(rig: Rig) -> dict[str, object]:
    info = rig.machine.rms[RM].info
    return {
        **_snapshot(rig.core),
        "counters": (info.next_event_id, info.next_response_sequence, rig.core.next_submission, info.registrations),
    }


def _snapshot(core: SchedulerCore) -> dict[str, object]:
    found = snapshot(core)
    for name, partition in core.partitions.items():
        shown = found[name]
        assert isinstance(shown, dict)
        types = shown.pop("types")

        def named(vector: list[int], types: list[str] = types) -> dict[str, int]:
            return {kind: value for kind, value in zip(types, vector, strict=True) if value}

        for part in ("nodes", "queues"):
            shown[part] = {
                each: tuple(named(value) if isinstance(value, list) else value for value in values)
                for each, values in shown[part].items()
            }
        shown["pending"] = {
            (app.app_id, key): ask.group is not None and group_reason(ask.group) is not None
            for app in partition.apps.values()
            for key, ask in app.asks.items()
        }
    return found


def _kept(rig: Rig) -> set[bytes]:
    """Return the objects that have a record, without reasons: if two hold, a new machine may find the other one."""
    return {key for key in rig.state if b"/why/" not in key}


def same_at_any_border(seed: int, kind: type[Requests] = Requests, *, follows: bool = False) -> tuple[Rig, Rig]:
    """Run one life without and with rebuilds between batches; expect the same answers and state.

    :param follows: the rebuilt machines are standbys, which fold record by record until they take over.
    """
    straight, expected = _run(seed, rebuilding=False, config=NO_RESERVATIONS, kind=kind)
    rebuilt, found = _run(seed, rebuilding=True, follows=follows, config=NO_RESERVATIONS, kind=kind)
    for step, (was, is_now) in enumerate(zip(expected, found, strict=True)):
        assert is_now == was, f"answers differ at step {step}"
    straight.check_counters()
    rebuilt.check_counters()
    assert _state(rebuilt) == _state(straight)
    return straight, rebuilt


def same_built_anew(rig: Rig, seed: int) -> None:
    """Expect that a machine built from the topics has this one's state. Reasons may differ if two hold."""
    before = _state(rig)
    rig.rebuild(random.Random(seed))
    after = _state(rig)
    for snapshots in (before, after):
        del snapshots["default"]["pending"]  # type: ignore[attr-defined]
    assert after == before


def same_followed(rig: Rig) -> None:
    """Expect that a follower of the state topic, such as the view, has the machine's state."""
    folder = StateFolder()
    folder.build()
    for offset, record in enumerate(rig.written):
        if record.topic == rig.topics.state:
            folder.fold(Record(record.topic, 0, offset, 0, record.key, record.value))
    followed = folder.rms[RM].core
    invariants.check(followed)
    assert _snapshot(followed) == _snapshot(rig.core)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_rebuilding_changes_nothing(seed: int) -> None:
    straight, rebuilt = same_at_any_border(seed)
    assert _kept(rebuilt) == _kept(straight)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_a_standby_that_takes_over_changes_nothing(seed: int) -> None:
    """Its objects were folded record by record, not at once. Its decisions are the same to the byte."""
    straight, taken_over = same_at_any_border(seed, follows=True)
    assert _kept(taken_over) == _kept(straight)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_that_an_application_may_not_run_is_said_once_and_then_that_it_may(seed: int) -> None:
    rig, _ = _run(seed, rebuilding=True)
    held: set[str] = set()
    for _, event in rig.events:
        match event.eventChangeDetail:
            case si.EventRecord.APP_CANNOTRUN_QUEUE:
                assert event.objectID not in held
                held.add(event.objectID)
            case si.EventRecord.APP_RUNNABLE_QUEUE:
                held.remove(event.objectID)
            case si.EventRecord.DETAILS_NONE if event.type == si.EventRecord.APP:
                held.discard(event.objectID)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_the_state_topic_holds_exactly_what_the_machine_holds(seed: int) -> None:
    rig, _ = _run(seed, rebuilding=False)
    same_built_anew(rig, seed)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_a_follower_that_takes_every_record_holds_the_same(seed: int) -> None:
    rig, _ = _run(seed, rebuilding=False)
    same_followed(rig)


def test_requests_reach_what_they_are_meant_to_reach() -> None:
    rig = Rig()
    rig.register()
    requests = Requests(5)
    for _ in range(400):
        rig.send(*requests.batch())
        rig.now_ns += 10**9
    for field in ("new", "released", "rejectedAllocations", "rejected", "accepted", "updated"):
        assert rig.of(field), field
    assert rig.dead
    types = (si.EventRecord.APP, si.EventRecord.NODE, si.EventRecord.QUEUE, si.EventRecord.USERGROUP)
    assert {event.type for _, event in rig.events} == {*types}


def test_an_id_used_again_in_the_batch_in_which_its_last_allocation_went_leaves_no_record_behind() -> None:
    """The tombstone of the first one's allocation has the id of that time."""
    rig = Rig()
    rig.register()
    rig.send(
        make.node("n", vcore=10_000), make.application("x", "root.c"), make.asks(make.allocation("x", "k", vcore=1))
    )
    application = rig.core.partitions["default"].apps["x"]
    application.execution_timeout_ms = 1
    finish(rig.core.partitions["default"].lifecycle.fail(application, "over", Outcome(), rig.now_ns))
    confirmed = si.AllocationRelease(
        partitionName="default", applicationID="x", allocationKey="k", terminationType=si.TIMEOUT
    )
    release = si.AllocationRequest(rmID=RM, releases=si.AllocationReleasesRequest(allocationsToRelease=[confirmed]))
    rig.send(release, make.application("x", "root.c"))
    rig.rebuild(random.Random(1))
    assert not rig.core.partitions["default"].apps["x"].allocations
    assert not [key for key in rig.state if b"/alloc/" in key]


def test_a_queue_that_goes_with_its_last_application_in_one_transaction_goes_from_followers_too() -> None:
    rig = Rig()
    rig.register(
        "partitions: [{placementrules: [{name: provided, create: true}], queues: [{name: root, submitacl: '*'}]}]"
    )
    rig.send(make.node("n", vcore=10_000), make.application("w", "root.made.deep"))
    rig.send(si.ApplicationRequest(rmID=RM, remove=[si.RemoveApplicationRequest(applicationID="w")]))
    rig.send(make.application("x", "root.made.deep"), make.asks(make.allocation("x", "k", vcore=1)))
    application = rig.core.partitions["default"].apps["x"]
    finish(rig.core.partitions["default"].lifecycle.fail(application, "over", Outcome(), rig.now_ns))
    rig.now_ns += 11 * 10**9
    confirmed = si.AllocationRelease(
        partitionName="default", applicationID="x", allocationKey="k", terminationType=si.TIMEOUT
    )
    releases = si.AllocationReleasesRequest(allocationsToRelease=[confirmed])
    rig.send(si.AllocationRequest(rmID=RM, releases=releases))
    assert list(rig.core.partitions["default"].queues) == ["root"]
    folder = StateFolder()
    folder.build()
    for offset, record in enumerate(rig.written):
        if record.topic == rig.topics.state:
            folder.fold(Record(record.topic, 0, offset, 0, record.key, record.value))
    assert list(folder.rms[RM].core.partitions["default"].queues) == ["root"]
