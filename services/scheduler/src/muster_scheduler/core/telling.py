"""What people are told of asks that wait: events beside the ask (seed 002, "SHIM events"; core-features §2.18).

Only where the RM wants them. Each ask is told of a change of where it stands, not of each look at it: that it does not
fit in its queue or in its user's quota, that it does again, that the RM refuses every node for it, that nothing may be
preempted on the one node that it must have. What it was told last is recorded with it, so a restart repeats nothing.

Asks that are alike wait together, so an event for each of them is work that deciding does not need: it is done after
the search, a bounded part of it in each cycle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING

from muster_scheduler.core.gangs import as_map
from muster_scheduler.core.objects import TOLD_NO_VICTIM, TOLD_QUEUE, TOLD_REFUSED, TOLD_USER
from muster_scheduler.core.outcome import Outcome
from muster_scheduler.core.reasons import PreemptionNo, Reason, ReasonCode
from muster_scheduler.core.resources import UNLIMITED

if TYPE_CHECKING:
    from muster_scheduler.core.objects import Ask, AskGroup, Ledger, Waitlist
    from muster_scheduler.core.partition import Partition

# Asks looked at in one cycle; the rest in the next ones, behind what came in meanwhile.
LOOKS_MAX = 1000


class Standing(IntEnum):
    """What stands against the asks of a group, as far as people are told of it."""

    NOTHING = 0
    QUEUE = 1
    USER = 2
    REFUSED = 3
    NO_VICTIM = 4


_BY_CODE = {
    ReasonCode.QUEUE_MAX: Standing.QUEUE,
    ReasonCode.USER_LIMIT: Standing.USER,
    ReasonCode.GROUP_LIMIT: Standing.USER,
    ReasonCode.REFUSED_BY_RM: Standing.REFUSED,
}
# What an ask has been told once it was told of it.
_TOLD = {
    Standing.NOTHING: 0,
    Standing.QUEUE: TOLD_QUEUE,
    Standing.USER: TOLD_USER,
    Standing.REFUSED: TOLD_REFUSED,
    Standing.NO_VICTIM: TOLD_NO_VICTIM,
}
_NO_VICTIM = (PreemptionNo.NO_VICTIMS, PreemptionNo.NOT_ENOUGH_VICTIMS)


def standing_of(reason: Reason | None) -> Standing:
    """What a list's reason says of those who wait on it."""
    if reason is None:
        return Standing.NOTHING
    if reason.code is ReasonCode.REQUIRED_NODE_FULL and reason.preemption in _NO_VICTIM:
        return Standing.NO_VICTIM
    return _BY_CODE.get(reason.code, Standing.NOTHING)


