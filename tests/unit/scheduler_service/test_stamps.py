"""The stamps of what the scheduler writes: readers know by them that they have passed an answer."""

from __future__ import annotations

import random

import pytest
from muster_bus.log import OutRecord, Record
from muster_bus.topics import is_forgotten_state_key, is_rm_state_key
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.bus.v1 import state_pb2
from muster_si.positions import NO_STAMP, Stamp
from muster_state.stamps import Stamps
from muster_state.state_folder import StateFolder
from unit.scheduler_service import rig as make
from unit.scheduler_service.rig import RM, SECOND_NS, Rig

# ---- the order -----------------------------------------------------------------------------------------------------


def test_a_stamp_grows_with_requests_and_with_what_is_written_between_them() -> None:
    stamps = Stamps()
    assert stamps.now == NO_STAMP
    stamps.note_request(0)
    assert stamps.now == stamps.now == (1, 0)
    stamps.note_step()
    stamps.note_step()  # nothing was written in between
    assert stamps.now == stamps.now == (1, 1)
    stamps.note_request(4)
    assert stamps.now == (5, 0)


def test_each_record_has_a_stamp_of_its_own() -> None:
    stamps = Stamps()
    stamps.note_request(0)
    assert stamps.record() == (1, 0)
    assert stamps.now == (1, 0)  # of an answer about that record
    stamps.begin()
    assert stamps.now == stamps.record() == (1, 1)
    stamps.note_step()  # of an answer about what is still to be written
    assert stamps.now == (1, 2)
    stamps.begin()
    assert stamps.record() == (1, 2)


def test_stamps_of_a_copied_log_go_on_although_its_requests_begin_again() -> None:
    stamps = Stamps()
    stamps.fold(900, 7)
    stamps.note_request(0)
    assert stamps.now == (900, 8)
    stamps.note_request(1)
    assert stamps.now == (900, 9)
    stamps.note_request(900)
    assert stamps.now == (901, 0)


def test_a_stamp_is_folded_with_its_last_record() -> None:
    stamps = Stamps()
    stamps.fold(3, 0, records=2)
    stamps.fold_record()
    assert stamps.folded == NO_STAMP
    stamps.fold_record()
    assert stamps.folded == (3, 0)
    stamps.fold(3, 1, records=5)  # compaction has removed some of these
    assert stamps.folded == (3, 0)
    stamps.fold(4, 0, records=1)
    assert stamps.folded == (3, 1)
    stamps.fold_all()
    assert stamps.folded == (4, 0)
    stamps.fold(2, 9)
    assert stamps.folded == (4, 0)


# ---- the machine ---------------------------------------------------------------------------------------------------


def told(records: list[OutRecord]) -> list[Stamp]:
    """The stamps of the answers among some records."""
    envelopes = [pb.ResponseEnvelope.FromString(each.value or b"") for each in records if "responses" in each.topic]
    return [Stamp(each.stamp_before, each.stamp_step) for each in envelopes if each.stamp_before or each.stamp_step]


def recorded(records: list[OutRecord]) -> list[Stamp]:
    """The stamps in the state among some records."""
    found: list[Stamp] = []
    for each in records:
        if "state" not in each.topic or each.value is None:
            continue
        if is_rm_state_key(each.key):
            rm = state_pb2.RmObject.FromString(each.value)
            found.append(Stamp(rm.stamp_before, rm.stamp_step))
        elif is_forgotten_state_key(each.key):
            kept = state_pb2.ForgottenObject.FromString(each.value)
            found.append(Stamp(kept.stamp_before, kept.stamp_step))
    return found


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    assert made.register().accepted
    made.send(make.node("n1", vcore=10_000, memory=100), make.application("x", "root.c"))
    return made


def command(**fields: object) -> pb.RequestEnvelope:
    return pb.RequestEnvelope(rm_id=RM, request_id="q", admin=pb.AdminCommand(**fields))  # type: ignore[arg-type]


def carried_out(rig: Rig, **fields: object) -> list[OutRecord]:
    return rig.send(command(**fields).SerializeToString())


DRAIN = pb.AdminCommand.DrainNode(partition="default", node_id="n1")
COMMANDS = [{"pause": "x"}, {"resume": True}, {"drain_node": DRAIN}]


@pytest.mark.parametrize("fields", COMMANDS, ids=lambda fields: next(iter(fields)))
def test_a_command_that_changes_nothing_leaves_its_stamp_too(rig: Rig, fields: dict[str, object]) -> None:
    for _ in range(2):  # the second time it changes nothing
        records = carried_out(rig, **fields)
        (stamp,) = told(records)
        assert stamp > NO_STAMP
        assert max(recorded(records)) >= stamp


def test_a_refused_command_and_a_look_have_no_stamp(rig: Rig) -> None:
    absent = pb.AdminCommand.DrainNode(partition="default", node_id="absent")
    for fields in ({"drain_node": absent}, {"dump_rm_state": True}, {"validate": b""}):
        assert told(carried_out(rig, **fields)) == []


def test_forgetting_leaves_its_stamp_also_the_second_time(rig: Rig) -> None:
    for _ in range(2):
        records = carried_out(rig, forget=pb.AdminCommand.Forget(force=True))
        (stamp,) = told(records)
        assert max(recorded(records)) >= stamp


@pytest.mark.parametrize("seed", range(10))
def test_each_answer_is_passed_with_the_state_of_its_transaction_in_any_life(seed: int) -> None:
    """Through restarts, and for what time alone causes: no stamp goes back, and a follower passes each answer's."""
    rng = random.Random(seed)
    rig = Rig(budget=rng.choice((1, 3, 2000)))
    folder, last, answers = StateFolder(), NO_STAMP, 0
    folder.build()
    assert rig.register().accepted
    (registered,) = told(rig.written)
    state = [record for record in rig.written if "state" in record.topic]
    for record in state:
        assert folder.stamps.folded < registered
        _fold(folder, record)
    assert folder.stamps.folded == registered
    rig.written.clear()
    for turn in range(60):
        match rng.randrange(8):
            case 0:
                records = rig.send(make.node(f"n{turn}", vcore=rng.randrange(1, 20_000), memory=100))
            case 1:
                records = rig.send(make.application(f"a{turn}", rng.choice(("root.a", "root.c", "root.none"))))
            case 2 | 3:
                asked = [make.allocation(f"a{rng.randrange(turn + 1)}", f"k{turn}.{n}", vcore=1) for n in range(4)]
                records = rig.send(make.asks(*asked))
            case 4:
                records = carried_out(rig, **rng.choice(COMMANDS))
            case 5:
                rig.rebuild(rng)
                continue
            case 6:
                rig.now_ns += rng.randrange(60) * SECOND_NS
                records = rig.tick()
            case _:
                records = rig.tick()
        stamps = told(records)
        assert stamps == sorted(stamps)
        state = [record for record in records if "state" in record.topic]
        for number, record in enumerate(state, 1):
            _fold(folder, record)
            if stamps and folder.stamps.folded >= stamps[-1]:
                assert number == len(state), "a part of the transaction is passed as the whole"
        for stamp in stamps:
            answers += 1
            assert stamp >= last
            last = stamp
            assert folder.stamps.folded >= stamp
        stamped = recorded(records)
        assert stamped == sorted(set(stamped))
    assert answers > 10


def _fold(folder: StateFolder, out: OutRecord) -> None:
    if "state" in out.topic:
        folder.fold(Record(out.topic, out.partition, 0, 0, out.key, out.value))
