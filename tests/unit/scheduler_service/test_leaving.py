"""What is left of an RM whose state is dropped goes in steps, as do the records of a long command."""

from __future__ import annotations

from itertools import pairwise

from muster_bus.log import OutRecord
from muster_core.model.outcome import EventChange, EventDetail, EventType, Outcome, RejectedAsk
from muster_core.model.steps import LIGHT_STEP
from muster_scheduler.deregistration import absorb_unwritten
from muster_scheduler.machine import _in_parts

MANY = 3 * LIGHT_STEP + 5


def _outcome(name: str) -> Outcome:
    out = Outcome()
    for number in range(MANY):
        out.facts.append(RejectedAsk(f"{name}{number}", "x", "no", False))
        out.add_event(EventType.APP, EventChange.SET, EventDetail.NONE, f"{name}{number}", now_ns=1)
    return out


def test_decisions_before_a_registration_stay_before_its_events_in_steps() -> None:
    dropped, out = _outcome("before"), _outcome("end")
    expected, facts = [*dropped.events, *out.events], dropped.facts
    left = [(len(facts), len(out.events)) for _ in absorb_unwritten(dropped, out)]
    assert out.events == expected
    assert not facts
    assert all(
        abs(one - other) <= LIGHT_STEP
        for before, after in pairwise(left)
        for one, other in zip(before, after, strict=True)
    )
    assert len(left) >= 2 * (MANY // LIGHT_STEP)


def test_records_in_parts_are_not_kept_together() -> None:
    outputs = [OutRecord("t", 0, b"%d" % number, b"") for number in range(MANY)]
    expected, found, left = list(outputs), [], [len(outputs)]
    for part in _in_parts(outputs):
        found += part
        left.append(len(outputs))
    assert found == expected
    assert max(before - after for before, after in pairwise(left)) <= LIGHT_STEP
    assert not outputs
