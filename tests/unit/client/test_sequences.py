"""Duplicates and gaps over three streams."""

from __future__ import annotations

from muster_client.sequences import Sequences


def test_one_order_over_three_streams_has_no_gap() -> None:
    s = Sequences()
    for stream, sequence in (("node", 7), ("application", 9), ("allocation", 8), ("allocation", 10)):
        assert not s.is_duplicate(stream, sequence)
        s.processed(stream, sequence)
    assert s.missing() == []
    assert (s.last("node"), s.last("application"), s.last("allocation")) == (7, 9, 10)


def test_a_number_is_a_duplicate_on_its_own_stream_only() -> None:
    s = Sequences()
    s.processed("allocation", 5)
    assert s.is_duplicate("allocation", 5)
    assert s.is_duplicate("allocation", 3)
    assert not s.is_duplicate("node", 3)


def test_unnumbered_responses_are_never_duplicates_and_move_nothing() -> None:
    s = Sequences()
    s.processed("node", 4)
    s.processed("node", 0)
    assert not s.is_duplicate("node", 0)
    assert s.last("node") == 4


def test_a_gap_is_kept_until_it_is_filled() -> None:
    s = Sequences()
    s.processed("node", 1)
    s.processed("node", 5)
    assert s.missing() == [2, 3, 4]
    s.processed("allocation", 3)
    assert s.missing() == [2, 4]
    assert s.missing_ever == 3


def test_a_huge_gap_is_bounded() -> None:
    s = Sequences()
    s.processed("node", 1)
    s.processed("node", 10**12)
    assert len(s.missing()) == 10_000
    assert s.missing_ever == 10**12 - 2


def test_a_registration_forgets_gaps_and_keeps_positions() -> None:
    s = Sequences()
    s.processed("node", 1)
    s.processed("node", 5)
    s.restart()
    s.processed("node", 9)
    assert s.missing() == []
    assert s.is_duplicate("node", 5)
