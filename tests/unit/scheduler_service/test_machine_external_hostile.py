"""Random statements of sources beside a random RM, as in test_machine_hostile.

Well-formed statements within bounds are applied; all others go to the dead letters. Neither breaks an invariant (the
rig checks them after each batch), changes another RM, or makes memory and log differ.
"""

from __future__ import annotations

import os

import pytest
from google.protobuf.message import Message
from muster_core.external.validation import QUANTITY_MAX
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from unit.scheduler_service.rig import RM
from unit.scheduler_service.test_machine_external_merge import of_books
from unit.scheduler_service.test_machine_hostile import _KEYS, _STRANGE, _VALUES, OTHER, Hostile, _furnished, _state

LIVES = int(os.environ.get("MUSTER_BAD_INPUT_EXAMPLES", "40"))

_IDS = {
    "node": ["n1", "n1", "n2", "n3"],
    "allocation": ["k1", "k2", "vm", "a1"],
    "application": ["a1", "a2", "tenant"],
    "queue": ["root", "root.a", "root.b", "root.b.x", "ROOT.C", "root.new"],
    "offer": ["o1", "o2"],
    "pool": ["vcore", "licence", "memory"],
}
_TYPES = ["vcore", "vcore", "memory", "licence", "gpu"]
_AMOUNTS = [0, 1, 2, 4, 10, 20, 1_000, QUANTITY_MAX, QUANTITY_MAX]
_DURATIONS = [0, 1, 10**9, 30 * 10**9, 2**61, 2**63 - 1, -1]


class HostileSource(Hostile):
    """Makes ExternalChanges: most are valid, some are not."""

    def external(self) -> bytes:
        dice = self.dice
        made = pb.ExternalChanges(
            partition=self._any(["default", "", "DEFAULT", "other"], 0.02),
            source=self._any(["vms", "mesos"], 0.02),
            life=self._any(["life-1", "life-1", "life-2"], 0.02),
            changes=[self.change() for _ in range(dice.choice([0, 1, 1, 2, 4]))],
        )
        if dice.random() < 0.4 or not made.changes:
            made.note.state = self._any(["LISTING", "LIVE", "LIVE", "STALE"], 0.05)
            made.note.drains = dice.random() < 0.7
            made.note.reason = self._any(["", "away"], 0.05)
        return pb.RequestEnvelope(rm_id=RM, external=made).SerializeToString()

    def change(self) -> pb.ExternalChange:
        dice = self.dice
        kind = dice.choice(list(_IDS))
        made = pb.ExternalChange(kind=self._any([kind], 0.01), id=self._any(_IDS[kind], 0.02))
        if dice.random() < 0.2:
            made.stale = dice.random() < 0.4
            return made
        made.stale = dice.random() < 0.01
        what = getattr(made, kind if dice.random() < 0.99 else "pool")
        what.SetInParent()
        self._fill_in(what)
        return made

    def _fill_in(self, what: Message) -> None:
        dice = self.dice
        names = {field.name for field in what.DESCRIPTOR.fields}
        for name in names & {"capacity", "occupied", "resource", "max"}:
            place = getattr(what, name)
            if isinstance(place, int):
                setattr(what, name, dice.choice(_AMOUNTS))
                continue
            for key in dice.choices(_TYPES if dice.random() < 0.97 else _KEYS, k=dice.randint(0, 3)):
                place[key] = dice.choice(_AMOUNTS) if dice.random() < 0.98 else dice.choice(_DURATIONS)
        for name in names & {"attributes", "tags"}:
            for key in dice.choices([*_KEYS, "creationTime", "ready"], k=dice.choice([0, 0, 1])):
                getattr(what, name)[key] = dice.choice([*_VALUES, *_STRANGE])
        for name in names & {"schedulable", "whole", "brings", "revoked"}:
            setattr(what, name, dice.random() < 0.6)
        if isinstance(what, pb.ExternalNode):
            what.has_capacity = bool(what.capacity) or dice.random() < 0.5
        for name in names & {"idle_ns", "grace_ns"}:
            setattr(what, name, dice.choice(_DURATIONS[: 4 if dice.random() < 0.95 else None]))
        if "priority" in names:
            what.priority = dice.choice([0, 1, -(2**31), 2**31 - 1])  # type: ignore[attr-defined]
        if "quantity" in names:
            what.quantity = dice.choice(_AMOUNTS)  # type: ignore[attr-defined]
        fits = {
            "node_id": _IDS["node"],
            "application_id": ["", "", *_IDS["application"]],
            "queue": _IDS["queue"],
            "user": ["", "alice"],
        }
        for name in names & fits.keys():
            setattr(what, name, self._any(fits[name], 0.03))

    def _any(self, fitting: list[str], strange: float) -> str:
        return self.dice.choice(_STRANGE if self.dice.random() < strange else fitting)


@pytest.mark.parametrize("first", range(0, LIVES, 20))
def test_nothing_that_is_said_breaks_the_books_or_touches_another_rm(first: int) -> None:
    taken = 0
    for seed in range(first, first + 20):
        rig, hostile = _furnished(), HostileSource(seed)
        others = _state(rig, OTHER)
        for _ in range(hostile.dice.randint(1, 6)):
            said = [
                hostile.external() if hostile.dice.random() < 0.7 else hostile.request()
                for _ in range(hostile.dice.randint(1, 5))
            ]
            rig.send(*said)
            rig.settle()
        assert _state(rig, OTHER) == others
        rig.wait(40)  # deadlines pass
        kept, books = _state(rig, RM), of_books(rig)
        rig.rebuild()
        assert _state(rig, RM) == kept
        assert of_books(rig) == books
        assert all(why.startswith("external changes: ") for _, why in rig.dead)
        taken += bool(books)
    assert taken > 15
