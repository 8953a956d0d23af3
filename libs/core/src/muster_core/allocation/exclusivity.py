"""Turns: which proposals may be open at the same time, for an RM with predicates that depend on earlier allocations.

Stateful predicates (anti-affinity, host ports, disks) are right only if the RM knows the last allocation when it checks
the next one. So an RM, or an ask, names a scope in which one proposal is open at a time: a node, a task group of an
application's asks, an application, the whole RM (:class:`Scope`). Such a proposal is *alone* there: no other proposal
is open beside it. Several scopes may hold together, so the narrower one limits, too.

The scope becomes free when the RM has answered. The allocation is sent before the next question, and the question names
the response after which it may be answered (``muster_scheduler/emit.py``).

If a scope is taken, further asks stand in line there, in the order of the search:

* the whole RM: the search stops, and later continues from there;
* an application: it leaves its leaf's order;
* a task group: its groups stand in line, in the application's order, and the first one is tried next;
* a node: it leaves the node index, and returns as a node that gained room. Meanwhile an ask takes the next best node;
  if there is none, it is parked at :attr:`SchedulingQueue.turns`.

An ask that the RM refuses may be asked about many times, one node after the other. So it gives way: it stands in a line
(:class:`Later`) until the search has tried everything else. Then the one that has waited longest for a turn leaves the
line. So between two turns of a refused ask every other ask has one. What came after the last turn of the line does not
prolong the wait of those in line:

* of asks that must be alone in the RM, those that came later wait for one turn of the line;
* once an ask waits for open proposals because it must be alone in the RM, it is tried before others that need not be.

Asks that need not be alone anywhere give way only if the limit of open questions stopped a search.

While no scope needs turns, this module keeps no data and costs no time.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from muster_core.model.application import Application, Ask, AskGroup
from muster_core.model.node import Node
from muster_core.model.predicate_checks import PredicateCheck
from muster_core.model.reasons import Reason, ReasonCode
from muster_core.model.resources import Shape, fits
from muster_core.model.scope_queues import ExclusiveScope, Later
from muster_core.model.scopes import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from muster_core.allocation.scheduling_queue import SchedulingQueue
    from muster_core.model.partition_state import PartitionState
    from muster_core.model.refusals import NodeRefusals
    from muster_core.model.scope_queues import ScopeQueues, What
    from muster_core.model.scopes import CallbackPolicy
    from muster_core.nodes.node_accounting import NodeAccounting
    from muster_core.nodes.node_stats import NodeStats


class RmScope(ExclusiveScope):
    """The turn of the whole RM, which its partitions share.

    :ivar last: the partition that had the last turn.
    :ivar partitions: the turns of each partition.
    :ivar on: some proposal must be alone in the RM, so all partitions take turns.
    :ivar owed: the partition with an ask that waits until nothing is open, because it must be alone; None: there is
        none.
    :ivar refused: the number of turns of asks that give way.
    """

    __slots__ = ("last", "on", "owed", "partitions", "refused")

    def __init__(self) -> None:
        super().__init__()
        self.last = ""
        self.partitions: dict[ScopeExclusivity, None] = {}
        self.on = False
        self.owed: ScopeExclusivity | None = None
        self.refused = 0


class PredicateSource(Protocol):
    """The open questions to the RM, and its policy."""

    number: Callable[[], int]

    @property
    def open(self) -> Mapping[int, PredicateCheck]:
        """The open checks by question id, oldest first."""

    @property
    def policy(self) -> CallbackPolicy:
        """The RM's policy: before which decisions the RM wants to be asked."""

    def refused_ids(self, ask: Ask) -> Collection[str]:
        """The ids of the nodes that the RM refused for the ask."""


