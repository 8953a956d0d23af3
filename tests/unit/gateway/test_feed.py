"""The feed of one stream: order, gaps, registrations, resume, and the cursor to store."""

from __future__ import annotations

import gc

import pytest
from manual_clock import ManualClock
from muster_gateway import metrics
from muster_gateway.codec import ConfigurationAnswer, RegistrationAnswer, Response
from muster_gateway.errors import ResponsesLost, Superseded
from muster_gateway.response_delivery import ResponseFeed
from muster_gateway.sessions.contract import UNKNOWN, Cursor
from muster_gateway.stream_kind import StreamKind

MINE, OTHER = StreamKind.ALLOCATION, StreamKind.NODE


START = Cursor(1, 10, 1)


def a_feed(start: Cursor = START, resume_after: int = 0, clock: ManualClock | None = None) -> ResponseFeed:
    return ResponseFeed("rm", MINE, start, resume_after, 3, 100, lambda: None, (clock or ManualClock()).monotonic)


def response(sequence: int, kind: StreamKind = MINE, payload: bytes = b"x") -> Response:
    return Response("rm", sequence, kind, payload, None)


def registration(sequence: int, *, accepted: bool) -> Response:
    return Response("rm", sequence, None, b"", RegistrationAnswer("r", accepted, ()))


def test_records_before_its_place_are_skipped_even_a_registration() -> None:
    feed = a_feed()
    feed.offer(9, registration(1, accepted=True))
    feed.offer(8, response(99))
    assert feed.read_position == Cursor(1, 10, 1)
    assert not feed.has_due


def test_a_newer_registration_ends_it() -> None:
    with pytest.raises(Superseded, match="registered again"):
        a_feed().offer(10, registration(2, accepted=True))


@pytest.mark.parametrize("number", [0, 2])
def test_a_refused_registration_may_or_may_not_take_a_number(number: int) -> None:
    feed = a_feed()
    feed.offer(10, registration(number, accepted=False))
    feed.offer(11, response(3 if number else 2))
    assert feed.has_due


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("start", [START, Cursor(UNKNOWN, 10, UNKNOWN)], ids=["known", "unknown"])
def test_the_answer_to_a_configuration_update_is_passed_over(start: Cursor, *, accepted: bool) -> None:
    feed = a_feed(start)
    feed.offer(10, Response("rm", 0, None, b"", None, ConfigurationAnswer("g/configuration-1", accepted, ())))
    assert (feed.read_position.sequence, feed.read_position.offset) == (start.sequence, 11)
    feed.offer(11, response(2))
    assert feed.has_due


def test_a_missing_number_is_a_loss() -> None:
    feed = a_feed()
    feed.offer(10, response(2, OTHER))
    with pytest.raises(ResponsesLost, match="responses 3 to 4 were deleted"):
        feed.offer(13, response(5))


def test_without_a_known_number_the_first_one_counts() -> None:
    feed = a_feed(Cursor(UNKNOWN, 10, UNKNOWN))
    feed.offer(17, response(40))
    with pytest.raises(ResponsesLost):
        feed.offer(19, response(42))


def test_the_storable_cursor_follows_the_writes() -> None:
    feed = a_feed()
    feed.offer(10, response(2))
    feed.offer(11, response(3, OTHER))
    assert feed.delivered == Cursor(1, 10, 1), "queued is not written"
    due = feed.next_due()
    assert due is not None
    assert feed.delivered == Cursor(1, 10, 1), "being written is not written"
    feed.mark_written(due)
    assert feed.delivered == Cursor(3, 12, 2), "responses of other kinds do not count"
    feed.skip_to(50)
    assert feed.delivered == Cursor(3, 50, 2)


def test_processed_responses_are_not_sent_again() -> None:
    feed = a_feed(resume_after=3)
    for offset, sequence in ((10, 2), (11, 3), (12, 4)):
        feed.offer(offset, response(sequence, payload=str(sequence).encode()))
    due = feed.next_due()
    assert due is not None
    assert (due.payload, due.after) == (b"4", Cursor(4, 13, 4))
    assert feed.next_due() is None


def test_its_room_is_bounded_by_number_and_by_bytes() -> None:
    feed = a_feed()
    feed.offer(10, response(2, payload=b"x" * 1_000))
    assert not feed.has_capacity(), "a response larger than the limit is queued alone"
    small = a_feed()
    for offset in (10, 11, 12):
        assert small.has_capacity()
        small.offer(offset, response(offset - 8))
    assert not small.has_capacity()


def test_a_broken_stream_goes_back_by_the_window_only() -> None:
    clock = ManualClock()
    feed = a_feed(clock=clock)
    for offset, sequence in ((10, 2), (11, 3), (12, 4)):
        feed.offer(offset, response(sequence))
        due = feed.next_due()
        assert due is not None
        feed.mark_written(due)
        clock.advance(1.0)
    assert feed.safe_cursor(60.0) == Cursor(1, 10, 1)
    assert feed.safe_cursor(1.5) == Cursor(3, 12, 3)
    assert feed.safe_cursor(0.5) == Cursor(4, 13, 4)


def test_a_callback_stream_goes_on_behind_a_gap() -> None:
    feed = ResponseFeed("rm", StreamKind.CALLBACK, START, 0, 3, 100, lambda: None, ManualClock().monotonic)
    feed.offer(10, response(2, StreamKind.CALLBACK))
    feed.offer(13, response(5, StreamKind.CALLBACK))
    assert feed.read_position == Cursor(5, 14, 5)
    with pytest.raises(Superseded):
        feed.offer(14, registration(6, accepted=True))


def test_waiting_responses_are_counted_when_metrics_are_read() -> None:
    before = _waiting()
    feed = a_feed()
    feed.offer(10, response(2))
    feed.offer(11, response(3))
    assert _waiting() == before + 2
    due = feed.next_due()
    assert due is not None
    assert _waiting() == before + 1
    del feed
    gc.collect()
    assert _waiting() == before


def _waiting() -> float:
    (found,) = (
        sample.value
        for family in metrics.waiting.collect()
        for sample in family.samples
        if sample.labels == {"kind": "allocation"}
    )
    return found


def test_a_feed_moves_by_itself_until_it_is_attached_and_everything_is_written() -> None:
    feed = a_feed()
    assert feed.is_moving  # it catches up
    feed.attached = True
    assert not feed.is_moving
    feed.offer(10, response(2))
    assert feed.is_moving
    due = feed.next_due()
    assert due is not None
    assert feed.is_moving  # it is being written
    feed.mark_written(due)
    assert not feed.is_moving
