"""Proposals take turns: an RM whose predicates depend on what was allocated before is asked about one at a time, per
node, task group, application, or in all; nobody waits for ever, and no two are open where one is to be alone."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from asking import Asking, Question, item
from builders import SECOND_NS, allocations
from muster_core import invariants
from muster_core.model.commands import (
    AppItem,
    AskItem,
    Command,
    NodeAction,
    NodeItem,
    PredicateAnswer,
    PredicateAnswers,
    ReleaseItem,
    SetCallbacks,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateConfiguration,
    UpdateNodes,
)
from muster_core.model.outcome import NewAllocation, Outcome, PredicateRequested, RejectedAsk, ReleasedAllocation
from muster_core.model.pending_reason import ask_reason
from muster_core.model.predicate_checks import PredicateCheck
from muster_core.model.reasons import ReasonCode
from muster_core.model.scopes import SCOPE_TAG, SCOPES, CallbackPolicy, Scope
from muster_core.scheduler import SchedulerCore
from muster_queue_config.queue_yaml import load_queue_config
from muster_si.constants import REQUIRED_NODE_TAG

OPEN = "submitacl: '*'"
LEAF = f"{{name: root, {OPEN}, queues: [{{name: a}}, {{name: b}}]}}"
LABEL, PORT = "label", "port"


class Stateful(Asking):
    """An RM that knows only the messages that it got: required hostname anti-affinity, and host ports.

    :ivar wrong: allocations that it would have refused with its knowledge at that time.
    """

    def __init__(self, *args: Any, **policy: Any) -> None:
        self.running: dict[tuple[str, str], tuple[str, dict[str, str]]] = {}
        self.tags: dict[tuple[str, str], dict[str, str]] = {}
        self.wrong: list[tuple[str, str, str]] = []
        self.most = 0
        super().__init__(*args, **policy)

    def do(self, *commands: Command, budget: int = 1 << 30) -> Outcome:
        for command in commands:
            for each in command.asks if isinstance(command, UpdateAllocations) else ():
                self.tags[each.app_id, each.key] = dict(each.tags)
        out = super().do(*commands, budget=budget)
        for fact in out.facts:
            if isinstance(fact, NewAllocation):
                made = fact.allocation
                about = (made.app_id, made.key)
                if why := self.objection(self.tags.get(about, {}), made.node_id):
                    self.wrong.append((made.key, made.node_id, why))
                self.running[about] = (made.node_id, self.tags.get(about, {}))
            elif isinstance(fact, ReleasedAllocation):
                self.running.pop((fact.app_id, fact.key), None)
        alone_everywhere(self)
        self.most = max(self.most, len({id(each) for each in self.partition.questions.open.values()}))
        invariants.check(self.core, exhausted=self.core.exhausted)
        return out

    def objection(self, tags: dict[str, str], node_id: str) -> str:
        for there, other in self.running.values():
            for name in (LABEL, PORT):
                if there == node_id and tags.get(name) and other.get(name) == tags[name]:
                    return f"{name} {tags[name]} is there"
        return ""

    def verdict(self, question: Question) -> bool:
        return not self.objection(self.tags[question.app_id, question.key], question.node_id)

    def to_the_end(self, dice: random.Random | None = None, rounds: int = 3000) -> None:
        """Answers until no call is open; with dice a few at a time, in any order."""
        for _ in range(rounds):
            if not self.pile:
                return
            pile = list(self.pile)
            if dice is not None:
                pile = dice.sample(pile, dice.randint(1, len(pile)))
            said = [PredicateAnswer(each.question, self.verdict(each), "taken") for each in pile]
            self.answer(*said)
        raise AssertionError(f"asked for ever: {self.pile[:3]}")


def alone_everywhere(rm: Asking) -> None:
    """Fails if another proposal is open in a scope in which one must be alone."""
    checks = [each for each in dict.fromkeys(rm.partition.questions.open.values()) if each.holds_out]
    for first in checks:
        scope = rm.policy.alone | first.ask.demand.alone
        for other in checks:
            if other is not first:
                assert not (scope & shared(first, other)), f"{first} is not alone: {other} ({scope!r})"


def shared(first: PredicateCheck, other: PredicateCheck) -> Scope:
    found = Scope.ONE
    if set(first.nodes.values()) & set(other.nodes.values()):
        found |= Scope.NODE
    if first.ask.app is other.ask.app:
        found |= Scope.APPLICATION
        if first.ask.demand.task_group == other.ask.demand.task_group:
            found |= Scope.TASK_GROUP
    return found


def spread(count: int, app: str = "app", **tags: str) -> list[AskItem]:
    return [replace(item(f"k{number:02d}", tags={LABEL: app, **tags}), app_id=app) for number in range(count)]


def a_cluster(alone: Scope, nodes: int = 50, m: int = 100, **more: Any) -> Stateful:
    rm = Stateful(LEAF, alone=alone, **more)
    for number in range(nodes):
        rm.node(f"n{number:02d}", m=m)
    rm.app("app", "root.a")
    return rm


@pytest.mark.parametrize("nodesort", ["fair", "binpacking"])
@pytest.mark.parametrize("alone", list(SCOPES.values())[1:])
def test_44_pods_with_required_anti_affinity_have_a_node_each(alone: Scope, nodesort: str) -> None:
    rm = a_cluster(alone, nodesort=nodesort)
    rm.want("app", *spread(44))
    rm.to_the_end()
    assert rm.wrong == []
    assert len(set(rm.placed("app").values())) == 44
    assert rm.most == (44 if alone is Scope.NODE else 1)


def test_with_all_open_at_once_the_rm_agrees_to_what_it_would_not_have() -> None:
    rm = a_cluster(Scope.ALL, nodesort="binpacking")
    rm.want("app", *spread(44))
    rm.to_the_end()
    assert len(rm.wrong) == 43


@pytest.mark.parametrize("alone", list(SCOPES.values())[1:])
def test_a_host_port_is_given_once_on_each_node(alone: Scope) -> None:
    """Ten ports, two nodes: of each port two pods run, and the rest wait until one of them ends."""
    rm = a_cluster(alone, nodes=2)
    rm.want("app", *(item(f"k{number:02d}", tags={PORT: str(number % 10)}) for number in range(40)))
    rm.to_the_end()
    assert rm.wrong == []
    assert Counter(rm.tags["app", key][PORT] for key in rm.placed("app")) == {str(port): 2 for port in range(10)}
    for key in list(rm.placed("app"))[:5]:
        rm.running.pop(("app", key))
        rm.do(UpdateAllocations([], [ReleaseItem("default", "app", key, Termination.STOPPED_BY_RM)]))
        rm.to_the_end()
    for _ in range(40):
        rm.wait(0.25)
        rm.to_the_end()
    assert rm.wrong == []
    assert len(rm.placed("app")) == 20


def test_a_proposal_alone_in_a_task_group_does_not_stop_others_of_its_application() -> None:
    rm = a_cluster(Scope.TASK_GROUP, nodes=9)
    rm.want("app", *(item(f"{group}{number}", task_group=group) for group in "xyz" for number in range(3)))
    assert sorted(rm.open) == sorted(rm.open)
    assert sorted(key for key, _ in rm.open) == ["x0", "y0", "z0"]
    rm.answer((rm.pile[0], True))
    assert sorted(key for key, _ in rm.open) == ["x1", "y0", "z0"]
    rm.to_the_end()
    assert len(rm.placed("app")) == 9


def test_one_at_a_time_goes_in_the_order_of_the_search() -> None:
    """A later ask of a higher priority comes before those that wait; queues take turns by their shares."""
    rm = a_cluster(Scope.ONE, nodes=1)
    rm.app("other", "root.b")
    rm.want("app", *(item(f"k{number}") for number in range(4)))
    rm.want("other", *(item(f"o{number}") for number in range(4)))
    rm.want("app", item("urgent", priority=5))
    told: list[str] = []
    while rm.pile:
        told += [key for _, key, _ in allocations(rm.yes())]
    assert told[:2] == ["k0", "urgent"]
    assert sorted(told[2:6]) == ["k1", "k2", "o0", "o1"] or [key[0] for key in told[2:]].count("o") == 4
    assert rm.core.exhausted


def test_a_proposal_that_is_to_be_alone_by_its_tag_waits_for_others_and_they_for_it() -> None:
    rm = a_cluster(Scope.ALL, nodes=1)
    rm.want("app", item("k0"), item("k1"))
    assert rm.open == [("k0", "n00"), ("k1", "n00")]
    rm.want("app", item("alone", tags={SCOPE_TAG: "node"}))
    rm.want("app", item("k2"))
    assert rm.open == [("k0", "n00"), ("k1", "n00")], "nobody overtakes it on the node"
    assert rm.pending("app")["alone"] == "RM_TURN"
    assert rm.why("app", "alone").sentence() == "It waits for the answer to the proposal of k0 on node n00."
    rm.answer((rm.pile[0], True))
    assert rm.open == [("k1", "n00")]
    rm.answer((rm.pile[0], True))
    assert rm.open == [("alone", "n00")]
    rm.yes()
    assert rm.open == [("k2", "n00")]
    rm.yes()
    assert len(rm.placed("app")) == 4


@pytest.mark.parametrize("first", ["n00", "n01"])
def test_an_ask_that_is_to_be_alone_takes_whichever_node_is_free_first(first: str) -> None:
    rm = a_cluster(Scope.ALL, nodes=2)
    for node in ("n00", "n01"):
        rm.want("app", item(f"on-{node}", tags={REQUIRED_NODE_TAG: node}))
    rm.want("app", item("alone", tags={SCOPE_TAG: "node"}))
    assert rm.open == [("on-n00", "n00"), ("on-n01", "n01")]
    rm.answer(*((each, True) for each in rm.pile if each.node_id == first))
    assert ("alone", first) in rm.open, "it does not wait for the other node"


def test_both_hold_where_the_hello_and_a_tag_say_different_things() -> None:
    rm = a_cluster(Scope.NODE, nodes=4)
    rm.want("app", item("k0"), item("k1"), item("alone", tags={SCOPE_TAG: "Application"}), item("k2"))
    assert [key for key, _ in rm.open] == ["k0", "k1"]
    rm.yes()
    assert [key for key, _ in rm.open] == ["alone"]
    rm.yes()
    assert [key for key, _ in rm.open] == ["k2"]


def test_a_tag_that_says_nothing_known_refuses_the_ask() -> None:
    rm = a_cluster(Scope.ALL, nodes=1)
    out = rm.want("app", item("k", tags={SCOPE_TAG: "rack"}))
    why = "allocationTags['muster.callbacks.open']: 'rack', expected all, node, task-group, application, one"
    assert out.facts == [RejectedAsk("k", "app", why, False)] or why in str(out.facts)


def test_a_daemon_waits_for_its_nodes_turn() -> None:
    rm = a_cluster(Scope.NODE, nodes=2)
    rm.want("app", item("k0", tags={REQUIRED_NODE_TAG: "n00"}), item("k1", tags={REQUIRED_NODE_TAG: "n00"}))
    assert rm.open == [("k0", "n00")]
    assert rm.why("app", "k1").code is ReasonCode.RM_TURN
    assert not rm.the_ask("app", "k1").reserved_node
    rm.yes()
    assert rm.open == [("k1", "n00")]
    rm.no()
    assert rm.why("app", "k1").code is ReasonCode.REFUSED_BY_RM


def test_after_an_answer_without_room_waiting_asks_may_reserve_or_preempt() -> None:
    rm = a_cluster(Scope.NODE, nodes=1, m=4)
    rm.want("app", item("k0"), item("large", 2))
    assert rm.why("app", "large").code is ReasonCode.RM_TURN
    rm.do(UpdateNodes((NodeItem("n00", NodeAction.UPDATE, occupied={"m": 2}),)))
    assert rm.why("app", "large").code is ReasonCode.RM_TURN
    rm.yes()
    assert rm.why("app", "large").code is ReasonCode.NO_NODE_HAS_ROOM


def test_another_wish_of_the_rm_holds_for_what_is_open_too() -> None:
    rm = a_cluster(Scope.ALL, nodes=2)
    rm.want("app", *(item(f"k{number}") for number in range(6)))
    assert len(rm.open) == 6
    rm.forget()
    rm.connect(alone=Scope.ONE)
    assert [key for key, _ in rm.open] == ["k0"]
    rm.forget()
    rm.connect(alone=Scope.ALL)
    assert len(rm.open) == 6


def test_no_answer_frees_the_scope_at_its_deadline() -> None:
    rm = a_cluster(Scope.ONE, nodes=2)
    rm.want("app", item("k0"), item("k1"))
    rm.forget()
    rm.wait(10)
    assert [key for key, _ in rm.open] == ["k1"], "every other ask has its turn before the next one of k0"
    rm.forget()
    rm.wait(10)
    assert len(rm.open) == 1
    rm.to_the_end()
    for _ in range(8):
        rm.wait(10)
        rm.to_the_end()
    assert len(rm.placed("app")) == 2


def test_a_search_that_stopped_for_an_answer_leaves_nothing_to_do_for_those_it_did_not_reach() -> None:
    rm = a_cluster(Scope.ONE, nodes=1, m=4)
    rm.want("app", item("k0", 4))
    rm.yes()
    rm.want("app", item("small", 1), item("large", 3))
    release = ReleaseItem("default", "app", "k0", Termination.STOPPED_BY_RM)
    rm.now_ns += 5 * SECOND_NS  # (both may have the node kept free for them now)
    rm.do(UpdateAllocations((), [release]))
    assert [key for key, _ in rm.open] == ["small"]
    assert rm.core.exhausted
    rm.to_the_end()
    assert len(rm.placed("app")) == 2


def test_gangs_take_turns_too() -> None:
    for alone in list(SCOPES.values())[1:]:
        rm = a_cluster(alone, nodes=3)
        rm.gang("g", 6)
        rm.want("g", *(item(f"p{number}", task_group="tg", placeholder=True) for number in range(6)))
        rm.to_the_end()
        rm.want("g", *(item(f"r{number}", task_group="tg") for number in range(6)))
        for _ in range(30):
            rm.to_the_end()
            going = [held for held in rm.application("g").allocations.values() if held.replaced_by]
            for held in going:
                release = ReleaseItem("default", "g", held.key, Termination.PLACEHOLDER_REPLACED)
                rm.do(UpdateAllocations([], [release]))
        assert sorted(rm.placed("g")) == [f"r{number}" for number in range(6)], alone


def test_the_rest_of_a_released_ask_leaves_its_line() -> None:
    """Of three repeats one is asked about, and the others stand in line behind it."""
    for alone in list(SCOPES.values())[1:]:
        rm = a_cluster(alone, nodes=1)
        rm.want("app", item("k", wanted=3), item("later", 2))
        rm.forget()
        rm.do(UpdateAllocations([], [ReleaseItem("default", "app", "k", Termination.STOPPED_BY_RM)]))
        assert [key for key, _ in rm.open] == ["later"], alone
        rm.yes()
        assert list(rm.placed("app")) == ["later"]


def test_room_that_an_application_may_not_be_proposed_for_now_is_offered_to_the_next_user() -> None:
    """Who waits behind another user's application for the same does not wait for that one's turn."""
    leaf = (
        f"{{name: root, {OPEN}, limits: [{{limit: x, users: ['*'], maxresources: {{m: 99}}}}], queues: [{{name: a}}]}}"
    )
    rm = Stateful(leaf, alone=Scope.APPLICATION)
    rm.node("n0", m=1)
    for user in ("first", "second", "third"):
        rm.app(user, "root.a", user=user)
        rm.want(user, item("large", 3))
    rm.want("first", item("small"))
    assert rm.open == [("small", "n0")]
    rm.node("n1", m=6)
    assert rm.open == [("small", "n0"), ("large", "n1"), ("large", "n1")]
    assert [each.app_id for each in rm.pile] == ["first", "second", "third"]
    rm.no()
    rm.to_the_end()
    assert "large" in rm.placed("first")


def test_asks_that_are_to_be_alone_in_one_scope_wait_together() -> None:
    """As others that are alike: what ends concerns the first of them, not each of thousands."""
    rm = a_cluster(Scope.ALL, nodes=2, m=1)
    rm.want("app", item("a"), item("b"))
    rm.yes()
    for scope in ("node", "one"):
        rm.want("app", *(item(f"{scope}{number}", tags={SCOPE_TAG: scope}) for number in range(20)))
    assert len(rm.queue("root.a").waitlists) == 2
    asked = len(rm.asked)
    rm.release("app", "a")
    rm.no()
    assert rm.open == [("one0", "n00")], "it waited until nothing is open"
    assert len(rm.asked) == asked + 2
    rm.yes()
    rm.node("n02", m=9)
    rm.to_the_end()
    assert len(rm.placed("app")) == 11
    assert {each.code for each in (rm.why("app", "one18"), rm.why("app", "one19"))} == {ReasonCode.NO_NODE_HAS_ROOM}


TWO = "partitions: [{{name: default, queues: [{0}]}}, {{name: other, queues: [{0}]}}]"


@pytest.mark.parametrize("alone_first", [True, False])
def test_one_at_a_time_by_a_tag_holds_over_all_partitions(alone_first: bool) -> None:
    config, problems = load_queue_config(TWO.format(LEAF))
    assert config is not None, problems
    core, now_ns = SchedulerCore(config), 1000 * SECOND_NS
    core.start(now_ns)
    core.apply(SetCallbacks(CallbackPolicy(predicates=True, connected=True, since_ns=now_ns)), now_ns)
    seen: list[PredicateRequested] = []

    def do(command: Command) -> None:
        out = core.apply(command, now_ns)
        core.cycle(now_ns, 100, out)
        invariants.check(core, exhausted=core.exhausted)
        seen.extend(fact for fact in out.facts if isinstance(fact, PredicateRequested))
        asked = [each.ask for part in core.partitions.values() for each in part.questions.open.values()]
        assert len(asked) <= 1 or not any(each.demand.alone for each in asked)

    def furnish(partition: str) -> None:
        do(UpdateNodes((NodeItem(f"n-{partition}", NodeAction.CREATE, capacity={"m": 9}, partition=partition),)))
        do(UpdateApplications((AppItem(f"app-{partition}", "root.a", partition, "alice"),)))

    def want(partition: str, **tags: str) -> None:
        do(UpdateAllocations([AskItem("k", f"app-{partition}", partition, {"m": 1}, tags=tags)]))

    furnish("default")
    furnish("other")
    if alone_first:
        want("default", **{SCOPE_TAG: "one"})
        want("other")
    else:
        want("other")
        want("default", **{SCOPE_TAG: "one"})
    assert len(seen) == 1
    three, problems = load_queue_config(TWO.format(LEAF)[:-1] + f", {{name: third, queues: [{LEAF}]}}]")
    assert three is not None, problems
    do(UpdateConfiguration(three))
    furnish("third")
    want("third")
    while open_now := [each for part in core.partitions.values() for each in part.questions.open]:
        do(PredicateAnswers([PredicateAnswer(question, True, "") for question in open_now]))
    assert [len(each.allocations) for part in core.partitions.values() for each in part.apps.values()] == [1, 1, 1]


@pytest.mark.parametrize("seed", range(30))
def test_in_a_random_life_exclusive_proposals_are_alone_and_all_asks_get_their_turn(seed: int) -> None:
    dice = random.Random(seed)
    rm = Stateful(LEAF, nodesort=dice.choice(["fair", "binpacking"]), alone=Scope(dice.choice([0, 1, 2, 4, 8, 3, 5])))
    for number in range(dice.randint(1, 6)):
        rm.node(f"n{number}", m=dice.choice([6, 20, 60]))
    for number, leaf in enumerate("aabb"):
        rm.app(f"app{number}", f"root.{leaf}")
    wanted = 0
    tagged = dice.random() < 0.6
    for _ in range(dice.randint(10, 40)):
        match dice.randrange(6):
            case 0 | 1 | 2:
                for _ in range(dice.randint(1, 4)):
                    tags = {LABEL: dice.choice("vw")} if dice.random() < 0.3 else {}
                    if tagged and dice.random() < 0.3:
                        tags[SCOPE_TAG] = dice.choice(list(SCOPES))
                    if dice.random() < 0.1:
                        tags[REQUIRED_NODE_TAG] = "n0"
                    wanted += 1
                    more = {"task_group": dice.choice(["", "s", "t"]), "priority": dice.choice([0, 0, 0, 3])}
                    size = dice.choice([1, 1, 2, 3])
                    rm.want(f"app{dice.randrange(4)}", item(f"k{wanted}", size, tags=tags, **more))
            case 3 | 4 if rm.pile:
                pile = dice.sample(rm.pile, dice.randint(1, len(rm.pile)))
                rm.answer(*(PredicateAnswer(each.question, rm.verdict(each)) for each in pile))
            case 5 if rm.running:
                app_id, key = dice.choice(list(rm.running))
                rm.running.pop((app_id, key))
                rm.do(UpdateAllocations([], [ReleaseItem("default", app_id, key, Termination.STOPPED_BY_RM)]))
            case _:
                rm.wait(dice.choice([0.1, 1, 11]))
    rm.to_the_end(dice)
    for _ in range(6):
        rm.wait(61)
        rm.to_the_end(dice)
    if rm.policy.alone & (Scope.NODE | Scope.ONE):
        assert rm.wrong == []
    for app in rm.partition.apps.values():
        for ask in app.asks.values():
            reason = ask_reason(ask)
            assert reason is not None, f"seed {seed}: {ask}"
            assert reason.code is not ReasonCode.RM_TURN, f"seed {seed}: {ask} waits for a turn, and nothing is open"
    turns = rm.partition.questions.turns
    assert not turns._of, f"seed {seed}: {turns._of}"
    assert not turns._restless
    assert rm.is_quiet()


def test_an_ask_that_leaves_its_line_as_its_scope_frees_is_not_let_go() -> None:
    """The same release ends the proposal of an ask with repeats, and what of it stands in line."""
    rm = a_cluster(Scope.TASK_GROUP)
    rm.want("app", *(replace(each, wanted=3, previous_generation=True) for each in spread(2)))
    assert len(rm.pile) == 1
    for key in ("k00", "k01"):
        rm.do(UpdateAllocations((), [ReleaseItem("default", "app", key, Termination.STOPPED_BY_RM, ask_only=True)]))
    assert not rm.partition.questions.open
    assert rm.placed("app") == {}


def test_questions_after_an_exclusive_proposal_follow_its_response() -> None:
    rm = a_cluster(Scope.ALL)
    rm.want("app", replace(item("first", tags={SCOPE_TAG: "node"}), app_id="app"))
    rm.to_the_end()
    rm.want("app", replace(item("later"), app_id="app"))
    assert [each.after_last for each in rm.pile] == [True]
