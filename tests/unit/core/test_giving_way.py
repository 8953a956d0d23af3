"""An ask that the RM refuses gives way: between two of its turns every other ask has one, and nobody waits for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from asking import Asking, Question, item
from muster_bus.log import Record
from muster_core import invariants
from muster_core.model.commands import (
    AppItem,
    AskItem,
    Command,
    NodeAction,
    NodeItem,
    PredicateAnswer,
    PredicateAnswers,
    SetCallbacks,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_core.model.outcome import Outcome, PredicateRequested
from muster_core.model.scopes import SCOPE_TAG, CallbackPolicy, Scope
from muster_core.scheduler import SchedulerCore
from muster_queue_config.queue_yaml import load_queue_config
from muster_state.snapshot import entries
from muster_state.state_folder import RmEntry, RmInfo, StateFolder

OPEN = "submitacl: '*'"
QUEUES = f"{{name: root, {OPEN}, queues: [{{name: a}}, {{name: b}}]}}"
NODES = 90


class Rm(Asking):
    """It refuses each node for the asks whose keys begin with "stuck", and agrees to all others."""

    def do(self, *commands: Command, budget: int = 1 << 30) -> Outcome:
        out = super().do(*commands, budget=budget)
        invariants.check(self.core, exhausted=self.core.exhausted)
        return out

    def verdict(self, question: Question) -> bool:
        return not question.key.startswith("stuck")

    def round(self) -> list[str]:
        """Answers what is open in one message. Returns the proposals that are open then, by their asks' keys."""
        self.answer(*(PredicateAnswer(each.question, self.verdict(each), "no label") for each in list(self.pile)))
        return self.proposed()

    def proposed(self) -> list[str]:
        checks = dict.fromkeys(self.partition.questions.open.values())
        return [check.ask.demand.key for check in checks if check.holds_out]


def a_cluster(alone: Scope = Scope.ALL, *, nodes: int = NODES, m: int = 100) -> Rm:
    rm = Rm(QUEUES, alone=alone)
    for number in range(nodes):
        rm.node(f"n{number:03d}", m=m)
    rm.app("stuck", "root.a")
    rm.app("other", "root.a")
    rm.app("third", "root.b")
    return rm


def alone(key: str, scope: str = "one", priority: int = 0) -> AskItem:
    return item(key, tags={SCOPE_TAG: scope}, priority=priority)


def test_plain_asks_that_come_one_by_one_wait_for_one_turn_only() -> None:
    rm = a_cluster()
    rm.want("stuck", *(alone(f"stuck{number:02d}", priority=7) for number in range(40)))
    rm.want("other", *(item(f"early{number}") for number in range(30)))
    for _ in range(45):
        rm.round()
    assert len(rm.placed("other")) == 30
    for number in range(25):
        before = len(rm.asked)
        rm.want("other", item(f"late{number}"))
        for _ in range(3):
            rm.round()
        assert f"late{number}" in rm.placed("other"), number
        # (A probe that was open, the plain ask's own question, and those that follow.)
        assert len(rm.asked) - before <= 1 + 3 * 32
    assert len(rm.placed("other")) == 55


@pytest.mark.parametrize("priority", [0, 9])
def test_between_two_turns_of_a_refused_ask_each_other_one_has_its_turn(priority: int) -> None:
    """All must be alone by the hello: 12 asks of two applications, and three that fit nowhere."""
    rm = a_cluster(Scope.ONE)
    rm.want("stuck", *(item(f"stuck{number}", priority=priority) for number in range(3)))
    rm.want("other", *(item(f"o{number}") for number in range(6)))
    rm.want("third", *(item(f"t{number}") for number in range(6)))
    told = rm.proposed()
    for _ in range(15 + 3 * 4):
        told += rm.round()
    first = told.index("stuck0")
    again = told.index("stuck0", first + 1)
    had_theirs = set(told[:again])
    assert had_theirs == {*(f"stuck{n}" for n in range(3)), *(f"o{n}" for n in range(6)), *(f"t{n}" for n in range(6))}
    assert told[again : again + 6] == [f"stuck{number % 3}" for number in range(6)], "then they take turns"


@pytest.mark.parametrize("scope", ["application", "task-group"])
def test_within_an_application_too(scope: str) -> None:
    rm = a_cluster()
    rm.want("stuck", alone("stuck", scope, priority=3), *(alone(f"k{number}", scope) for number in range(5)))
    told = rm.proposed()
    for _ in range(8):
        told += rm.round()
    assert told[:7] == ["stuck", "k0", "k1", "k2", "k3", "k4", "stuck"]
    rm.want("other", item("beside"))
    assert "beside" in rm.proposed(), "other applications need not wait"


