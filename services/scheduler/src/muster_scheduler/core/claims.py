"""The rights of those who wait long: a node kept free, the preemption of others, a word to the autoscaler.

A waitlist that is parked asks for its turn (`_ask`): a deadline at the age at which its first ask may reserve,
or one of them preempt. When it has come, the cycle gives it the turn after its normal search, so that nothing is
reserved or preempted for what simply fits. What could not be helped is tried again only when something changed, and
then at whole multiples of :data:`RETRY_NS` after it first came to its right: asks that wait for ever cost nothing
while nothing moves, and when a list is tried depends on what is recorded only, so that a restart changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from muster_scheduler.core import preemption
from muster_scheduler.core.objects import Ask, AskGroup, Waitlist
from muster_scheduler.core.outcome import Outcome, TooSmallCluster
from muster_scheduler.core.reasons import PreemptionNo, ReasonCode

if TYPE_CHECKING:
    from muster_scheduler.core.partition import Partition

# Between two tries of the same list (the real core's interval between preemption checks of an ask).
RETRY_NS = 15 * 1_000_000_000
# Turns in one cycle, and preemptions for one leaf in it: the rest comes in the next, behind what came in meanwhile.
TURNS_MAX = 100
PREEMPTIONS_PER_LEAF_MAX = 10
# Searches for victims in one cycle: in a large cluster each may take tens of milliseconds, and requests wait meanwhile.
SEARCHES_MAX = 20
# How long asks are collected before the RM is told that the cluster is too small for them.
REPORT_NS = 1_000_000_000


class Claims:
    """Reservations, preemption and autoscaling signals of one partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        # Whose turn it is; in it, the groups that had theirs already.
        self._due: dict[Waitlist, dict[AskGroup, None]] = {}
        self._idle: dict[Waitlist, None] = {}
        self._idle_version = -1
        self._unreported: dict[Waitlist, None] = {}
        self._stuck: dict[AskGroup, None] = {}
        # Those of them that a limit held back when it was looked: until something changes.
        self._limited: dict[Waitlist, None] = {}
        self.report_ns = 0
        self.gone = False

    @property
    def waiting(self) -> bool:
        """Somebody's turn has come and was not given yet."""
        return bool(self._due)

    # ---- when ------------------------------------------------------------------------------------------------------

    def parked(self, out: Outcome, now_ns: int) -> None:
        """After a search: those who were parked in it ask for their turn."""
        partition = self._partition
        parked, partition.waiting.parked = partition.waiting.parked, {}
        lists: dict[Waitlist, None] = {}
        for group in parked:
            waitlist = group.app.queue.waitlists.get(group.wait_key)
            if group.parked_key is None or waitlist is None:
                continue
            if not waitlist.holds:  # the budget ran out before it was tried
                partition.waiting.parked[group] = None
                continue
            lists[waitlist] = None
            if group.unreported:
                waitlist.unreported[group] = None
            if partition.questions.states and waitlist.place is not partition.waiting.no_node:
                partition.questions.skipped(group, waitlist.reason, out)
            self._ask(waitlist, (*self._rights_of_first(waitlist), *self._rights_of(waitlist, group)), now_ns)
        for waitlist in lists:
            waitlist.tried = True
            if waitlist.unreported and waitlist.place is partition.waiting.no_node:
                self._unreported[waitlist] = None
        if self._idle_version != partition.version:
            self._unreported |= self._limited
            self._limited.clear()
        if self._unreported:
            self._collect(now_ns)
        if self._idle and self._idle_version != partition.version:
            idle, self._idle = self._idle, {}
            for waitlist in idle:
                if waitlist.gone:
                    continue
                if waitlist.holds:
                    self._ask(waitlist, self._rights_since(waitlist), now_ns)
                else:  # the budget ran out before it was tried
                    self._idle[waitlist] = None
        self._idle_version = partition.version

    def stuck(self, group: AskGroup, now_ns: int) -> None:
        """Placeholders could make room for these asks, but they fit on no node (seed 003: that triggers scale-up)."""
        if group.unreported:
            self._stuck[group] = None
            self._collect(now_ns)

    def _collect(self, now_ns: int) -> None:
        if not self.report_ns:
            self.report_ns = (now_ns // REPORT_NS + 1) * REPORT_NS
            self._partition.deadlines.append((self.report_ns, self))

    def _ask(self, waitlist: Waitlist, rights_since: Iterable[int], now_ns: int) -> None:
        """Sets the list's deadline, when there is anything that waiting may bring."""
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
            self.come(waitlist)
        elif not waitlist.due_ns or due < waitlist.due_ns:
            self._set_due(waitlist, due)

    def _set_due(self, waitlist: Waitlist, due_ns: int) -> None:
        waitlist.due_ns = due_ns
        self._partition.deadlines.append((due_ns, waitlist))

    def come(self, waitlist: Waitlist) -> None:
        """The list's deadline has come."""
        waitlist.due_ns = waitlist.seen_ns = 0
        self._due.setdefault(waitlist, {})

    def _rights_since(self, waitlist: Waitlist) -> Iterator[int]:
        """From when on the list's first ask may reserve, and each group's next one preempt."""
        yield from self._rights_of_first(waitlist)
        for *_, group in waitlist.groups:
            yield from self._rights_of(waitlist, group)

    def _rights_of_first(self, waitlist: Waitlist) -> Iterator[int]:
        head = _head(waitlist)
        if head is None:
            return
        if self._may_reserve(waitlist, head):
            yield head.created_ns + (0 if waitlist.required_node else self._partition.config.reservation.delay_ns)
        if waitlist.required_node and head.reserved is not None and not head.preempts:
            yield head.created_ns

    def _rights_of(self, waitlist: Waitlist, group: AskGroup) -> Iterator[int]:
        if group.preempts and not waitlist.required_node and self._partition.config.preemption.enabled:
            asking = _not_yet_preempting(group)
            if asking is not None:
                yield asking.created_ns + waitlist.leaf.policy.preemption_delay_ns

    def _preempting_groups(self, waitlist: Waitlist) -> list[AskGroup]:
        if not self._partition.config.preemption.enabled:
            return []
        return [group for *_, group in waitlist.groups if group.preempts]

    def _may_reserve(self, waitlist: Waitlist, head: Ask) -> bool:
        if head.reserved is not None or waitlist.reason is None:
            return False
        if waitlist.required_node:
            refused = self._partition.questions.refused(head)
            return waitlist.required_node in self._partition.nodes and waitlist.required_node not in refused
        return (
            self._partition.config.reservation.enabled
            and waitlist.place is self._partition.waiting.no_node
            and waitlist.reason.code not in (ReasonCode.LARGER_THAN_ANY_NODE, ReasonCode.NO_NODES)
        )

    # ---- turns -----------------------------------------------------------------------------------------------------

    def run(self, out: Outcome, now_ns: int) -> None:
        """Gives those their turns whose time has come."""
        attempts: dict[str, int] = {}
        if self._due:
            for waitlist in sorted(self._due, key=_most_urgent)[:TURNS_MAX]:
                had_theirs = self._due.pop(waitlist)
                if waitlist.gone:
                    continue
                if not waitlist.holds:  # the budget ran out before it was tried
                    self._due[waitlist] = had_theirs
                    continue
                self._turn(waitlist, had_theirs, attempts, out, now_ns)
        if self.report_ns and now_ns >= self.report_ns:
            self._report(out, now_ns)

    def _turn(
        self,
        waitlist: Waitlist,
        had_theirs: dict[AskGroup, None],
        attempts: dict[str, int],
        out: Outcome,
        now_ns: int,
    ) -> None:
        # 1. Whose application may not run any more waits for that, not here.
        head = _head(waitlist)
        while head is not None and (full := self._partition.cycle.full_ledger(head.app)) is not None:
            self._partition.waiting.wait_to_run(head.app, full, out, now_ns)
            head = _head(waitlist)
        if head is None:
            return
        waitlist.tried = True  # whoever is the first now: this is the turn
        # 2. A node for the first of them.
        if self._may_reserve(waitlist, head) and not self._partition.cycle.held_back(head):
            self._reserve(waitlist, head, out, now_ns)
        # 3. Others make room.
        finished = True
        if waitlist.required_node:
            self._preempt_on_required_node(waitlist, head, out, now_ns)
        else:
            no: PreemptionNo | None = None
            for group in self._preempting_groups(waitlist):
                if group not in had_theirs:
                    finished, its_no = self._preempt_for(waitlist, group, attempts, out, now_ns)
                    no = its_no or no
                    if not finished:
                        break
                    had_theirs[group] = None
            if no is not None:  # once for all of them: a turn that ends as the last one did writes nothing
                self._say_no(waitlist, no, out)
        # 4. What could not be helped now is tried again when something changed.
        if not finished:
            self._due[waitlist] = had_theirs
            return
        later = []
        for since_ns in self._rights_since(waitlist):
            if since_ns <= now_ns:
                self._idle[waitlist] = None
            else:
                later.append(since_ns)
        if later:
            self._set_due(waitlist, min(later))

    def _reserve(self, waitlist: Waitlist, head: Ask, out: Outcome, now_ns: int) -> None:
        partition = self._partition
        if waitlist.required_node:
            node = partition.nodes[waitlist.required_node]
            if any(value > node.capacity[number] for number, value in head.shape.items):
                return
            for other in [ask for ask in node.reservations if not ask.demand.required_node]:
                partition.unreserve(other, out, now_ns)
            partition.reserve(head, node, out, now_ns)
        elif now_ns >= head.created_ns + partition.config.reservation.delay_ns:
            best = partition.figures.best_to_keep(head.shape, partition.questions.not_to_keep(head))
            if best is not None and partition.questions.predicates:
                partition.questions.reserve(head, best, out, now_ns)
            elif best is not None:
                partition.reserve(head, best, out, now_ns)

    def reservation_timed_out(self, ask: Ask, out: Outcome, now_ns: int) -> None:
        """Gives the node up of an ask that a limit holds back; one that waits for room keeps it (§2.13)."""
        if ask.reserved is None:
            return
        timeout_ns = self._partition.config.reservation.timeout_ns
        due_ns = ask.reserved_ns + timeout_ns
        if now_ns >= due_ns:
            if not ask.awaits_placeholders and self._partition.cycle.held_back(ask):
                self._partition.unreserve(ask, out, now_ns)
                return
            due_ns = now_ns + timeout_ns
        self._partition.deadlines.append((due_ns, ask))

    # ---- preemption ------------------------------------------------------------------------------------------------

    def _preempt_for(
        self, waitlist: Waitlist, group: AskGroup, attempts: dict[str, int], out: Outcome, now_ns: int
    ) -> tuple[bool, PreemptionNo | None]:
        """Says whether everything was tried that may be tried now, and why the last try did not help."""
        partition, leaf = self._partition, waitlist.leaf
        while (asking := _not_yet_preempting(group)) is not None:
            if now_ns < asking.created_ns + leaf.policy.preemption_delay_ns:
                break
            if attempts.get(leaf.path, 0) >= PREEMPTIONS_PER_LEAF_MAX or sum(attempts.values()) >= SEARCHES_MAX:
                return False, None
            attempts[leaf.path] = attempts.get(leaf.path, 0) + 1
            found = preemption.search(partition, asking, now_ns)
            if isinstance(found, PreemptionNo):
                return True, found
            agreed = self._agreed(found, asking, out, now_ns)
            if agreed is None:
                return True, None
            self.carry_out(agreed, asking, out, now_ns)
        return True, None

    def _preempt_on_required_node(self, waitlist: Waitlist, head: Ask, out: Outcome, now_ns: int) -> None:
        if head.reserved is None or head.preempts:
            return
        found = preemption.search_required_node(self._partition, head, head.reserved, now_ns)
        if isinstance(found, PreemptionNo):
            self._say_no(waitlist, found, out)
        elif (agreed := self._agreed(found, head, out, now_ns)) is not None:
            self.carry_out(agreed, head, out, now_ns)

    def _agreed(self, plan: preemption.Plan, asking: Ask, out: Outcome, now_ns: int) -> preemption.Plan | None:
        """The plan as the RM agrees to it, perhaps with further victims; None: it has to be asked.

        Its yes brings the list its turn again.
        """
        victims = [victim.allocation for victim in plan.victims]
        further = [entry.allocation for entry in plan.further]
        more = self._partition.questions.may_preempt(asking, plan.node, victims, further, out, now_ns)
        return None if more is None else preemption.with_further(plan, more, asking, now_ns)

    def carry_out(self, plan: preemption.Plan, asking: Ask, out: Outcome, now_ns: int) -> None:
        """Tells the victims to go, and keeps the node free for the ask."""
        partition = self._partition
        version = partition.version
        queue = asking.app.queue.path
        message = f"Preempted by {asking.key} from application {asking.app.app_id} in {queue}"
        for victim in plan.victims:
            partition.releases.preempt(victim.allocation, victim.why, message, out, now_ns)
        asking.preempts = True
        out.touch(asking, partition.name)
        node = plan.node
        if node is not None and asking.reserved is not node:
            if asking.reserved is not None:
                partition.unreserve(asking, out, now_ns)
            for other in list(node.reservations):
                partition.unreserve(other, out, now_ns)
            partition.reserve(asking, node, out, now_ns)
        preemption.carried_out(partition, plan, asking, version)

    def _say_no(self, waitlist: Waitlist, no: PreemptionNo, out: Outcome) -> None:
        if waitlist.reason is not None and waitlist.reason.preemption is not no:
            waitlist.reason = waitlist.reason.with_preemption(no)
            out.touch(waitlist, self._partition.name)
            if self._partition.telling.wanted:
                self._partition.telling.reason_changed(waitlist)

    # ---- the autoscaler --------------------------------------------------------------------------------------------

    def _report(self, out: Outcome, now_ns: int) -> None:
        """Tells the RM of the asks that only a larger cluster would help: each once (core-features §2.17)."""
        self.report_ns = 0
        no_node = self._partition.waiting.no_node
        stuck, self._stuck = self._stuck, {}
        for group in stuck:
            gang = group.app.gang
            if gang is not None and group in gang.stuck:
                self._tell(group, out, now_ns)
        unreported, self._unreported = self._unreported, {}
        for waitlist in unreported:
            if waitlist.place is not no_node:
                continue  # it comes again when it is there again
            if not waitlist.holds:  # the budget ran out before it was tried
                self._unreported[waitlist] = None
                continue
            for group in list(waitlist.unreported):
                self._report_group(waitlist, group, out, now_ns)

    def _report_group(self, waitlist: Waitlist, group: AskGroup, out: Outcome, now_ns: int) -> None:
        head = group.head()
        if head is not None and self._partition.cycle.held_back(head):
            self._limited[waitlist] = None
            return
        self._tell(group, out, now_ns)
        del waitlist.unreported[group]

    def _tell(self, group: AskGroup, out: Outcome, now_ns: int) -> None:
        for ask in group.unreported:
            if ask.group is group and not ask.scaled_up:
                ask.scaled_up = True
                out.touch(ask, self._partition.name)
                out.facts.append(TooSmallCluster(self._partition.name, ask.app.app_id, ask.key, now_ns))
        group.unreported = []


def _most_urgent(waitlist: Waitlist) -> tuple[int, int, int]:
    """The order of turns: as asks are ordered."""
    head = _head(waitlist)
    return (-head.priority, head.created_ns, head.submission) if head is not None else (0, 0, 0)


def _head(waitlist: Waitlist) -> Ask | None:
    if not waitlist.groups:
        return None
    group: AskGroup = waitlist.groups[0][-1]
    return group.head()


def _not_yet_preempting(group: AskGroup) -> Ask | None:
    """The oldest ask of the group for which no victims were chosen yet."""
    best: tuple[int, int, Ask] | None = None
    head = group.head()
    if head is not None and not head.preempts:
        return head
    for created_ns, submission, _, ask in group.heap:
        if ask.group is group and not ask.gone and not ask.preempts and ask.pending > 0:
            place = (created_ns, submission, ask)
            if best is None or place[:2] < best[:2]:
                best = place
    return None if best is None else best[2]