class ScopeExclusivity:
    """The turns of one partition.

    :ivar one: the turn of the whole RM, which its partitions share.
    :ivar on: whether any scope needs turns; False: this object keeps nothing.
    :ivar stopped: the last search stopped because the RM is asked about one proposal at a time.
    :ivar crowded: the limit of open questions stopped a search, and not everything was tried since.
    """

    _questions: PredicateSource

    def __init__(
        self,
        state: PartitionState,
        *,
        figures: NodeStats,
        node_books: NodeAccounting,
        waiting: SchedulingQueue,
        lines: ScopeQueues,
    ) -> None:
        self._state = state
        self._figures = figures
        self._node_books = node_books
        self._waiting = waiting
        self._lines = lines
        self.one = RmScope()
        self.on = self.stopped = self.crowded = False
        self._of = lines.of
        self._restless = lines.restless
        # For asks parked at the nodes' turns, by shape: a taken node that has room for the shape.
        self._awaited: dict[Shape, Node] = {}
        # The lines of asks that give way: within an application, or (None) to all.
        self._laters: dict[Application | None, Later] = {}
        # The group for whose ask the search stopped until nothing is open; None: none, or the next in line.
        self._owed: AskGroup | None = None

    def connect(self, *, questions: PredicateSource) -> None:
        """Takes the part that is built after this one."""
        self._questions = questions

    def attach(self, rm_scope: RmScope) -> None:
        """Joins the turn of the RM to which the partition belongs."""
        self.one = rm_scope
        rm_scope.partitions[self] = None
        if rm_scope.on:
            self._begin()

    def detach(self) -> None:
        """Leaves the RM's turn, because the partition goes."""
        self.one.partitions.pop(self, None)
        if self.one.owed is self:
            self.one.owed = None

    def enable(self, scope: Scope) -> None:
        """Begins to take turns in this scope. Proposals that are open now count."""
        if Scope.ONE in scope and not self.one.on:
            self.one.on = True
            for turns in self.one.partitions:
                turns._begin()
        self._begin()

    def _begin(self) -> None:
        if self.on:
            return
        self.on = True
        for check in dict.fromkeys(self._questions.open.values()):
            if check.holds_out:
                self.acquire(check)

    def required_scopes(self, ask: Ask) -> Scope:
        """The scopes in which the ask's proposals must be alone."""
        return self._questions.policy.alone | ask.demand.alone

    # ---- before a proposal -----------------------------------------------------------------------------------------

    def blocks_search(self, ask: Ask) -> bool:
        """Whether the search stops for now: an open proposal must be alone in the RM, or this ask must."""
        rm_scope = self.one
        if rm_scope.open and (rm_scope.closed or Scope.ONE in self.required_scopes(ask)):
            if not rm_scope.closed:
                self._owe(ask.group)
            self.stopped = True
            return True
        return False

    def _owe(self, group: AskGroup | None) -> None:
        """Lets no further proposal be made until nothing is open. Then comes the turn of the group, or of the line."""
        self.one.closed = True
        self.one.owed, self._owed = self, group

    def enqueue_if_blocked(self, ask: Ask, group: AskGroup) -> bool:
        """Whether the ask's application or task group is taken. If so, puts the group into the line there, or lets the
        application wait.
        """
        turn = self._taken_by(ask)
        if turn is None:
            return False
        self._close(turn)
        if turn.what is not ask.app:
            self._stand_in(turn, group)
        return True

    def is_locked(self, ask: Ask) -> bool:
        """Whether the ask's application or task group is taken. Changes no line."""
        return self._taken_by(ask) is not None

    def _taken_by(self, ask: Ask) -> ExclusiveScope | None:
        """The turn of the application or the task group that is taken for the ask now; None: neither is."""
        scope, app = self.required_scopes(ask), ask.app
        turn = self._of.get(app)
        if turn is not None and (turn.closed or Scope.APPLICATION in scope):
            return turn
        turn = self._of.get((app, ask.demand.task_group))
        if turn is not None and turn.open and (turn.closed or Scope.TASK_GROUP in scope):
            return turn
        return None

    def may_propose(self, ask: Ask, node: Node) -> bool:
        """Whether the scheduler may propose the node for the ask now."""
        if not self.on:
            return True
        return not node.taken and (Scope.NODE not in self.required_scopes(ask) or node not in self._of)

    def excluded_nodes(self, ask: Ask, refused: Collection[str]) -> Collection[str]:
        """The nodes in the index that are not possible for the ask now: refused, or with other open proposals."""
        if not self.on or Scope.NODE not in ask.demand.alone or Scope.NODE in self._questions.policy.alone:
            return refused  # (in the latter case they are not in the index)
        return {*refused, *(subject.node_id for subject in self._of if isinstance(subject, Node))}

    def blocked_reason(self, ask: Ask) -> Reason | None:
        """The reason if a node has room for the ask but another proposal is open there; None: there is no such node.

        From then on, no other proposal is made on that node until its turn is free.
        """
        if not self.on:
            return None
        shape, refused = ask.shape, self._questions.refused_ids(ask)
        required = ask.demand.required_node
        awaited = self._awaited.get(shape)
        for node in (awaited, *self._of) if awaited is not None else self._of:
            if not isinstance(node, Node) or node.node_id in refused or self.may_propose(ask, node):
                continue
            if required and node.node_id != required:
                continue
            kept = node.reservations and ask.reserved_node != node.node_id
            if not required and (kept or not node.usable):
                continue
            turn = self._of.get(node)
            if turn is None or not fits(shape.items, node.available):
                continue
            self._close(turn)
            self._awaited[shape] = node
            check = next(iter(turn.open))
            return Reason(ReasonCode.RM_TURN, node=node.node_id, placeholder=check.ask.key)
        return None

    # ---- proposals come and go -------------------------------------------------------------------------------------

    def acquire(self, check: PredicateCheck) -> None:
        """Takes the turns for a proposal that was made."""
        if not self.on:
            return
        ask = check.ask
        scope, app = self.required_scopes(ask), ask.app
        self.one.open[check] = None
        self.one.last = self._state.name
        if Scope.ONE in scope:
            self.one.closed = True
        self._enter(app, check, alone=Scope.APPLICATION in scope)
        self._enter((app, ask.demand.task_group), check, alone=Scope.TASK_GROUP in scope)
        for node in check.nodes.values():
            self._enter(node, check, alone=Scope.NODE in scope)

    def _enter(self, subject: What, check: PredicateCheck, *, alone: bool) -> None:
        turn = self._of.get(subject)
        if turn is None:
            turn = self._of[subject] = ExclusiveScope(subject)
        turn.open[check] = None
        if alone:
            self._close(turn)

    def release(self, check: PredicateCheck) -> None:
        """Gives back the turns of a proposal that is answered or withdrawn."""
        if not self.on:
            return
        ask = check.ask
        self.one.open.pop(check, None)
        if not self.one.open:
            self.one.closed = False
        self._leave((ask.app, ask.demand.task_group), check)
        self._leave(ask.app, check)
        for node in check.nodes.values():
            self._leave(node, check)

    def release_node(self, check: PredicateCheck, node: Node) -> None:
        """Gives back the turn of a node that the proposal does not concern any more."""
        if self.on:
            self._leave(node, check)

    def _leave(self, subject: What, check: PredicateCheck) -> None:
        turn = self._of.get(subject)
        if turn is None or turn.open.pop(check, self) is self or turn.open:
            return
        closed, turn.closed = turn.closed, False
        if not turn.line:
            del self._of[subject]
        if isinstance(subject, Node):
            if closed:
                self._free(subject)
            elif self._waiting.turns and subject.index_key is not None:
                # An ask that must be alone on its node may wait for another node; this node is possible for it now.
                for shape in self._waiting.turns.fitting([subject.available]):
                    self._waiting.turns_moved[shape] = None
        elif not closed:
            return
        elif isinstance(subject, Application):
            subject.taken = False
            self._waiting.requeue_app(subject)
        elif turn.line:
            self._restless[turn] = None
            self._let_go(turn)

    def _close(self, turn: ExclusiveScope) -> None:
        if turn.closed:
            return
        turn.closed = True
        self._restless.pop(turn, None)
        subject, state = turn.what, self._state
        if isinstance(subject, Node):
            subject.taken = True
            state.version += 1
            if subject.index_key is not None:
                self._node_books.index.remove(subject)
            self._figures.on_node_changed(subject)
        elif isinstance(subject, Application):
            subject.taken = True
            self._waiting.requeue_app(subject)
            if subject.queue.waitlists:
                # (Groups that wait behind one of its groups need not wait for the application's turn, too.)
                for *_, group in list(subject.ready):
                    self._waiting.wake_next(group)

    def _free(self, node: Node) -> None:
        """Puts the node into the index again, and wakes asks that wait for it."""
        node.taken = False
        if node.gone:
            return
        waiting = self._waiting
        self._node_books.update_index(node)
        if waiting.required.get(node.node_id):
            waiting.on_node_added(node)
        for shape in [shape for shape, awaited in self._awaited.items() if awaited is node]:
            del self._awaited[shape]
            next_awaited = self._taken_with_room(shape) if shape in waiting.turns else None
            if next_awaited is not None:
                self._awaited[shape] = next_awaited
            else:
                waiting.turns_moved[shape] = None

    def _taken_with_room(self, shape: Shape) -> Node | None:
        for subject in self._of:
            if isinstance(subject, Node) and subject.taken and subject.usable and fits(shape.items, subject.available):
                return subject
        return None

    # ---- the lines of refused asks -------------------------------------------------------------------------------

    def give_way(self, ask: Ask, refusals: NodeRefusals) -> None:
        """The RM refused the ask: others have their turn before the scheduler proposes it again."""
        if not self.crowded and not (self.on and self.required_scopes(ask)):
            return
        self.one.refused += 1
        refusals.turn = self.one.refused
        whom = self._gives_way_to(ask)
        later = self._laters.get(whom)
        if later is None:
            later = self._laters[whom] = Later()
        if not later.line or later.last is ask:
            later.mark = self._questions.number()
        if later.last is ask:
            later.last = None
        group = ask.group
        if group is not None and (group.ready_key is not None or group.in_line):
            self._stand_in(later, group)

    def _gives_way_to(self, ask: Ask) -> Application | None:
        scope = self.required_scopes(ask)
        narrow = Scope.ONE not in scope and scope & (Scope.APPLICATION | Scope.TASK_GROUP)
        return ask.app if narrow else None

    def chosen(self, ask: Ask, group: AskGroup, now_ns: int) -> AskGroup | None:
        """The group to try now, if this one is the first in the search; None: it gives way, and the search goes on."""
        rm_scope, scope = self.one, self.required_scopes(ask)
        if rm_scope.owed is self and not rm_scope.open:
            owed = self._owed
            if Scope.ONE not in scope:
                rm_scope.owed = self._owed = None
                if owed is None:
                    owed = self._call(self._laters.get(None))
                return owed if owed is not None and _is_listed(owed) else group
            if owed is group or owed is None:
                rm_scope.owed = self._owed = None
        within = self._laters.get(ask.app)
        if within is not None and within.owed and (called := self._call(within)) is not None:
            within.owed = False
            return called if _is_listed(called) else group
        whom = self._gives_way_to(ask)
        later = self._laters.get(whom) if scope or self.crowded else None
        if later is None or later.last is ask:
            return group
        if ask.refusals is not None:
            if not later.line and later.called is None:
                return group
            self._waiting.carry_history(group, self._waiting.history_of(group, now_ns))
            self._stand_in(later, group)
            return None
        # (Where such asks do not keep the search from its end, the line is called there.)
        endless = whom is not None or self.crowded or (Scope.ONE in scope and not rm_scope.open)
        called = self._call(later) if endless and ask.demand.submission > later.mark else None
        return called if called is not None and _is_listed(called) else group

    def _call(self, later: Later | None) -> AskGroup | None:
        """Makes the first in line that may be proposed now ready, unless the last one has not been tried since. Returns
        that group.
        """
        if later is None:
            return None
        called = later.called
        if called is not None and _is_listed(called):
            return called
        group = self._next_of(later)
        if group is not None:
            later.last, later.mark = group.head(), self._questions.number()
            self._lines.dequeue(group)
            self._waiting.make_ready(group)
        return group

    def _next_of(self, later: Later) -> AskGroup | None:
        for entry in later.line:
            group: AskGroup = entry[-1]
            ask = group.head()  # (None: its last ask is being removed, and the group with it)
            if ask is None:
                continue
            turn = self._taken_by(ask)
            if turn is None:
                return group
            if turn.what is ask.app and self._laters.get(ask.app) is later:
                return None  # those behind it that need their task group only would keep the application taken
        return None

    def _others_wait(self, later: Later, turn: int, app: Application | None = None) -> bool:
        """Whether others had no turn since this turn of the line, because they wait for an answer in their application
        or their task group.

        :param app: only others of this application; None: of all.
        """
        for subject, taken in self._of.items():
            if not taken.closed or subject is None or isinstance(subject, Node):
                continue
            owner, line = (subject, subject.ready) if isinstance(subject, Application) else (subject[0], taken.line)
            if owner.waiting_at is not None or (app is not None and owner is not app):
                continue
            for *_, group in line:
                head = group.head()
                if head is None or head.demand.submission > later.mark:
                    continue
                if head.refusals is None or head.refusals.turn < turn:
                    return True
        return False

    def _owe_within(self, later: Later, app: Application) -> None:
        """The first in the application's line waits for an answer there. Lets no further proposal be made where it must
        be alone, so that its turn comes next; unless others wait there that had none since its last.
        """
        for turn, *_, group in later.line:
            ask = group.head()
            if ask is not None:
                taken = self._taken_by(ask)
                if taken is not None and not self._others_wait(later, turn, app):
                    self._close(taken)
                    later.owed = True
                return

    def _call_next(self) -> bool:
        """Everything else was tried: calls the next in line, if a proposal is possible. Returns whether one came."""
        rm_scope, later = self.one, self._laters.get(None)
        group = self._next_of(later) if later is not None else None
        ask = group.head() if group is not None else None
        # The longest wait comes first, in whichever line: this is the last turn of the first in the line of all.
        turn = ask.refusals.turn if ask is not None and ask.refusals is not None else None
        whole = ask is not None and Scope.ONE in self.required_scopes(ask)
        longer = False
        for whom, line in list(self._laters.items()):
            if not line.line:
                if line.called is None:
                    del self._laters[whom]
            elif whom is not None and (turn is None or line.line[0][0] <= turn):
                if not rm_scope.closed and self._call(line) is not None:
                    return True
                self._owe_within(line, whom)
                longer = True  # it waits for an answer in its application
        self.crowded = self.crowded and None in self._laters
        if later is None or ask is None or rm_scope.closed or (longer and whole):
            return False
        if whole and rm_scope.open:
            if turn is None or not self._others_wait(later, turn):
                self._owe(None)
            return False
        return self._call(later) is not None

    # ---- a task group's line ---------------------------------------------------------------------------------------

    def _stand_in(self, turn: ExclusiveScope, group: AskGroup) -> None:
        waiting = self._waiting
        waiting.remove_ready(group)
        self._lines.enqueue(group, turn)
        waiting.wake_next(group)
        waiting.requeue_app(group.app)

    def _let_go(self, turn: ExclusiveScope) -> bool:
        """Makes the first group in line ready, unless another one is ready already. Returns whether it did."""
        if turn.awake is not None and turn.awake.ready_key is not None:
            return False
        for *_, group in turn.line:
            if group.head() is not None:  # otherwise its last ask is being removed, and the group with it
                break
        else:
            return False
        self._lines.dequeue(group)
        turn.awake = group
        self._waiting.make_ready(group)
        return True

    def wake_next(self) -> bool:
        """Makes the next group in line ready at each turn where a proposal is possible. Returns whether any was."""
        let_go = False
        # The last group that left the line is not ready: it waits elsewhere, or does not exist any more.
        turns = list(self._restless)
        for turn in turns:
            if not isinstance(turn, Later):
                let_go |= self._let_go(turn)
        return let_go or self._call_next()

    def problem(self) -> str:
        """A contradiction in the data of the turns, as a text; "": there is none. O(cluster)."""
        state = self._state
        expected: dict[What, dict[PredicateCheck, None]] = {}
        for check in dict.fromkeys(self._questions.open.values()) if self.on else ():
            if check.holds_out:
                ask = check.ask
                for subject in (None, ask.app, (ask.app, ask.demand.task_group), *check.nodes.values()):
                    expected.setdefault(subject, {})[check] = None
        turns = {subject: turn.open for subject, turn in self._of.items() if turn.open}
        if own := {check: None for check in self.one.open if check.gone or check in expected.get(None, ())}:
            turns[None] = own
        if {subject: set(checks) for subject, checks in turns.items()} != {
            subject: set(checks) for subject, checks in expected.items()
        }:
            return f"the turns' open proposals are {turns}, should be {expected}"
        for subject, turn in self._of.items():
            if not turn.open and (turn.closed or not turn.line):
                return f"the turn of {subject} is kept, and nothing is open there"
        owners: list[Node | Application] = [*state.nodes.values(), *state.apps.values()]
        for owner in owners:
            scope = self._of.get(owner)
            if owner.taken != (scope is not None and scope.closed):
                return f"{owner} is taken: {owner.taken}, as its turn does not say"
        return ""

    def is_queued(self, group: AskGroup) -> bool:
        """Whether the group stands in the line of its turn. O(line)."""
        turn = self._lines.scope_of(group)
        return turn is not None and any(entry[-1] is group for entry in turn.line)

    def is_blocked(self, ask: Ask) -> bool:
        """Whether the ask waits for answers about other proposals, in any scope."""
        group = ask.group
        if group is None or (group.ready_key is None and not group.in_line):
            return False
        return group.in_line or ask.app.taken or self.stopped


def _is_listed(group: AskGroup) -> bool:
    """Whether the search could come to the ready group now."""
    app = group.app
    if group.ready_key is None or app.ready_key is None:
        return False
    return all(queue.ready_key is not None for queue in app.queue.ancestry if queue.parent is not None)
