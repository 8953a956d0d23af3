"""A message that a client sends twice is taken once, however late its second sending comes to the log."""

from __future__ import annotations

import random

import pytest
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_state.message_dedup import AcceptedNumbers, MessageDedup
from unit.scheduler_service import rig as make


def message(number: int, first: int = 1, before: int | None = None, client: str = "c", **more: bool) -> pb.SentMessage:
    before = number - 1 if before is None else before
    return pb.SentMessage(client=client, number=number, first=first, before=before, **more)


def numbered(body: object, number: int, first: int = 1, client: str = "c") -> bytes:
    envelope = make.envelope(body)
    envelope.sent.CopyFrom(message(number, first, client=client))
    return envelope.SerializeToString()


@pytest.fixture
def rig() -> make.Rig:
    rig = make.Rig()
    rig.register()
    rig.send(make.node("n1", vcore=10_000, memory=10_000), make.application("app", "root.a"))
    rig.settle()
    return rig


ASK = make.asks(make.allocation("app", "k", vcore=1_000))
END = make.release("app", "k")


@pytest.mark.parametrize("takes_over", [False, True], ids=["one scheduler", "another scheduler"])
def test_a_repeated_ask_is_not_allocated_again_after_its_end(rig: make.Rig, takes_over: bool) -> None:
    for number, body in enumerate((ASK, END), start=1):
        rig.send(numbered(body, number))
        rig.settle()
    if takes_over:
        rig.rebuild()
    for number, body in enumerate((ASK, END), start=1):
        rig.send(numbered(body, number))
        rig.settle()
    assert rig.keys("new") == ["k"]
    assert rig.keys("released") == ["k"]


def test_without_numbers_it_is_a_new_ask(rig: make.Rig) -> None:
    for body in (ASK, END, ASK):
        rig.send(body)
        rig.settle()
    assert rig.keys("new") == ["k", "k"]


def test_numbers_continue_over_a_registration(rig: make.Rig) -> None:
    rig.send(numbered(ASK, 1))
    rig.settle()
    rig.register()
    rig.send(make.node("n1", vcore=10_000, memory=10_000), make.application("app", "root.a"))
    rig.send(numbered(ASK, 1), numbered(END, 2))
    rig.settle()
    assert rig.keys("new") == ["k"]


def test_streams_and_clients_have_numbers_of_their_own(rig: make.Rig) -> None:
    rig.send(numbered(make.node("n2", vcore=1_000), 1))
    rig.send(numbered(make.asks(make.allocation("app", "one", vcore=1_000)), 1))
    rig.send(numbered(make.asks(make.allocation("app", "two", vcore=1_000)), 1, client="another"))
    rig.settle()
    assert rig.keys("new") == ["one", "two"]
    assert "n2" in rig.core.partitions["default"].nodes


def test_what_a_connection_leaves_out_does_not_come_later() -> None:
    """A new connection begins behind what its client knows to be taken: what a paused gateway still has is old."""
    taken = MessageDedup()
    assert taken.accept("node", message(1))
    assert taken.accept("node", message(5, first=5))
    assert not taken.accept("node", message(2)), "sent before, and left out by the second connection"
    assert taken.accept("node", message(6, first=5))


def test_what_the_log_refused_is_taken_when_it_comes_again() -> None:
    taken = MessageDedup()
    assert taken.accept("node", message(1))
    assert taken.accept("node", message(3, before=2)), "the log refused 2"
    assert taken.accept("node", message(2))
    assert not taken.accept("node", message(3))
    assert [each.up_to for each in taken.all()] == [3]


def test_a_message_without_a_record_leaves_no_hole() -> None:
    taken = MessageDedup()
    assert taken.accept("node", message(1))
    assert taken.accept("node", message(4, before=1)), "2 and 3 were answered by the gateway"
    assert taken.all() == [AcceptedNumbers("node", "c", 4, [])]


def test_a_message_of_several_records_counts_with_the_last_one() -> None:
    taken = MessageDedup()
    assert taken.accept("node", message(1, more=True))
    assert taken.accept("node", message(1, more=True)), "the first connection broke in the middle"
    assert taken.accept("node", message(1))
    assert not taken.accept("node", message(1, more=True))


def test_few_clients_are_remembered() -> None:
    taken = MessageDedup()
    for number in range(20):
        assert taken.accept("node", message(1, client=f"client {number}"))
    assert [each.client for each in taken.all()] == [f"client {number}" for number in range(16, 20)]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_repeated_each_message_is_taken_once(seed: int) -> None:
    """Connections break at any place, records are refused, and those of old connections come late."""
    dice, taken, counts = random.Random(seed), MessageDedup(), dict.fromkeys(range(1, 40), 0)
    proven, late = 0, list[pb.SentMessage]()
    while proven < 39:
        first, before, refused = proven + 1, proven, False
        for number in range(first, min(40, first + dice.randint(1, 6))):
            record = message(number, first, before)
            before = number
            if refused or dice.random() < 0.15:
                refused = True  # (the stream ends here)
                break
            if dice.random() < 0.2:
                late.append(record)  # a paused gateway has it
                break
            counts[number] += taken.accept("node", record)
            if not refused and dice.random() < 0.5:
                proven = number
        while late and dice.random() < 0.5:
            record = late.pop(dice.randrange(len(late)))
            if record.number <= proven or record.before <= proven:
                counts[record.number] += taken.accept("node", record)
        taken = MessageDedup.of(taken.all())
    assert set(counts.values()) == {1}, counts