def test_asks_that_must_be_alone_on_a_node_do_not_keep_all_nodes() -> None:
    """50 stuck asks would have all nodes, one after the other. Whoever waits for a node has its turn between theirs."""
    rm = a_cluster(nodes=24)
    rm.want("stuck", *(alone(f"stuck{number:02d}", "node", priority=5) for number in range(50)))
    for _ in range(4):
        rm.round()
    for number in range(8):
        rm.want("other", item(f"k{number}"))
        for _ in range(3):
            rm.round()
        assert f"k{number}" in rm.placed("other")
    assert any(rm.pile), "the stuck ones have their turns meanwhile"


@pytest.mark.parametrize("policy", [Scope.ALL, Scope.ONE])
@pytest.mark.parametrize("priority", [0, 9])
def test_a_stream_does_not_starve_a_refused_ask(policy: Scope, priority: int) -> None:
    """Each time the RM has answered, one more ask is there. The refused one still walks through all nodes."""
    rm = a_cluster(policy, nodes=60)
    rm.want("stuck", alone("stuck", priority=priority))
    for number in range(60):
        rm.want("third", item(f"k{number}"))
        rm.round()
    assert len(rm.refused("stuck", "stuck")) == 60
    # (Only one of them need be alone, or each of them: then one is placed for each answer to it.)
    assert len(rm.placed("third")) >= 45


def test_who_waits_until_nothing_is_open_comes_before_those_that_came_later() -> None:
    """The first in the search is always one of another queue that came since. (Before, each search began with it.)"""
    rm = a_cluster()
    rm.want("other", *(item(f"large{number}", 3) for number in range(9)))
    rm.round()
    rm.want("third", item("k"))
    rm.want("other", alone("lone"))
    for number in range(6):
        rm.want("third", item(f"k{number}"))
        rm.round()
        if "lone" in rm.placed("other"):
            break
    assert number <= 2


def test_a_refused_ask_of_a_higher_priority_takes_room_before_others() -> None:
    """It gives way once. What becomes free after that is its own first."""
    rm = a_cluster(nodes=3, m=1)
    rm.want("other", *(item(f"k{number}") for number in range(9)))
    rm.round()
    assert len(rm.placed("other")) == 3
    rm.want("third", alone("high", priority=8))
    for number, key in enumerate(list(rm.placed("other"))):
        node_id = rm.placed("other")[key]
        rm.release("other", key)
        if number == 0:
            assert rm.proposed() == ["high"]
            rm.no()
            assert rm.proposed() == ["k3"], "the others have the rest"
            rm.yes()
        else:
            assert (rm.pile[0].key, rm.pile[0].node_id) == ("high", node_id)
            rm.yes()
            break
    assert "high" in rm.placed("third")


def test_an_ask_that_all_refused_regains_its_place() -> None:
    moved: dict[str, Callable[[Rm], object]] = {
        "a node came": lambda rm: rm.node("new", m=9),
        "an allocation ended": lambda rm: rm.release("other", "k0"),
        "the pause is over": lambda rm: rm.wait(10),
    }
    for why, move in moved.items():
        rm = a_cluster(nodes=20)
        rm.want("other", item("k0"))
        rm.round()
        rm.want("stuck", alone("stuck"))
        for _ in range(6):
            rm.round()
        assert rm.proposed() == [], why
        assert len(rm.refused("stuck", "stuck")) == 20
        move(rm)
        assert rm.proposed() == ["stuck"], why


def test_whose_pause_is_over_does_not_come_before_all_else_again() -> None:
    """60 asks whose refusals are forgotten at once: one of them has a turn, then what came meanwhile."""
    rm = a_cluster(nodes=8)
    rm.want("stuck", *(alone(f"stuck{number:02d}", priority=4) for number in range(60)))
    while rm.pile:
        rm.round()
    for pause in (10, 20, 40, 60, 60):
        rm.wait(pause)
        assert "stuck" in rm.proposed()[0]
        rm.want("other", item(f"after{pause}-{rm.now_ns}"))
        for _ in range(3):
            rm.round()
        assert not rm.application("other").asks
        while rm.pile:
            rm.round()


def test_the_limit_of_open_questions_is_not_kept_by_those_that_fit_nowhere() -> None:
    """An RM that answers 16 at a time: what walks through all nodes leaves questions to the others."""
    rm = a_cluster()
    rm.partition.questions._most_open = 16
    rm.want("stuck", *(item(f"stuck{number:02d}", priority=6) for number in range(30)))
    rm.want("other", *(item(f"k{number:02d}") for number in range(40)))

    def slow_round() -> None:
        rm.now_ns += 4 * 1_000_000_000
        rm.round()

    for _ in range(8):
        slow_round()
    assert len(rm.placed("other")) == 40
    turns = Counter(each.key for each in rm.asked if each.key.startswith("stuck"))
    assert len(turns) == 30, "each of them had a turn"
    for number in range(150):
        rm.want("other", item(f"late{number}"))
        slow_round()
    assert len([key for key in rm.placed("other") if key.startswith("late")]) >= 140
    turns = Counter(each.key for each in rm.asked if each.key.startswith("stuck"))
    assert max(turns.values()) <= 3 * min(turns.values()), "they take turns"


