"""Offers: parts of nodes that another framework offers (the event handler framework: two-level scheduling;
docs/external-rules.md).

==========  ============================================================================================
OFFERED     the offer counts in its node's capacity (``external_merge.py``)
→ REVOKED   its source wants it back, or does not name it any more (it is *withdrawn*)
→ RETURNED  nothing needed it for ``idle_ns``
REVOKED     it does not count; at the deadline, allocations that do not fit without it are preempted
→ OFFERED   its source does not want it back any more
→ RETURNED  all allocations fit without it
RETURNED    until its source forgets it
==========  ============================================================================================

The scheduler reviews a node whose use changed (``Node.has_offers``), once for each outcome. A review costs time in the
number of the node's offers. An ask that was placed before the idle clock ran out keeps the offer.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING

from muster_core.external.model import ExternalKind, ExternalNode, ExternalObject, ExternalOffer, OfferState
from muster_core.external.problems import counted_of
from muster_core.external.reports import NodeReports, ReportedObject
from muster_core.model.node import Node, NodeReport
from muster_core.model.outcome import Outcome
from muster_core.model.resources import INT64_MAX
from muster_core.model.states import OfferEvent, next_offer_state
from muster_core.model.steps import FEW, STEP, Steps, emptied
from muster_core.preemption import victim_search

if TYPE_CHECKING:
    from muster_core.allocation.releases import Releases
    from muster_core.external.reports import PartitionReports
    from muster_core.model.partition_state import PartitionState
    from muster_core.nodes.node_lifecycle import NodeLifecycle
    from muster_core.predicates.predicate_calls import PredicateCalls


# An RM that registers again has still to report its allocations, nodes first. Before that, a node looks empty and its
# offers seem unneeded.
REPORT_NS = 30_000_000_000


class Offers:
    """The offers of one partition. Their entries are in the books (``ExternalReconciler.books``).

    :ivar reporting: the RM's time to report its allocations is not over, or nobody has reviewed the offers since.
    """

    gone = False

    def __init__(
        self,
        state: PartitionState,
        *,
        external_books: PartitionReports,
        node_lives: NodeLifecycle,
        releases: Releases,
        questions: PredicateCalls,
        reports_until_ns: int,
    ) -> None:
        self._state = state
        self._external_books = external_books
        self._node_lives = node_lives
        self._releases = releases
        self._questions = questions
        self._reports_until_ns = reports_until_ns
        self.reporting = reports_until_ns > 0

    # ---- what sources say ------------------------------------------------------------------------------------------

    def begin(self, out: Outcome, now_ns: int) -> Steps:
        """Takes all offers in the books into a new partition, in steps."""
        for count, entry in enumerate(emptied(self._entries()), 1):
            self.on_change(entry, None, out, now_ns)
            if not count % STEP:
                yield
        self.rearm()  # (Clocks that were recorded are new to this partition.)

    def activate(self) -> None:
        """Sets the recorded clocks after a fold."""
        state = self._state
        for node_id, on in self._external_books.nodes.items():
            if on.offers and node_id in state.nodes:
                state.nodes[node_id].has_offers = True
        self.rearm()

    def rearm(self) -> None:
        """Sets the clocks again when decisions resume."""
        self._state.deadlines += [(due_ns, entry) for entry in self._entries() if (due_ns := due_of(entry))]
        if self.reporting:
            self._state.deadlines.append((self._reports_until_ns, self))

    def on_change(self, entry: ReportedObject, before: ExternalObject | None, out: Outcome, now_ns: int) -> None:
        """Takes an offer that is new, changed (``before``: the former one), or gone. Runs before its nodes are
        settled.
        """
        offer = entry.said
        assert isinstance(offer, ExternalOffer), f"{entry} is no offer"
        self._state.moved_offers[offer.node_id] = None
        old = before if isinstance(before, ExternalOffer) else None
        if old is not None:
            self._state.moved_offers[old.node_id] = None
        if entry.gone or entry.offer_state is OfferState.RETURNED:
            return
        is_revoked = offer.revoked or entry.withdrawn
        if not is_revoked:
            if entry.offer_state is OfferState.REVOKED:
                self._go(entry, OfferEvent.KEEP, out)
            if due_ns := due_of(entry):  # (its deadline may have changed)
                self._state.deadlines.append((due_ns, entry))
            return
        if entry.offer_state is OfferState.OFFERED:
            self._go(entry, OfferEvent.REVOKE, out)
            revoked_ns = now_ns
        else:  # (The grace period counts from when the source first wanted the offer back.)
            revoked_ns = entry.deadline_ns - (old if old is not None else offer).grace_ns
        due_ns = min(revoked_ns + offer.grace_ns, INT64_MAX)
        if entry.withdrawn:
            due_ns = min(now_ns, entry.deadline_ns or now_ns)
        self._set_deadline(entry, due_ns, out)

    def _entries(self) -> list[ReportedObject]:
        entries = self._external_books.entries(ExternalKind.OFFER)
        return sorted(entries, key=lambda entry: entry.order)

    # ---- consequences ----------------------------------------------------------------------------------------------

    def on_deadline(self, entry: ReportedObject, out: Outcome, now_ns: int) -> Steps:
        """Reviews the offer's node, because a clock of the offer has run out. In steps."""
        offer = entry.said
        assert isinstance(offer, ExternalOffer), f"{entry} is no offer"
        yield from self._look(offer.node_id, out, now_ns)

    def on_report_deadline(self, out: Outcome, now_ns: int) -> Steps:
        """Reviews all offers, because the RM's time to report its allocations is over. In steps."""
        self.reporting = False
        self._state.moved_offers.update(dict.fromkeys(_offer(entry).node_id for entry in self._entries()))
        yield from self.reconcile(out, now_ns)

    def reconcile(self, out: Outcome, now_ns: int) -> Steps:
        """Reviews the nodes that changed, in steps. A follower does nothing here: it reads the recorded results."""
        if not self._state.searching:
            self._state.moved_offers.clear()
        while self._state.moved_offers:
            moved, self._state.moved_offers = self._state.moved_offers, {}
            for count, node_id in enumerate(moved, 1):
                yield from self._look(node_id, out, now_ns)
                if not count % FEW:
                    yield

    def _look(self, node_id: str, out: Outcome, now_ns: int) -> Steps:
        state = self._state
        on = self._external_books.nodes.get(node_id)
        if on is None or not on.offers:
            return
        node = state.nodes.get(node_id)
        if node is not None:
            self._questions.on_node_shrunk(node, out)
        counted = on if node is None else counted_of(on)
        offers = [entry for entries in counted.offers.values() for entry in entries]
        offered = [entry for entry in offers if entry.offer_state is OfferState.OFFERED]
        revoked = [entry for entry in offers if entry.offer_state is OfferState.REVOKED]
        returned = [] if counted is on else _revoked_in_vain(on, counted)
        if revoked:
            returned += yield from self._vacate(node, counted, offered, revoked, out, now_ns)
        if any(offer.idle_ns > 0 for offer in map(_offer, offered)):
            returned += self._idle(node, counted, offered, out, now_ns)
        for entry in returned:
            self._return(entry, out)
        if returned:
            lives = self._node_lives
            report = lives.report_of(node) if node is not None else None
            yield from lives.settle_in_steps(node_id, report, out, now_ns)

    def _vacate(
        self,
        node: Node | None,
        on: NodeReports,
        offered: list[ReportedObject],
        revoked: list[ReportedObject],
        out: Outcome,
        now_ns: int,
    ) -> Generator[None, None, list[ReportedObject]]:
        """Returns the offers that no allocation on the node needs. Releases allocations that stay too long."""
        room = _OfferCapacity(on, self._report_of(node), [*offered, *revoked], _used(node))
        # 1. The most urgent offers first, so that allocations may stay longest on the remaining ones.
        revoked.sort(key=lambda entry: (entry.deadline_ns, entry.order))
        kept = [entry for entry in revoked if not room.spares(entry)]
        # 2. Offers whose time is over.
        over = [entry for entry in kept if entry.deadline_ns <= now_ns]
        if over and node is not None and self._state.deciding:
            for entry in over:
                room.take_out(entry)
            yield from self._evict(node, room, over[0], out, now_ns)
        spared = [entry for entry in revoked if entry not in kept]
        return [entry for entry in spared if entry.deadline_ns <= now_ns or now_ns >= self._reports_until_ns]

    def _idle(
        self, node: Node | None, on: NodeReports, offered: list[ReportedObject], out: Outcome, now_ns: int
    ) -> list[ReportedObject]:
        """Starts and stops the idle clocks of the offers, the youngest first. Returns the offers whose idle time is
        over.

        A reserved node needs all its offers.
        """
        room = _OfferCapacity(on, self._report_of(node), offered, _used(node))
        is_reserved = node is not None and bool(node.reservations)
        long: list[ReportedObject] = []
        for entry in sorted(offered, key=lambda entry: (entry.since_ns, entry.order), reverse=True):
            offer = _offer(entry)
            if offer.idle_ns <= 0 or is_reserved or not room.spares(entry):
                if entry.idle_since_ns:
                    entry.idle_since_ns = 0
                    out.mark_changed(entry, entry.partition)
                continue
            if not entry.idle_since_ns:
                entry.idle_since_ns = now_ns
                out.mark_changed(entry, entry.partition)
                self._state.deadlines.append((due_of(entry), entry))
            elif now_ns >= max(due_of(entry), self._reports_until_ns) and self._state.deciding:
                long.append(entry)
        return long

    def _evict(self, node: Node, room: _OfferCapacity, entry: ReportedObject, out: Outcome, now_ns: int) -> Steps:
        """Releases allocations that do not fit on the node any more: daemons, too, but no allocations of sources."""
        numbers = self._state.types.numbers
        lack = {numbers[name]: value for name, value in room.lacking().items()}
        for count, victim in enumerate(victim_search.search_revoked(node, lack, entry, now_ns), 1):
            self._releases.preempt(victim.allocation, victim.why, victim.message, out, now_ns)
            if not count % STEP:
                yield

    # ---- states ----------------------------------------------------------------------------------------------------

    def _return(self, entry: ReportedObject, out: Outcome) -> None:
        self._go(entry, OfferEvent.RETURN, out)
        if entry.withdrawn:  # no source is left to inform
            self._external_books.forget(entry)

    def _go(self, entry: ReportedObject, event: OfferEvent, out: Outcome) -> None:
        assert entry.offer_state is not None, f"{entry} is no offer"
        entry.offer_state = next_offer_state(f"offer {entry.object_id}", entry.offer_state, event)
        entry.idle_since_ns = entry.deadline_ns = 0
        out.mark_changed(entry, entry.partition)

    def _set_deadline(self, entry: ReportedObject, due_ns: int, out: Outcome) -> None:
        if entry.deadline_ns != due_ns:
            entry.deadline_ns = due_ns
            out.mark_changed(entry, entry.partition)
            self._state.deadlines.append((due_ns, entry))

    def _report_of(self, node: Node | None) -> NodeReport | None:
        return self._node_lives.report_of(node) if node is not None else None