class Telling:
    """Tells people about one partition's asks.

    :ivar wanted: somebody reads it; else nothing is kept nor done.
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.wanted = False
        # Groups some of whose asks may stand otherwise than they were told; and who is left of them, the next one last.
        self._due: dict[AskGroup, list[Ask] | None] = {}

    @property
    def waiting(self) -> bool:
        """Some were not looked at yet."""
        return bool(self._due)

    def want(self, wanted: bool) -> None:
        """Starts or stops; at a start everybody who waits is looked at."""
        if wanted == self.wanted:
            return
        self.wanted = wanted
        self._due.clear()
        for app in self._partition.apps.values() if wanted else ():
            for group in app.groups.values():
                group.stood, group.untold = None, None
                if group.parked_key is not None:
                    self._due[group] = None

    # ---- what may have changed -------------------------------------------------------------------------------------

    def entered(self, ask: Ask, group: AskGroup) -> None:
        """The ask shares the group's fate from now on."""
        if group.stood is None or (group.stood == Standing.NOTHING and not ask.told):
            return  # all of them will be looked at, or there is nothing to be told
        if group.untold is None:
            group.untold = []
        elif len(group.untold) > 2 * group.asks:
            group.untold = [each for each in group.untold if each.group is group]
        group.untold.append(ask)
        if group.parked_key is not None:
            self._due.setdefault(group)

    def parked(self, group: AskGroup, reason: Reason | None) -> None:
        """The group waits for this reason."""
        if group.untold or group.stood != standing_of(reason):
            self._due[group] = None

    def reason_changed(self, waitlist: Waitlist) -> None:
        """The list waits for another reason."""
        standing = standing_of(waitlist.reason)
        for *_, group in waitlist.groups:
            if group.stood != standing:
                self._due[group] = None

    # ---- telling ---------------------------------------------------------------------------------------------------

    def run(self, out: Outcome, now_ns: int) -> None:
        """Looks at those who may stand otherwise than they were told."""
        left = LOOKS_MAX
        for group in list(islice(self._due, LOOKS_MAX)):
            if left <= 0:
                break
            left -= self._look(group, left, out, now_ns)

    def _look(self, group: AskGroup, most: int, out: Outcome, now_ns: int) -> int:
        """Looks at up to ``most`` asks of a group; gives how many, at least 1."""
        asks = self._due.pop(group)
        if group.parked_key is None or not group.asks:
            # It is being tried, or nobody is left: when it is parked again it is looked at.
            group.untold = [*reversed(asks or ()), *(group.untold or ())] or None
            return 1
        waitlist = group.app.queue.waitlists[group.wait_key]
        if not waitlist.holds:  # the budget ran out before it was tried
            self._due[group] = asks
            return 1
        standing = standing_of(waitlist.reason)
        left = [*reversed(asks or ()), *(group.untold or ())]
        asks = left if group.stood == standing else _members(group)
        asks.reverse()
        group.stood, group.untold = standing, None
        looked = 1
        while asks and looked <= most:
            ask = asks.pop()
            looked += 1
            if ask.group is group and not ask.gone:
                self._tell(ask, standing, out, now_ns)
        if asks:
            self._due[group] = asks
        return looked

    def passed(self, ask: Ask, out: Outcome, now_ns: int) -> None:
        """The ask is placed: no limit stands against it any more."""
        if self.wanted:
            self._tell(ask, Standing.NOTHING, out, now_ns)
        else:
            ask.told = 0

    def _tell(self, ask: Ask, standing: Standing, out: Outcome, now_ns: int) -> None:
        """In the order of the real core: the user's quota first, then the queue; a quota says nothing of the queue."""
        told = _TOLD[standing] | (ask.told & TOLD_QUEUE if standing is Standing.USER else 0)
        if told == ask.told:
            return
        begun, over = told & ~ask.told, ask.told & ~told
        key, shape, leaf = ask.key, ask.shape, ask.app.queue

        def tell(message: str) -> None:
            out.tell_people(key, ask.app.app_id, shape, message, now_ns)

        def excess(ledgers: Iterable[Ledger]) -> str:
            return f"(requested {as_map(shape.quantities)}, available {as_map(self._room(ledgers))})"

        if begun & TOLD_USER:
            tell(f"Request '{key}' exceeds the available user quota {excess(ask.app.trackers)}")
        if over & TOLD_USER:
            tell(f"Request '{key}' fits in the available user quota")
        if begun & TOLD_QUEUE:
            tell(f"Request '{key}' does not fit in queue '{leaf.path}' {excess(leaf.ancestry)}")
        if over & TOLD_QUEUE:
            tell(f"Request '{key}' has become schedulable in queue '{leaf.path}'")
        if begun & TOLD_REFUSED:
            tell(f"Unschedulable request '{key}': {_refusals(ask)}")
        if begun & TOLD_NO_VICTIM:
            node = ask.demand.required_node
            tell(f"Unschedulable request '{key}' with required node '{node}', no preemption victim found")
        ask.told = told
        out.touch(ask, self._partition.name)

    def _room(self, ledgers: Iterable[Ledger]) -> dict[str, int]:
        """What the limits leave, by type name; a type that none of them names is not in it."""
        least: dict[int, int] = {}
        for ledger in ledgers:
            for number, most in enumerate(ledger.limit):
                if most < UNLIMITED:
                    room = max(most - ledger.allocated[number], 0)
                    least[number] = min(room, least.get(number, room))
        names = self._partition.types.names
        return {names[number]: room for number, room in least.items()}


def _members(group: AskGroup) -> list[Ask]:
    """All asks of the group, oldest first."""
    return list(dict.fromkeys(entry[3] for entry in sorted(group.heap, key=_age) if entry[3].group is group))


def _age(entry: tuple[int, int, int, Ask]) -> tuple[int, int, int]:
    return entry[:3]


def _refusals(ask: Ask) -> str:
    """Why the RM refused nodes, and how many each; as the real core writes it."""
    nodes = ask.refusals.nodes if ask.refusals is not None else {}
    counts = Counter(refusal.reason for refusal in nodes.values())
    return "".join(f"{reason} ({counts[reason]}x); " for reason in sorted(counts))
