"""Statements of sources beside those of the RM at the machine: registrations, restarts, any value in any field."""

from __future__ import annotations

import os
import random

import pytest
from muster_bus.topics import parse_state_key
from muster_core.external.model import (
    ExternalAllocation,
    ExternalApplication,
    ExternalChange,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
    SourceState,
    id_of,
    kind_of,
)
from muster_core.external.validation import QUANTITY_MAX
from unit.scheduler_service.rig import CONFIG, RM, Rig, application, forgotten, registration, said
from unit.scheduler_service.test_machine_external import H1, H2, LIVE, STALE, decides, furnished, kept, sources
from unit.scheduler_service.test_machine_recovery import (
    Requests,
    _run,
    same_at_any_border,
    same_built_anew,
    same_followed,
)


@pytest.mark.parametrize("rebuilt", [False, True])
def test_an_rm_finds_what_was_said_when_it_registers(rebuilt: bool) -> None:
    rig = Rig()
    rig.send(said(H1, state=LIVE))
    if rebuilt:
        rig.rebuild(random.Random(1))
    rig.register()
    assert list(rig.core.partitions["default"].nodes) == ["h1"]
    rig.send(application("app", "root.c"))
    assert decides(rig, "k")
    assert kept(rig, "node") == ["default/h1"]
    rig.check_counters()


@pytest.mark.parametrize("rebuilt", [False, True])
def test_an_rm_that_registers_again_finds_it_again(rebuilt: bool) -> None:
    rig = furnished(Rig())
    rig.send(said(H1, ExternalAllocation("vm", "h1", {"vcore": 4_000}), ExternalPool("licence", 3), state=LIVE))
    rig.settle()
    before = {key: value for key, value in rig.state.items() if parse_state_key(key)[1] in ("ext", "source")}
    if rebuilt:
        rig.rebuild(random.Random(2))
    rig.register()
    rig.settle()
    assert {key: value for key, value in rig.state.items() if parse_state_key(key)[1] in ("ext", "source")} == before
    assert kept(rig, "node") == ["default/h1"]
    (held,) = rig.core.partitions["default"].nodes["h1"].foreign.values()
    assert held.key == "vms/vm"
    rig.rebuild(random.Random(3))
    assert list(rig.core.partitions["default"].nodes) == ["h1"]
    (held,) = rig.core.partitions["default"].nodes["h1"].foreign.values()
    assert held.key == "vms/vm"
    rig.check_counters()


def test_statements_in_the_batch_of_a_registration_count_in_it() -> None:
    rig = furnished(Rig())
    rig.send(said(H1))
    rig.send(said(H2, forgotten(ExternalKind.NODE, "h1"), state=LIVE), registration(CONFIG))
    assert kept(rig, "ext") == ["default/vms/node/h2"]
    assert sources(rig) == {"vms": ("LIVE", "life-1", "")}
    rig.settle()
    assert kept(rig, "node") == ["default/h2"]
    rig.rebuild()
    assert list(rig.core.partitions["default"].nodes) == ["h2"]


def test_the_first_registration_takes_what_was_said_and_taken_back_in_its_batch() -> None:
    rig = Rig()
    rig.send(said(H1))
    rig.send(said(H2, forgotten(ExternalKind.NODE, "h1"), state=LIVE), registration(CONFIG))
    assert kept(rig, "ext") == ["default/vms/node/h2"]
    assert kept(rig, "node") == ["default/h2"]


# ---- any words, at any border ----------------------------------------------------------------------------------------

SEEDS = range(int(os.environ.get("MUSTER_EXTERNAL_SEEDS", "4")))
NODES = [f"n{number}" for number in range(1, 7)]
APPS = [f"app{number}" for number in range(1, 7)]
# (No dynamic queues: the time of an empty one's removal is not recorded, so a restart delays it.)
LEAVES = ["root.a", "root.b.x", "root.c", "ROOT.C", "root.b"]
QUEUES = [*LEAVES, "root", "root.made", "nowhere"]
KEYS = ["k1", "k2", "f1", "vm-1", "vm-2", "a/b%"]


