"""Shares partitions out among the members of a group: which one runs each partition, and which one is next in line.

The rules, in this order:

1. A partition stays with its live owner, unless the owner retires or has more than its even share. So a change of the
   members moves only what must move.
2. A partition without a live owner goes to a warm standby, whatever its load: a pause is worse than an uneven load.
   Without a warm one it goes to the member with the fewest partitions.
3. An uneven load is evened out by as few moves as possible. A partition moves from a live owner to a warm member only.
   Until it is warm, the member that shall have it follows it (``moving``). A member without standbys gets it at once.
4. Each partition has one standby, as far as the members' limits allow. A member that follows it already stays; ties
   are broken by rendezvous hashing, so that a new member changes few of them.

All members compute the same from the same claims; Kafka's group leader does it for all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class MemberClaim:
    """What a member says of itself when it joins.

    :param member: its id.
    :param generation: of the share-out that gave it ``owned``; with two owners of a partition, the later one counts.
    :param owned: partitions that it runs.
    :param standbys: partitions that it follows; ``warm``: those whose state it has whole; ``moving``: those that it
        was promised.
    :param retires: it gives its partitions away.
    """

    member: str
    generation: int = -1
    owned: frozenset[int] = frozenset()
    standbys: frozenset[int] = frozenset()
    warm: frozenset[int] = frozenset()
    moving: frozenset[int] = frozenset()
    standbys_max: int = 0
    retires: bool = False


@dataclass(slots=True)
class MemberAssignment:
    """What a member gets; ``moving`` are the standbys that will be its own when they are warm."""

    owned: set[int] = field(default_factory=set)
    standbys: set[int] = field(default_factory=set)
    moving: set[int] = field(default_factory=set)


def assign_partitions(partitions: int, claims: Sequence[MemberClaim]) -> dict[str, MemberAssignment]:
    """Returns each member's share. Every partition has exactly one owner, if there is a member."""
    shares = {claim.member: MemberAssignment() for claim in claims}
    by_name = {claim.member: claim for claim in claims}
    takers = [claim for claim in claims if not claim.retires] or list(claims)
    if not takers:
        return shares
    owners = _live_owners(partitions, claims)
    targets = _balanced_assignment(partitions, takers, owners)
    for partition in range(partitions):
        target, owner = by_name[targets[partition]], by_name.get(owners.get(partition, ""))
        warm = [taker for taker in takers if partition in taker.warm]
        if owner is None or owner not in takers:
            owner = target
            if warm and target not in warm:
                owner = min(warm, key=lambda taker: (len(shares[taker.member].owned), _weight(taker.member, partition)))
        is_ready = partition in target.warm or not target.standbys_max
        if target is not owner and not is_ready:
            shares[target.member].standbys.add(partition)
            shares[target.member].moving.add(partition)
            target = owner
        shares[target.member].owned.add(partition)
    _add_standbys(partitions, takers, shares)
    return shares


def _live_owners(partitions: int, claims: Iterable[MemberClaim]) -> dict[int, str]:
    """Returns the member that owns each partition now."""
    owners: dict[int, MemberClaim] = {}
    for claim in claims:
        for partition in claim.owned:
            current = owners.get(partition)
            if partition < partitions and (current is None or _rank(claim) > _rank(current)):
                owners[partition] = claim
    return {partition: claim.member for partition, claim in owners.items()}


def _rank(claim: MemberClaim) -> tuple[int, str]:
    return claim.generation, claim.member


def _balanced_assignment(partitions: int, takers: Sequence[MemberClaim], owners: Mapping[int, str]) -> dict[int, str]:
    """Returns the even distribution that is reached with the fewest moves."""
    owned: dict[str, set[int]] = {claim.member: set() for claim in takers}
    warm = {claim.member: claim.warm for claim in takers}
    promised = {claim.member: claim.moving for claim in takers}
    for partition in range(partitions):
        owner = owners.get(partition)
        if owner in owned:
            owned[owner].add(partition)
    for partition in range(partitions):
        if owners.get(partition) not in owned:
            member = min(
                owned, key=lambda name: (len(owned[name]), partition not in warm[name], _weight(name, partition))
            )
            owned[member].add(partition)
    while True:
        giver = max(owned, key=lambda name: (len(owned[name]), name))
        taker = min(owned, key=lambda name: (len(owned[name]), name))
        if len(owned[giver]) - len(owned[taker]) <= 1:
            break
        moved = min(
            owned[giver],
            key=lambda number: (number not in promised[taker], number not in warm[taker], _weight(taker, number)),
        )
        owned[giver].remove(moved)
        owned[taker].add(moved)
    return {partition: member for member, some in owned.items() for partition in some}


def _add_standbys(partitions: int, takers: Sequence[MemberClaim], shares: Mapping[str, MemberAssignment]) -> None:
    """Gives each partition one standby, the partition's own followers first."""
    for partition in range(partitions):
        if any(partition in shares[taker.member].standbys for taker in takers):
            continue  # a member that shall have it is its standby meanwhile
        candidates = [
            taker
            for taker in takers
            if partition not in shares[taker.member].owned and len(shares[taker.member].standbys) < taker.standbys_max
        ]
        if candidates:
            chosen = min(
                candidates,
                key=lambda taker: (
                    partition not in taker.warm,
                    partition not in taker.standbys,
                    len(shares[taker.member].standbys),
                    _weight(taker.member, partition),
                ),
            )
            shares[chosen.member].standbys.add(partition)


def _weight(member: str, partition: int) -> bytes:
    """Returns the rendezvous weight; the lowest wins."""
    return hashlib.blake2b(f"{partition}/{member}".encode(), digest_size=8).digest()
