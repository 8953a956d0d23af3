"""Shares of a group: laws over random groups, and an example for each rule."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from muster_bus.backends.kafka_membership import decode_claim, decode_share, encode_claim, encode_share
from muster_bus.partition_assignment import MemberAssignment, MemberClaim, assign_partitions


def claims_after(
    shares: dict[str, MemberAssignment], generation: int, *, warm: bool = True, limit: int = 99
) -> list[MemberClaim]:
    """The claims of members with these shares."""
    return [
        MemberClaim(
            member,
            generation,
            frozenset(share.owned),
            frozenset(share.standbys),
            frozenset(share.standbys) if warm else frozenset(),
            frozenset(share.moving),
            limit,
        )
        for member, share in sorted(shares.items())
    ]


def fresh(*members: str, limit: int = 99) -> list[MemberClaim]:
    return [MemberClaim(member, standbys_max=limit) for member in members]


def moved(before: dict[str, MemberAssignment], after: dict[str, MemberAssignment]) -> set[int]:
    """Partitions with a new owner."""
    owners = {partition: member for member, share in before.items() for partition in share.owned}
    return {
        partition
        for member, share in after.items()
        for partition in share.owned
        if owners.get(partition) not in (None, member)
    }


def even(shares: dict[str, MemberAssignment]) -> bool:
    sizes = [len(share.owned) for share in shares.values()]
    return max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("seed", range(200))
def test_the_laws_hold_for_any_group(seed: int) -> None:
    dice = random.Random(seed)
    partitions = dice.choice([1, 2, 4, 7, 32])
    claims = []
    for number in range(dice.randint(1, 6)):
        standbys = frozenset(dice.sample(range(partitions), dice.randint(0, partitions)))
        claims.append(
            MemberClaim(
                f"m{number}",
                dice.randint(0, 3),
                frozenset(dice.sample(range(partitions + 2), dice.randint(0, partitions))),  # also unknown ones
                standbys,
                frozenset(partition for partition in standbys if dice.random() < 0.7),
                frozenset(partition for partition in standbys if dice.random() < 0.2),
                dice.choice([0, 1, 3, 99]),
                dice.random() < 0.2,
            )
        )
    shares = assign_partitions(partitions, claims)
    again = assign_partitions(partitions, list(reversed(claims)))
    assert shares == again, "every leader must compute the same shares"
    owners = sorted(partition for share in shares.values() for partition in share.owned)
    assert owners == list(range(partitions)), "each partition has one owner"
    stays = [claim for claim in claims if not claim.retires] or claims
    for claim in claims:
        share = shares[claim.member]
        assert not share.owned & share.standbys
        assert share.moving <= share.standbys
        assert len(share.standbys - share.moving) <= claim.standbys_max
        if claim not in stays:
            assert share == MemberAssignment(), "a retiring member gets nothing if there is another one"
    taking = [shares[claim.member] for claim in stays]
    if max(len(share.owned) for share in taking) - min(len(share.owned) for share in taking) > 1:
        assert any(share.moving for share in taking), "a member must ask for a new share"
    following = [partition for share in shares.values() for partition in share.standbys]
    assert len(following) == len(set(following)), "a partition has two standbys"
    # when all standbys are warm, further shares make the load even, and then nothing moves
    claims = [claim for claim in claims if not claim.retires] or [MemberClaim("m")]
    shares = assign_partitions(partitions, claims)
    limits = {claim.member: claim.standbys_max for claim in claims}
    for generation in range(4, 8):
        warm = [replace(each, standbys_max=limits[each.member]) for each in claims_after(shares, generation)]
        before, shares = shares, assign_partitions(partitions, warm)
    assert even(shares)
    assert shares == before


def test_a_new_member_follows_first_and_then_gets_its_part() -> None:
    alone = assign_partitions(6, fresh("a"))
    first = assign_partitions(6, [*claims_after(alone, 1), *fresh("b")])
    assert first["a"].owned == set(range(6))
    assert len(first["b"].moving) == 3
    assert first["b"].standbys == set(range(6)), "the standby follows all partitions"
    cold = assign_partitions(6, claims_after(first, 2, warm=False))
    assert cold["a"].owned == set(range(6)), "nothing moves to it before it is warm"
    second = assign_partitions(6, claims_after(first, 2))
    assert second["b"].owned == first["b"].moving
    assert moved(first, second) == first["b"].moving


def test_the_standby_takes_over_and_nothing_else_moves() -> None:
    shares = assign_partitions(9, fresh("a", "b", "c"))
    for generation in range(3):
        shares = assign_partitions(9, claims_after(shares, generation))
    assert even(shares)
    claims = [claim for claim in claims_after(shares, 3) if claim.member != "c"]
    after = assign_partitions(9, claims)
    assert all(shares[member].owned <= after[member].owned for member in "ab")
    for partition in shares["c"].owned:
        follower = "a" if partition in shares["a"].standbys else "b"
        assert partition in after[follower].owned
    # when it comes back, it gets as many as it had, from members with too many
    back = assign_partitions(9, [*claims_after(after, 4), *fresh("c")])
    assert moved(after, back) == set()
    back = assign_partitions(9, claims_after(back, 5))
    assert even(back)
    assert len(moved(after, back)) == 3


def test_a_promise_is_kept() -> None:
    """A partition that one member gave up for another stays promised, even if more standbys become warm."""
    a = MemberClaim("a", 7, frozenset({0, 1, 3}), frozenset({2}), frozenset({2}), standbys_max=9)
    b = MemberClaim("b", 7, frozenset({2}), frozenset({0, 1, 3}), frozenset({0, 1, 3}), standbys_max=9)
    for promised in (0, 1, 3):
        shares = assign_partitions(4, [a, replace(b, moving=frozenset({promised}))])
        assert shares["b"].owned == {2, promised}


def test_of_two_owners_the_later_share_counts() -> None:
    """A process that was paused still claims its partitions, which the group has given to others meanwhile."""
    zombie = MemberClaim("a", 3, frozenset({0, 1}), standbys_max=9)
    owner = MemberClaim("b", 5, frozenset({0, 1}), standbys_max=9)
    shares = assign_partitions(2, [zombie, owner])
    assert shares["b"].owned == {0, 1}
    assert len(shares["a"].moving) == 1


def test_members_without_standbys_get_partitions_at_once() -> None:
    alone = assign_partitions(4, fresh("a", limit=0))
    shares = assign_partitions(4, [*claims_after(alone, 1, limit=0), *fresh("b", limit=0)])
    assert even(shares)
    assert not shares["a"].standbys
    assert not shares["b"].standbys


def test_a_limit_of_standbys_is_kept_and_spread() -> None:
    shares = assign_partitions(32, fresh("a", "b", "c", "d", limit=2))
    assert [len(share.standbys) for share in shares.values()] == [2, 2, 2, 2]


def test_more_members_than_partitions_leaves_some_that_only_follow() -> None:
    shares = assign_partitions(2, fresh("a", "b", "c", "d"))
    assert sorted(len(share.owned) for share in shares.values()) == [0, 0, 1, 1]
    assert sum(len(share.standbys) for share in shares.values()) == 2


def test_what_members_send_comes_back() -> None:
    claim = MemberClaim("m", 7, frozenset({1, 2}), frozenset({3, 4}), frozenset({3}), frozenset({4}), 16, retires=True)
    assert decode_claim("m", encode_claim(claim)) == claim
    share = MemberAssignment({1}, {2, 3}, {3})
    assert decode_share(encode_share(share, 4)) == (frozenset({2, 3}), frozenset({3}), 4)


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"\xff",
        b"[]",
        b"7",
        b"{}",
        b'{"v": 2}',
        b'{"v": 1, "generation": "x"}',
        b'{"v":1,"owned":3}',
        b"[" * 9999,
    ],
)
def test_a_member_that_says_what_nobody_understands_claims_nothing(data: bytes | None) -> None:
    assert decode_claim("m", data) == MemberClaim("m")
    assert decode_share(data) == (frozenset(), frozenset(), 1)
