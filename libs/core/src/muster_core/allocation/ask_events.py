"""Events for people about waiting asks (the event history design, "SHIM events").

The scheduler makes these events only if the RM wants them. An event reports a change: the ask does not fit in its queue
or in its user's quota; the ask fits again; the RM refuses every node for the ask; or preemption finds no victims on the
ask's required node. The last event is recorded with the ask, so a restart repeats no event.

Asks that are alike wait together, and an event for each of them must not delay decisions. So the events are made after
the search, a bounded number in each cycle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING

from muster_core.model.application import NOTIFIED_NO_VICTIM, NOTIFIED_QUEUE, NOTIFIED_REFUSED, NOTIFIED_USER
from muster_core.model.outcome import Outcome
from muster_core.model.reasons import NoPreemptionReason, Reason, ReasonCode
from muster_core.model.resources import UNLIMITED
from muster_core.model.text_format import format_quantities

if TYPE_CHECKING:
    from muster_core.model.application import Ask, AskGroup
    from muster_core.model.partition_state import PartitionState
    from muster_core.model.queue import Ledger, Waitlist

# Asks looked at in one cycle. The next cycles handle the rest, after new requests.
LOOKS_MAX = 1000


class Obstacle(IntEnum):
    """The obstacles of a group's asks for which there are events."""

    NOTHING = 0
    QUEUE = 1
    USER = 2
    REFUSED = 3
    NO_VICTIM = 4


_BY_CODE = {
    ReasonCode.QUEUE_MAX: Obstacle.QUEUE,
    ReasonCode.USER_LIMIT: Obstacle.USER,
    ReasonCode.GROUP_LIMIT: Obstacle.USER,
    ReasonCode.REFUSED_BY_RM: Obstacle.REFUSED,
}
# The recorded notice of an ask after the event.
_NOTIFIED = {
    Obstacle.NOTHING: 0,
    Obstacle.QUEUE: NOTIFIED_QUEUE,
    Obstacle.USER: NOTIFIED_USER,
    Obstacle.REFUSED: NOTIFIED_REFUSED,
    Obstacle.NO_VICTIM: NOTIFIED_NO_VICTIM,
}
_NO_VICTIM = (NoPreemptionReason.NO_VICTIMS, NoPreemptionReason.NOT_ENOUGH_VICTIMS)


def obstacle_of(reason: Reason | None) -> Obstacle:
    """The obstacle that belongs to a waitlist's reason."""
    if reason is None:
        return Obstacle.NOTHING
    if reason.code is ReasonCode.REQUIRED_NODE_FULL and reason.preemption in _NO_VICTIM:
        return Obstacle.NO_VICTIM
    return _BY_CODE.get(reason.code, Obstacle.NOTHING)


def _was_missed(group: AskGroup) -> bool:
    """Whether the group was woken and not tried."""
    waits = group.parked_key is not None and bool(group.asks)
    return waits and not group.app.queue.waitlists[group.wait_key].is_blocked


