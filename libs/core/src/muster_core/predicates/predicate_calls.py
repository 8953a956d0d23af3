"""Asks the RM before decisions, and carries out its answers (the scheduler interface, "Scheduler plugin").

An RM can ask to be consulted before an ask is placed. Many questions are open at the same time, so the scheduler
*proposes* a placement: from then on the placement counts on its node and in its limits, but it is neither recorded nor
announced. If the RM agrees, the proposal becomes an allocation. If the RM refuses, the scheduler takes the proposal
back, and the node is refused for that ask. The ask is then *apart* from asks that are alike, because the refusal
concerns this ask alone.

* After the first refusal, the scheduler asks about more nodes for the ask at a time, up to :data:`PROBE_NODES_MAX`. So
  an ask that may run on a few nodes among thousands finds them in a few rounds. Such a probe is booked only on the best
  of its nodes. If the RM refuses that node, the ask gets the first agreed node that still has room.
* The scheduler forgets refusals after a pause, which grows; when the node changes; and when an allocation on the node
  ends. It cannot see everything that the RM checks.
* A refused ask gives way to others, so that its many rounds delay nobody (``allocation/exclusivity.py``).
* A missing answer counts as a temporary refusal. So the scheduler keeps no more questions open than the RM answers in
  time: otherwise, in a burst of thousands, the last answers would be late, and the scheduler would repeat these
  questions again and again. The limit grows with each quick answer.
* Open questions live in memory only. After a restart the scheduler asks anew and ignores answers to older questions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from muster_core.allocation.exclusivity import ScopeExclusivity
from muster_core.model.application import Allocation, Ask, AskGroup
from muster_core.model.node import Node
from muster_core.model.outcome import (
    Outcome,
    PredicateRefused,
    PredicateRequested,
    PreemptionPredicateRequested,
    SchedulingState,
    SchedulingStateChanged,
)
from muster_core.model.predicate_checks import CheckKind, PredicateCheck
from muster_core.model.reason_history import Past
from muster_core.model.reasons import Reason
from muster_core.model.refusals import NodeRefusal
from muster_core.model.resources import fits
from muster_core.model.scopes import SECOND_NS, CallbackPolicy
from muster_core.predicates.refused_nodes import RefusedNodes
from muster_core.queues.rank import may_use

if TYPE_CHECKING:
    from muster_core.allocation.accounting import Accounting
    from muster_core.allocation.allocator import Allocator
    from muster_core.allocation.ask_events import AskEvents
    from muster_core.allocation.asks import Asks
    from muster_core.allocation.exclusivity import ScopeExclusivity
    from muster_core.allocation.fair_share_accounting import FairShareAccounting
    from muster_core.allocation.limit_checks import LimitChecks
    from muster_core.allocation.reservations import Reservations
    from muster_core.allocation.scheduling_queue import SchedulingQueue
    from muster_core.applications.lifecycle import ApplicationLifecycle
    from muster_core.gangs.gangs import Gangs
    from muster_core.model.partition_state import PartitionState
    from muster_core.model.queue import Waitlist
    from muster_core.nodes.node_accounting import NodeAccounting

# The number of nodes in one probe, for an ask that was refused before. Each node costs the RM a check, so the first try
# has one node.
PROBE_NODES_MAX = 32
# After so long without an answer, the ask's record has the question as the reason.
SLOW_NS = SECOND_NS
# The first limit of open questions: an RM that checks 50 nodes in a second answers so many within the time-out.
OPEN_FIRST = 500
OPEN_MIN = 16
# Limit of characters of an RM's reason; the rest is cut.
REASON_CHARACTERS_MAX = 256


class EscalationTrigger(Protocol):
    """The part that gives waitlists with long waits their turn."""

    def on_deadline(self, waitlist: Waitlist) -> None:
        """Gives the waitlist its turn."""


class PredicateCalls(RefusedNodes):
    """The questions to the RM of one partition.

    :ivar predicates: whether the RM is asked before a placement; ``preemption``: before a preemption; ``states``:
        whether the RM is notified of scheduling states.
    :ivar silent: the RM wants to be asked, its stream has ended, and by its policy nothing may be placed then.
    :ivar number: makes the next question's number, unique for the RM.
    :ivar open: the open checks by question id, oldest first.
    """

    _long_wait: EscalationTrigger

    def __init__(
        self,
        state: PartitionState,
        *,
        notifications: AskEvents,
        waiting: SchedulingQueue,
        books: Accounting,
        fair_shares: FairShareAccounting,
        node_books: NodeAccounting,
        asks: Asks,
        reservations: Reservations,
        lifecycle: ApplicationLifecycle,
        gangs: Gangs,
        turns: ScopeExclusivity,
        limit_checks: LimitChecks,
        placing: Allocator,
    ) -> None:
        super().__init__(state, waiting=waiting, node_books=node_books, gangs=gangs)
        self._notifications = notifications
        self._books = books
        self._fair_shares = fair_shares
        self._asks = asks
        self._reservations = reservations
        self._lifecycle = lifecycle
        self.turns = turns
        self._limit_checks = limit_checks
        self._placing = placing
        self.predicates = self.preemption = self.states = False
        self.number: Callable[[], int] = _no_number
        self.silent = False
        self.open: dict[int, PredicateCheck] = {}
        self.gone = False
        # Checks that their asks' records do not name yet, oldest first.
        self._quick: dict[PredicateCheck, None] = {}
        self._aside: dict[tuple[Ask, CheckKind], PredicateCheck] = {}
        # Preemptions that the RM agreed to: the node, and the allocations that may go.
        self._agreed: dict[Ask, tuple[Node, frozenset[Allocation]]] = {}
        self._most_open = OPEN_FIRST
        # Asks with records of a question that is not open any more.
        self._stale: list[Ask] = []
        # Deadlines: the first answer that is late, or missing for long; the end of the grace period.
        self._due_ns = self._lost_ns = 0

    def connect(self, *, long_wait: EscalationTrigger) -> None:
        """Takes the part that is built after this one."""
        self._long_wait = long_wait

    # ---- policy ----------------------------------------------------------------------------------------------------

    def set_policy(self, policy: CallbackPolicy, out: Outcome, now_ns: int) -> None:
        """Takes the RM's new policy, because its stream was opened or has ended."""
        if policy.alone != self.policy.alone:
            self.withdraw_all(out)  # the scheduler asks again, by the new policy
        self.policy = policy
        if policy.alone:
            self.turns.enable(policy.alone)
        self._review_policy(out, now_ns)
        if policy.connected:
            for ask in list(self._refused):
                self._forget_unanswered(ask, out)

    def _review_policy(self, out: Outcome, now_ns: int) -> None:
        policy = self.policy
        lost_ns = policy.since_ns + policy.grace_ns
        reachable = policy.connected or now_ns < lost_ns
        self.predicates = policy.predicates and (reachable or policy.waits)
        self.preemption = policy.preemption and (reachable or policy.waits)
        self.states = policy.states and reachable
        if reachable and not policy.connected and lost_ns != self._lost_ns:
            self._lost_ns = lost_ns
            self._state.deadlines.append((lost_ns, self))
        self.silent = policy.waits and not reachable
        if self.silent:
            self._state.deciding = False
            self.withdraw_all(out)
        self._accept_unwanted(out, now_ns)
        if not self.predicates:
            for ask in [ask for ask in self._refused if ask.refusals is not None and ask.refusals.nodes]:
                assert ask.refusals is not None, f"nothing is refused for {ask}"
                ask.refusals.until_ns = 0
                self._forgive(ask, list(ask.refusals.nodes), out)

    def _accept_unwanted(self, out: Outcome, now_ns: int) -> None:
        """Counts open questions as agreed that the RM cannot or does not want to answer any more."""
        for check in dict.fromkeys(self.open.values()):
            is_enabled = self.preemption if check.kind is CheckKind.PREEMPT else self.predicates
            for question in () if is_enabled else list(check.nodes):
                if not check.gone:
                    self.apply_answer(question, True, "", out, now_ns)

    def on_deadline(self, out: Outcome, now_ns: int) -> None:
        """Handles a deadline: late answers, or the end of the grace period after the stream was lost."""
        if not self.policy.connected and not self.silent and (self.predicates or self.preemption or self.states):
            self._review_policy(out, now_ns)
        for check in list(self._quick):
            if check.asked.since_ns + SLOW_NS > now_ns:
                break
            del self._quick[check]
            if check.ask.asked is None and check.holds_out:
                check.ask.asked = check.asked
                out.mark_changed(check.ask, self._state.name)
        late = [question for question, check in self.open.items() if check.due_ns <= now_ns]
        over = f"no answer within {self.policy.timeout_ns / SECOND_NS:g} s"
        for question in late:
            self.apply_answer(question, False, over, out, now_ns, unanswered=True)
        if now_ns >= self._due_ns:
            self._due_ns = 0
            # (Not the due time of the oldest question: the time for an answer may have changed since.)
            self._arm(min((check.due_ns for check in self.open.values()), default=0))
            if self._quick:
                self._arm(next(iter(self._quick)).asked.since_ns + SLOW_NS)

    def _arm(self, due_ns: int) -> None:
        """Sets a deadline: the next answer that is late, or missing for long."""
        if due_ns and (not self._due_ns or due_ns < self._due_ns):
            self._due_ns = due_ns
            self._state.deadlines.append((due_ns, self))

    # ---- questions -------------------------------------------------------------------------------------------------

    def propose_allocation(self, ask: Ask, group: AskGroup, node: Node, out: Outcome, now_ns: int) -> None:
        """Proposes an allocation: on this node, or on the first of several nodes to which the RM agrees."""
        if ask.notified:
            self._notifications.on_allocated(ask, out, now_ns)
        if ask.app.reason is not None:
            self._waiting.on_run_allowed(ask.app, out, now_ns)
        refusals, nodes = ask.refusals, [node]
        answered = refusals.answered if refusals is not None else 0
        if refusals is not None and answered and node.node_id != ask.reserved_node and not ask.demand.required_node:
            # (Of an ask with repeats, one probe at a time asks about many nodes.)
            probing = any(open_check.kind is CheckKind.PROBE for open_check in self._state.checks.for_ask(ask))
            node_count = 1 if probing else min(2 * answered, PROBE_NODES_MAX)
            but = self.turns.excluded_nodes(ask, refusals.nodes)
            nodes = self._node_books.index.fitting(ask.shape.items, but, node_count) or nodes
        kind = CheckKind.PLACE if len(nodes) == 1 else CheckKind.PROBE
        check = self._ask(kind, ask, nodes, True, out, now_ns)
        check.booked = nodes[0]
        self._book(check, 1)
        self._lifecycle.recount(ask.app)
        self._hold_out(check, group, out, now_ns)

    def propose_replacement(
        self, ask: Ask, group: AskGroup, placeholder: Allocation, node: Node, out: Outcome, now_ns: int
    ) -> None:
        """Proposes that a placeholder makes room for a real ask, which runs on this node."""
        elsewhere = node.node_id != placeholder.node_id
        check = self._ask(CheckKind.REPLACE, ask, [node], elsewhere, out, now_ns)
        check.placeholder = placeholder
        self._gangs.mark_candidate(placeholder, check)
        self._hold_out(check, group, out, now_ns)

    def propose_reservation(self, ask: Ask, node: Node, out: Outcome, now_ns: int) -> None:
        """Proposes to reserve a node for an ask."""
        if (ask, CheckKind.RESERVE) not in self._aside:
            self._ask(CheckKind.RESERVE, ask, [node], False, out, now_ns)

    def check_preemption(
        self,
        ask: Ask,
        node: Node,
        victims: Sequence[Allocation],
        further: Sequence[Allocation],
        out: Outcome,
        now_ns: int,
    ) -> frozenset[Allocation] | None:
        """The allocations of ``further`` that must be released, too, before the RM admits the ask to the node; None:
        its answer is missing.

        :param victims: the allocations that go in any case.
        :param further: the allocations that may go, in order.
        """
        if not self.preemption:
            return frozenset()
        agreed = self._agreed.pop(ask, None)  # (for this plan, or for one that no longer holds)
        if agreed is not None and agreed[0] is node and agreed[1].issuperset(victims):
            more = frozenset(
                allocation
                for allocation in agreed[1].difference(victims)
                if not allocation.gone and not allocation.releasing
            )
            if more.issubset(further):
                return more
        if (ask, CheckKind.PREEMPT) not in self._aside:
            check = self._check(CheckKind.PREEMPT, ask, [node], now_ns)
            check.victims, check.least = (*victims, *further), len(victims)
            self._file(check)
            out.facts.append(
                PreemptionPredicateRequested(
                    next(iter(check.nodes)),
                    self._state.name,
                    ask.app.app_id,
                    ask.key,
                    node.node_id,
                    tuple((victim.app_id, victim.key) for victim in check.victims),
                    check.least,
                    check.due_ns,
                )
            )
        return None

    def _ask(
        self, kind: CheckKind, ask: Ask, nodes: Sequence[Node], allocate: bool, out: Outcome, now_ns: int
    ) -> PredicateCheck:
        check = self._check(kind, ask, nodes, now_ns)
        self._file(check)
        # (If a proposal was alone, the RM must know its allocation before it answers later questions.)
        name, due_ns, after_last = self._state.name, check.due_ns, self.turns.on
        for question, node in check.nodes.items():
            out.facts.append(
                PredicateRequested(question, name, ask.app.app_id, ask.key, node.node_id, allocate, due_ns, after_last)
            )
        return check

    def _check(self, kind: CheckKind, ask: Ask, nodes: Sequence[Node], now_ns: int) -> PredicateCheck:
        """Makes a check with a question for each of the nodes. The check is not filed yet."""
        due_ns = now_ns + self.policy.timeout_ns
        return PredicateCheck(kind, ask, {self.number(): node for node in nodes}, now_ns, due_ns)

    def _file(self, check: PredicateCheck) -> None:
        ask = check.ask
        for question in check.nodes:
            self.open[question] = check
        self._state.checks.add(check)
        self._quick[check] = None
        if check.holds_out:
            self.turns.acquire(check)
        else:
            self._aside[ask, check.kind] = check
        self._arm(min(check.due_ns, check.asked.since_ns + SLOW_NS))

    def _hold_out(self, check: PredicateCheck, group: AskGroup, out: Outcome, now_ns: int) -> None:
        """Takes the ask out of the search while the RM is asked; the next ask of its group may be tried."""
        ask, waiting = check.ask, self._waiting
        app = ask.app
        check.past = waiting.history_of(group, now_ns)
        if app.queue.fair_apps:
            app.share = None
            waiting.rekey_app(app)
        if ask.open <= 0:
            self._asks.leave_group(ask, out)
        if not waiting.requeue_app(app):
            waiting.requeue_queue(app.queue)
        if group.asks:
            waiting.wake_next(group)

    # ---- answers ---------------------------------------------------------------------------------------------------

    def apply_answer(
        self,
        question: int,
        fits: bool,
        reason: str,
        out: Outcome,
        now_ns: int,
        *,
        index: int = -1,
        unanswered: bool = False,
    ) -> None:
        """Takes one answer. An answer to no open question changes nothing.

        :param index: of an answer about victims, the index of the last victim that must go.
        """
        check = self.open.pop(question, None)
        if check is None:
            return
        took_ns = now_ns - check.asked.since_ns
        if took_ns * 4 <= self.policy.timeout_ns:
            self._most_open += 1
        elif self._most_open > len(self.open):  # the RM is at its limit
            self._most_open = max(len(self.open), OPEN_MIN)
        check.answers[question] = None if fits else reason[:REASON_CHARACTERS_MAX]
        # (An index beyond the victims is ignored: only victims that the RM named go.)
        check.going = max(index + 1, check.least) if index < len(check.victims) else check.least
        node = check.nodes[question]
        if not fits:
            out.facts.append(PredicateRefused(question, unanswered))
            refusal = NodeRefusal(node.node_id, reason[:REASON_CHARACTERS_MAX], now_ns, unanswered)
            moved = check.changed_nodes is not None and node in check.changed_nodes and not unanswered
            self._date(check.ask, node, before_change=moved)
            self._refuse(check.ask, refusal, node, out, now_ns)
        if check.is_clear:
            self._settle(check, out, now_ns)

    def _settle(self, check: PredicateCheck, out: Outcome, now_ns: int) -> None:
        """Carries out the answers, once they suffice."""
        ask = check.ask
        agreed = [node for question, node in check.nodes.items() if check.answers.get(question, "") is None]
        node = agreed[0] if agreed else None
        if node is not None and check.booked is node and self._may_use(ask, node):
            self._count_beside(check, -1)
            self._close(check, out)
            self._placing.allocate(ask, ask.group, node, out, now_ns, proposed=True)
            self._lifecycle.recount(ask.app)
            return
        if check.booked is not None:
            self._give_back(check)
        self._close(check, out)
        if not agreed:
            self._give_up(ask, check, out, now_ns)
        done = False
        match check.kind:
            case CheckKind.PROBE:
                done = self._take_first(ask, agreed, out, now_ns)
            case CheckKind.REPLACE:
                assert check.placeholder is not None, f"{check} replaces nothing"
                self._gangs.unmark_candidate(check.placeholder)
                if node is not None:
                    done = self._gangs.start_replacement(check.placeholder, ask, node, out, now_ns)
            case CheckKind.RESERVE if node is not None:
                self._keep_free(ask, node, out, now_ns)
            case CheckKind.PREEMPT if node is not None and ask.group is not None:
                self._agreed[ask] = (node, frozenset(check.victims[: check.going]))
                waitlist = ask.app.queue.waitlists.get(ask.group.wait_key)
                if waitlist is not None:
                    self._long_wait.on_deadline(waitlist)
        if not done:
            apart = ask.group is not None and ask.group.apart != ask.apart
            past = self._waiting.history_of(ask.group, now_ns) if apart and ask.group is not None else check.past
            self._bring_back(ask, out, past)
            if check.holds_out and ask.refusals is not None and not ask.gone:
                self.turns.give_way(ask, ask.refusals)

    def _take_first(self, ask: Ask, agreed: Sequence[Node], out: Outcome, now_ns: int) -> bool:
        if not self._state.deciding or self._limit_checks.is_limited(ask):
            return False
        for node in agreed:
            if node.index_key is not None and fits(ask.shape.items, node.available):
                self._placing.allocate(ask, ask.group, node, out, now_ns)
                return True
        return False

    def _may_use(self, ask: Ask, node: Node) -> bool:
        """Whether a node that has room may still be used."""
        return self._state.deciding and (node.usable or bool(ask.demand.required_node))

    def _keep_free(self, ask: Ask, node: Node, out: Outcome, now_ns: int) -> None:
        waits = ask.group is not None and ask.group.parked_key is not None and not ask.reserved_node
        # (The RM may have refused the node meanwhile, in another check of the ask.)
        is_open = node.usable and not node.taken and may_use(ask, node) and node.node_id not in self.refused_ids(ask)
        if waits and is_open and fits(ask.shape.items, node.capacity):
            self._reservations.take_over(ask, node, out, now_ns)

    def _give_up(self, ask: Ask, check: PredicateCheck, out: Outcome, now_ns: int) -> None:
        """Cancels the ask's reservation of a node that was refused."""
        for node in check.nodes.values():
            if ask.reserved_node == node.node_id:
                self._reservations.unreserve(ask, out, now_ns, "the RM refused the node for the ask")

    def _bring_back(self, ask: Ask, out: Outcome, past: Past) -> None:
        """Puts the ask into the search (again), among asks that are alike or apart from them.

        :param past: the ask's past reasons.
        """
        if ask.gone:
            return
        if ask.group is not None and ask.group.apart != ask.apart:
            self._asks.leave_group(ask, out)
        # A name of its own: after a condition on the attribute, a compiler takes the group for None below.
        joins = ask.group is None and ask.open > 0
        if joins:
            self._asks.enter_group(ask)
            if ask.group is not None:
                self._waiting.carry_history(ask.group, past)
        self._waiting.requeue_app(ask.app)

    def _close(self, check: PredicateCheck, out: Outcome | None) -> None:
        """Closes the check. Later answers to it are ignored."""
        ask = check.ask
        check.gone = True
        for question in check.nodes:
            self.open.pop(question, None)
        self._state.checks.remove(check)
        self._quick.pop(check, None)
        if not check.holds_out:
            del self._aside[ask, check.kind]
            return
        self.turns.release(check)
        if ask.asked is check.asked:
            ask.asked = next(
                (open_check.asked for open_check in self._state.checks.for_ask(ask) if open_check not in self._quick),
                None,
            )
            if out is not None:
                out.mark_changed(ask, self._state.name)
            else:
                self._stale.append(ask)

    # ---- the books -------------------------------------------------------------------------------------------------

    def _book(self, check: PredicateCheck, sign: int) -> None:
        """Counts a proposal on its node and in all limits (1), or stops counting it (-1). Wakes no waitlist."""
        node = check.booked
        assert node is not None, f"{check} is booked nowhere"
        self._books.adjust_proposed(check.ask, node, sign)
        self._count_beside(check, sign)

    def _count_beside(self, check: PredicateCheck, sign: int) -> None:
        """Counts a proposal in its user's use and in its gang (1), or stops counting it (-1)."""
        ask = check.ask
        if ask.app.queue.fair_uses is not None:
            self._fair_shares.propose(ask.app, ask.shape, sign)
        if ask.demand.placeholder:
            self._gangs.adjust_proposed(ask, sign)

    def _give_back(self, check: PredicateCheck) -> None:
        """Takes back a proposal, and wakes the waitlists that wait for its room."""
        app, node = check.ask.app, check.booked
        assert node is not None, f"{check} is booked nowhere"
        self._book(check, -1)
        check.booked = None
        app.share = None
        if app.queue.fair_apps:
            self._waiting.rekey_app(app)
        self._lifecycle.recount(app)
        if not node.gone:
            self._waiting.on_node_gained(node)
        self._waiting.on_limit_gained(app)
        if check.ask.demand.placeholder:
            self._gangs.on_refused(app)
        self._waiting.requeue_app(app)
        self._waiting.requeue_queue(app.queue)

    @property
    def is_at_limit(self) -> bool:
        """Whether the number of open questions is at its limit."""
        return self.predicates and len(self.open) >= self._most_open

    @property
    def has_open(self) -> bool:
        """Whether a question is open, or an agreement is not used yet."""
        return bool(self.open or self._agreed)

    # ---- withdrawal ------------------------------------------------------------------------------------------------

    def withdraw(self, check: PredicateCheck, out: Outcome | None) -> None:
        """Withdraws the check. The caller brings its ask back, if the ask still exists."""
        if check.booked is not None:
            self._give_back(check)
        self._close(check, out)
        if check.placeholder is not None:
            self._gangs.unmark_candidate(check.placeholder)

    def on_ask_removed(self, ask: Ask, out: Outcome | None) -> None:
        """Withdraws all questions about an ask that has ended."""
        for check in self._state.checks.for_ask(ask):
            self.withdraw(check, out)
        for kind in (CheckKind.RESERVE, CheckKind.PREEMPT) if self._aside else ():
            aside = self._aside.get((ask, kind))
            if aside is not None:
                self._close(aside, out)
        self._agreed.pop(ask, None)
        if ask.refusals is not None:
            self._forget(ask, list(ask.refusals.nodes))
            self._refused.pop(ask, None)

    def on_node_removed(self, node: Node, out: Outcome, now_ns: int) -> None:
        """Withdraws the questions about a node that is about to be removed."""
        for check in self._state.checks.about_node(node):
            if check.gone:
                continue
            for question in [question for question, checked_node in check.nodes.items() if checked_node is node]:
                if len(check.nodes) == 1:
                    self.withdraw(check, out)
                    self._bring_back(check.ask, out, check.past)
                    break
                if check.booked is node:
                    self._give_back(check)
                self.open.pop(question, None)
                check.answers.pop(question, None)
                del check.nodes[question]
                self.turns.release_node(check, node)
                if check.is_clear:
                    self._settle(check, out, now_ns)
        self._state.checks.of_nodes.pop(node, None)
        for ask in list(node.refused_by):
            self._forget(ask, [node.node_id])
            out.mark_changed(ask, self._state.name)

    def on_node_shrunk(self, node: Node, out: Outcome) -> None:
        """Withdraws proposals on an over-committed node until the rest fits, the latest first.

        (The answer of the RM does not matter: the scheduler asks again about another node.)
        """
        for check in reversed(self._state.checks.about_node(node)):
            nothing = [(number, 0) for number, _ in check.ask.shape.items]
            if check.booked is node and not fits(nothing, node.available):
                self.withdraw(check, out)
                self._bring_back(check.ask, out, check.past)

    def on_limits_lowered(self, out: Outcome) -> None:
        """Withdraws proposals above a limit that a source lowered, or in which its allocations count now; the latest
        first.
        """
        for check in reversed(dict.fromkeys(self.open.values())):
            ask = check.ask
            over = (
                ledger.allocated[number] > ledger.limit[number]
                for ledger in ask.app.ledgers
                for number, _ in ask.shape.items
            )
            if check.booked is not None and any(over):
                self.withdraw(check, out)
                self._bring_back(ask, out, check.past)

    def withdraw_all(self, out: Outcome) -> None:
        """Withdraws all checks, because the rules change or decisions stop. Their asks are tried and checked again."""
        for check in dict.fromkeys(self.open.values()):
            self.withdraw(check, out)
            self._bring_back(check.ask, out, check.past)
        self._agreed.clear()

    # ---- refusals --------------------------------------------------------------------------------------------------

    def unreservable_nodes(self, ask: Ask) -> list[Node]:
        """The nodes that cannot be reserved for the ask: refused, or being asked about."""
        checks = [check for (_, kind), check in self._aside.items() if kind is CheckKind.RESERVE]
        nodes = self._state.nodes
        refused = [nodes[node_id] for node_id in self.refused_ids(ask) if node_id in nodes]
        return [*refused, *(node for check in checks for node in check.nodes.values())]

    # ---- notifications to the RM -----------------------------------------------------------------------------------

    def notify_skipped(self, group: AskGroup, reason: Reason | None, out: Outcome) -> None:
        """Tells the RM, once for each reason, that a limit stops the first ask of a group."""
        head = group.head()
        if head is None or reason is None or group.notified_skipped == (head.submission, reason.code):
            return
        group.notified_skipped = (head.submission, reason.code)
        self.notify_state(head, SchedulingState.SKIPPED, reason.sentence(), out)

    def notify_state(self, ask: Ask, state: SchedulingState, reason: str, out: Outcome) -> None:
        """Tells the RM the state of an ask, if the RM wants such messages."""
        if self.states:
            out.facts.append(SchedulingStateChanged(ask.app.app_id, ask.key, state, reason))

    # ---- after a fold ----------------------------------------------------------------------------------------------

    def activate(self) -> None:
        """Restores refusals after a fold. No question is open then."""
        for app in self._state.apps.values():
            for allocation in app.allocations.values():
                if allocation.demand.alone:
                    self.turns.enable(allocation.demand.alone)
            for ask in app.asks.values():
                if ask.demand.alone:
                    self.turns.enable(ask.demand.alone)
                if ask.asked is not None:
                    ask.asked = None
                    self._stale.append(ask)
                refusals = ask.refusals
                if refusals is not None:
                    self._refused[ask] = None
                    if refusals.until_ns:
                        self._arm_refusals(ask, refusals, refusals.until_ns)

    def refresh_records(self, out: Outcome) -> None:
        """Corrects the records of asks with a question that is not open any more."""
        for ask in self._stale:
            out.mark_changed(ask, self._state.name)
        self._stale.clear()


def _no_number() -> int:
    raise AssertionError("a core that decides nothing asks nothing")
