"""Long waits: reservation of a node, preemption of other allocations, and signals to the autoscaler.

A parked waitlist requests its turn (`_ask`) by a deadline: the age at which its first ask may reserve, or one of its
asks may preempt. At the deadline, the cycle gives the waitlist its turn after the normal search. So an ask that simply
fits causes neither a reservation nor a preemption. A turn without success is repeated only after something changed, and
then at whole multiples of :data:`RETRY_NS` after the first turn was due. So asks that wait forever cost nothing while
nothing changes. The time of a turn depends on recorded values only, so that a restart changes nothing.

A long list must not make a turn long. ``preemptors.py`` keeps when its groups may preempt, and which of them are alike:
one search answers for all of these. Only once victims were found for one of them are the groups looked at one by one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from muster_core.allocation.backfill import due_first
from muster_core.allocation.preemptors import RETRY_NS, NoVictimsCache, Preemptors, next_preemptor, preempts_from
from muster_core.model.application import Ask, AskGroup
from muster_core.model.outcome import Outcome, ScaleUpHint
from muster_core.model.pending_reason import group_reason
from muster_core.model.queue import Waitlist
from muster_core.model.reasons import NoPreemptionReason, ReasonCode
from muster_core.model.steps import FEW, SOME, Pace, Steps
from muster_core.preemption import registry, victim_search
from muster_core.preemption.plan import Plan
from muster_core.queues.rank import may_use

if TYPE_CHECKING:
    from muster_core.allocation.ask_events import AskEvents
    from muster_core.allocation.backfill import Backfill
    from muster_core.allocation.limit_checks import LimitChecks
    from muster_core.allocation.releases import Releases
    from muster_core.allocation.reservations import Reservations
    from muster_core.allocation.scheduling_queue import SchedulingQueue
    from muster_core.model.partition_state import PartitionState
    from muster_core.nodes.node_stats import NodeStats
    from muster_core.predicates.predicate_calls import PredicateCalls
    from muster_core.preemption.search_context import SearchContext

# The turns in one cycle, and the preemptions for one leaf in it. The rest comes in the next cycle, after new requests.
TURNS_MAX = 100
PREEMPTIONS_PER_LEAF_MAX = 10
# Searches for victims in one cycle: in a large cluster each may take tens of milliseconds, while requests wait.
SEARCHES_MAX = 20
# Asks that one cycle reports as too large for the cluster.
REPORTS_MAX = 128
# So many tags of an ask are one more report: its record is written again, tags included.
_TAGS_OF_A_REPORT = 32
# Where asks are backfilled, the node to reserve is the one of so many that is due first.
NODES_COMPARED = 100
# How long asks are collected before the RM gets a message that the cluster is too small for them.
REPORT_NS = 1_000_000_000
# After this time the next cycle reports more of them. Others decide meanwhile.
REPORT_REST_NS = 20_000_000


class Escalation:
    """Reservations, preemption and autoscaling signals of one partition."""

    def __init__(
        self,
        state: PartitionState,
        *,
        figures: NodeStats,
        waiting: SchedulingQueue,
        notifications: AskEvents,
        reservations: Reservations,
        releases: Releases,
        questions: PredicateCalls,
        limit_checks: LimitChecks,
        cluster: SearchContext,
        backfill: Backfill,
    ) -> None:
        self._state = state
        self._figures = figures
        self._waiting = waiting
        self._notifications = notifications
        self._reservations = reservations
        self._releases = releases
        self._questions = questions
        self._limit_checks = limit_checks
        self._cluster = cluster
        self._backfill = backfill
        # The waitlists that have their turn now; by waitlist, the groups that were handled in this turn.
        self._due: dict[Waitlist, dict[AskGroup, None]] = {}
        self._idle: dict[Waitlist, None] = {}
        self._idle_version = -1
        # An application was stopped in this cycle, so that lists on which it waited have other first asks.
        self._stopped = False
        # What the last search found in this cycle: the ask, the version of the state, and the plan.
        self._planned: tuple[Ask, int, Plan] | None = None
        # Recorded waitlists, from a restart until everything that waited was tried once.
        self._resumed: dict[Waitlist, None] = {}
        self._unreported: dict[Waitlist, None] = {}
        self._stuck: dict[AskGroup, None] = {}
        # Waitlists to report, but a limit stopped them at the last check. They stay here until something changes.
        self._limited: dict[Waitlist, None] = {}
        self.report_ns = 0
        self.gone = False

    @property
    def waiting(self) -> bool:
        """Whether a waitlist can get its turn now. False: the search stopped for an answer before it tried the list."""
        stopped = self._questions.turns.stopped
        return any(waitlist.is_blocked or not stopped for waitlist in self._due)

    # ---- deadlines -------------------------------------------------------------------------------------------------

    def resume(self, waitlist: Waitlist, decided_ns: int) -> None:
        """After a fold: the list's turns were handled until this time, the last decision's."""
        waitlist.seen_ns = decided_ns
        self._resumed[waitlist] = None

    def request(self, out: Outcome, now_ns: int, *, all_tried: bool) -> Steps:
        """After a search: requests turns for the groups that the search parked; in steps.

        :param all_tried: the search tried everything that was ready.
        """
        state = self._state
        parked, self._waiting.parked = self._waiting.parked, {}
        lists: dict[Waitlist, None] = {}
        for count, group in enumerate(parked, 1):
            if not count % SOME:
                yield
            waitlist = group.app.queue.waitlists.get(group.wait_key)
            if group.parked_key is None or waitlist is None:
                continue
            if not waitlist.is_blocked:  # the budget ran out before it was tried
                self._waiting.parked[group] = None
                continue
            lists[waitlist] = None
            if group.unreported:
                self._waiting.parking.mark_scale_up_pending(waitlist, group)
            if _takes_turns(waitlist):
                continue  # (for a moment only: nothing else is in its way)
            if self._questions.states and waitlist.wait_point is not self._waiting.no_node:
                self._questions.notify_skipped(group, waitlist.reason, out)
            self._ask(waitlist, (*self._rights_of_first(waitlist), *self._rights_of(waitlist, group)), now_ns)
        for waitlist in lists:
            waitlist.tried = True
            if waitlist in self._waiting.parking.unreported and waitlist.wait_point is self._waiting.no_node:
                self._unreported[waitlist] = None
        if all_tried and self._waiting.no_node.moved:
            self._lead(now_ns)
        if self._idle_version != state.version:
            self._unreported |= self._limited
            self._limited.clear()
        if self._unreported:
            self._collect(now_ns)
        if self._idle and self._idle_version != state.version:
            idle, self._idle = self._idle, {}
            for count, waitlist in enumerate(idle, 1):
                if not count % SOME:
                    yield
                if waitlist.gone:
                    continue
                if waitlist.is_blocked:
                    self._ask_again(waitlist, now_ns)
                else:  # the budget ran out before it was tried
                    self._idle[waitlist] = None
        self._idle_version = state.version
        if self._resumed and all_tried:
            # A list that is refused from now on was seen until then, as if there had been no restart.
            for waitlist in self._resumed:
                waitlist.seen_ns = 0
            self._resumed.clear()

    def _lead(self, now_ns: int) -> None:
        """Requests turns for lists that are now the first of those that reserve as if they were one."""
        no_node = self._waiting.no_node
        for party in no_node.moved:
            first = party.first()
            if first is None or no_node.fronts.get(party.key) is first:
                continue
            no_node.fronts[party.key] = first
            first.tried = False
            self._ask(first, self._rights_of_first(first), now_ns)
            first.tried = True
        no_node.moved.clear()

    def request_scale_up(self, group: AskGroup, now_ns: int) -> None:
        """Placeholders could make room for these asks, but the asks fit on no node (the gang design: this triggers
        scale-up).
        """
        if group.unreported:
            self._stuck[group] = None
            self._collect(now_ns)

    def _collect(self, now_ns: int) -> None:
        if not self.report_ns:
            self._report_at((now_ns // REPORT_NS + 1) * REPORT_NS)

    def _report_at(self, due_ns: int) -> None:
        self.report_ns = due_ns
        self._state.deadlines.append((due_ns, self))

    def _ask(self, waitlist: Waitlist, rights_since: Iterable[int], now_ns: int) -> None:
        """Sets the waitlist's deadline, if there is anything that it may do later."""
        due: int | None = None
        for since_ns in rights_since:
            seen_ns = waitlist.seen_ns or now_ns
            if waitlist.tried and since_ns <= seen_ns:
                since_ns += ((seen_ns - since_ns) // RETRY_NS + 1) * RETRY_NS
            if due is None or since_ns < due:
                due = since_ns
        if due is None:
            return
        if due <= now_ns:
            self.on_deadline(waitlist)
        elif not waitlist.due_ns or due < waitlist.due_ns:
            self._set_due(waitlist, due)

    def _ask_again(self, waitlist: Waitlist, now_ns: int) -> None:
        """Sets the waitlist's deadline for all its groups."""
        since, rights = self._rights_of_singles(waitlist)
        if rights is not None:
            delay_ns = waitlist.leaf.policy.preemption_delay_ns
            if waitlist.tried:
                alike_ns = rights.next_turn((waitlist.seen_ns or now_ns) - delay_ns)
            else:
                alike_ns = rights.first_ns()
            if alike_ns is not None:
                since.append(alike_ns + delay_ns)
        self._ask(waitlist, since, now_ns)

    def _set_due(self, waitlist: Waitlist, due_ns: int) -> None:
        waitlist.due_ns = due_ns
        self._state.deadlines.append((due_ns, waitlist))

    def on_deadline(self, waitlist: Waitlist) -> None:
        """Gives the waitlist its turn in the next cycle: its deadline has come."""
        waitlist.due_ns = waitlist.seen_ns = 0
        self._due.setdefault(waitlist, {})

    def _rights_of_first(self, waitlist: Waitlist) -> Iterator[int]:
        head = _head(waitlist)
        if head is None:
            return
        if self._may_reserve(waitlist, head):
            yield head.created_ns + (0 if waitlist.required_node else self._state.config.reservation.delay_ns)
        if waitlist.required_node and head.reserved_node and not head.preempts:
            yield head.planned_ns + RETRY_NS if head.planned_ns else head.created_ns

    def _rights_of(self, waitlist: Waitlist, group: AskGroup) -> Iterator[int]:
        if group.preempts and not waitlist.required_node and self._state.config.preemption.enabled:
            asking = next_preemptor(group)
            if asking is not None:
                yield preempts_from(asking)

    def _rights(self, waitlist: Waitlist) -> Preemptors | None:
        """When the list's groups may preempt; None: none may."""
        if waitlist.required_node or not self._state.config.preemption.enabled:
            return None
        return self._waiting.parking.preemptors_of(waitlist, every_own=registry.looks_at_every_own())

    def _rights_of_singles(self, waitlist: Waitlist) -> tuple[list[int], Preemptors | None]:
        """From when the list's first ask may reserve, and the single groups may preempt; and the rights of
        all groups.
        """
        since, rights = list(self._rights_of_first(waitlist)), self._rights(waitlist)
        for group in rights.single if rights is not None else ():
            since += self._rights_of(waitlist, group)
        return since, rights

    def _may_reserve(self, waitlist: Waitlist, head: Ask) -> bool:
        if head.reserved_node or waitlist.reason is None:
            return False
        if waitlist.party is not None and waitlist.party.first() is not waitlist:
            return False
        if waitlist.required_node:
            refused = self._questions.refused_ids(head)
            return waitlist.required_node in self._state.nodes and waitlist.required_node not in refused
        return (
            self._state.config.reservation.enabled
            and waitlist.wait_point is self._waiting.no_node
            and waitlist.reason.code not in (ReasonCode.LARGER_THAN_ANY_NODE, ReasonCode.NO_NODES)
        )

    # ---- turns -----------------------------------------------------------------------------------------------------

    def run(self, out: Outcome, now_ns: int, *, all_tried: bool) -> Steps:
        """Gives a turn to each waitlist that is due; in steps.

        :param all_tried: the search tried everything that was ready.
        """
        if self._due:
            yield from self._allot_turns(out, now_ns, all_tried=all_tried)
        if self.report_ns and now_ns >= self.report_ns:
            yield from self._report(out, now_ns)

    def _allot_turns(self, out: Outcome, now_ns: int, *, all_tried: bool) -> Steps:
        state = self._state
        attempts: dict[str, int] = {}
        due = sorted(self._due, key=_most_urgent)
        # (Once the RM hears of something, it may change something before the next cycle.)
        refused = None if out.facts else (yield from self._refused(due, now_ns))
        version, self._stopped = state.version, False
        vain: list[tuple[Waitlist, dict[AskGroup, None]]] = []  # turns without any change so far
        for count, waitlist in enumerate(due[:TURNS_MAX], 1):
            if not count % FEW:
                yield
            had_theirs = self._due.pop(waitlist)
            if waitlist.gone:
                continue
            if not waitlist.is_blocked or (waitlist.party is not None and not all_tried):
                self._due[waitlist] = had_theirs  # the budget ran out before it was tried
                continue
            head = self._begin_turn(waitlist, out, now_ns)
            if head is not None and waitlist.required_node:
                self._preempt_on_required_node(waitlist, head, out, now_ns)
            changed = state.version != version or self._stopped or bool(out.facts)
            if refused is not None and (changed or waitlist not in refused):
                # Something changes. So each list, also each before this one, has as much of its turn now as any cycle
                # permits.
                for earlier, its in vain:
                    self._preempt(earlier, its, refused[earlier], attempts, out, now_ns)
                    yield
                refused, vain = None, []
            if head is None:
                continue
            if refused is not None:
                vain.append((waitlist, had_theirs))
            else:
                self._preempt(waitlist, had_theirs, None, attempts, out, now_ns)
        for count, (waitlist, had_theirs) in enumerate(vain, 1):
            if not count % FEW:
                yield
            noes = refused[waitlist] if refused is not None else None
            if not waitlist.gone:
                self._end_turn(waitlist, noes.last(had_theirs) if noes is not None else None, out, now_ns)

    def _begin_turn(self, waitlist: Waitlist, out: Outcome, now_ns: int) -> Ask | None:
        """Begins the turn, up to the preemption. Returns the list's first ask; None: its turn is over."""
        # 1. An application that may not run any more waits in the line of applications, not here.
        head = _head(waitlist)
        while head is not None and (full := self._limit_checks.full_ledger(head.app)) is not None:
            self._waiting.park_app(head.app, full, out, now_ns)
            self._stopped = True
            head = _head(waitlist)
        if head is None or _takes_turns(waitlist):
            return None  # (if it is parked for another reason, it asks again)
        waitlist.tried = True  # this turn counts for whichever ask is the first now
        if self._state.config.reservation.enabled and not waitlist.required_node:
            self._waiting.parking.ages_of(waitlist)  # (before it is needed while others wait)
        # 2. A node for the first ask.
        if self._may_reserve(waitlist, head) and not self._limit_checks.is_limited(head):
            self._reserve(waitlist, head, out, now_ns)
        return head

    def _end_turn(self, waitlist: Waitlist, no: NoPreemptionReason | None, out: Outcome, now_ns: int) -> None:
        """Ends the turn: the list gets another one once something has changed, and at the next right that begins."""
        if no is not None:  # once for all groups: a turn with the same result as the last one writes nothing
            self._say_no(waitlist, no, out)
        since, rights = self._rights_of_singles(waitlist)
        if rights is not None:
            delay_ns = waitlist.leaf.policy.preemption_delay_ns
            alike = (rights.first_ns(), rights.next_after(now_ns - delay_ns))
            since += [each_ns + delay_ns for each_ns in alike if each_ns is not None]
        if any(each_ns <= now_ns for each_ns in since):
            self._idle[waitlist] = None
        later_ns = min((each_ns for each_ns in since if each_ns > now_ns), default=None)
        if later_ns is not None:
            self._set_due(waitlist, later_ns)

    def _reserve(self, waitlist: Waitlist, head: Ask, out: Outcome, now_ns: int) -> None:
        state = self._state
        if waitlist.required_node:
            node = state.nodes[waitlist.required_node]
            if any(value > node.capacity[number] for number, value in head.shape.items):
                return
            for holder in [ask for ask in node.reservations if not ask.demand.required_node]:
                self._reservations.unreserve(holder, out, now_ns, f"{head.key} of {head.app.app_id} requires the node")
            self._reservations.reserve(head, node, out, now_ns)
        elif now_ns >= head.created_ns + state.config.reservation.delay_ns:
            if state.reserved and any(may_use(head, node) for node in self._figures.reserved_with_room(head.shape)):
                return  # it is placed there once the search has come so far
            timed = self._backfill.on and not self._questions.predicates
            most = NODES_COMPARED if timed else 1
            but = self._questions.unreservable_nodes(head)
            candidates = self._figures.best_to_reserve(head.shape, but, most)
            if not candidates and state.reserved:
                candidates = self._figures.best_to_reserve(head.shape, but, most, self._reservations.giving_way(head))
            if candidates and self._questions.predicates:
                self._questions.propose_reservation(head, candidates[0], out, now_ns)
            elif candidates:
                best = due_first(candidates, head, now_ns) if timed else candidates[0]
                self._reservations.take_over(head, best, out, now_ns)

    def reservation_timed_out(self, ask: Ask, out: Outcome, now_ns: int) -> None:
        """Gives up the reservation of an ask that a limit stops. An ask that waits for room keeps its reservation."""
        if not ask.reserved_node:
            return
        timeout_ns = self._state.config.reservation.timeout_ns
        due_ns = ask.reserved_ns + timeout_ns
        if now_ns >= due_ns:
            # (What victims leave is waited for until all of them are gone: they may relieve the limit.)
            if not ask.awaits_placeholders and not ask.preempts and self._limit_checks.is_limited(ask):
                self._reservations.unreserve(ask, out, now_ns)
                return
            due_ns = now_ns + timeout_ns
        self._state.deadlines.append((due_ns, ask))

    # ---- preemption ------------------------------------------------------------------------------------------------

    def _refused(
        self, due: list[Waitlist], now_ns: int
    ) -> Generator[None, None, dict[Waitlist, NoVictimsCache | None] | None]:
        """Why preemption helps none of the groups of these lists; None: it helps one of them, or may do so.

        Searches for one group of each kind. That changes nothing. The answers stay known, so that what is too much for
        one cycle is done in the next ones.
        """
        self._planned = None
        refused: dict[Waitlist, NoVictimsCache | None] = {}
        before = victim_search.searches(self._state)
        for count, waitlist in enumerate(due, 1):
            if not count % FEW:
                yield
            if waitlist.gone or not waitlist.is_blocked:
                continue
            refused[waitlist] = None
            rights = self._rights(waitlist)
            if rights is None:
                continue
            rights.recheck_singles()
            if len(rights.single) > SEARCHES_MAX:
                return None
            refused[waitlist] = noes = NoVictimsCache(waitlist, rights, now_ns, self._state.version)
            for group in noes.one_of_each():
                asking = noes.asking(group)
                if asking is None or victim_search.searches(self._state) - before >= SEARCHES_MAX:
                    return None
                result = victim_search.search(self._cluster, asking, now_ns)
                if not isinstance(result, NoPreemptionReason):
                    self._planned = (asking, self._state.version, result)
                    return None
                noes.add(group, result)
        return refused

    def _preempt(
        self,
        waitlist: Waitlist,
        had_theirs: dict[AskGroup, None],
        noes: NoVictimsCache | None,
        attempts: dict[str, int],
        out: Outcome,
        now_ns: int,
    ) -> None:
        """Lets the groups of the list preempt one by one, in their order, as far as this cycle permits it.

        :param noes: the answers for its groups, if they are known.
        """
        rights = self._rights(waitlist)
        if rights is None or waitlist.gone:
            if not waitlist.gone:
                self._end_turn(waitlist, None, out, now_ns)
            return
        noes = noes or NoVictimsCache(waitlist, rights, now_ns, self._state.version)
        no: NoPreemptionReason | None = None
        while groups := noes.next_groups(had_theirs, PREEMPTIONS_PER_LEAF_MAX + 1):
            for group in groups:
                finished, its_no = self._preempt_for(group, noes, attempts, out, now_ns)
                no = its_no or no
                if not finished:
                    if no is not None:
                        self._say_no(waitlist, no, out)
                    self._due[waitlist] = had_theirs
                    return
                had_theirs[group] = None
        self._end_turn(waitlist, no, out, now_ns)

    def _preempt_for(
        self, group: AskGroup, noes: NoVictimsCache, attempts: dict[str, int], out: Outcome, now_ns: int
    ) -> tuple[bool, NoPreemptionReason | None]:
        """Returns whether all permitted attempts were made, and why the last one did not help."""
        path = group.app.queue.path
        while (asking := noes.asking(group)) is not None:
            if attempts.get(path, 0) >= PREEMPTIONS_PER_LEAF_MAX or sum(attempts.values()) >= SEARCHES_MAX:
                return False, None
            attempts[path] = attempts.get(path, 0) + 1
            result: Plan | NoPreemptionReason | None = noes.of(group)
            if result is None:
                planned, self._planned = self._planned, None
                if planned is not None and planned[:2] == (asking, self._state.version):
                    result = planned[2]
                else:
                    result = victim_search.search(self._cluster, asking, now_ns)
            if isinstance(result, NoPreemptionReason):
                noes.add(group, result)
                return True, result
            noes.clear()
            agreed = self._agreed(result, asking, out, now_ns)
            if agreed is None:
                return True, None
            self.execute(agreed, asking, out, now_ns)
        return True, None

    def _preempt_on_required_node(self, waitlist: Waitlist, head: Ask, out: Outcome, now_ns: int) -> None:
        if not head.reserved_node or head.preempts or (head.planned_ns and preempts_from(head) > now_ns):
            return
        node = self._state.nodes[head.reserved_node]
        result = victim_search.search_required_node(self._state, head, node, now_ns)
        if isinstance(result, NoPreemptionReason):
            self._say_no(waitlist, result, out)
        elif (agreed := self._agreed(result, head, out, now_ns)) is not None:
            self.execute(agreed, head, out, now_ns)

    def _agreed(self, plan: Plan, asking: Ask, out: Outcome, now_ns: int) -> Plan | None:
        """The plan to which the RM agreed, perhaps with further victims; None: the answer is still missing.

        When the RM agrees, the waitlist gets its turn again.
        """
        victims = [victim.allocation for victim in plan.victims]
        further = [entry.allocation for entry in plan.further]
        more = self._questions.check_preemption(asking, plan.node, victims, further, out, now_ns)
        return None if more is None else victim_search.with_further(plan, more, asking, now_ns)

    def execute(self, plan: Plan, asking: Ask, out: Outcome, now_ns: int) -> None:
        """Releases the victims, and claims the node for the ask."""
        state = self._state
        version = state.version
        for victim in plan.victims:
            self._releases.preempt(victim.allocation, victim.why, victim.message, out, now_ns)
        self._reservations.claim(asking, plan.node, out, now_ns)
        victim_search.carry_cache_over(state, plan, asking, version)

    def _say_no(self, waitlist: Waitlist, no: NoPreemptionReason, out: Outcome) -> None:
        if waitlist.reason is not None and waitlist.reason.preemption is not no:
            waitlist.reason = waitlist.reason.with_preemption(no)
            out.mark_changed(waitlist, self._state.name)
            if self._notifications.wanted:
                self._notifications.reason_changed(waitlist)

    # ---- the autoscaler --------------------------------------------------------------------------------------------

    def _report(self, out: Outcome, now_ns: int) -> Steps:
        """Reports the asks that only a larger cluster can help to the RM, each ask once; in steps.

        Very many of them are reported in several cycles, with a rest between.
        """
        self.report_ns = 0
        reports = _Reports()
        no_node = self._waiting.no_node
        stuck, self._stuck = self._stuck, {}
        for group in stuck:
            gang = group.app.gang
            if gang is not None and group in gang.stuck:
                yield from self._report_asks(group, reports, out, now_ns)
                if group.unreported:
                    self._stuck[group] = None
        unreported, self._unreported = self._unreported, {}
        for waitlist in unreported:
            if reports.are_enough():
                self._unreported[waitlist] = None
                continue
            if waitlist.wait_point is not no_node:
                continue  # its asks are reported when it is woken or parked again
            if not waitlist.is_blocked:  # the budget ran out before it was tried
                self._unreported[waitlist] = None
                continue
            for group in list(islice(self._waiting.parking.unreported.get(waitlist, ()), reports.left)):
                if reports.are_enough():
                    break
                yield from self._report_group(waitlist, group, reports, out, now_ns)
            if reports.are_enough():
                self._unreported[waitlist] = None
        if reports.are_enough() and (self._stuck or self._unreported):
            self._report_at(now_ns + REPORT_REST_NS)

    def _report_group(self, waitlist: Waitlist, group: AskGroup, reports: _Reports, out: Outcome, now_ns: int) -> Steps:
        head = group.head()
        if head is not None and self._limit_checks.is_limited(head):
            self._limited[waitlist] = None
            reports.add(1)
            return
        yield from self._report_asks(group, reports, out, now_ns)
        if not group.unreported:
            self._waiting.parking.mark_scale_up_sent(waitlist, group)

    def _report_asks(self, group: AskGroup, reports: _Reports, out: Outcome, now_ns: int) -> Steps:
        """Reports the group's asks, as many as this cycle may still report."""
        reason = group_reason(group)
        message = reason.sentence() if reason is not None and group.unreported else ""
        asks, group.unreported = group.unreported, []
        reported = 0
        for ask in asks:
            reported += 1
            work = 1
            if ask.group is group and not ask.scaled_up:
                ask.scaled_up = True
                out.mark_changed(ask, self._state.name)
                out.facts.append(ScaleUpHint(self._state.name, ask.app.app_id, ask.key, now_ns, message))
                work += len(ask.demand.tags) // _TAGS_OF_A_REPORT
            is_over = reports.add(work)
            if reports.are_enough():
                break
            if is_over:
                yield
        group.unreported = asks[reported:] + group.unreported


class _Reports:
    """How much one cycle has reported, and may still report. An ask with many tags is as much as many asks: its record
    is written again.

    :ivar left: the asks that it may still report.
    """

    __slots__ = ("_pace", "left")

    def __init__(self) -> None:
        self.left = REPORTS_MAX
        self._pace = Pace(SOME)

    def are_enough(self) -> bool:
        return self.left <= 0

    def add(self, work: int) -> bool:
        """Counts a report. Returns whether the step is over."""
        self.left -= work
        return self._pace.is_over(work)


def _takes_turns(waitlist: Waitlist) -> bool:
    """Whether a node has room for its asks, once the RM has answered about another proposal there."""
    return waitlist.reason is not None and waitlist.reason.code is ReasonCode.RM_TURN


def _most_urgent(waitlist: Waitlist) -> tuple[int, int, int]:
    """The order of turns: the order of asks."""
    head = _head(waitlist)
    return (-head.priority, head.created_ns, head.submission) if head is not None else (0, 0, 0)


def _head(waitlist: Waitlist) -> Ask | None:
    if not waitlist.groups:
        return None
    group: AskGroup = waitlist.groups[0][-1]
    return group.head()
