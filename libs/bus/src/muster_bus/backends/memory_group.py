"""A group whose members share the partitions of a log in memory (``muster_bus.membership``). For tests and simulation.

It shares out by the same rules as the group on Kafka (``partition_assignment.py``). A member whose process ended, or
that is silent, keeps its partitions until its session is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial

from muster_bus.backends.memory import MemoryLog, MemoryStore
from muster_bus.backends.memory_faults import Faults
from muster_bus.clock import Clock
from muster_bus.membership import Assignment, GroupTerms
from muster_bus.partition_assignment import MemberAssignment, MemberClaim, assign_partitions
from muster_bus.topics import TopicSpec

Later = Callable[[float, Callable[[], None]], None]


def _later(delay_s: float, call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(delay_s, call)


class _Group:
    """One group: its members, and the share-outs."""

    def __init__(self, terms: GroupTerms, later: Later) -> None:
        self._terms, self._later = terms, later
        self._members: dict[str, MemoryMembership] = {}
        self._count = 0
        self._generation = 0
        self._is_due = False

    def join(self, member: MemoryMembership) -> str:
        """Adds a member. Returns its id."""
        self._count += 1
        name = f"member-{self._count}"
        self._members[name] = member
        self.wish()
        return name

    def leave(self, name: str) -> None:
        if self._members.pop(name, None) is not None:
            self.wish()

    def wish(self, after_s: float | None = None) -> None:
        """Shares out again soon: when the members have heard of it."""
        if not self._is_due:
            self._is_due = True
            self._later(self._terms.heartbeat_s if after_s is None else after_s, self._share)

    def _share(self) -> None:
        self._is_due = False
        # A silent member is waited for until its session is over.
        now_s = asyncio.get_running_loop().time()
        for name, member in list(self._members.items()):
            if member.silent_s is None:
                continue
            left_s = member.silent_s + self._terms.session_timeout_s - now_s
            if left_s > 0:
                self.wish(left_s)
                return
            del self._members[name]
        claims = [member.claim(name) for name, member in sorted(self._members.items())]
        shares = assign_partitions(self._terms.partitions, claims)
        self._generation += 1
        for name, member in self._members.items():
            member.send(shares[name], self._generation, len(claims))


class MemoryMembership:
    """See :class:`muster_bus.membership.Membership`.

    :ivar silent_s: since when (the loop's time) it gives no sign of life; None: it lives.
    """

    def __init__(self, group: _Group, terms: GroupTerms, faults: Faults | None) -> None:
        self._group, self._terms, self._faults = group, terms, faults
        self._name = ""
        self._assignment: Assignment | None = None
        self._news = asyncio.Event()
        self._warm: frozenset[int] = frozenset()
        self._retires = False
        self.silent_s: float | None = None

    @property
    def assignment(self) -> Assignment | None:
        return self._assignment

    async def start(self) -> None:
        self._name = self._group.join(self)

    async def changed(self, after: Assignment | None) -> Assignment:
        while self._assignment is None or self._assignment is after:
            self._news.clear()
            await self._news.wait()
        return self._assignment

    def report_warm(self, warm: Collection[int]) -> None:
        before, self._warm = self._warm, frozenset(warm)
        if self._assignment is not None and self._assignment.moving & (self._warm - before):
            self.rejoin()

    def rejoin(self) -> None:
        if self.silent_s is None:
            self._group.wish()

    def retire(self) -> None:
        self._retires = True
        self.rejoin()

    def error_text(self) -> str:
        return "" if self._assignment is not None else "the group has not shared out yet"

    async def close(self) -> None:
        if self._name and self.silent_s is None:
            self._group.leave(self._name)
            self._name = ""

    def silence(self) -> None:
        """From now on it gives no sign of life, as if its process were stopped or had ended."""
        if self.silent_s is None and self._name:
            self.silent_s = asyncio.get_running_loop().time()
            self._group.wish(self._terms.session_timeout_s)

    def speak(self) -> None:
        """Ends the silence. It joins again, and claims what it had."""
        if self.silent_s is not None:
            self.silent_s = None
            self._group.leave(self._name)
            self._name = self._group.join(self)

    # ---- for the group -----------------------------------------------------------------------------------------------

    def claim(self, name: str) -> MemberClaim:
        """Returns what it claims now."""
        share = self._assignment
        if share is None:
            return MemberClaim(name, standbys_max=self._terms.standbys_max, retires=self._retires)
        return MemberClaim(
            name,
            share.generation,
            share.owned,
            share.standbys,
            self._warm & share.standbys,
            share.moving,
            self._terms.standbys_max,
            self._retires,
        )

    def send(self, share: MemberAssignment, generation: int, members: int) -> None:
        """Sends it its share; it may hear of it later than others."""
        assignment = Assignment(
            generation, frozenset(share.owned), frozenset(share.standbys), frozenset(share.moving), members
        )
        if self._faults is None:
            self._apply_assignment(assignment)
        else:
            self._faults.later(self._faults.share_s(), partial(self._apply_assignment, assignment))

    def _apply_assignment(self, assignment: Assignment) -> None:
        current = self._assignment
        if self.silent_s is not None or (current is not None and current.generation > assignment.generation):
            return
        self._assignment = assignment
        self._news.set()
        if assignment.moving & self._warm:
            self.rejoin()


class MemoryGroups:
    """The groups of a store: what its processes have in common beside the records.

    :param later: calls back after a time (seconds), also if the process that asked for it has ended.
    """

    def __init__(self, later: Later = _later) -> None:
        self._later = later
        self._groups: dict[str, _Group] = {}

    def of(self, terms: GroupTerms) -> _Group:
        return self._groups.setdefault(terms.group, _Group(terms, self._later))


class SharedMemoryLog(MemoryLog):
    """A log in memory that several processes share, with groups. See :class:`muster_bus.membership.GroupLog`.

    :param groups: of the store.
    """

    def __init__(
        self,
        specs: Sequence[TopicSpec],
        clock: Clock,
        store: MemoryStore,
        groups: MemoryGroups,
        *,
        max_record_bytes: int = 1 << 20,
        faults: Faults | None = None,
    ) -> None:
        super().__init__(specs, clock, max_record_bytes=max_record_bytes, store=store, faults=faults)
        self._groups = groups
        self._memberships: list[MemoryMembership] = []

    def membership(self, terms: GroupTerms, clock: Clock) -> MemoryMembership:
        """Returns a membership that has not started."""
        member = MemoryMembership(self._groups.of(terms), terms, self.faults)
        self._memberships.append(member)
        return member

    def cut(self) -> None:
        super().cut()
        self.silence()

    def silence(self) -> None:
        """The process gives its groups no sign of life any more."""
        for member in self._memberships:
            member.silence()

    def speak(self) -> None:
        """It does again."""
        for member in self._memberships:
            member.speak()
