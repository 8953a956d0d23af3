"""The state machine of a member's partitions follows the table in ``ownership.py``. Time is an argument."""

from __future__ import annotations

import random

import pytest
from muster_scheduler.ownership import ActionKind, Ownership, OwnershipAction, PartitionPhase

IDLE, FOLLOWING, OWNING, RELEASING, FENCED = PartitionPhase
P = 3


def in_state(holding: PartitionPhase, now_s: float = 0.0) -> Ownership:
    """A machine whose partition P is in this state."""
    ownership = Ownership(wait_first_s=1.0, wait_limit_s=8.0)
    match holding:
        case PartitionPhase.FOLLOWING:
            ownership.on_assignment((), (P,), now_s)
        case PartitionPhase.OWNING | PartitionPhase.RELEASING | PartitionPhase.FENCED:
            ownership.on_assignment((P,), (), now_s)
            if holding is RELEASING:
                ownership.on_assignment((), (), now_s)
            if holding is FENCED:
                ownership.on_worker_ended(P, now_s, fenced=True)
    assert ownership.holding(P) is holding
    return ownership


# state, then for the share owner / standby / neither: the action and the next state
TABLE: list[
    tuple[
        PartitionPhase,
        tuple[ActionKind | None, PartitionPhase],
        tuple[ActionKind | None, PartitionPhase],
        tuple[ActionKind | None, PartitionPhase],
    ]
] = [
    (IDLE, (ActionKind.OWN, OWNING), (ActionKind.FOLLOW, FOLLOWING), (None, IDLE)),
    (FOLLOWING, (ActionKind.OWN, OWNING), (None, FOLLOWING), (ActionKind.DROP, IDLE)),
    (OWNING, (None, OWNING), (ActionKind.RELEASE, RELEASING), (ActionKind.RELEASE, RELEASING)),
    (RELEASING, (None, RELEASING), (None, RELEASING), (None, RELEASING)),
    (FENCED, (None, FENCED), (ActionKind.FOLLOW, FOLLOWING), (None, IDLE)),
]


@pytest.mark.parametrize(("holding", "owner", "standby", "neither"), TABLE, ids=lambda value: str(value))
def test_a_share_in_each_state(
    holding: PartitionPhase,
    owner: tuple[ActionKind | None, PartitionPhase],
    standby: tuple[ActionKind | None, PartitionPhase],
    neither: tuple[ActionKind | None, PartitionPhase],
) -> None:
    for owned, standbys, (action, after) in (((P,), (), owner), ((), (P,), standby), ((), (), neither)):
        ownership = in_state(holding)
        assert ownership.on_assignment(owned, standbys, 0.5) == ([] if action is None else [OwnershipAction(action, P)])
        assert ownership.holding(P) is after


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize(
    ("owned", "standbys", "expected", "after"),
    [((P,), (), ActionKind.OWN, OWNING), ((), (P,), ActionKind.FOLLOW, FOLLOWING), ((), (), None, IDLE)],
    ids=["owner", "standby", "neither"],
)
def test_after_a_release_the_newest_share_counts(
    owned: tuple[int, ...], standbys: tuple[int, ...], expected: ActionKind | None, after: PartitionPhase, fenced: bool
) -> None:
    """Also if the next owner fenced the worker before it had drained."""
    ownership = in_state(RELEASING)
    assert ownership.on_assignment(owned, standbys, 0.0) == []
    assert ownership.on_worker_ended(P, 0.1, fenced=fenced) == (
        [] if expected is None else [OwnershipAction(expected, P)]
    )
    assert ownership.holding(P) is after


def test_a_fenced_owner_asks_for_a_new_share_and_waits_longer_each_time() -> None:
    ownership, now_s = in_state(IDLE), 100.0
    assert ownership.on_assignment((P,), (), now_s) == [OwnershipAction(ActionKind.OWN, P)]
    waits = []
    for _ in range(6):
        assert ownership.on_worker_ended(P, now_s, fenced=True) == [OwnershipAction(ActionKind.REJOIN, P)]
        due_s = ownership.next_due_s()
        assert due_s is not None
        waits.append(due_s - now_s)
        assert (
            ownership.on_assignment((P,), (), due_s - 0.01) == []
        )  # a share that comes meanwhile does not shorten the wait
        assert ownership.on_time(due_s - 0.01) == []
        assert ownership.on_time(due_s) == [OwnershipAction(ActionKind.OWN, P)]
        assert ownership.next_due_s() is None
        now_s = due_s
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    # an ownership that lasted resets the wait
    assert ownership.on_worker_ended(P, now_s + 9.0, fenced=True) == [OwnershipAction(ActionKind.REJOIN, P)]
    assert ownership.next_due_s() == now_s + 10.0


def test_a_fenced_owner_whose_partition_went_to_another_follows_it_at_once() -> None:
    ownership = in_state(FENCED)
    assert ownership.on_assignment((), (P,), 0.2) == [OwnershipAction(ActionKind.FOLLOW, P)]
    assert ownership.next_due_s() is None


def test_what_is_given_up_comes_before_what_is_taken() -> None:
    ownership = Ownership()
    ownership.on_assignment((0, 1), (2, 3), 0.0)
    assert ownership.on_assignment((0, 2), (1,), 1.0) == [
        OwnershipAction(ActionKind.RELEASE, 1),
        OwnershipAction(ActionKind.DROP, 3),
        OwnershipAction(ActionKind.OWN, 2),
    ]
    assert ownership.partitions_in(OWNING) == [0, 2]
    assert ownership.partitions_in(RELEASING) == [1]


@pytest.mark.parametrize("seed", range(20))
def test_random_lives_never_run_a_partition_twice_and_come_to_rest_as_the_share_says(seed: int) -> None:
    """The test keeps a caller's books: a worker runs from OWN to its end, a standby from FOLLOW to DROP or OWN."""
    dice, ownership, now_s = random.Random(seed), Ownership(1.0, 8.0), 0.0
    running: set[int] = set()
    releasing: set[int] = set()
    following: set[int] = set()
    owned: set[int] = set()
    standbys: set[int] = set()

    def take(actions: list[OwnershipAction]) -> None:
        for do, of in actions:
            match do:
                case ActionKind.OWN:
                    assert of not in running
                    running.add(of)
                    following.discard(of)
                case ActionKind.RELEASE:
                    assert of in running
                    assert of not in releasing
                    releasing.add(of)
                case ActionKind.FOLLOW:
                    assert of not in following
                    assert of not in running
                    following.add(of)
                case ActionKind.DROP:
                    following.remove(of)

    def end(partition: int, *, fenced: bool) -> None:
        running.remove(partition)
        releasing.discard(partition)
        take(ownership.on_worker_ended(partition, now_s, fenced=fenced))

    for _ in range(300):
        now_s += dice.choice([0.0, 0.1, 1.0, 5.0])
        match dice.choice("sedf"):
            case "s":
                owned = {partition for partition in range(5) if dice.random() < 0.5}
                standbys = {partition for partition in range(5) if partition not in owned and dice.random() < 0.5}
                take(ownership.on_assignment(owned, standbys, now_s))
            case "e" if releasing:
                end(dice.choice(sorted(releasing)), fenced=False)
            case "f" if running:
                end(dice.choice(sorted(running)), fenced=True)
            case _:
                take(ownership.on_time(now_s))
    for partition in sorted(releasing):
        end(partition, fenced=False)
    take(ownership.on_time(now_s + 100.0))
    assert running == owned
    assert following == standbys