def test_gangs_placeholders_take_turns_with_others() -> None:
    rm = a_cluster(nodes=40)
    rm.gang("gang", 6, "root.a")
    rm.want("gang", *(item(f"stuck{n}", tags={SCOPE_TAG: "one"}, task_group="tg", placeholder=True) for n in range(6)))
    for _ in range(8):  # each of them has its first turn in its place
        rm.round()
    for number in range(10):
        rm.want("third", item(f"k{number}"))
        for _ in range(3):
            rm.round()
        assert f"k{number}" in rm.placed("third")


def test_a_stuck_ask_of_one_partition_does_not_stop_another() -> None:
    names = ("default", "second")
    config, problems = load_queue_config(
        f"partitions: [{', '.join(f'{{name: {name}, queues: [{QUEUES}]}}' for name in names)}]"
    )
    assert config is not None, problems
    core, now_ns = SchedulerCore(config), 10**12
    core.start(now_ns)
    core.apply(SetCallbacks(CallbackPolicy(predicates=True, connected=True, since_ns=now_ns)), now_ns)
    pile: list[PredicateRequested] = []

    def do(*commands: Command) -> None:
        for command in commands:
            out = core.apply(command, now_ns)
            core.cycle(now_ns, 1000, out)
            invariants.check(core, exhausted=core.exhausted)
            pile.extend(fact for fact in out.facts if isinstance(fact, PredicateRequested))

    for name in names:
        capacity = {"m": 50}
        nodes = tuple(NodeItem(f"{name}{n}", NodeAction.CREATE, capacity=capacity, partition=name) for n in range(70))
        do(UpdateNodes(nodes), UpdateApplications((AppItem(f"app-{name}", "root.a", name, "ann"),)))
    stuck = [AskItem(f"stuck{n}", "app-second", "second", {"m": 1}, tags={SCOPE_TAG: "one"}) for n in range(9)]
    do(UpdateAllocations(stuck))
    for number in range(20):
        do(UpdateAllocations([AskItem(f"k{number}", "app-default", "default", {"m": 1})]))
        for _ in range(3):
            said = [PredicateAnswer(each.question, not each.key.startswith("stuck"), "no") for each in pile]
            pile.clear()
            do(PredicateAnswers(said))
        assert f"k{number}" in core.partitions["default"].apps["app-default"].allocations
    refused = [ask.refusals for ask in core.partitions["second"].apps["app-second"].asks.values()]
    assert all(each is not None and len(each.nodes) >= 7 for each in refused), "and they have their turns, too"


def test_after_a_restart_they_take_turns_anew() -> None:
    rm = a_cluster(nodes=50)
    rm.want("stuck", *(alone(f"stuck{number:02d}", priority=2) for number in range(12)))
    for _ in range(30):
        rm.round()
    rm.forget()
    info = RmInfo("rm", config=f"partitions: [{{name: default, queues: [{QUEUES}]}}]", life="RUNNING", registrations=1)
    info.registered_ns = info.last_decided_ns = rm.now_ns
    folder = StateFolder()
    for offset, (key, value) in enumerate(entries(RmEntry(info, rm.core))):
        folder.fold(Record("state", 0, offset, 0, key, value))
    folder.build()
    core = folder.rms["rm"].core
    core.activate(rm.now_ns, rm.now_ns)
    rm.restart(core)
    rm.connect()
    for number in range(6):
        before = len(rm.asked)
        rm.want("other", item(f"k{number}"))
        for _ in range(3):
            rm.round()
        assert f"k{number}" in rm.placed("other")
        assert len(rm.asked) - before <= 1 + 3 * 32


def test_an_ask_that_needs_its_application_is_not_passed_by_those_that_need_their_task_group() -> None:
    """Other asks keep the application in questions all the time."""
    rm = a_cluster()
    tags = {SCOPE_TAG: "application"}, {SCOPE_TAG: "task-group"}
    rm.want("stuck", *(item(f"stuck{each}", tags=tags[each], task_group="g") for each in range(2)))
    told: list[str] = rm.proposed()
    for number in range(40):
        rm.want("stuck", item(f"k{number}", task_group="h"))
        open_now = [each for each in rm.pile if each.key != f"k{number}"]
        rm.answer(*(PredicateAnswer(each.question, rm.verdict(each), "no label") for each in open_now))
        told += rm.proposed()
    turns = [key for key, before in zip(told[1:], told, strict=False) if key.startswith("stuck") and key != before]
    assert len(turns) > 10
    assert abs(turns.count("stuck0") - turns.count("stuck1")) <= 1


def test_others_that_stand_in_the_line_of_their_task_group_come_first() -> None:
    rm = a_cluster()
    rm.want("stuck", alone("stuck", priority=3))
    rm.want("other", *(alone(f"o{number}", "task-group") for number in range(5)))
    told = rm.proposed()
    for _ in range(12):
        told += rm.round()
    assert told[: told.index("stuck", 1)] == ["stuck", *(f"o{number}" for number in range(5))]
