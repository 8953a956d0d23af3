"""Offers: parts of nodes that another framework lends (seed 004: two-level scheduling; docs/external-rules.md).

==========  ============================================================================================
OFFERED     it counts in its node's capacity (``external_merge.py``)
→ REVOKED   its source wants it back, or says nothing of it any more (it is *withdrawn*)
→ RETURNED  nothing needed it for ``idle_ns``
REVOKED     it counts no more; what is there and does not fit is preempted at the deadline
→ OFFERED   its source lends it on
→ RETURNED  what is there fits without it
RETURNED    until its source forgets it
==========  ============================================================================================

What is used of a node is looked at when that moved (``Node.lent``), once for each outcome of the scheduler; a look
costs the offers of the node. What was placed before an idle clock has run out has the offer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from muster_scheduler.core.external import ExternalKind, ExternalNode, ExternalObject, ExternalOffer, OfferState
from muster_scheduler.core.external_books import ExternalEntry, OnNode
from muster_scheduler.core.objects import Allocation, Node, NodeReport, Preempted, PreemptionRule
from muster_scheduler.core.outcome import Outcome
from muster_scheduler.core.preemption_victims import goes_whole, whole_gang
from muster_scheduler.core.resources import INT64_MAX
from muster_scheduler.core.states import OfferEvent, next_offer_state

if TYPE_CHECKING:
    from muster_scheduler.core.partition import Partition


# An RM that registers again has still to say what it runs, nodes first. Before that a node looks empty, and what it was
# lent as if nothing needed it.
REPORT_NS = 30_000_000_000


class Offers:
    """The offers of one partition; they are in the books (``PartitionExternal.books``).

    :ivar moved: ids of nodes with offers of which more or less is used, or offered, than at the last look.
    :ivar reporting: the time is not up, or nobody looked since, in which the RM says what it runs.
    """

    gone = False

    def __init__(self, partition: Partition, reports_until_ns: int) -> None:
        self._partition = partition
        self._reports_until_ns = reports_until_ns
        self.reporting = reports_until_ns > 0
        self.moved: dict[str, None] = {}

    # ---- what is heard ---------------------------------------------------------------------------------------------

    def begin(self, out: Outcome, now_ns: int) -> None:
        """Takes all offers that are in the books into a partition that is new."""
        for entry in self._entries():
            self.heard(entry, None, out, now_ns)
        self.rearm()  # (for this partition its clocks are new, whatever they show)

    def activate(self) -> None:
        """After a fold: puts what was recorded on the clock."""
        partition = self._partition
        for node_id, on in partition.external.books.nodes.items():
            if on.offers and node_id in partition.nodes:
                partition.nodes[node_id].lent = True
        self.rearm()

    def rearm(self) -> None:
        """Decisions go on: what came meanwhile has come now."""
        self._partition.deadlines += [(due_ns, entry) for entry in self._entries() if (due_ns := due_of(entry))]
        if self.reporting:
            self._partition.deadlines.append((self._reports_until_ns, self))

    def heard(self, entry: ExternalEntry, before: ExternalObject | None, out: Outcome, now_ns: int) -> None:
        """An offer is new, is said otherwise (than ``before``), or no more. Before its nodes are settled."""
        said = entry.said
        assert isinstance(said, ExternalOffer), f"{entry} is no offer"
        self.moved[said.node_id] = None
        old = before if isinstance(before, ExternalOffer) else None
        if old is not None:
            self.moved[old.node_id] = None
        if entry.gone or entry.offer_state is OfferState.RETURNED:
            return
        wanted = said.revoked or entry.withdrawn
        if not wanted:
            if entry.offer_state is OfferState.REVOKED:
                self._go(entry, OfferEvent.KEEP, out)
            if due_ns := due_of(entry):  # (its time may be another one now)
                self._partition.deadlines.append((due_ns, entry))
            return
        if entry.offer_state is OfferState.OFFERED:
            self._go(entry, OfferEvent.REVOKE, out)
            revoked_ns = now_ns
        else:  # (the grace period is counted from when it was first wanted back)
            revoked_ns = entry.deadline_ns - (old if old is not None else said).grace_ns
        due_ns = min(revoked_ns + said.grace_ns, INT64_MAX)
        if entry.withdrawn:
            due_ns = min(now_ns, entry.deadline_ns or now_ns)
        self._set_deadline(entry, due_ns, out)

    def _entries(self) -> list[ExternalEntry]:
        entries = self._partition.external.books.entries(ExternalKind.OFFER)
        return sorted(entries, key=lambda entry: entry.order)

    # ---- what follows ----------------------------------------------------------------------------------------------

    def come(self, entry: ExternalEntry, out: Outcome, now_ns: int) -> None:
        """A clock of the offer has run out."""
        said = entry.said
        assert isinstance(said, ExternalOffer), f"{entry} is no offer"
        self._look(said.node_id, out, now_ns)

    def reported(self, out: Outcome, now_ns: int) -> None:
        """The RM has had its time to say what it runs."""
        self.reporting = False
        self.moved.update(dict.fromkeys(_offer(entry).node_id for entry in self._entries()))
        self.settle(out, now_ns)

    def settle(self, out: Outcome, now_ns: int) -> None:
        """Looks at the nodes that moved. In a follower nothing follows: what does is recorded."""
        if not self._partition.searching:
            self.moved.clear()
        while self.moved:
            moved, self.moved = self.moved, {}
            for node_id in moved:
                self._look(node_id, out, now_ns)

    def _look(self, node_id: str, out: Outcome, now_ns: int) -> None:
        partition = self._partition
        on = partition.external.books.nodes.get(node_id)
        if on is None or not on.offers:
            return
        node = partition.nodes.get(node_id)
        if node is not None and node.inquiries:
            partition.questions.node_shrank(node, out)
        counted = on if node is None else partition.external.counted(on)
        offers = [entry for lent in counted.offers.values() for entry in lent]
        offered = [entry for entry in offers if entry.offer_state is OfferState.OFFERED]
        revoked = [entry for entry in offers if entry.offer_state is OfferState.REVOKED]
        returned = [] if counted is on else _revoked_in_vain(on, counted)
        if revoked:
            returned += self._vacate(node, counted, offered, revoked, out, now_ns)
        if any(lent.idle_ns > 0 for lent in map(_offer, offered)):
            returned += self._idle(node, counted, offered, out, now_ns)
        for entry in returned:
            self._return(entry, out)
        if returned:
            lives = partition.node_lives
            lives.settle(node_id, lives.report_of(node) if node is not None else None, out, now_ns)

    def _vacate(
        self,
        node: Node | None,
        on: OnNode,
        offered: list[ExternalEntry],
        revoked: list[ExternalEntry],
        out: Outcome,
        now_ns: int,
    ) -> list[ExternalEntry]:
        """Those that what is there does not need; what stays too long is told to go."""
        room = _Room(on, self._report_of(node), [*offered, *revoked], _used(node))
        # 1. The most pressing ones first: what is there may stay longest on those that remain.
        revoked.sort(key=lambda entry: (entry.deadline_ns, entry.order))
        kept = [entry for entry in revoked if not room.spares(entry)]
        # 2. The time of some is over.
        over = [entry for entry in kept if entry.deadline_ns <= now_ns]
        if over and node is not None and self._partition.deciding:
            for entry in over:
                room.take_out(entry)
            self._evict(node, room, over[0], out, now_ns)
        spared = [entry for entry in revoked if entry not in kept]
        return [entry for entry in spared if entry.deadline_ns <= now_ns or now_ns >= self._reports_until_ns]

    def _idle(
        self, node: Node | None, on: OnNode, offered: list[ExternalEntry], out: Outcome, now_ns: int
    ) -> list[ExternalEntry]:
        """Starts and stops the clocks of those that nothing needs, the youngest first; gives those that were long idle.

        A node that is kept free for somebody is needed as it is.
        """
        room = _Room(on, self._report_of(node), offered, _used(node))
        wanted = node is not None and bool(node.reservations)
        long: list[ExternalEntry] = []
        for entry in sorted(offered, key=lambda each: (each.since_ns, each.order), reverse=True):
            lent = _offer(entry)
            if lent.idle_ns <= 0 or wanted or not room.spares(entry):
                if entry.idle_since_ns:
                    entry.idle_since_ns = 0
                    out.touch(entry, entry.partition)
                continue
            if not entry.idle_since_ns:
                entry.idle_since_ns = now_ns
                out.touch(entry, entry.partition)
                self._partition.deadlines.append((due_of(entry), entry))
            elif now_ns >= max(due_of(entry), self._reports_until_ns) and self._partition.deciding:
                long.append(entry)
        return long

    def _evict(self, node: Node, room: _Room, entry: ExternalEntry, out: Outcome, now_ns: int) -> None:
        """Tells those to go that do not fit on the node any more: daemons, too; never what a source runs itself."""
        numbers = self._partition.types.numbers
        lack = {numbers[name]: value for name, value in room.lacking().items()}
        held = list(node.allocations.values())
        for each in held:
            if each.told:
                _ease(lack, each, 1)
        if not any(value > 0 for value in lack.values()):
            return
        chosen: list[Allocation] = []
        for each in sorted((each for each in held if not each.told and not each.source), key=_least_first):
            if any(lack.get(number, 0) > 0 for number, _ in each.shape.items):
                chosen.append(each)
                _ease(lack, each, 1)
        for each in reversed(list(chosen)):  # nobody in vain
            if all(lack[number] + value <= 0 for number, value in each.shape.items if number in lack):
                chosen.remove(each)
                _ease(lack, each, -1)
        why = Preempted(PreemptionRule.REVOKED, "", f"{entry.source}/{entry.object_id}", "", now_ns)
        ends = "is lent no more" if entry.withdrawn else "is wanted back"
        message = f"Preempted on node {node.node_id}: offer {entry.object_id} of source {entry.source} {ends}"
        for each in chosen:
            for member in _together(each):
                if not member.told:
                    self._partition.releases.preempt(member, why, message, out, now_ns)

    # ---- states ----------------------------------------------------------------------------------------------------

    def _return(self, entry: ExternalEntry, out: Outcome) -> None:
        self._go(entry, OfferEvent.RETURN, out)
        if entry.withdrawn:  # nobody is left who could be told
            self._partition.external.books.forget(entry)

    def _go(self, entry: ExternalEntry, event: OfferEvent, out: Outcome) -> None:
        assert entry.offer_state is not None, f"{entry} is no offer"
        entry.offer_state = next_offer_state(f"offer {entry.object_id}", entry.offer_state, event)
        entry.idle_since_ns = entry.deadline_ns = 0
        out.touch(entry, entry.partition)

    def _set_deadline(self, entry: ExternalEntry, due_ns: int, out: Outcome) -> None:
        if entry.deadline_ns != due_ns:
            entry.deadline_ns = due_ns
            out.touch(entry, entry.partition)
            self._partition.deadlines.append((due_ns, entry))

    def _report_of(self, node: Node | None) -> NodeReport | None:
        return self._partition.node_lives.report_of(node) if node is not None else None


def due_of(entry: ExternalEntry) -> int:
    """When something follows for the offer by itself; 0: never, or it is no offer."""
    said = entry.said
    if not isinstance(said, ExternalOffer):
        return 0
    if entry.offer_state is OfferState.REVOKED:
        return entry.deadline_ns
    if entry.offer_state is OfferState.OFFERED and entry.idle_since_ns and said.idle_ns > 0:
        return min(entry.idle_since_ns + said.idle_ns, INT64_MAX)
    return 0


class _Room:
    """What a node has with some of its offers: type by type the least of what each speaker says, as everywhere."""

    __slots__ = ("_fixed", "_lent", "_used")

    def __init__(
        self, on: OnNode, report: NodeReport | None, offers: Iterable[ExternalEntry], used: dict[str, int]
    ) -> None:
        self._used = used
        # What speakers without offers say, and whether of a type that they do not name there is none.
        self._fixed: list[tuple[Mapping[str, int], bool]] = []
        if report is not None and report.capacity is not None:
            self._fixed.append((report.capacity, False))
        self._lent: dict[str, dict[str, int]] = {source: {} for source in on.offers}
        for source, entry in on.nodes.items():
            said = entry.said
            if isinstance(said, ExternalNode) and said.capacity is not None:
                if source in self._lent:
                    self._lent[source].update(said.capacity)
                else:
                    self._fixed.append((said.capacity, said.whole))
        for entry in offers:
            self._add(entry, 1)

    def _add(self, entry: ExternalEntry, sign: int) -> None:
        own = self._lent[entry.source]
        for name, value in _offer(entry).quantities.items():
            own[name] = own.get(name, 0) + sign * value

    def _lack(self, name: str) -> int:
        """How much more of a type is used than there is."""
        used = self._used.get(name, 0)
        if not used:
            return 0
        least = min(own.get(name, 0) for own in self._lent.values())
        for said, whole in self._fixed:
            value = said.get(name)
            if value is None:
                least = 0 if whole else least
            elif value < least:
                least = value
        return max(used - least, 0)

    def lacking(self) -> dict[str, int]:
        """By type, how much more is used than there is."""
        return {name: lack for name in self._used if (lack := self._lack(name))}

    def take_out(self, entry: ExternalEntry) -> None:
        """Without the offer from here on."""
        self._add(entry, -1)

    def spares(self, entry: ExternalEntry) -> bool:
        """Takes the offer out, if no more is lacking then."""
        before = {name: self._lack(name) for name in _offer(entry).quantities}
        self._add(entry, -1)
        if all(self._lack(name) <= lack for name, lack in before.items()):
            return True
        self._add(entry, 1)
        return False


def _offer(entry: ExternalEntry) -> ExternalOffer:
    said = entry.said
    assert isinstance(said, ExternalOffer), f"{entry} is no offer"
    return said


def _revoked_in_vain(on: OnNode, counted: OnNode) -> list[ExternalEntry]:
    """Offers that are wanted back, and that the partition could not count: nothing can need them."""
    uncounted = [
        entry for source, lent in on.offers.items() for entry in lent if entry not in counted.offers.get(source, ())
    ]
    return [entry for entry in uncounted if entry.offer_state is OfferState.REVOKED]


def _used(node: Node | None) -> dict[str, int]:
    """What is used of a node, whoever uses it, and what is proposed there; without what is on no node."""
    if node is None:
        return {}
    types = node.types
    used = zip(types.names, node.allocated, node.occupied, strict=True)
    return {
        name: allocated + occupied
        for number, (name, allocated, occupied) in enumerate(used)
        if allocated + occupied > 0 and number not in types.pooled
    }


def _ease(lack: dict[int, int], held: Allocation, sign: int) -> None:
    for number, value in held.shape.items:
        if number in lack:
            lack[number] -= sign * value


def _least_first(held: Allocation) -> tuple[bool, int, int, int, int, int]:
    """Originators last; the lowest priority first, of these the youngest."""
    age = (-held.created_ns, -held.allocated_ns, -held.submission, -held.ordinal)
    return (held.originator, held.priority, *age)


def _together(held: Allocation) -> tuple[Allocation, ...]:
    """Who goes with it: its whole gang, where its queue says so and all of it may."""
    gang = whole_gang(held.app, opted_out=True) if goes_whole(held) and held.app is not None else None
    return (held,) if gang is None or held not in gang.members else gang.members
