"""The laws of proposals that take turns: alone where they are to be, behind what was told before, and nobody left over.

What an ask wants is read from its tags here, not from what the core makes of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from muster_bus.topics import Topics
from muster_core.model.application import Ask
from muster_core.model.demand import Demand
from muster_core.model.node import Node
from muster_core.model.outcome import Fact, NewAllocation, PredicateRefused, PredicateRequested
from muster_core.model.predicate_checks import CheckKind, PredicateCheck
from muster_core.model.scopes import CallbackPolicy, Scope
from muster_core.partition import Partition
from muster_core.scheduler import SchedulerCore
from muster_proto.muster.bus.v1 import envelope_pb2
from muster_proto.muster.v1 import callbacks_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.emit import Emitter
from muster_state.state_folder import RmInfo
from muster_state.tally import Tally
from simulation.books import must

_PROPOSALS = (CheckKind.PLACE, CheckKind.PROBE, CheckKind.REPLACE)
_SAID = {"node": Scope.NODE, "task-group": Scope.TASK_GROUP, "application": Scope.APPLICATION, "one": Scope.ONE}
TAG = "muster.callbacks.open"

# (partition, scope, and what it is in: an application and its task group, or a node)
Place = tuple[str, Scope, str, str]


def wanted(policy: CallbackPolicy, demand: Demand) -> Scope:
    """Where its proposals are to be alone."""
    return policy.alone | _SAID.get(demand.tags.get(TAG, ""), Scope.ALL)


def places(partition: str, app_id: str, task_group: str, node_ids: Iterable[str]) -> Iterator[Place]:
    yield partition, Scope.ONE, "", ""
    yield partition, Scope.APPLICATION, app_id, ""
    yield partition, Scope.TASK_GROUP, app_id, task_group
    for node_id in node_ids:
        yield partition, Scope.NODE, node_id, ""


def proposals(partition: Partition) -> Iterator[tuple[PredicateCheck, list[Place]]]:
    """What is open and would be an allocation, and where."""
    for check in dict.fromkeys(partition.questions.open.values()):
        if check.kind in _PROPOSALS:
            ask = check.ask
            nodes = sorted(node.node_id for node in check.nodes.values())
            yield check, list(places(partition.name, ask.app.app_id, ask.demand.task_group, nodes))


class Turns:
    """Who may wait for whom, by partition: where somebody wanted to be alone since nothing was open, and what is."""

    def __init__(self) -> None:
        self._wants: dict[str, Scope] = {}
        self._taken: dict[str, set[Place]] = {}

    def look(self, policy: CallbackPolicy, partition: Partition) -> None:
        """After each change. (Who wanted it may be gone, and what is open then still has to be answered.)"""
        taken = self._taken[partition.name] = {place for _, found in proposals(partition) for place in found}
        wants = (self._wants.get(partition.name, Scope.ALL) if taken else Scope.ALL) | policy.alone
        for app in partition.apps.values():
            for ask in app.asks.values():
                wants |= wanted(policy, ask.demand)
        self._wants[partition.name] = wants

    def excuse(self, partition: str, ask: Ask, node: Node) -> bool:
        """Something is open where the ask would be, and somebody wants, or wanted, to be alone there."""
        found = places(partition, ask.app.app_id, ask.demand.task_group, (node.node_id,))
        wants, taken = self._wants.get(partition, Scope.ALL), self._taken.get(partition, ())
        return any(place[1] & wants and place in taken for place in found)

    def keeps(self, partition: str, node: Node) -> bool:
        """Something is open on the node, and somebody wants, or wanted, to be alone there."""
        there = (partition, Scope.NODE, node.node_id, "")
        return bool(self._wants.get(partition, Scope.ALL) & Scope.NODE) and there in self._taken.get(partition, ())


@dataclass(slots=True)
class _Turn:
    """An ask that must be alone somewhere, whose last turn was refused.

    :ivar number: what came by then has a smaller submission number.
    :ivar first: the asks that wait for a turn since, each with a node that it fits on; None: nobody looked yet.
    """

    number: int
    first: dict[Ask, Node] | None = None


class Rounds:
    """Between two turns of a refused ask that must be alone, every other ask has its turn: whoever fitted on a node
    when it was refused, and fits since, is asked about before it is again. An ask that was tried and parked meanwhile
    had its turn, too: for room that becomes free later, the order of the search holds.

    :param fits: the node on which an ask could be placed now; None: nothing would take it, or something else holds it.
    """

    def __init__(self, fits: Callable[[Partition, Ask], Node | None], tally: Counter[str]) -> None:
        self._fits = fits
        self._tally = tally
        self._turns: dict[Ask, _Turn] = {}
        self._asked: dict[int, tuple[str, str, str]] = {}

    def begin(self) -> None:
        """The rules are others, or the scheduler is: all of them may be asked about at once."""
        self._turns.clear()
        self._asked.clear()

    def heard(self, core: SchedulerCore, facts: Iterable[Fact]) -> None:
        """Between two cycles: answers refuse."""
        for fact in facts:
            if isinstance(fact, PredicateRefused) and (about := self._asked.pop(fact.question, None)) is not None:
                ask = _find(core, *about)
                if ask is not None:
                    self._turns[ask] = _Turn(core.next_submission)
            elif isinstance(fact, NewAllocation):
                # (On another node of the same probe: one at a time is open. A yes is no reason to give way.)
                made = fact.allocation
                if (ask := _find(core, fact.partition, made.app_id, made.key)) is not None:
                    self._turns.pop(ask, None)

    def decides(self, policy: CallbackPolicy, core: SchedulerCore) -> None:
        for ask, turn in list(self._turns.items()):
            partition = core.partitions.get(self._partition_of(core, ask))
            asking = partition is not None and partition.checks.for_ask(ask)
            if partition is None or ask.gone or not ask.pending or asking or not _rival(policy, ask):
                del self._turns[ask]
                continue
            waiting = self._waiting(policy, partition, ask, turn)
            turn.first = (
                waiting if turn.first is None else {each: waiting[each] for each in turn.first if each in waiting}
            )

    def decided(self, policy: CallbackPolicy, core: SchedulerCore, facts: Iterable[Fact]) -> None:
        asked = [fact for fact in facts if isinstance(fact, PredicateRequested)]
        found = [_find(core, fact.partition, fact.app_id, fact.key) for fact in asked]
        for turn in self._turns.values():
            for each in found:
                if each is not None and turn.first is not None:
                    turn.first.pop(each, None)
        for fact, ask in zip(asked, found, strict=True):
            if fact.allocate:
                self._asked[fact.question] = fact.partition, fact.app_id, fact.key
            if ask is None or not fact.allocate or (turn := self._turns.pop(ask, None)) is None:  # type: ignore[assignment]
                continue
            partition = core.partitions[fact.partition]
            still = self._waiting(policy, partition, ask, turn)
            for each in turn.first or ():
                must(
                    each not in still,
                    "its turn",
                    f"{ask} has its turn again, before {each}, which fits on {still.get(each)}",
                )
            self._tally["turns: again, after all others"] += 1
        for turn in self._turns.values():
            if turn.first is not None:
                turn.first = {
                    each: node
                    for each, node in turn.first.items()
                    if each.group is None or each.group.parked_key is None
                }

    def _partition_of(self, core: SchedulerCore, ask: Ask) -> str:
        return next((name for name, each in core.partitions.items() if each.apps.get(ask.app.app_id) is ask.app), "")

    def _waiting(self, policy: CallbackPolicy, partition: Partition, ask: Ask, turn: _Turn) -> dict[Ask, Node]:
        """The asks that could have a turn where it must be alone. (Those that came later may call it before others.)"""
        alone = _rival(policy, ask)
        found: dict[Ask, Node] = {}
        if partition.questions.is_at_limit:
            return found
        for app in partition.apps.values():
            if Scope.ONE not in alone and app is not ask.app:
                continue
            for each in app.asks.values():
                if each is ask:
                    continue
                narrow = not alone & (Scope.ONE | Scope.APPLICATION) and each.demand.task_group != ask.demand.task_group
                rival = _rival(policy, each)
                # (Those that must be alone in their application or their task group have one line there.)
                one_line = rival & alone or (rival and Scope.ONE not in rival | alone)
                if each.demand.submission >= turn.number and each.open > 0 and one_line:
                    return {}
                if not narrow and (node := self._fits(partition, each)) is not None:
                    found[each] = node
        return found


def _rival(policy: CallbackPolicy, ask: Ask) -> Scope:
    """Where it must be alone, beside nodes: those there take turns."""
    return wanted(policy, ask.demand) & (Scope.ONE | Scope.APPLICATION | Scope.TASK_GROUP)


def _find(core: SchedulerCore, partition: str, app_id: str, key: str) -> Ask | None:
    found = core.partitions.get(partition)
    app = found.apps.get(app_id) if found is not None else None
    return app.asks.get(key) if app is not None else None


def check_alone(policy: CallbackPolicy, partition: Partition, tally: Counter[str]) -> None:
    """Fails if two proposals are open in a scope where one of them must be alone."""
    found = list(proposals(partition))
    if not found:
        return
    count = Counter(place for _, here in found for place in here)
    for check, here in found:
        scope = wanted(policy, check.ask.demand)
        for place in here:
            if place[1] & scope:
                must(count[place] == 1, "alone", f"{check.ask}: {count[place]} proposals are open in {place}")
                tally[f"turns: alone in {place[1].name}"] += 1


class Wire:
    """What goes to the RM, as the service writes it: the numbers of responses, and behind which of them a question is.

    :ivar info: the RM's, which is recorded.
    """

    def __init__(self, info: RmInfo, tally: Counter[str]) -> None:
        self.tally = tally
        self._notes: dict[int, tuple[Scope, list[Place]]] = {}
        # By scope, the allocations there: in which response each was told, and whether it was to be alone.
        self._told: dict[Place, dict[tuple[str, str], tuple[int, bool]]] = {}
        self.goes_on(info)

    def goes_on(self, info: RmInfo) -> None:
        self.info = info
        self._emitter = Emitter(Topics(), info)

    def registered(self) -> None:
        """Starts anew at a registration."""
        self.info.last_allocation_response = 0
        self._told.clear()
        self._notes.clear()

    def note(self, fact: NewAllocation | PredicateRequested, policy: CallbackPolicy, demand: Demand | None) -> None:
        """It comes out: where it is, and where it is to be alone, by what holds now."""
        if demand is None:
            return
        if isinstance(fact, NewAllocation):
            made = fact.allocation
            app_id, node_id = made.app_id, made.node_id
        else:
            app_id, node_id = fact.app_id, fact.node_id
        found = places(fact.partition, app_id, demand.task_group, (node_id,))
        self._notes[id(fact)] = wanted(policy, demand), list(found)

    def send(self, facts: list[Fact], partitions: Mapping[str, Partition]) -> None:
        """Writes them; whoever is asked must know where to wait for what was allocated before."""
        records: list[tuple[int, si.AllocationResponse | callbacks_pb2.ToResourceManager]] = []
        written: list = []  # type: ignore[type-arg]
        for _ in self._emitter._responses(facts, Tally(), [], written):
            pass  # a pause of the service
        for record in written:
            envelope = envelope_pb2.ResponseEnvelope.FromString(record.value)
            if envelope.stream == envelope_pb2.STREAM_ALLOCATION:
                records.append((envelope.sequence, si.AllocationResponse.FromString(envelope.response)))
            elif envelope.stream == envelope_pb2.STREAM_CALLBACK:
                message = callbacks_pb2.ToResourceManager.FromString(envelope.response)
                records.append((envelope.sequence, message))
        new = iter([number for number, each in records if isinstance(each, si.AllocationResponse) for _ in each.new])
        behind = {
            question.id: (question.after_response, number)
            for number, each in records
            if isinstance(each, callbacks_pb2.ToResourceManager)
            for question in each.predicates
        }
        self._check(facts, new, behind, partitions)
        self._notes.clear()

    def _check(
        self,
        facts: list[Fact],
        new: Iterator[int],
        behind: Mapping[int, tuple[int, int]],
        partitions: Mapping[str, Partition],
    ) -> None:
        for fact in facts:
            if isinstance(fact, NewAllocation):
                number = next(new)
                if fact.adopted or (noted := self._notes.pop(id(fact), None)) is None:
                    continue  # (the RM itself said so)
                scope, found = noted
                who = fact.allocation.app_id, fact.allocation.unique_key
                for place in found:
                    self._told.setdefault(place, {})[who] = number, bool(place[1] & scope)
            elif isinstance(fact, PredicateRequested) and (noted := self._notes.pop(id(fact), None)) is not None:
                scope, found = noted
                after, number = behind[fact.question]
                must(after < number, "behind", f"{fact}: {number} is to be answered behind {after}")
                for place in found:
                    told = self._told.get(place, {})
                    for who in [who for who in told if not _runs(partitions.get(place[0]), *who)]:
                        del told[who]  # (the RM ended it, so it had heard of it)
                    least = max((each for each, alone in told.values() if alone or place[1] & scope), default=0)
                    must(after >= least, "behind", f"{fact}: in {place} {least} was told, and it waits for {after}")
                    self.tally["turns: behind what was told"] += least > 0


def _runs(partition: Partition | None, app_id: str, key: str) -> bool:
    app = partition.apps.get(app_id) if partition is not None else None
    return app is not None and key in app.allocations