class AskEvents:
    """Makes the events for people about one partition's asks.

    :ivar wanted: whether the RM wants the events; if not, this class does nothing.
    """

    def __init__(self, state: PartitionState) -> None:
        self._state = state
        self.wanted = False
        # Groups with asks whose obstacle may have changed; and their remaining asks, the next one last.
        self._due: dict[AskGroup, list[Ask] | None] = {}

    @property
    def waiting(self) -> bool:
        """Whether some asks were not examined yet."""
        return bool(self._due)

    def unfinished(self, *, stopped: bool) -> bool:
        """Whether some of these asks can be examined now. ``stopped``: the search stopped for an answer, so asks that
        it did not reach do not count.
        """
        return any(not stopped or not _was_missed(group) for group in self._due)

    def set_enabled(self, enabled: bool) -> None:
        """Starts or stops the events. At a start, all waiting asks are looked at."""
        if enabled == self.wanted:
            return
        self.wanted = enabled
        self._due.clear()
        for app in self._state.apps.values() if enabled else ():
            for group in app.groups.values():
                group.stood, group.untold = None, None
                if group.parked_key is not None:
                    self._due[group] = None

    # ---- what may have changed -------------------------------------------------------------------------------------

    def on_ask_added(self, ask: Ask, group: AskGroup) -> None:
        """Notes an ask that joined the group."""
        if group.stood is None or (group.stood == Obstacle.NOTHING and not ask.notified):
            return  # all of them will be examined, or their obstacle did not change
        if group.untold is None:
            group.untold = []
        elif len(group.untold) > 2 * group.asks:
            group.untold = [unexamined for unexamined in group.untold if unexamined.group is group]
        group.untold.append(ask)
        if group.parked_key is not None:
            self._due.setdefault(group)

    def on_parked(self, group: AskGroup, reason: Reason | None) -> None:
        """Notes the reason for which the group waits."""
        if group.untold or group.stood != obstacle_of(reason):
            self._due[group] = None

    def reason_changed(self, waitlist: Waitlist) -> None:
        """Notes that the waitlist waits for another reason."""
        standing = obstacle_of(waitlist.reason)
        for *_, group in waitlist.groups:
            if group.stood != standing:
                self._due[group] = None

    # ---- events ----------------------------------------------------------------------------------------------------

    def run(self, out: Outcome, now_ns: int) -> None:
        """Makes the events of asks whose obstacle changed."""
        remaining = LOOKS_MAX
        for group in list(islice(self._due, LOOKS_MAX)):
            if remaining <= 0:
                break
            remaining -= self._look(group, remaining, out, now_ns)

    def _look(self, group: AskGroup, most: int, out: Outcome, now_ns: int) -> int:
        """Looks at up to ``most`` asks of a group. Returns how many, at least 1."""
        asks = self._due.pop(group)
        if group.parked_key is None or not group.asks:
            # The group is being tried, or is empty. It is looked at when it is parked again.
            group.untold = [*reversed(asks or ()), *(group.untold or ())] or None
            return 1
        waitlist = group.app.queue.waitlists[group.wait_key]
        if not waitlist.is_blocked:  # the budget ran out before it was tried
            self._due[group] = asks
            return 1
        standing = obstacle_of(waitlist.reason)
        unexamined = [*reversed(asks or ()), *(group.untold or ())]
        asks = unexamined if group.stood == standing else _members(group)
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

    def on_allocated(self, ask: Ask, out: Outcome, now_ns: int) -> None:
        """Makes the event of a placed ask that a limit stopped before."""
        if self.wanted:
            self._tell(ask, Obstacle.NOTHING, out, now_ns)
        else:
            ask.notified = 0

    def _tell(self, ask: Ask, standing: Obstacle, out: Outcome, now_ns: int) -> None:
        """Follows YuniKorn's order: first the user's quota, then the queue. A quota says nothing about the queue."""
        notified = _NOTIFIED[standing] | (ask.notified & NOTIFIED_QUEUE if standing is Obstacle.USER else 0)
        if notified == ask.notified:
            return
        begun, over = notified & ~ask.notified, ask.notified & ~notified
        key, shape, leaf = ask.key, ask.shape, ask.app.queue

        def tell(message: str) -> None:
            out.add_user_event(key, ask.app.app_id, shape, message, now_ns)

        def excess(ledgers: Iterable[Ledger]) -> str:
            return (
                f"(requested {format_quantities(shape.quantities)}, available {format_quantities(self._room(ledgers))})"
            )

        if begun & NOTIFIED_USER:
            tell(f"Request '{key}' exceeds the available user quota {excess(ask.app.trackers)}")
        if over & NOTIFIED_USER:
            tell(f"Request '{key}' fits in the available user quota")
        if begun & NOTIFIED_QUEUE:
            tell(f"Request '{key}' does not fit in queue '{leaf.path}' {excess(leaf.ancestry)}")
        if over & NOTIFIED_QUEUE:
            tell(f"Request '{key}' has become schedulable in queue '{leaf.path}'")
        if begun & NOTIFIED_REFUSED:
            tell(f"Unschedulable request '{key}': {_refusals(ask)}")
        if begun & NOTIFIED_NO_VICTIM:
            node = ask.demand.required_node
            tell(f"Unschedulable request '{key}' with required node '{node}', no preemption victim found")
        ask.notified = notified
        out.mark_changed(ask, self._state.name)

    def _room(self, ledgers: Iterable[Ledger]) -> dict[str, int]:
        """The room that the limits leave, by type name. Types without a limit are left out."""
        least: dict[int, int] = {}
        for ledger in ledgers:
            for number, most in enumerate(ledger.limit):
                if most < UNLIMITED:
                    room = max(most - ledger.allocated[number], 0)
                    least[number] = min(room, least.get(number, room))
        names = self._state.types.names
        return {names[number]: room for number, room in least.items()}


def _members(group: AskGroup) -> list[Ask]:
    """All asks of the group, oldest first."""
    return list(dict.fromkeys(entry[3] for entry in sorted(group.heap, key=_age) if entry[3].group is group))


def _age(entry: tuple[int, int, int, Ask]) -> tuple[int, int, int]:
    return entry[:3]


def _refusals(ask: Ask) -> str:
    """The RM's reasons for refusing nodes, with the number of nodes each, as YuniKorn writes it."""
    nodes = ask.refusals.nodes if ask.refusals is not None else {}
    counts = Counter(refusal.reason for refusal in nodes.values())
    return "".join(f"{reason} ({counts[reason]}x); " for reason in sorted(counts))