class Both(Requests):
    """A random RM and two sources beside it. Their statements depend on their dice only."""

    def request(self) -> object:
        return self.external() if self.dice.random() < 0.4 else super().request()

    def external(self) -> bytes:
        dice = self.dice
        changes = [self.change() for _ in range(dice.choice([0, 1, 1, 2, 5]))]
        state = dice.choice([None, None, None, SourceState.LISTING, SourceState.LIVE, SourceState.LIVE, STALE])
        if not changes and state is None:
            state = LIVE
        return said(
            *changes,
            source=dice.choice(["vms", "vms", "mesos"]),
            partition=dice.choice(["default", "default", "default", "", "other"]),
            life=dice.choice(["life-1", "life-1", "life-1", "life-2", "life-3"]),
            state=state,
            drains=dice.random() < 0.7,
            reason=dice.choice(["", "connection refused"]),
        )

    def change(self) -> ExternalChange:
        what = self.what()
        kind, object_id = kind_of(what), id_of(what)
        fate = self.dice.random()
        if fate < 0.25:
            return ExternalChange(kind, object_id, None)
        return (
            ExternalChange(kind, object_id, None, stale=True) if fate < 0.35 else ExternalChange(kind, object_id, what)
        )

    def what(self) -> ExternalObject:
        dice = self.dice
        match dice.choice(list(ExternalKind)):
            case ExternalKind.NODE:
                return ExternalNode(
                    dice.choice(NODES),
                    dice.choice([None, {}, self.amounts(), self.amounts()]),
                    dice.choice([{}, {}, self.amounts()]),
                    dice.choice([{}, {"ready": "false"}, {"si.io/hostname": "h"}]),
                    dice.random() < 0.8,
                    dice.random() < 0.3,
                    dice.random() < 0.7,
                )
            case ExternalKind.ALLOCATION:
                app_id = dice.choice(["", "", "tenant", *APPS])
                priority = dice.choice([0, 5, -(2**31), 2**31 - 1])
                tags = dice.choice([{}, {"foreign": "static"}, {"creationTime": "NaN"}])
                return ExternalAllocation(dice.choice(KEYS), dice.choice(NODES), self.amounts(), app_id, priority, tags)
            case ExternalKind.QUEUE:
                return ExternalQueue(dice.choice(QUEUES), self.amounts())
            case ExternalKind.APPLICATION:
                tags = dice.choice([{}, {"application.stateaware.disable": "true"}, {"namespace": "x"}])
                queue, user = dice.choice(LEAVES), dice.choice(["", "alice"])
                return ExternalApplication(dice.choice(["tenant", *APPS]), queue, user, (), tags)
            case ExternalKind.OFFER:
                return ExternalOffer(
                    f"o{dice.randint(1, 4)}",
                    dice.choice(NODES),
                    self.amounts(),
                    idle_ns=dice.choice([0, 10**9, 30 * 10**9]),
                    revoked=dice.random() < 0.3,
                    grace_ns=dice.choice([0, 10**9, 30 * 10**9]),
                )
            case _:
                return ExternalPool(dice.choice(["licence", "vcore", "gpu"]), dice.randint(0, 9), dice.randint(0, 3))

    def amounts(self) -> dict[str, int]:
        dice = self.dice
        found = {"vcore": dice.choice([0, 1, 2_000, 9_000, QUANTITY_MAX]), "memory": dice.randint(0, 40)}
        found["licence"] = dice.randint(0, 3)
        return {name: value for name, value in found.items() if dice.random() < 0.7}


def of_books(rig: Rig) -> dict[str, object]:
    """Return the machine's books of all sources as plain values."""
    books = rig.machine._folder.books_of(RM)
    return {
        f"{source.partition}/{source.source}": (
            (source.state, source.life, source.since_ns, source.drains, source.reason, source.lost, source.past),
            {
                f"{kind}/{object_id}": (
                    (entry.said, entry.life, entry.since_ns, entry.stale, entry.problem),
                    (entry.offer_state, entry.withdrawn, entry.idle_since_ns, entry.deadline_ns),
                )
                for (kind, object_id), entry in source.entries.items()
            },
        )
        for source in books.all_sources()
    }


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_a_rebuilt_machine_has_the_same_state_for_any_statements(seed: int) -> None:
    rig, _ = _run(seed, rebuilding=False, kind=Both)
    assert all(why.startswith(("not a Req", "an envelope")) for _, why in rig.dead)
    books = of_books(rig)
    same_built_anew(rig, seed)
    assert of_books(rig) == books


@pytest.mark.parametrize("follows", [False, True], ids=["folds", "follows"])
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_a_rebuild_between_any_batches_changes_nothing(seed: int, follows: bool) -> None:
    straight, rebuilt = same_at_any_border(seed, Both, follows=follows)
    assert of_books(rebuilt) == of_books(straight)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_a_follower_has_the_same_state_for_any_statements(seed: int) -> None:
    rig, _ = _run(seed, rebuilding=False, kind=Both)
    same_followed(rig)
