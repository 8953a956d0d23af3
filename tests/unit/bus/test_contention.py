"""Whether several resource managers ask for something at present."""

from __future__ import annotations

from muster_bus.contention import Contention


def test_one_that_asks_alone_shares_with_nobody() -> None:
    contention = Contention()
    assert not contention.is_shared(0.0)
    for now_s in range(10):
        contention.note(b"rm-1", now_s)
        assert not contention.is_shared(now_s)


def test_two_that_ask_share_until_one_was_silent_for_a_while() -> None:
    contention = Contention()
    contention.note(b"large", 100.0)
    contention.note(b"quiet", 100.5)
    assert contention.is_shared(100.5)
    contention.note(b"large", 100.6)
    contention.note(b"large", 102.0)
    assert contention.is_shared(102.0)
    contention.note(b"large", 103.0)
    assert not contention.is_shared(103.0)