def due_of(entry: ReportedObject) -> int:
    """When the offer's next clock runs out; 0: never, or the object is no offer."""
    offer = entry.said
    if not isinstance(offer, ExternalOffer):
        return 0
    if entry.offer_state is OfferState.REVOKED:
        return entry.deadline_ns
    if entry.offer_state is OfferState.OFFERED and entry.idle_since_ns and offer.idle_ns > 0:
        return min(entry.idle_since_ns + offer.idle_ns, INT64_MAX)
    return 0


class _OfferCapacity:
    """The capacity of a node with some of its offers: by type, the smallest amount of all speakers, as in the merge."""

    __slots__ = ("_fixed", "_offered", "_used")

    def __init__(
        self, on: NodeReports, report: NodeReport | None, offers: Iterable[ReportedObject], used: dict[str, int]
    ) -> None:
        self._used = used
        # Capacities of speakers without offers, and whether a type that they do not name is absent.
        self._fixed: list[tuple[Mapping[str, int], bool]] = []
        if report is not None and report.capacity is not None:
            self._fixed.append((report.capacity, False))
        self._offered: dict[str, dict[str, int]] = {source: {} for source in on.offers}
        for source, entry in on.nodes.items():
            node_report = entry.said
            if isinstance(node_report, ExternalNode) and node_report.capacity is not None:
                if source in self._offered:
                    self._offered[source].update(node_report.capacity)
                else:
                    self._fixed.append((node_report.capacity, node_report.whole))
        for entry in offers:
            self._add(entry, 1)

    def _add(self, entry: ReportedObject, sign: int) -> None:
        own = self._offered[entry.source]
        for name, value in _offer(entry).quantities.items():
            own[name] = own.get(name, 0) + sign * value

    def _lack(self, name: str) -> int:
        """The used amount of a type beyond the capacity."""
        used = self._used.get(name, 0)
        if not used:
            return 0
        least = min(own.get(name, 0) for own in self._offered.values())
        for capacity, whole in self._fixed:
            value = capacity.get(name)
            if value is None:
                least = 0 if whole else least
            elif value < least:
                least = value
        return max(used - least, 0)

    def lacking(self) -> dict[str, int]:
        """By type, the used amounts beyond the capacity."""
        return {name: lack for name in self._used if (lack := self._lack(name))}

    def take_out(self, entry: ReportedObject) -> None:
        """Takes the offer out."""
        self._add(entry, -1)

    def spares(self, entry: ReportedObject) -> bool:
        """Takes the offer out if no more is lacking then. Returns whether it did."""
        before = {name: self._lack(name) for name in _offer(entry).quantities}
        self._add(entry, -1)
        if all(self._lack(name) <= lack for name, lack in before.items()):
            return True
        self._add(entry, 1)
        return False


def _offer(entry: ReportedObject) -> ExternalOffer:
    offer = entry.said
    assert isinstance(offer, ExternalOffer), f"{entry} is no offer"
    return offer


def _revoked_in_vain(on: NodeReports, counted: NodeReports) -> list[ReportedObject]:
    """Revoked offers that the partition could not count: no allocation can need them."""
    uncounted = [
        entry
        for source, entries in on.offers.items()
        for entry in entries
        if entry not in counted.offers.get(source, ())
    ]
    return [entry for entry in uncounted if entry.offer_state is OfferState.REVOKED]


def _used(node: Node | None) -> dict[str, int]:
    """By type name, the used amounts of a node, including proposals. Types that are on no node are left out."""
    if node is None:
        return {}
    types = node.types
    used = zip(types.names, node.allocated, node.occupied, strict=True)
    return {
        name: allocated + occupied
        for number, (name, allocated, occupied) in enumerate(used)
        if allocated + occupied > 0 and number not in types.pooled
    }
