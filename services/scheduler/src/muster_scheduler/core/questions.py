"""Asks the RM before something is decided, and does what it says (seed 000, "Scheduler plugin").

An RM that wants it is asked before an ask is placed. Many are asked at the same time, so a placement is *proposed*:
it counts on its node and in its limits from then on, but is neither recorded nor told. A yes makes it an allocation. A
no gives everything back; the node is refused for that ask, which then stands *apart* from those like it, because what
holds for them holds for it no more.

* An ask that was refused once is asked about more nodes at a time, up to :data:`PROBE_NODES_MAX`: one that may run on
  few nodes of thousands finds them in a few rounds. Such a probe counts on the best of them only; else the first node
  that will do and still has room is taken.
* Refusals are forgotten after a pause, which grows; and when the node itself changes. What the RM checks may have
  changed without a word of it here.
* No answer in time is a no for now.
* What is being asked lives in memory only: after a restart it is asked anew; answers to older questions are nobody's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from muster_scheduler.core.inquiries import (
    SECOND_NS,
    CallbackPolicy,
    Inquiry,
    InquiryKind,
    Refusal,
    Refusals,
)
from muster_scheduler.core.objects import Allocation, Ask, AskGroup, Node
from muster_scheduler.core.outcome import (
    Outcome,
    PredicatesAsked,
    PreemptionPredicatesAsked,
    QuestionRefused,
    SchedulingState,
    SchedulingStateChanged,
)
from muster_scheduler.core.past import Past
from muster_scheduler.core.reasons import Reason, ReasonCode
from muster_scheduler.core.resources import add, fits, subtract

if TYPE_CHECKING:
    from muster_scheduler.core.partition import Partition

# Nodes asked about at once for an ask that was refused before. Each costs the RM a check, so not at the first try.
PROBE_NODES_MAX = 32
# After so long without an answer the ask says what it waits for, in its record too.
SLOW_NS = SECOND_NS
# The pause before refusals are forgotten doubles up to this.
RETRY_MAX_NS = 60 * SECOND_NS
# Of an RM's reason kept.
REASON_CHARACTERS_MAX = 256


class Questions:
    """What the RM of one partition is being asked.

    :ivar predicates: it is asked before something is placed; likewise ``preemption``, and ``states``: it is told.
    :ivar silent: it wants to be asked, its stream is gone, and it said that nothing is to be placed then.
    :ivar number: gives the next question's number, unique for the RM.
    :ivar open: by question id, oldest first.
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.policy = CallbackPolicy()
        self.predicates = self.preemption = self.states = False
        self.number: Callable[[], int] = _no_number
        self.silent = False
        self.open: dict[int, Inquiry] = {}
        self.gone = False
        # Those whose asks do not say yet what they wait for, oldest first.
        self._quick: dict[Inquiry, None] = {}
        self._aside: dict[tuple[Ask, InquiryKind], Inquiry] = {}
        # Preemptions that the RM agreed to: where, and who may go.
        self._agreed: dict[Ask, tuple[Node, frozenset[Allocation]]] = {}
        self._refused: dict[Ask, None] = {}
        # Of asks whose records say that the RM is asked, which it is not any more.
        self._stale: list[Ask] = []
        # Deadlines that it waits for: the first answer that is late, or missed for long; the end of the grace.
        self._due_ns = self._lost_ns = 0

    # ---- who is asked what -----------------------------------------------------------------------------------------

    def take_policy(self, policy: CallbackPolicy, out: Outcome, now_ns: int) -> None:
        """The RM's stream was opened, or is gone."""
        self.policy = policy
        self._review_policy(out, now_ns)
        if policy.connected:
            for ask in list(self._refused):
                self._forget_unanswered(ask, out)

    def _review_policy(self, out: Outcome, now_ns: int) -> None:
        policy = self.policy
        lost_ns = policy.since_ns + policy.grace_ns
        there = policy.connected or now_ns < lost_ns
        self.predicates = policy.predicates and (there or policy.waits)
        self.preemption = policy.preemption and (there or policy.waits)
        self.states = policy.states and there
        if there and not policy.connected and lost_ns != self._lost_ns:
            self._lost_ns = lost_ns
            self._partition.deadlines.append((lost_ns, self))
        self.silent = policy.waits and not there
        if self.silent:
            self._partition.deciding = False
            self.withdraw_all(out)
        self._accept_unwanted(out, now_ns)
        if not self.predicates:
            for ask in [ask for ask in self._refused if ask.refusals is not None and ask.refusals.nodes]:
                assert ask.refusals is not None, f"nothing is refused for {ask}"
                ask.refusals.until_ns = 0
                self._forgive(ask, list(ask.refusals.nodes), out)

    def _accept_unwanted(self, out: Outcome, now_ns: int) -> None:
        """What nobody is there any more to refuse, or wants to be asked."""
        for inquiry in dict.fromkeys(self.open.values()):
            wanted = self.preemption if inquiry.kind is InquiryKind.PREEMPT else self.predicates
            for question in () if wanted else list(inquiry.nodes):
                if not inquiry.gone:
                    self.answer(question, True, "", out, now_ns)

    def come(self, out: Outcome, now_ns: int) -> None:
        """Its deadline has come: answers that are late, or the end of the grace after the stream was lost."""
        if not self.policy.connected and not self.silent and (self.predicates or self.preemption or self.states):
            self._review_policy(out, now_ns)
        for inquiry in list(self._quick):
            if inquiry.asked.since_ns + SLOW_NS > now_ns:
                break
            del self._quick[inquiry]
            if inquiry.ask.asked is None and inquiry.holds_out:
                inquiry.ask.asked = inquiry.asked
                out.touch(inquiry.ask, self._partition.name)
        late = [question for question, inquiry in self.open.items() if inquiry.due_ns <= now_ns]
        over = f"no answer within {self.policy.timeout_ns / SECOND_NS:g} s"
        for question in late:
            self.answer(question, False, over, out, now_ns, unanswered=True)
        if now_ns >= self._due_ns:
            self._due_ns = 0
            # (Not the oldest one's: the time for an answer may be another one now.)
            self._arm(min((inquiry.due_ns for inquiry in self.open.values()), default=0))
            if self._quick:
                self._arm(next(iter(self._quick)).asked.since_ns + SLOW_NS)

    def _arm(self, due_ns: int) -> None:
        """Asks for a deadline: the next answer that is late, or that is missed for long."""
        if due_ns and (not self._due_ns or due_ns < self._due_ns):
            self._due_ns = due_ns
            self._partition.deadlines.append((due_ns, self))

    # ---- questions -------------------------------------------------------------------------------------------------

    def place(self, ask: Ask, group: AskGroup, node: Node, out: Outcome, now_ns: int) -> None:
        """Proposes an allocation: on this node, or on the first of several that will do."""
        if ask.told:
            self._partition.telling.passed(ask, out, now_ns)
        if ask.app.reason is not None:
            self._partition.waiting.may_run(ask.app, out, now_ns)
        refusals, nodes = ask.refusals, [node]
        answered = refusals.answered if refusals is not None else 0
        if refusals is not None and answered and node is not ask.reserved and not ask.demand.required_node:
            # (Of an ask with repeats one at a time looks far.)
            probing = any(each.kind is InquiryKind.PROBE for each in ask.inquiries or ())
            wanted = 1 if probing else min(2 * answered, PROBE_NODES_MAX)
            nodes = self._partition.index.fitting(ask.shape.items, refusals.nodes, wanted) or nodes
        kind = InquiryKind.PLACE if len(nodes) == 1 else InquiryKind.PROBE
        inquiry = self._ask(kind, ask, nodes, True, out, now_ns)
        inquiry.booked = nodes[0]
        self._book(inquiry, 1)
        self._partition.lifecycle.recount(ask.app)
        self._hold_out(inquiry, group, out, now_ns)

    def court(self, ask: Ask, group: AskGroup, placeholder: Allocation, node: Node, out: Outcome, now_ns: int) -> None:
        """Proposes that a placeholder makes room for a real ask, to run there or on another node."""
        elsewhere = node.node_id != placeholder.node_id
        inquiry = self._ask(InquiryKind.REPLACE, ask, [node], elsewhere, out, now_ns)
        inquiry.placeholder = placeholder
        self._partition.gangs.court(placeholder, inquiry)
        self._hold_out(inquiry, group, out, now_ns)

    def reserve(self, ask: Ask, node: Node, out: Outcome, now_ns: int) -> None:
        """Proposes to keep a node free for an ask."""
        if (ask, InquiryKind.RESERVE) not in self._aside:
            self._ask(InquiryKind.RESERVE, ask, [node], False, out, now_ns)

    def may_preempt(
        self,
        ask: Ask,
        node: Node | None,
        victims: Sequence[Allocation],
        further: Sequence[Allocation],
        out: Outcome,
        now_ns: int,
    ) -> frozenset[Allocation] | None:
        """Who of ``further`` must go too, for the RM to let the ask to the node; None: it is being asked.

        :param victims: those who go in any case.
        :param further: those who may, the first ones first.
        """
        if not self.preemption or node is None:
            return frozenset()
        agreed = self._agreed.pop(ask, None)  # (to another plan: it may say otherwise by now)
        if agreed is not None and agreed[0] is node and agreed[1].issuperset(victims):
            more = frozenset(each for each in agreed[1].difference(victims) if not each.gone and not each.told)
            if more.issubset(further):
                return more
        if (ask, InquiryKind.PREEMPT) not in self._aside:
            inquiry = self._inquiry(InquiryKind.PREEMPT, ask, [node], now_ns)
            inquiry.victims, inquiry.least = (*victims, *further), len(victims)
            self._file(inquiry)
            out.facts.append(
                PreemptionPredicatesAsked(
                    next(iter(inquiry.nodes)),
                    self._partition.name,
                    ask.app.app_id,
                    ask.key,
                    node.node_id,
                    tuple((victim.app_id, victim.key) for victim in inquiry.victims),
                    inquiry.least,
                    inquiry.due_ns,
                )
            )
        return None

    def _ask(
        self, kind: InquiryKind, ask: Ask, nodes: Sequence[Node], allocate: bool, out: Outcome, now_ns: int
    ) -> Inquiry:
        inquiry = self._inquiry(kind, ask, nodes, now_ns)
        self._file(inquiry)
        name, due_ns = self._partition.name, inquiry.due_ns
        for question, node in inquiry.nodes.items():
            out.facts.append(PredicatesAsked(question, name, ask.app.app_id, ask.key, node.node_id, allocate, due_ns))
        return inquiry

    def _inquiry(self, kind: InquiryKind, ask: Ask, nodes: Sequence[Node], now_ns: int) -> Inquiry:
        """A question for each of the nodes, not filed yet."""
        due_ns = now_ns + self.policy.timeout_ns
        return Inquiry(kind, ask, {self.number(): node for node in nodes}, now_ns, due_ns)

    def _file(self, inquiry: Inquiry) -> None:
        ask = inquiry.ask
        for question, node in inquiry.nodes.items():
            self.open[question] = inquiry
            node.inquiries[inquiry] = None
        self._quick[inquiry] = None
        if inquiry.holds_out:
            if ask.inquiries is None:
                ask.inquiries = {}
            ask.inquiries[inquiry] = None
        else:
            self._aside[ask, inquiry.kind] = inquiry
        self._arm(min(inquiry.due_ns, inquiry.asked.since_ns + SLOW_NS))

    def _hold_out(self, inquiry: Inquiry, group: AskGroup, out: Outcome, now_ns: int) -> None:
        """The ask is not tried while the RM is asked; the next one of its list may be."""
        ask, waiting = inquiry.ask, self._partition.waiting
        app = ask.app
        inquiry.past = waiting.past_of(group, now_ns)
        if app.queue.fair_apps:
            app.share = None
            waiting.rekey(app)
        if ask.open <= 0:
            self._partition.leave_group(ask, out)
        if not waiting.refresh_app(app):
            waiting.refresh(app.queue)
        if group.asks:
            waiting.wake_next(group)

    # ---- answers ---------------------------------------------------------------------------------------------------

    def answer(
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
        """Takes one answer. One that nobody waits for (any more) changes nothing.

        :param index: of victims, the last one that must go.
        """
        inquiry = self.open.pop(question, None)
        if inquiry is None:
            return
        inquiry.answers[question] = None if fits else reason[:REASON_CHARACTERS_MAX]
        # (An index that names no victim says nothing: nobody goes whom the RM did not name.)
        inquiry.going = max(index + 1, inquiry.least) if index < len(inquiry.victims) else inquiry.least
        node = inquiry.nodes[question]
        if not fits:
            out.facts.append(QuestionRefused(question, unanswered))
            refusal = Refusal(node.node_id, reason[:REASON_CHARACTERS_MAX], now_ns, unanswered)
            self._refuse(inquiry.ask, refusal, node, out, now_ns)
        if inquiry.is_clear:
            self._settle(inquiry, out, now_ns)

    def _settle(self, inquiry: Inquiry, out: Outcome, now_ns: int) -> None:
        """What matters is answered."""
        ask, partition = inquiry.ask, self._partition
        agreed = [node for question, node in inquiry.nodes.items() if inquiry.answers.get(question, "") is None]
        node = agreed[0] if agreed else None
        if node is not None and inquiry.booked is node and self._may_use(ask, node):
            self._book(inquiry, -1, again=True)
            self._close(inquiry, out)
            partition.cycle.allocate(ask, ask.group, node, out, now_ns)
            partition.lifecycle.recount(ask.app)
            return
        if inquiry.booked is not None:
            self._give_back(inquiry)
        self._close(inquiry, out)
        if not agreed:
            self._give_up(ask, inquiry, out, now_ns)
        done = False
        match inquiry.kind:
            case InquiryKind.PROBE:
                done = self._take_first(ask, agreed, out, now_ns)
            case InquiryKind.REPLACE:
                assert inquiry.placeholder is not None, f"{inquiry} replaces nothing"
                partition.gangs.uncourt(inquiry.placeholder)
                if node is not None:
                    done = partition.gangs.agreed(inquiry.placeholder, ask, node, out, now_ns)
            case InquiryKind.RESERVE if node is not None:
                self._keep_free(ask, node, out, now_ns)
            case InquiryKind.PREEMPT if node is not None and ask.group is not None:
                self._agreed[ask] = (node, frozenset(inquiry.victims[: inquiry.going]))
                waitlist = ask.app.queue.waitlists.get(ask.group.wait_key)
                if waitlist is not None:
                    partition.claims.come(waitlist)
        if not done:
            apart = ask.group is not None and ask.group.apart != ask.apart
            past = partition.waiting.past_of(ask.group, now_ns) if apart and ask.group is not None else inquiry.past
            self._bring_back(ask, out, past)

    def _take_first(self, ask: Ask, agreed: Sequence[Node], out: Outcome, now_ns: int) -> bool:
        cycle = self._partition.cycle
        if not self._partition.deciding or cycle.held_back(ask):
            return False
        for node in agreed:
            if node.index_key is not None and fits(ask.shape.items, node.available):
                cycle.allocate(ask, ask.group, node, out, now_ns)
                return True
        return False

    def _may_use(self, ask: Ask, node: Node) -> bool:
        """Of a node that has room: whether it may still be used."""
        return self._partition.deciding and (node.usable or bool(ask.demand.required_node))

    def _keep_free(self, ask: Ask, node: Node, out: Outcome, now_ns: int) -> None:
        waits = ask.group is not None and ask.group.parked_key is not None and ask.reserved is None
        # (It may have refused the node meanwhile, in another matter of the ask.)
        listed = node.index_key is not None and node.node_id not in self.refused(ask)
        if waits and listed and fits(ask.shape.items, node.capacity):
            self._partition.reserve(ask, node, out, now_ns)

    def _give_up(self, ask: Ask, inquiry: Inquiry, out: Outcome, now_ns: int) -> None:
        """What is kept free for the ask, and was refused."""
        for node in inquiry.nodes.values():
            if ask.reserved is node:
                self._partition.unreserve(ask, out, now_ns)

    def _bring_back(self, ask: Ask, out: Outcome, past: Past) -> None:
        """The ask is to be tried (again), among its like or apart from them.

        :param past: what it has waited for.
        """
        partition = self._partition
        if ask.gone:
            return
        if ask.group is not None and ask.group.apart != ask.apart:
            partition.leave_group(ask, out)
        if ask.group is None and ask.open > 0:
            partition.enter_group(ask)
            if ask.group is not None:
                partition.waiting.carry(ask.group, past)
        partition.waiting.refresh_app(ask.app)

    def _close(self, inquiry: Inquiry, out: Outcome | None) -> None:
        """The inquiry is over; late answers to it are nobody's."""
        ask = inquiry.ask
        inquiry.gone = True
        for question, node in inquiry.nodes.items():
            self.open.pop(question, None)
            node.inquiries.pop(inquiry, None)
        self._quick.pop(inquiry, None)
        if not inquiry.holds_out:
            del self._aside[ask, inquiry.kind]
            return
        if ask.inquiries is not None:
            ask.inquiries.pop(inquiry, None)
            if not ask.inquiries:
                ask.inquiries = None
        if ask.asked is inquiry.asked:
            slow = (each.asked for each in ask.inquiries or () if each not in self._quick)
            ask.asked = next(slow, None)
            if out is not None:
                out.touch(ask, self._partition.name)
            else:
                self._stale.append(ask)

    # ---- the books -------------------------------------------------------------------------------------------------

    def _book(self, inquiry: Inquiry, sign: int, *, again: bool = False) -> None:
        """Counts (or no more) what is proposed, on its node and in all limits. Wakes nobody.

        ``again``: the same is booked as an allocation at once, so that the node keeps its place in the search.
        """
        ask, partition = inquiry.ask, self._partition
        app, items, node = ask.app, ask.shape.items, inquiry.booked
        assert node is not None, f"{inquiry} is booked nowhere"
        partition.version += 1
        app.proposed += sign
        change = add if sign > 0 else subtract
        change(node.allocated, items)
        change(app.allocated, items)
        for ledger in app.ledgers:
            change(ledger.allocated, items)
        for number, value in items:
            node.available[number] -= sign * value
        if node.lent:
            partition.offers.moved[node.node_id] = None
        if not again:
            partition.figures.changed(node)
            if node.index_key is not None:
                partition.index.move(node, partition.node_books.score(node))
        if ask.demand.placeholder:
            partition.gangs.propose(ask, sign)

    def _give_back(self, inquiry: Inquiry) -> None:
        """What was proposed will not be: whoever waits for the room may have it."""
        app, partition, node = inquiry.ask.app, self._partition, inquiry.booked
        assert node is not None, f"{inquiry} is booked nowhere"
        self._book(inquiry, -1)
        inquiry.booked = None
        app.share = None
        if app.queue.fair_apps:
            partition.waiting.rekey(app)
        partition.lifecycle.recount(app)
        if not node.gone:
            partition.waiting.node_gained(node)
        partition.waiting.ledgers_gained(app)
        if inquiry.ask.demand.placeholder:
            partition.gangs.not_placed(app)
        partition.waiting.refresh_app(app)
        partition.waiting.refresh(app.queue)

    @property
    def concern_somebody(self) -> bool:
        """Something is asked or agreed."""
        return bool(self.open or self._agreed)

    # ---- withdrawn -------------------------------------------------------------------------------------------------

    def withdraw(self, inquiry: Inquiry, out: Outcome | None) -> None:
        """The matter is no more; its ask, if it is there, is brought back by the caller."""
        if inquiry.booked is not None:
            self._give_back(inquiry)
        self._close(inquiry, out)
        if inquiry.placeholder is not None:
            self._partition.gangs.uncourt(inquiry.placeholder)

    def ask_gone(self, ask: Ask, out: Outcome | None) -> None:
        """Nobody asks any more."""
        for inquiry in list(ask.inquiries or ()):
            self.withdraw(inquiry, out)
        for kind in (InquiryKind.RESERVE, InquiryKind.PREEMPT):
            aside = self._aside.get((ask, kind))
            if aside is not None:
                self._close(aside, out)
        self._agreed.pop(ask, None)
        if ask.refusals is not None:
            self._forget(ask, list(ask.refusals.nodes))
            self._refused.pop(ask, None)

    def node_gone(self, node: Node, out: Outcome, now_ns: int) -> None:
        """The node is about to go: nobody needs to be asked about it."""
        for inquiry in list(node.inquiries):
            if inquiry.gone:
                continue
            for question in [question for question, each in inquiry.nodes.items() if each is node]:
                if len(inquiry.nodes) == 1:
                    self.withdraw(inquiry, out)
                    self._bring_back(inquiry.ask, out, inquiry.past)
                    break
                if inquiry.booked is node:
                    self._give_back(inquiry)
                self.open.pop(question, None)
                inquiry.answers.pop(question, None)
                del inquiry.nodes[question]
                if inquiry.is_clear:
                    self._settle(inquiry, out, now_ns)
        node.inquiries.clear()
        for ask in list(node.refused_by):
            self._forget(ask, [node.node_id])
            out.touch(ask, self._partition.name)

    def node_shrank(self, node: Node, out: Outcome) -> None:
        """The node has less than it holds: what is only proposed there will not be, the latest first.

        (Whatever the RM answers, it is asked anew about another place.)
        """
        for inquiry in reversed(list(node.inquiries)):
            nothing = [(number, 0) for number, _ in inquiry.ask.shape.items]
            if inquiry.booked is node and not fits(nothing, node.available):
                self.withdraw(inquiry, out)
                self._bring_back(inquiry.ask, out, inquiry.past)

    def withdraw_all(self, out: Outcome) -> None:
        """The rules change, or nothing is decided any more: what is open will be asked anew, if at all."""
        for inquiry in dict.fromkeys(self.open.values()):
            self.withdraw(inquiry, out)
            self._bring_back(inquiry.ask, out, inquiry.past)
        self._agreed.clear()

    # ---- refusals --------------------------------------------------------------------------------------------------

    def not_to_keep(self, ask: Ask) -> list[Node]:
        """The nodes that are not to be kept free for the ask: refused, or perhaps kept for another one."""
        asked = [each.nodes for (_, kind), each in self._aside.items() if kind is InquiryKind.RESERVE]
        nodes = self._partition.nodes
        refused = [nodes[node_id] for node_id in self.refused(ask) if node_id in nodes]
        return [*refused, *(node for each in asked for node in each.values())]

    def refused(self, ask: Ask) -> Collection[str]:
        """The ids of the nodes that the RM refused for the ask."""
        return ask.refusals.nodes if ask.refusals is not None else ()

    def _refuse(self, ask: Ask, refusal: Refusal, node: Node, out: Outcome, now_ns: int) -> None:
        if ask.refusals is None:
            ask.refusals = Refusals(ask)
        refusals = ask.refusals
        self._refused[ask] = None
        refusals.nodes[refusal.node_id] = refusal
        node.refused_by[ask] = None
        out.touch(ask, self._partition.name)
        pause_ns = min(self.policy.retry_ns << min(refusals.rounds, 16), RETRY_MAX_NS)
        refusals.until_ns = now_ns + max(pause_ns, self.policy.retry_ns)
        if not refusals.armed:
            refusals.armed = True
            self._partition.deadlines.append((refusals.until_ns, refusals))

    def _forget(self, ask: Ask, node_ids: Collection[str]) -> None:
        assert ask.refusals is not None, f"nothing is refused for {ask}"
        for node_id in node_ids:
            if ask.refusals.nodes.pop(node_id, None) is not None:
                node = self._partition.nodes.get(node_id)
                if node is not None:
                    node.refused_by.pop(ask, None)

    def _forget_unanswered(self, ask: Ask, out: Outcome) -> None:
        refusals = ask.refusals
        unanswered = [each.node_id for each in refusals.nodes.values() if each.unanswered] if refusals else []
        if unanswered:
            self._forgive(ask, unanswered, out)

    def node_changed(self, node: Node, out: Outcome) -> None:
        """What the RM said of the node may hold no more."""
        for ask in list(node.refused_by):
            self._forgive(ask, [node.node_id], out)

    def retry(self, refusals: Refusals, out: Outcome, now_ns: int) -> None:
        """The pause is over: the RM is asked anew."""
        if now_ns < refusals.until_ns:  # it was refused again meanwhile
            refusals.armed = True
            self._partition.deadlines.append((refusals.until_ns, refusals))
            return
        refusals.until_ns = 0
        refusals.rounds += 1
        self._forgive(refusals.ask, list(refusals.nodes), out)

    def _forgive(self, ask: Ask, node_ids: Collection[str], out: Outcome) -> None:
        """The nodes are as good as any again: the ask that was refused there is looked at once more."""
        self._forget(ask, node_ids)
        partition, group = self._partition, ask.group
        out.touch(ask, partition.name)
        if group is None:
            return
        if group.held:
            partition.gangs.look_again_at(group)
        elif group.parked_key is not None:
            partition.waiting.leave_list(group, out)
            partition.waiting.make_ready(group)

    def why_refused(self, group: AskGroup) -> Reason | None:
        """Why an ask that stands apart finds no node although there is room; None: there is none."""
        ask = group.head()
        if ask is None or ask.refusals is None or (last := ask.refusals.last) is None:
            return None
        items, required = group.shape.items, group.required_node
        node = self._partition.nodes.get(required) if required else self._partition.index.first_fit(items)
        if node is None or not fits(items, node.available) or (required and required not in ask.refusals.nodes):
            return None
        return Reason(ReasonCode.REFUSED_BY_RM, nodes=len(ask.refusals.nodes), node=last.node_id, said=last.reason)

    # ---- what the RM is told ---------------------------------------------------------------------------------------

    def skipped(self, group: AskGroup, reason: Reason | None, out: Outcome) -> None:
        """The first ask of a group was looked at, and a limit stands against it: told once for each reason."""
        head = group.head()
        if head is None or reason is None or group.told_skipped == (head.submission, reason.code):
            return
        group.told_skipped = (head.submission, reason.code)
        self.tell(head, SchedulingState.SKIPPED, reason.sentence(), out)

    def tell(self, ask: Ask, state: SchedulingState, reason: str, out: Outcome) -> None:
        """Tells the RM where an ask stands, if it wants to know."""
        if self.states:
            out.facts.append(SchedulingStateChanged(ask.app.app_id, ask.key, state, reason))

    # ---- after a fold ----------------------------------------------------------------------------------------------

    def activate(self) -> None:
        """After a fold nobody is being asked; refusals hold on."""
        for app in self._partition.apps.values():
            for ask in app.asks.values():
                if ask.asked is not None:
                    ask.asked = None
                    self._stale.append(ask)
                refusals = ask.refusals
                if refusals is not None:
                    self._refused[ask] = None
                    if refusals.until_ns:
                        refusals.armed = True
                        self._partition.deadlines.append((refusals.until_ns, refusals))

    def refresh_records(self, out: Outcome) -> None:
        """Records that say that the RM is asked, which it is not any more."""
        for ask in self._stale:
            out.touch(ask, self._partition.name)
        self._stale.clear()


def _no_number() -> int:
    raise AssertionError("a core that decides nothing asks nothing")
