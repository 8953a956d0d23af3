"""Random lives of some RMs twice: commands run at once one after another, and in the smallest steps with those of the
other RMs between. Each RM's decisions are the same, to the byte.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator

import pytest
from builders import configured, snapshot
from muster_core import invariants
from muster_core.allocation import asks, releases
from muster_core.applications import lifecycle
from muster_core.external import offers, reconciler, reports
from muster_core.external.model import (
    ApplyExternalChanges,
    ExternalAllocation,
    ExternalApplication,
    ExternalChange,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    SetSourceState,
    SourceState,
    id_of,
    kind_of,
)
from muster_core.model import steps as work_steps
from muster_core.model.commands import (
    AppItem,
    AskItem,
    Command,
    EndApplication,
    NodeAction,
    NodeItem,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateConfiguration,
    UpdateNodes,
)
from muster_core.model.outcome import Outcome
from muster_core.nodes import node_lifecycle
from muster_core.requests import allocation_requests, deregistration, node_requests
from muster_core.scheduler import SchedulerCore
from muster_core.scheduler import __name__ as scheduler_name
from muster_state import state_codec

LIVES_EACH, ROUNDS, RMS = 8, 18, 3
LIVES = int(os.environ.get("MUSTER_SPLIT_LIVES", "150")) // 20
QUEUES = (
    "{name: root, submitacl: '*', queues: [{name: a, resources: {max: {vcore: 60}}}, "
    "{name: b, resources: {guaranteed: {vcore: 20}}, limits: [{limit: all, users: ['*'], maxresources: {vcore: 40}}]}]}"
)
OTHER_QUEUES = QUEUES.replace("vcore: 60", "vcore: 30").replace("users: ['*']", "users: ['ann']")
USING = (
    *(asks, releases, lifecycle, node_lifecycle, allocation_requests, node_requests, deregistration),
    *(reports, reconciler, offers),
)
ENDS = (*Termination,)
NODES = (NodeAction.CREATE, NodeAction.CREATE, NodeAction.DRAIN_NODE, NodeAction.DECOMISSION, NodeAction.DECOMISSION)


@pytest.fixture(autouse=True)
def smallest_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_steps, "_SORTED_AT_ONCE", 2)
    for name in ("STEP", "FEW", "LIGHT_STEP"):
        monkeypatch.setattr(f"{scheduler_name}.{name}", 1)
        for module in (*USING, work_steps):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, 1)


def _commands(dice: random.Random) -> list[list[list[Command]]]:
    """For each round, for each RM: its commands."""
    return [[[_command(dice) for _ in range(dice.randrange(3))] for _ in range(RMS)] for _ in range(ROUNDS)]


def _command(dice: random.Random) -> Command:
    app = f"app-{dice.randrange(4)}"
    match dice.randrange(9):
        case 0:
            new = [AppItem(f"app-{number}", f"root.{dice.choice('ab')}", "default", "ann") for number in range(4)]
            gone = [("default", app)] * dice.randrange(2)
            return UpdateApplications(tuple(dice.sample(new, 2)), tuple(gone))
        case 1:
            capacity = {"vcore": dice.randrange(1, 40)}
            action = dice.choice(NODES)
            created = capacity if action is NodeAction.CREATE else None
            return UpdateNodes((NodeItem(f"n{dice.randrange(4)}", action, capacity=created),))
        case 2:
            keys = ["", "", f"k{dice.randrange(8)}"]
            items = [ReleaseItem("default", app, dice.choice(keys), dice.choice(ENDS)) for _ in range(2)]
            return UpdateAllocations((), tuple(items))
        case 3 if dice.random() < 0.3:
            return EndApplication("default", app, "an operator ends it")
        case 4 | 5:
            return _said(dice)
        case 6 if dice.random() < 0.2:
            return UpdateConfiguration(configured(dice.choice((QUEUES, OTHER_QUEUES))))
        case _:
            return UpdateAllocations(
                tuple(
                    AskItem(
                        f"k{dice.randrange(8)}",
                        app,
                        "default",
                        {"vcore": dice.randrange(1, 5)},
                        wanted=dice.randrange(1, 6),
                        priority=dice.randrange(2),
                    )
                    for _ in range(dice.randrange(1, 4))
                )
            )


def _said(dice: random.Random) -> Command:
    source, life = dice.choice(("hosts", "vms")), str(dice.choice((1, 1, 2, 3)))
    if dice.random() < 0.3:
        return SetSourceState(
            "default", source, life, dice.choice((SourceState.LIVE, SourceState.LIVE, SourceState.STALE))
        )
    changes = []
    for each in (_object(dice) for _ in range(dice.randrange(1, 6))):
        stays = dice.random() < 0.8
        changes.append(ExternalChange(kind_of(each), id_of(each), each if stays else None))
    return ApplyExternalChanges("default", source, life, tuple(changes))


def _object(dice: random.Random) -> ExternalObject:
    node_id, vcores = f"n{dice.randrange(6)}", {"vcore": dice.randrange(1, 20)}
    match dice.randrange(4):
        case 0:
            return ExternalNode(node_id, vcores, brings=dice.random() < 0.7)
        case 1:
            return ExternalApplication(f"vm-{dice.randrange(2)}", f"root.{dice.choice('ab')}", "ann")
        case 2:
            grace_ns = dice.choice((0, 30_000_000_000))
            return ExternalOffer(
                f"o{dice.randrange(4)}",
                node_id,
                vcores,
                idle_ns=grace_ns,
                revoked=dice.random() < 0.3,
                grace_ns=grace_ns,
            )
        case _:
            return ExternalAllocation(f"v{dice.randrange(8)}", node_id, {"vcore": 1}, dice.choice(("", "vm-0", "vm-1")))


class _Rm:
    """One RM with all that it has written, as bytes and texts."""

    def __init__(self) -> None:
        self.core = SchedulerCore(configured(QUEUES))
        self.core.start(1_000)
        self.written: list[object] = []
        self.pauses = 0

    def round(self, commands: list[Command], now_ns: int, budget: int) -> Iterator[None]:
        out = Outcome()
        for command in commands:
            yield from self.core.apply_in_steps(command, now_ns, out)
        yield from self.core.cycle_in_steps(now_ns, budget, out)
        self._write(out)

    def end(self, now_ns: int) -> Iterator[None]:
        out = Outcome()
        yield from self.core.end_in_steps(now_ns, out)
        self._write(out)

    def _write(self, out: Outcome) -> None:
        self.written += [repr(fact) for fact in out.facts]
        self.written += [repr(event) for event in out.events]
        for name, what, alive in out.objects():
            key = state_codec.key_of("rm", name, what)
            self.written.append((key, state_codec.encode(name, what) if alive else None))
        self.written.append((out.made, out.ended, out.released, out.dropped))
        invariants.check(self.core)


def _one_after_another(rounds: list[Iterator[None]], dice: random.Random) -> int:
    return sum(1 for each in rounds for _ in each)


def _by_turns(rounds: list[Iterator[None]], dice: random.Random) -> int:
    pauses, going = 0, list(rounds)
    while going:
        each = dice.choice(going)
        if next(each, going) is going:
            going.remove(each)
        else:
            pauses += 1
    return pauses


def _lived(seed: int, run: Callable[[list[Iterator[None]], random.Random], int]) -> tuple[list[_Rm], int]:
    dice, rms, pauses = random.Random(seed), [_Rm() for _ in range(RMS)], 0
    turns = random.Random(seed + 1)
    now_ns = 2_000
    for commands in _commands(dice):
        now_ns += dice.choice((1, 1_000_000_000, 40_000_000_000))
        budget = dice.randrange(1, 20)
        rounds = [rm.round(own, now_ns, budget) for rm, own in zip(rms, commands, strict=True)]
        pauses += run(rounds, turns)
    states = [snapshot(rm.core) for rm in rms]
    pauses += run([rm.end(now_ns) for rm in rms], turns)
    for rm, state in zip(rms, states, strict=True):
        rm.written.append(state)
    return rms, pauses


@pytest.mark.parametrize("first", range(0, LIVES, LIVES_EACH))
def test_steps_with_others_between_decide_the_same(first: int) -> None:
    pauses = 0
    for seed in range(first, first + LIVES_EACH):
        apart, _ = _lived(seed, _one_after_another)
        between, paused = _lived(seed, _by_turns)
        pauses += paused
        for one, other in zip(apart, between, strict=True):
            assert one.written == other.written, f"seed {seed}"
            assert one.core.next_submission == other.core.next_submission
    assert pauses > LIVES_EACH * ROUNDS, "there were no steps: the lives show nothing"
