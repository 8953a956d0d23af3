"""The laws of a scheduler that asks: what it may do with which answer, and what may not be left.

The auditor hears what the RM says and is told, and looks at the core's primary objects (asks, allocations, nodes, what
is booked on them); sums it makes itself. What the core counts and remembers must be the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from muster_core.external.model import ApplyExternalChanges, SetSourceState
from muster_core.model.application import Allocation, Application, Ask
from muster_core.model.commands import (
    Command,
    PredicateAnswers,
    SetCallbacks,
    SetSchedulingEnabled,
    Termination,
    UpdateAllocations,
    UpdateConfiguration,
    UpdateNodes,
)
from muster_core.model.demand import Demand
from muster_core.model.node import Node
from muster_core.model.outcome import (
    Event,
    Fact,
    NewAllocation,
    PredicateRequested,
    PreemptionPredicateRequested,
    ReleasedAllocation,
    SchedulingStateChanged,
)
from muster_core.model.predicate_checks import PredicateCheck
from muster_core.model.queue import Ledger
from muster_core.model.resources import fits
from muster_core.model.scopes import CallbackPolicy
from muster_core.model.states import APP_TERMINAL, AppState
from muster_core.partition import Partition
from muster_core.predicates.predicate_calls import OPEN_MIN
from muster_core.queues.rank import may_use
from muster_core.scheduler import SchedulerCore
from muster_state.encoding import REFUSALS_KEPT
from muster_state.state_folder import RmInfo
from simulation.books import must
from simulation.callbacks_turns import Rounds, Turns, Wire, check_alone
from simulation.run import Law, Run

_REPLACING = re.compile(r"replacing allocationKey: (\S+)$")
_PREEMPTED = re.compile(r"Preempted by (\S+) from application (\S+) in ")


@dataclass(slots=True)
class Question:
    """One that the RM was asked."""

    fact: PredicateRequested | PreemptionPredicateRequested
    demand: Demand | None
    last_victim: int = -1
    beat: int = 0

    @property
    def about(self) -> tuple[str, str]:
        return self.fact.app_id, self.fact.key


@dataclass(slots=True)
class Over:
    """The amounts above a limit before the cycle, which may stay."""

    used: dict[tuple[str, str, int], int] = field(default_factory=dict)
    running: dict[tuple[str, str], int] = field(default_factory=dict)
    free: dict[str, list[int]] = field(default_factory=dict)


class Laws(Law):
    """Beside one life.

    :ivar tally: how often what came up.
    :ivar wire: what goes to the RM as it is written; None: nobody looks.
    """

    def __init__(self, tally: Counter[str], wire: Wire | None = None) -> None:
        self.tally = tally
        self.wire = wire
        self._last_question = 0
        self._policy = CallbackPolicy()
        self._begin()

    def _begin(self) -> None:
        self._asked: dict[int, Question] = {}
        self._agreed: dict[int, Question] = {}
        self._replacing: dict[tuple[str, str], set[str]] = {}
        self._refused: dict[tuple[str, str], dict[str, tuple[int, bool]]] = {}
        self._told: set[tuple[str, str, str]] = set()
        self._states: dict[tuple[str, str], tuple[object, ...]] = {}
        # What was above its limit before anything was decided; whether that was looked at since the last cycle.
        self._over = Over()
        self._noted = False
        self._before: set[int] = set()
        self._nodes_before: dict[tuple[str, str], tuple[Any, ...]] = {}
        self._unsent: list[Fact] = []
        self._turns = Turns()
        self._rounds = Rounds(lambda partition, ask: _waits_with_room(partition, ask, self._turns), self.tally)
        # What is on each node; and when something there last ended or became another thing.
        self._beat = 0
        self._there: dict[tuple[str, str], dict[int, Allocation]] = {}
        self._moved: dict[tuple[str, str], int] = {}
        # By ask, nodes that were refused for it before that.
        self._ended: dict[tuple[str, str], set[str]] = {}

    # ---- what happens ----------------------------------------------------------------------------------------------

    def registers(self, run: Run) -> None:
        """Starts anew at a registration: no open call, no answer."""
        self._begin()
        self._policy = CallbackPolicy()
        if self.wire is not None:
            self.wire.registered()

    def hears(self, run: Run, command: Command, offered: object) -> None:
        if isinstance(command, PredicateAnswers):
            self.decides(run)
        self._before = _open(run.core)
        if isinstance(command, ApplyExternalChanges | SetSourceState):
            self._nodes_before = _nodes(run.core)

    def taken(self, run: Run, command: Command, facts: list[Fact], events: list[Event]) -> None:
        if self.wire is not None:
            self._unsent += facts
        if isinstance(command, SetCallbacks | UpdateConfiguration | SetSchedulingEnabled):
            self._rounds.begin()
        self._rounds.heard(run.core, facts)
        self._taken(run.core, command, self._before, facts, run.now_ns)

    def decides(self, run: Run) -> None:
        self._before = _open(run.core)
        self._nodes_before = _nodes(run.core)
        if not self._noted:
            self._noted, self._over = True, _over(run.core)
        self._rounds.decides(self._policy, run.core)

    def decided(self, run: Run, facts: list[Fact], events: list[Event], budget: int) -> None:
        core = run.core
        self._cycled(core, self._before, facts, run.now_ns)
        if self.asks(run.now_ns)[0]:
            self._rounds.decided(self._policy, core, facts)
        else:
            self._rounds.begin()
        if self.wire is not None:
            self.wire.send([*self._unsent, *facts], core.partitions)
        self._unsent, self._noted = [], False
        self.check_over(core)
        self.check_leaks(core)
        if core.exhausted:
            self.check_rest(core)

    def restarts(self, run: Run) -> None:
        partitions = run.core.partitions.values()
        self.tally["restart: with open questions"] += any(each.questions.open for each in partitions)
        refused = any(node.refused_by for each in partitions for node in each.nodes.values())
        self.tally["restart: with refusals"] += refused

    def restarted(self, run: Run, info: RmInfo) -> None:
        """Notes a restart: no call is open, and answers to older ones are ignored."""
        core = run.core
        if self.wire is not None:
            self.wire.goes_on(info)
        self._asked.clear()
        self._agreed.clear()
        self._rounds.begin()
        self._there = _what_is_where(core)  # (the same in other objects)
        for about, nodes in list(self._refused.items()):
            if len(nodes) > REFUSALS_KEPT:
                del self._refused[about]
        for partition in core.partitions.values():
            must(not partition.questions.open, "restart", "a question survived")
            for app in partition.apps.values():
                for ask in app.asks.values():
                    must(ask.asking is None and ask.asked is None, "restart", f"{ask} is being asked about")

    def inform(self, info: RmInfo) -> None:
        if self.wire is not None:
            info.next_response_sequence = self.wire.info.next_response_sequence
            info.last_allocation_response = self.wire.info.last_allocation_response

    def asks(self, now_ns: int) -> tuple[bool, bool]:
        """Whether the RM gets a call before a placement, and before a preemption."""
        policy = self._policy
        there = policy.connected or now_ns < policy.since_ns + policy.grace_ns
        return policy.predicates and there, policy.preemption and there

    def _taken(self, core: SchedulerCore, command: Command, before: set[int], facts: list[Fact], now_ns: int) -> None:
        """The core took a command, and this came out at once.

        :param before: the questions that were open for the core.
        """
        self._note_ends(core, reported=not isinstance(command, PredicateAnswers))
        match command:
            case SetCallbacks():
                self._policy = command.policy
                for number, each in list(self._asked.items()):
                    if not self.asks(now_ns)[isinstance(each.fact, PreemptionPredicateRequested)]:
                        self._agreed[number] = self._asked.pop(number)  # nobody is there who could refuse
                if not self.asks(now_ns)[0] and not command.policy.waits:
                    self._forget(lambda *_: True)  # whoever may refuse again is asked anew
                elif command.policy.connected:
                    self._forget(lambda _, refused: refused[1])
            case UpdateNodes():
                named = {item.node_id for item in command.nodes}
                self._forget(lambda node_id, _: node_id in named)
            case ApplyExternalChanges() | SetSourceState():
                self._forget_moved(core)
            case UpdateAllocations():
                for about in [(item.app_id, item.key) for item in (*command.asks, *command.releases)]:
                    self._refused.pop(about, None)
            case PredicateAnswers():
                self._take_answers(core, command, before, now_ns)
        self._decided(core, facts, now_ns)

    def _note_ends(self, core: SchedulerCore, *, reported: bool) -> None:
        """Where something ended, or the RM says that something else is there: what it refused it may be asked again."""
        self._beat += 1
        earlier, self._there = self._there, _what_is_where(core)
        for (name, node_id), there in self._there.items():
            before = earlier.get((name, node_id), {})
            # (What takes a placeholder's place the core itself put there, whoever said that the placeholder is gone.)
            came = reported and any(there[each].replaces is None for each in there.keys() - before.keys())
            if before.keys() - there.keys() or came:
                self._moved[name, node_id] = self._beat
                for ask in core.partitions[name].nodes[node_id].refused_by:
                    self._ended.setdefault((ask.app.app_id, ask.key), set()).add(node_id)
                self._forget(lambda refused_id, _, node_id=node_id: refused_id == node_id)

    def _forget_moved(self, core: SchedulerCore) -> None:
        """A source changed a node, or its lender got a part of it back: what was refused there may be asked again."""
        now = _nodes(core)
        moved = {key[1] for key in now if now[key] != self._nodes_before.get(key)}
        self._forget(lambda node_id, _: node_id in moved)

    def _forget(self, which) -> None:  # type: ignore[no-untyped-def]
        for nodes in self._refused.values():
            for node_id, refused in list(nodes.items()):
                if which(node_id, refused):
                    del nodes[node_id]

    def _take_answers(self, core: SchedulerCore, command: PredicateAnswers, before: set[int], now_ns: int) -> None:
        for answer in command.answers:
            question = self._asked.pop(answer.question, None)
            if question is None:
                self.tally["answer: nobody's"] += 1
                continue
            if answer.fits:
                self._agreed[answer.question] = replace(question, last_victim=answer.last_victim)
            # (Else a better node was agreed to already: then what is said of others does not matter.)
            elif answer.question in before and _is_refused(core, question):
                self._note_refusal(question, now_ns)

    def _note_refusal(self, question: Question, now_ns: int, *, unanswered: bool = False) -> None:
        """It counts, unless it may be about what was before."""
        if not unanswered and question.beat < self._moved.get((question.fact.partition, question.fact.node_id), 0):
            return
        self._ended.get(question.about, set()).discard(question.fact.node_id)
        refused = self._refused.setdefault(question.about, {})
        refused[question.fact.node_id] = (now_ns, unanswered)

    def _cycled(self, core: SchedulerCore, before: set[int], facts: list[Fact], now_ns: int) -> None:
        self._note_ends(core, reported=False)
        self._forget_moved(core)
        for number in [number for number, each in self._asked.items() if each.fact.due_ns <= now_ns]:
            question = self._asked.pop(number)
            if number in before:
                self.tally["question: unanswered"] += 1
                if _is_refused(core, question):
                    self._note_refusal(question, now_ns, unanswered=True)
        self._decided(core, facts, now_ns)
        for number in [number for number, each in self._agreed.items() if each.fact.due_ns <= now_ns]:
            if isinstance(self._agreed[number].fact, PredicateRequested):
                del self._agreed[number]

    # ---- decisions -------------------------------------------------------------------------------------------------

    def _decided(self, core: SchedulerCore, facts: list[Fact], now_ns: int) -> None:
        preempted: set[tuple[str, str]] = set()
        for fact in facts:
            match fact:
                case PredicateRequested():
                    self._check_question(core, fact, now_ns, self.asks(now_ns)[0])
                    self.tally[f"question: {'to place' if fact.allocate else 'not to place'}"] += 1
                case PreemptionPredicateRequested():
                    self._check_question(core, fact, now_ns, self.asks(now_ns)[1])
                    self.tally["question: to preempt"] += 1
                case NewAllocation() if not fact.adopted:
                    self._check_allocation(fact, now_ns)
                    if self.wire is not None:
                        self.wire.note(fact, self._policy, fact.allocation.demand)
                case ReleasedAllocation() if not fact.reminder:
                    self._check_release(core, fact, preempted, now_ns)
                case SchedulingStateChanged():
                    self._check_state(fact)
        for about in preempted:
            self._drop_preemptions(about)
        for partition in core.partitions.values():
            check_alone(self._policy, partition, self.tally)
            self._turns.look(self._policy, partition)

    def _check_question(
        self, core: SchedulerCore, fact: PredicateRequested | PreemptionPredicateRequested, now_ns: int, asks: bool
    ) -> None:
        must(asks, "question", f"{fact}: the RM is not there, or does not want to be asked")
        must(fact.question > self._last_question, "question", f"{fact} comes after {self._last_question}")
        must(fact.due_ns == now_ns + self._policy.timeout_ns, "question", f"{fact} at {now_ns}")
        self._last_question = fact.question
        partition = core.partitions[fact.partition]
        app = partition.apps.get(fact.app_id)
        ask = app.asks.get(fact.key) if app is not None else None
        question = Question(fact, ask.demand if ask is not None else None, beat=self._beat)
        # (An ask may have gone since, in the same breath.)
        refused = self._refused.get(question.about, {}).get(fact.node_id)
        if refused is not None and ask is not None:
            since_ns, _ = refused
            again = now_ns < since_ns + self._policy.retry_ns
            must(not again, "asked again", f"{fact}: it was refused {(now_ns - since_ns) / 1e9} s ago")
        self._asked[fact.question] = question
        if self.wire is not None and isinstance(fact, PredicateRequested):
            self.wire.note(fact, self._policy, question.demand)

    def _check_allocation(self, fact: NewAllocation, now_ns: int) -> None:
        made = fact.allocation
        about = (made.app_id, made.key)
        once = (made.app_id, made.unique_key, f"{made.submission} {made.allocated_ns} {made.node_id}")
        must(once not in self._told, "twice", f"{made} was told before")
        self._told.add(once)
        self.tally["allocations"] += 1
        if not self.asks(now_ns)[0]:
            policy = self._policy
            gone = not policy.connected and now_ns >= policy.since_ns + policy.grace_ns
            must(not (policy.waits and gone), "absent", f"{made}: nothing is to be placed without the RM")
            self.tally["allocation: without a question"] += 1
            return
        if made.replaces is not None:
            nodes = self._replacing.get(about, set())
            must("*" in nodes or made.node_id in nodes, "replaced", f"{made}: the RM agreed to {sorted(nodes)}")
            self.tally["allocation: in a placeholder's place"] += 1
            return
        for number, question in self._agreed.items():
            said = question.fact
            if not isinstance(said, PredicateRequested) or not said.allocate or question.about != about:
                continue
            if said.node_id == made.node_id and question.demand is made.demand:
                del self._agreed[number]
                self.tally["allocation: agreed"] += 1
                return
        must(False, "allocation", f"{made}: the RM did not agree")

    def _check_release(
        self, core: SchedulerCore, fact: ReleasedAllocation, preempted: set[tuple[str, str]], now_ns: int
    ) -> None:
        if fact.termination is Termination.PLACEHOLDER_REPLACED and (found := _REPLACING.match(fact.message)):
            self._check_replacement((fact.app_id, found[1]), now_ns)
        if fact.termination is Termination.PREEMPTED_BY_SCHEDULER and (found := _PREEMPTED.match(fact.message)):
            about = (found[2], found[1])
            self.tally["preemption"] += 1
            if not self.asks(now_ns)[1]:
                return
            for question in self._agreed.values():
                said = question.fact
                if not isinstance(said, PreemptionPredicateRequested) or question.about != about:
                    continue
                if (fact.app_id, fact.key) in said.victims[: max(said.least, question.last_victim + 1)]:
                    preempted.add(about)
                    self.tally["preemption: agreed"] += 1
                    return
            must(False, "preemption", f"{fact}: the RM did not agree")

    def _check_replacement(self, about: tuple[str, str], now_ns: int) -> None:
        self.tally["replacement"] += 1
        nodes = self._replacing.setdefault(about, set())
        if not self.asks(now_ns)[0]:
            nodes.add("*")
            return
        agreed = {
            question.fact.node_id
            for question in self._agreed.values()
            if isinstance(question.fact, PredicateRequested) and question.about == about
        }
        must(bool(agreed), "replacement", f"{about}: the RM did not agree")
        nodes |= agreed
        self.tally["replacement: agreed"] += 1

    def _drop_preemptions(self, about: tuple[str, str]) -> None:
        for number, question in list(self._agreed.items()):
            if question.about == about and isinstance(question.fact, PreemptionPredicateRequested):
                del self._agreed[number]

    def _check_state(self, fact: SchedulingStateChanged) -> None:
        must(self._policy.states, "state", f"{fact}: nobody wants to know")
        self.tally[f"state: {fact.state.name}"] += 1

    # ---- limits ----------------------------------------------------------------------------------------------------

    def check_over(self, core: SchedulerCore) -> None:
        """Fails if a decision exceeded a limit, proposals counted."""
        before, now = self._over, _over(core)
        for about, used in now.used.items():
            must(used <= before.used.get(about, 0), "limit", f"{about} uses {used}, before {before.used.get(about)}")
        for who, running in now.running.items():
            must(running <= before.running.get(who, 0), "max applications", f"{who} runs {running}")
        for node_id, free in now.free.items():
            was = before.free.get(node_id, [0] * len(free))
            less = [mine < min(old, 0) for mine, old in zip(free, was, strict=False)]
            must(not any(less), "node", f"{node_id} has {free} left, before {was}")

    # ---- at rest ---------------------------------------------------------------------------------------------------

    def check_rest(self, core: SchedulerCore) -> None:
        """Fails if a pending ask without a call could be placed now, or be asked about (brute force)."""
        for partition in core.partitions.values():
            if not partition.deciding:
                continue
            if partition.questions.is_at_limit:
                # As much is asked as it answers in time; whoever is left looks when it has answered.
                must(len(partition.questions.open) >= OPEN_MIN, "left pending", f"{partition.questions.open} is enough")
                continue
            for app in partition.apps.values():
                if _is_held(partition, app):
                    continue
                for ask in app.asks.values():
                    for node_id in self._ended.get((app.app_id, ask.key), ()):
                        held = ask.refusals is not None and node_id in ask.refusals.nodes
                        rests = ask.refusals is not None and node_id in ask.refusals.resting
                        must(not held or rests, "ended", f"{ask}: {node_id} is refused for what was there before")
                    if ask.open > 0 and partition.limit_checks.exceeded_limit(app, ask.shape) is None:
                        _check_no_room(partition, ask, self._turns)

    def check_leaks(self, core: SchedulerCore) -> None:
        """Fails if the core remembers calls about unknown asks or nodes."""
        for partition in core.partitions.values():
            questions = partition.questions
            open_now = set(questions.open.values())
            must(set(questions._quick) <= open_now, "leak", f"{questions._quick}")
            must(set(questions._aside.values()) <= open_now, "leak", f"{questions._aside}")
            for ask in [*questions._agreed, *questions._refused]:
                must(not ask.gone, "leak", f"{ask} is gone, and remembered")
            for app in partition.apps.values():
                for ask in app.asks.values():
                    checks = set(partition.checks.for_ask(ask))
                    must(checks <= open_now, "leak", f"{ask}: {checks}")
                    must(len(checks) <= ask.pending, "twice", f"{ask}: {checks} for {ask.pending}")
                    if ask.refusals is not None:
                        gone = [each for each in ask.refusals.nodes if each not in partition.nodes]
                        must(not gone, "leak", f"{ask}: {gone} refused")
                        armed = bool(ask.refusals.armed_ns) or not ask.refusals.nodes
                        must(armed, "leak", f"{ask}: {list(ask.refusals.nodes)} would be refused for ever")
                if app.gang is not None:
                    courted = set(partition.checks.about_places_of(app))
                    must(courted <= open_now, "leak", f"{app}: {courted} courted")
                    proposed: Counter[int] = Counter()
                    for ask in app.asks.values():
                        for check in partition.checks.for_ask(ask):
                            if booked_on(check) is not None and ask.demand.placeholder:
                                proposed.update(dict(ask.shape.items))
                    must(dict(proposed) == app.gang.proposed, "leak", f"{app}: {app.gang.proposed}, {proposed}")

    def over(self, run: Run) -> None:
        """Fails if anything is left when everything has ended."""
        for partition in run.core.partitions.values():
            questions = partition.questions
            for what in ("open", "_quick", "_aside", "_agreed", "_refused", "_stale"):
                must(not getattr(questions, what), "leak", f"{what}: {getattr(questions, what)}")
            for node in partition.nodes.values():
                open_now = partition.checks.about_node(node)
                must(not open_now and not node.refused_by, "leak", f"{node}: {open_now} {node.refused_by}")
                must(not any(node.allocated), "leak", f"{node}: {node.allocated}")
            for queue in partition.queues.values():
                must(not any(queue.allocated) and not any(queue.pending), "leak", f"{queue} {queue.allocated}")
                must(queue.running_applications == 0, "leak", f"{queue} runs {queue.running_applications}")


def _nodes(core: SchedulerCore) -> dict[tuple[str, str], tuple[Any, ...]]:
    return {
        (partition.name, node_id): (list(node.capacity), list(node.occupied), dict(node.attributes), node.usable)
        for partition in core.partitions.values()
        for node_id, node in partition.nodes.items()
    }


def check_settled(core: SchedulerCore) -> None:
    """Fails if an RM that agrees to everything has an open call, or a fitting ask is still refused."""
    for partition in core.partitions.values():
        must(not partition.questions.open, "settled", f"{partition.questions.open} is asked for ever")
        for app in partition.apps.values():
            for ask in app.asks.values():
                refused = ask.refusals.nodes if ask.refusals is not None else {}
                must(not refused, "settled", f"{ask}: {refused} refused, and the RM agrees to all")


def _open(core: SchedulerCore) -> set[int]:
    return {number for partition in core.partitions.values() for number in partition.questions.open}


def _is_refused(core: SchedulerCore, question: Question) -> bool:
    app = core.partitions[question.fact.partition].apps.get(question.fact.app_id)
    ask = app.asks.get(question.fact.key) if app is not None else None
    return ask is not None and ask.refusals is not None and question.fact.node_id in ask.refusals.nodes


def _what_is_where(core: SchedulerCore) -> dict[tuple[str, str], dict[int, Allocation]]:
    return {
        (partition.name, node_id): {id(held): held for held in (*node.allocations.values(), *node.foreign.values())}
        for partition in core.partitions.values()
        for node_id, node in partition.nodes.items()
    }


def booked_on(check: PredicateCheck) -> Node | None:
    """The node on which the proposal counts."""
    return check.booked


def _is_held(partition: Partition, app: Application) -> bool:
    """Whether none of its asks may be placed now."""
    if app.state in APP_TERMINAL or app.state is AppState.FAILING or partition.limit_checks.full_ledger(app):
        return True
    gang = app.gang
    return gang is not None and gang.waits_for_room and partition.room.blocking_limit(app) is not None


def _check_no_room(partition: Partition, ask: Ask, turns: Turns) -> None:
    must(ask.group is not None or ask in partition.gangs.reopened, "left pending", f"{ask} is in no group")
    node = _room_for(partition, ask, lambda node: turns.excuse(partition.name, ask, node))
    which = ", which it requires" if ask.demand.required_node else ""
    must(node is None, "left pending", f"{ask} fits on {node}{which}")


def _waits_with_room(partition: Partition, ask: Ask, turns: Turns) -> Node | None:
    """The node on which the ask could be placed now, but for what is open elsewhere; None: there is none, or something
    holds it back.
    """
    held = _is_held(partition, ask.app) or ask.app.waiting_at is not None or not partition.deciding
    if held or ask.open <= 0 or partition.limit_checks.exceeded_limit(ask.app, ask.shape) is not None:
        return None
    return _room_for(partition, ask, lambda node: turns.keeps(partition.name, node))


def _room_for(partition: Partition, ask: Ask, excuse: Callable[[Node], bool]) -> Node | None:
    gang, group = ask.app.gang, ask.group
    if group is None or (gang is not None and (gang.gates(group) or gang.can_be_replaced_by(group))):
        return None
    refused = ask.refusals.nodes if ask.refusals is not None else {}
    for node in partition.nodes.values():
        if not fits(ask.shape.items, node.available) or node.node_id in refused or excuse(node):
            continue
        required = ask.demand.required_node
        if required:
            if node.node_id == required:
                return node
            continue
        # (On a node that is kept for it one at a time is asked for.)
        asked = any(node in check.nodes.values() for check in partition.checks.for_ask(ask))
        asked = node.node_id == ask.reserved_node and (asked or ask.awaits_placeholders)
        if node.usable and may_use(ask, node) and not asked:
            return node
    return None


def _over(core: SchedulerCore) -> Over:
    found = Over()
    for partition in core.partitions.values():
        used: dict[Ledger, list[int]] = {}
        running: Counter[Ledger] = Counter()
        size = len(partition.types.names)
        on: dict[str, list[int]] = {node_id: [0] * size for node_id in partition.nodes}
        for app in partition.apps.values():
            if app.state in APP_TERMINAL:
                continue
            for node_id, items in _counting(partition, app.app_id):
                for ledger in app.ledgers:
                    sums = used.setdefault(ledger, [0] * size)
                    for number, value in items:
                        sums[number] += value
                for number, value in items:
                    if node_id in on:
                        on[node_id][number] += value
            if app.counted:
                running.update(app.ledgers)
        for ledger, sums in used.items():
            for number, value in enumerate(sums):
                if value > ledger.limit[number]:
                    found.used[repr(ledger), ledger.path, number] = value
        for ledger, count in running.items():
            if 0 < ledger.max_applications < count:
                found.running[repr(ledger), ledger.path] = count
        for node_id, node in partition.nodes.items():
            found.free[node_id] = [
                whole - occupied - mine
                for whole, occupied, mine in zip(node.capacity, node.occupied, on[node_id], strict=True)
            ]
    return found


def _counting(partition: Partition, app_id: str) -> Iterator[tuple[str, tuple[tuple[int, int], ...]]]:
    app = partition.apps[app_id]
    for held in app.allocations.values():
        yield held.node_id, held.shape.items
    for ask in app.asks.values():
        for check in partition.checks.for_ask(ask):
            node = booked_on(check)
            if node is not None:
                yield node.node_id, ask.shape.items
