"""A cluster whose resource manager (RM) wants predicate calls, and answers them as a test says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from builders import SECOND_NS, Cluster
from muster_core.model.application import Ask
from muster_core.model.commands import (
    AppItem,
    AskItem,
    Command,
    PredicateAnswer,
    PredicateAnswers,
    SetCallbacks,
    UpdateAllocations,
    UpdateApplications,
)
from muster_core.model.outcome import (
    Outcome,
    PredicateRequested,
    PreemptionPredicateRequested,
    SchedulingState,
    SchedulingStateChanged,
)
from muster_core.model.pending_reason import ask_reason
from muster_core.model.reasons import Reason
from muster_core.model.scopes import CallbackPolicy
from muster_core.scheduler import SchedulerCore

Question = PredicateRequested | PreemptionPredicateRequested
Verdict = Callable[[Question], "bool | None"]


class Asking(Cluster):
    """The RM of such a cluster.

    :ivar asked: every call, in order.
    :ivar pile: the calls without an answer, oldest first.
    :ivar states: each (ask, state, reason) that the RM was sent.
    """

    def __init__(
        self,
        queues: str = "{name: root, submitacl: '*', queues: [{name: a}]}",
        *,
        nodesort: str = "fair",
        partition: str = "",
        connected: bool = True,
        **policy: Any,
    ) -> None:
        super().__init__(queues, nodesort=nodesort, partition=partition)
        self.policy = replace(CallbackPolicy(predicates=True, preemption=True, states=True), **policy)
        self.asked: list[Question] = []
        self.pile: list[Question] = []
        self.states: list[tuple[str, SchedulingState, str]] = []
        if connected:
            self.connect()

    def do(self, *commands: Command, budget: int = 1 << 30) -> Outcome:
        out = super().do(*commands, budget=budget)
        for fact in out.facts:
            if isinstance(fact, PredicateRequested | PreemptionPredicateRequested):
                self.asked.append(fact)
                self.pile.append(fact)
            elif isinstance(fact, SchedulingStateChanged):
                self.states.append((fact.key, fact.state, fact.reason))
        return out

    # ---- its stream ------------------------------------------------------------------------------------------------

    def connect(self, **wants: Any) -> Outcome:
        """Opens the RM's callback stream, for the first time or again."""
        self.policy = replace(self.policy, connected=True, since_ns=self.now_ns, **wants)
        return self.do(SetCallbacks(self.policy))

    def lose(self) -> Outcome:
        """Breaks the RM's callback stream."""
        self.policy = replace(self.policy, connected=False, since_ns=self.now_ns)
        return self.do(SetCallbacks(self.policy))

    # ---- its answers -----------------------------------------------------------------------------------------------

    def answer(self, *answers: tuple[Question, bool] | PredicateAnswer) -> Outcome:
        """Sends these answers in one message."""
        said = [
            each if isinstance(each, PredicateAnswer) else PredicateAnswer(each[0].question, each[1], "no disk")
            for each in answers
        ]
        done = {each.question for each in said}
        self.pile = [each for each in self.pile if each.question not in done]
        return self.do(PredicateAnswers(said))

    def yes(self) -> Outcome:
        """To everything that is on the pile."""
        return self.answer(*((question, True) for question in self.pile))

    def no(self) -> Outcome:
        """Likewise."""
        return self.answer(*((question, False) for question in self.pile))

    def decide(self, verdict: Verdict, rounds: int = 100) -> list[Outcome]:
        """Answers until no call is open. An answer of None leaves a call without an answer."""
        found = []
        for _ in range(rounds):
            said = [(question, verdict(question)) for question in self.pile]
            answers = [(question, fits) for question, fits in said if fits is not None]
            if not answers:
                return found
            found.append(self.answer(*answers))
        raise AssertionError(f"asked for ever: {self.pile[:3]}")

    def refuse(self, *node_ids: str) -> list[Outcome]:
        """Refuses these nodes and agrees to all others, until no call is open."""
        return self.decide(lambda question: question.node_id not in node_ids)

    @property
    def open(self) -> list[tuple[str, str]]:
        """The (ask, node) of each open call."""
        return [(question.key, question.node_id) for question in self.pile]

    def forget(self) -> None:
        """Drops all open calls without an answer."""
        self.pile.clear()

    # ---- looking ---------------------------------------------------------------------------------------------------

    def the_ask(self, app_id: str, key: str) -> Ask:
        return self.application(app_id).asks[key]

    def why(self, app_id: str, key: str) -> Reason:
        found = ask_reason(self.the_ask(app_id, key))
        assert found is not None
        return found

    def refused(self, app_id: str, key: str) -> list[str]:
        """The nodes that the RM refuses for an ask."""
        refusals = self.the_ask(app_id, key).refusals
        return list(refusals.nodes) if refusals is not None else []

    def is_quiet(self) -> bool:
        """Whether no call is open and nothing is booked, kept as a candidate or remembered as agreed for a call."""
        questions = self.partition.questions
        busy = [questions.open, questions._quick, questions._aside, questions._agreed]
        open_now = self.partition.checks
        busy += [open_now.of_asks, open_now.of_nodes, open_now.of_placeholders]
        for app in self.partition.apps.values():
            busy += [ask.asking or [] for ask in app.asks.values()]
            busy += [app.gang.proposed] if app.gang is not None else []
        return not any(busy) and not any(app.proposed for app in self.partition.apps.values())

    # ---- shorthands ------------------------------------------------------------------------------------------------

    def want(self, app_id: str, *items: AskItem) -> Outcome:
        return self.do(UpdateAllocations([replace(item, app_id=app_id) for item in items]))

    def gang(self, app_id: str, total: int, queue: str = "root.a", *, style: str = "", timeout_ms: int = 0) -> Outcome:
        """Adds an application with a gang of that much of resource m."""
        item = AppItem(
            app_id,
            queue,
            "default",
            "alice",
            placeholder_ask={"m": total},
            gang_style=style,
            execution_timeout_ms=timeout_ms,
        )
        return self.do(UpdateApplications((item,)))

    def restart(self, core: SchedulerCore) -> None:
        """Continues with another core, folded from the state."""
        self.core = core


def item(key: str, m: int = 1, **more: Any) -> AskItem:
    """An ask for that much of resource m."""
    return replace(AskItem(key, "", "default", {"m": m}), **more)


def items(keys: str, m: int = 1, **more: Any) -> list[AskItem]:
    """Asks; their keys are separated by blanks."""
    return [item(key, m, **more) for key in keys.split()]


SECONDS = SECOND_NS
