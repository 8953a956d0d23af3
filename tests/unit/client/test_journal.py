"""The messages that are sent again after a lost stream."""

from __future__ import annotations

from muster_client.outbox import Outbox


def journal(messages: int = 100, size_bytes: int = 1_000_000, window_s: float = 60.0) -> Outbox:
    return Outbox(messages, size_bytes, window_s)


def send_all(j: Outbox, now: float = 0.0) -> list[bytes]:
    payloads = []
    while entry := j.first_unsent():
        j.sent(entry, now)
        payloads.append(entry.payload)
    return payloads


def test_an_answer_proves_its_message_and_all_before_it() -> None:
    j = journal()
    for number in range(4):
        j.append(b"m%d" % number, [f"k{number}"])
    send_all(j)
    assert j.answered("k2", numbered=True)
    assert j.lost() == 1
    assert send_all(j) == [b"m3"]


def test_an_admission_answer_proves_nothing() -> None:
    j = journal()
    j.append(b"m0", ["k0"])
    j.append(b"m1", ["k1"])
    send_all(j)
    assert j.answered("k1", numbered=False)
    assert j.lost() == 2
    assert send_all(j) == [b"m0", b"m1"]
    assert j.unanswered == 1


def test_an_item_sent_in_two_messages_proves_only_the_first() -> None:
    j = journal()
    j.append(b"ask", ["k"])
    j.append(b"other", ["x"])
    j.append(b"the ask again, changed", ["k"])
    send_all(j)
    assert j.answered("k", numbered=True)
    j.lost()
    assert send_all(j) == [b"other", b"the ask again, changed"]


def test_a_second_answer_is_recognised_only_for_items_sent_twice() -> None:
    j = journal()
    j.append(b"m", ["k"])
    send_all(j)
    j.lost()
    send_all(j)
    assert j.answered("k", numbered=True)
    assert not j.answered("k", numbered=True), "caused by the second sending"
    assert j.answered("k", numbered=True), "a third one is news"
    assert j.answered("never sent", numbered=True)


def test_messages_proven_by_resuming_are_not_sent_again() -> None:
    j = journal()
    j.append(b"m0", ["k0"])
    j.append(b"m1", ["k1"])
    send_all(j)
    j.lost()
    writing = j.first_unsent()
    assert writing is not None
    j.answered("k0", numbered=True)
    j.sent(writing, 1.0)  # its write had begun
    assert send_all(j) == [b"m1"]
    assert j.kept == 1


def test_a_confirmation_proves_its_message_without_a_waiting_caller() -> None:
    j = journal()
    j.append(b"ask", ["k"])
    j.append(b"release", [], ["released k"])
    j.append(b"another", [])
    send_all(j)
    assert j.unanswered == 1
    j.confirmed("released k")
    j.confirmed("of something else")
    assert j.kept == 1


def test_an_item_that_ended_for_another_reason_proves_nothing() -> None:
    j = journal()
    j.append(b"changed", ["k"])
    send_all(j)
    j.withdrawn("k")
    assert (j.unanswered, j.kept) == (0, 1)


def test_an_answer_to_one_of_several_proves_nothing() -> None:
    j = journal()
    j.append(b"three of k", ["k"], proves=False)
    send_all(j)
    j.answered("k", numbered=True)
    assert (j.unanswered, j.kept) == (0, 1)


def test_a_message_never_sent_is_not_dropped_by_a_proof_of_a_later_index() -> None:
    j = journal()
    j.append(b"m0", ["k"])
    j.answered("k", numbered=True)  # an answer from before, to the same key
    assert send_all(j) == [b"m0"]


def test_room_by_messages_bytes_and_time() -> None:
    j = journal(messages=2, window_s=10.0)
    for payload in (b"a", b"b"):
        j.append(payload, [])
    send_all(j, now=5.0)
    assert not j.has_room(6.0)
    assert j.room_in_s(6.0) == 9.0
    assert j.has_room(15.0)
    assert j.lost() == 1

    j = journal(size_bytes=3, window_s=10.0)
    j.append(b"abc", [])
    send_all(j)
    assert not j.has_room(1.0)


def test_a_registration_clears_everything() -> None:
    j = journal()
    j.append(b"m0", ["k0"])
    send_all(j)
    j.append(b"m1", ["k1"])
    j.clear()
    assert (j.unsent, j.kept, j.unanswered) == (0, 0, 0)
    assert j.lost() == 0


def test_a_message_that_was_being_written_when_the_stream_was_lost_may_have_been_taken() -> None:
    j = journal()
    j.append(b"1", ["a"])
    j.append(b"2", ["b"])
    entry = j.first_unsent()
    assert entry is not None
    j.begun(entry)
    assert j.lost() == 0
    assert send_all(j) == [b"1", b"2"]
    assert j.answered("a", numbered=True)
    assert not j.answered("a", numbered=True)
    assert j.answered("b", numbered=True)
    assert j.answered("b", numbered=True)
