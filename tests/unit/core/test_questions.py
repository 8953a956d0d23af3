"""Predicate calls: every kind of call, every answer, and events in the meantime."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from asking import SECONDS, Asking, item, items
from builders import Cluster, allocations, ask, nodes
from muster_core.model.commands import (
    AskItem,
    NodeAction,
    NodeItem,
    PredicateAnswer,
    PredicateAnswers,
    ReleaseItem,
    SetCallbacks,
    SetSchedulingEnabled,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_core.model.outcome import (
    NewAllocation,
    Outcome,
    PredicateRequested,
    PreemptionPredicateRequested,
    ReleasedAllocation,
    ScaleUpHint,
    SchedulingState,
)
from muster_core.model.reasons import ReasonCode
from muster_core.model.scopes import CallbackPolicy
from muster_core.model.states import AppState, GangPhase
from muster_core.model.steps import finish
from muster_core.predicates.predicate_calls import PROBE_NODES_MAX
from muster_core.predicates.refused_nodes import RETRY_MAX_NS
from muster_proto.muster.bus.v1 import state_pb2 as pb
from muster_si.constants import FOREIGN, REQUIRED_NODE_TAG
from muster_state import state_codec

OPEN = "submitacl: '*'"
LEAF = f"{{name: root, {OPEN}, queues: [{{name: a}}]}}"


def one(**policy: Any) -> Asking:
    """Two nodes, one application, and one ask with an open call about n1; n2 would be next."""
    rm = Asking(LEAF, nodesort="binpacking", **policy).having({"n1": {"m": 4}, "n2": {"m": 4}}, {"app": "root.a"})
    rm.ask("app", "k", m=1)
    assert rm.open == [("k", "n1")]
    return rm


def of_m(vector: list[int]) -> int:
    """The amount of the type that these tests use (the first two are always there)."""
    return vector[2]


def told(out: Outcome, termination: Termination) -> list[str]:
    return [fact.key for fact in out.facts if isinstance(fact, ReleasedAllocation) and fact.termination is termination]


# ---- PLACE ---------------------------------------------------------------------------------------------------------


def test_nothing_is_placed_before_the_rm_agrees_and_then_it_is_at_once() -> None:
    rm = one()
    assert not rm.placed("app")
    assert rm.application("app").state is AppState.ACCEPTED
    (question,) = rm.asked
    assert isinstance(question, PredicateRequested)
    assert question.allocate
    assert question.due_ns == rm.now_ns + 10 * SECONDS
    assert allocations(rm.yes()) == [("app", "k", "n1")]
    assert rm.application("app").state is AppState.RUNNING
    assert rm.is_quiet()


def test_a_no_gives_all_back_and_the_next_node_is_asked_about() -> None:
    rm = one()
    rm.no()
    assert rm.open == [("k", "n2")]
    assert of_m(rm.the_node("n1").allocated) == 0
    assert of_m(rm.the_node("n2").allocated) == 1
    assert allocations(rm.yes()) == [("app", "k", "n2")]
    assert rm.is_quiet()
    assert not rm.the_node("n1").refused_by


def test_a_proposal_counts_on_the_node_and_in_the_queue_and_is_not_announced() -> None:
    rm = Asking(f"{{name: root, {OPEN}, queues: [{{name: a, resources: {{max: {{m: 3}}}}}}]}}").having(
        {"n1": {"m": 10}}, {"app": "root.a"}
    )
    for key in "wxyz":
        rm.ask("app", key, m=1)
    assert rm.open == [("w", "n1"), ("x", "n1"), ("y", "n1")]
    assert of_m(rm.queue("root.a").allocated) == 3
    assert rm.pending("app")["z"] == "QUEUE_MAX"
    rm.answer((rm.pile[0], False))  # w gives back, and has no other node
    assert ("z", "n1") in rm.open
    rm.yes()
    assert sorted(rm.placed("app")) == ["x", "y", "z"]
    assert rm.is_quiet()


def test_an_agreed_proposal_keeps_its_amounts_and_the_nodes_place_in_the_order() -> None:
    rm = one()
    node, app, index = rm.the_node("n1"), rm.application("app"), rm.partition.node_books.index
    version, free = index.version, list(node.available)
    assert (app.proposed, of_m(app.pending)) == (1, 1)
    rm.yes()
    assert (app.proposed, of_m(app.pending)) == (0, 0)
    assert of_m(node.allocated) == of_m(app.allocated) == of_m(rm.queue("root").allocated) == 1
    assert node.available == free
    assert index.version == version
    assert rm.is_quiet()


@pytest.mark.parametrize("fits", [True, False])
def test_only_the_first_answer_counts(fits: bool) -> None:
    rm = one()
    question = rm.pile[0].question
    out = rm.answer(PredicateAnswer(question, fits), PredicateAnswer(question, not fits))
    assert bool(allocations(out)) is fits
    out = rm.do(PredicateAnswers([PredicateAnswer(question, not fits)]))
    assert not out.facts
    assert rm.refused("app", "k") == ["n1"] if not fits else "k" in rm.placed("app")


@pytest.mark.parametrize("question", [0, 1, 1 << 62])
def test_answers_without_a_question_change_nothing(question: int) -> None:
    rm = one()
    out = rm.do(PredicateAnswers([PredicateAnswer(question, True), PredicateAnswer(question, False, "no")]))
    assert not out
    assert allocations(rm.yes())


def test_no_answer_in_time_refuses_the_node_for_a_while() -> None:
    rm = one()
    rm.forget()
    rm.wait(9.999)
    assert len(rm.asked) == 1
    rm.wait(0.001)
    assert rm.open == [("k", "n2")]
    refusals = rm.the_ask("app", "k").refusals
    assert refusals is not None
    (refusal,) = refusals.nodes.values()
    assert refusal.unanswered
    assert refusal.reason == "no answer within 10 s"
    assert allocations(rm.yes()) == [("app", "k", "n2")]


def test_an_answer_that_comes_before_the_clock_was_looked_at_counts() -> None:
    rm = one()
    rm.now_ns += 11 * SECONDS
    assert allocations(rm.yes()) == [("app", "k", "n1")]


def test_a_late_answer_is_nobodys() -> None:
    rm = one()
    late = rm.pile[0]
    rm.forget()
    rm.wait(10)
    rm.pile.clear()
    out = rm.answer((late, True))
    assert not allocations(out)
    assert rm.refused("app", "k") == ["n1"]


def test_a_shorter_time_for_answers_holds_for_new_questions_though_older_ones_are_open() -> None:
    rm = one()
    rm.connect(timeout_ns=2 * SECONDS)
    rm.ask("app", "later", m=1)
    rm.forget()
    rm.wait(2)
    assert rm.refused("app", "later") == ["n1"]
    assert rm.refused("app", "k") == []


# ---- withdrawn -----------------------------------------------------------------------------------------------------


def _take_back(rm: Asking) -> None:
    rm.release("app", "k")


def _remove_app(rm: Asking) -> None:
    rm.do(UpdateApplications((), (("default", "app"),)))


def _fail_app(rm: Asking) -> None:
    app = rm.application("app")
    finish(rm.partition.lifecycle.fail(app, "it failed", Outcome(), rm.now_ns))
    rm.do()


def _adopted(rm: Asking) -> None:
    rm.do(UpdateAllocations([replace(ask("app", "k", m=1), node_id="n2")]))


@pytest.mark.parametrize("ends", [_take_back, _remove_app, _fail_app, _adopted])
@pytest.mark.parametrize("refused", [0, 1])
def test_an_ask_that_ends_takes_its_questions_along(ends: Callable[[Asking], None], refused: int) -> None:
    rm = one()
    for _ in range(refused):
        rm.no()
    question = rm.pile[0]
    ends(rm)
    assert rm.is_quiet()
    assert not rm.partition.questions._refused
    out = rm.answer((question, True))
    assert not allocations(out)
    assert of_m(rm.the_node("n1").allocated) == 0
    assert not rm.the_node("n1").refused_by


def test_an_ask_sent_again_as_it_is_goes_on_being_asked_about() -> None:
    rm = one()
    rm.ask("app", "k", m=1)
    assert len(rm.asked) == 1
    assert allocations(rm.yes())


def test_an_ask_of_another_size_is_asked_about_anew_without_refusals() -> None:
    rm = one()
    rm.no()
    old = rm.pile[0]
    rm.ask("app", "k", m=2)
    assert [(each.key, each.node_id) for each in rm.asked[2:]] == [("k", "n1")]
    assert not allocations(rm.answer((old, True)))
    assert allocations(rm.yes()) == [("app", "k", "n1")]
    assert rm.is_quiet()


def test_a_node_that_goes_takes_its_questions_along_and_the_ask_looks_elsewhere() -> None:
    rm = one()
    old = rm.pile[0]
    rm.do(nodes(NodeAction.DECOMISSION, {"n1": None}))
    assert rm.open[1:] == [("k", "n2")]
    assert not allocations(rm.answer((old, True)))
    assert allocations(rm.yes()) == [("app", "k", "n2")]


def test_a_node_created_again_under_its_id_is_asked_about_again() -> None:
    rm = one()
    rm.refuse("n1", "n2")
    assert rm.refused("app", "k") == ["n1", "n2"]
    rm.do(nodes(NodeAction.DECOMISSION, {"n1": None}))
    assert rm.refused("app", "k") == ["n2"]
    rm.node("n1", m=4)
    assert rm.open == [("k", "n1")]


def test_a_yes_to_a_draining_node_places_nothing_there() -> None:
    rm = one()
    rm.do(nodes(NodeAction.DRAIN_NODE, {"n1": None}))
    out = rm.yes()
    assert not allocations(out)
    assert rm.open == [("k", "n2")]
    assert rm.refused("app", "k") == []
    rm.yes()
    assert rm.placed("app") == {"k": "n2"}


def test_a_node_that_shrank_gets_nothing_that_was_proposed_there() -> None:
    rm = one()
    old = rm.pile[0]
    rm.do(nodes(NodeAction.UPDATE, {"n1": {"m": 0}}))
    assert not allocations(rm.answer((old, True)))
    assert rm.open == [("k", "n2")]
    assert of_m(rm.the_node("n1").available) == 0
    assert allocations(rm.yes()) == [("app", "k", "n2")]
    assert rm.is_quiet()


def _runs(rm: Asking) -> None:
    rm.want("app", item("sudden", 4, node_id="n1"))


def _foreign_runs(rm: Asking) -> None:
    rm.do(UpdateAllocations([AskItem("pod", "", "default", {"m": 4}, node_id="n1", tags={FOREIGN: "default"})]))


def _grows(rm: Asking) -> None:
    rm.want("app", item("runs", 4, node_id="n1"))


@pytest.mark.parametrize("take", [_runs, _foreign_runs, _grows])
def test_a_node_whose_room_the_rm_takes_gets_nothing_that_was_proposed_there(take: Callable[[Asking], None]) -> None:
    rm = Asking(LEAF, nodesort="binpacking").having({"n1": {"m": 4}, "n2": {"m": 4}}, {"app": "root.a"})
    rm.want("app", item("runs", node_id="n1"))
    rm.ask("app", "k", m=1)
    assert rm.open == [("k", "n1")]
    old = rm.pile[0]
    take(rm)
    assert not allocations(rm.answer((old, True)))
    assert rm.open == [("k", "n2")]
    assert of_m(rm.the_node("n1").available) <= 0
    assert allocations(rm.yes()) == [("app", "k", "n2")]
    assert rm.is_quiet()


def test_while_nothing_is_decided_nothing_is_asked_and_a_yes_from_before_is_nobodys() -> None:
    rm = one()
    old = rm.pile[0]
    rm.do(SetSchedulingEnabled(False))
    assert rm.is_quiet()
    assert not allocations(rm.answer((old, True)))
    rm.do(SetSchedulingEnabled(True))
    assert rm.open == [("k", "n1")]
    assert allocations(rm.yes())


def test_other_rules_withdraw_what_is_asked_and_it_is_asked_by_the_new_ones() -> None:
    rm = one()
    rm.no()
    assert rm.open == [("k", "n2")]
    old = rm.pile[0]
    rm.reload(f"{{name: root, {OPEN}, queues: [{{name: a, resources: {{max: {{m: 0, other: 1}}}}}}]}}")
    rm.reload(LEAF)
    assert not allocations(rm.answer((old, True)))
    assert rm.open == [("k", "n2")]  # what was refused is refused
    assert allocations(rm.yes()) == [("app", "k", "n2")]


@pytest.mark.parametrize(
    "limit",
    ["resources: {max: {m: 1}}", "limits: [{limit: l, users: ['*'], maxresources: {m: 1}}]"],
    ids=["queue", "user"],
)
def test_a_limit_lowered_meanwhile_holds_for_what_was_proposed(limit: str) -> None:
    rm = one()
    rm.ask("app", "other", m=1)
    old = list(rm.pile)
    assert len(old) == 2
    rm.reload(f"{{name: root, {OPEN}, queues: [{{name: a, {limit}}}]}}")
    rm.answer(*((question, True) for question in old))
    rm.yes()
    assert len(rm.placed("app")) == 1
    assert of_m(rm.queue("root.a").allocated) == 1
    assert len(rm.pending("app")) == 1
    assert rm.is_quiet()


# ---- PROBE ---------------------------------------------------------------------------------------------------------


def many(nodes_count: int, *, nodesort: str = "binpacking", **policy: Any) -> Asking:
    rm = Asking(LEAF, nodesort=nodesort, **policy)
    rm.do(nodes(NodeAction.CREATE, {f"n{number:03}": {"m": 2} for number in range(nodes_count)}))
    rm.app("app", "root.a")
    return rm


def test_a_picky_ask_finds_its_node_among_hundreds_in_a_few_rounds() -> None:
    rm = many(200)
    rm.ask("app", "k", m=1)
    rounds = rm.decide(lambda question: question.node_id == "n190")
    assert rm.placed("app") == {"k": "n190"}
    sizes = [1, 2, 6, 18, PROBE_NODES_MAX]  # twice as many as refused before
    found = [sum(isinstance(fact, PredicateRequested) for fact in out.facts) for out in rounds]
    assert [1, *found][: len(sizes)] == sizes
    assert max(found) == PROBE_NODES_MAX
    assert len(rounds) <= 10
    assert rm.is_quiet()


def test_of_several_nodes_the_best_that_will_do_is_taken() -> None:
    rm = many(8)
    rm.ask("app", "k", m=1)
    rm.no()
    rm.no()
    assert [node for _, node in rm.open] == [f"n{number:03}" for number in range(3, 8)]
    out = rm.answer(*((question, question.node_id in ("n005", "n006")) for question in rm.pile))
    assert allocations(out) == [("app", "k", "n005")]


def test_a_missing_answer_for_a_worse_node_delays_nothing() -> None:
    rm = many(8)
    rm.ask("app", "k", m=1)
    rm.no()
    rm.no()
    first, second, third, *silent = rm.pile
    assert silent
    assert not allocations(rm.answer((second, True)))  # perhaps the first one will do
    assert not allocations(rm.answer((third, False)))
    assert allocations(rm.answer((first, False))) == [("app", "k", second.node_id)]
    assert rm.is_quiet()


def test_refusals_of_a_message_are_known_before_its_agreements_are_used() -> None:
    rm = many(6)
    rm.ask("app", "k", m=2)
    rm.no()
    rm.no()
    first, second, third = rm.pile
    rm.do(UpdateAllocations([replace(ask("app", "sudden", m=1), node_id=second.node_id)]))
    rm.answer((first, False), (second, True), (third, False))  # the one that will do is full by now
    assert rm.refused("app", "k")[-2:] == [first.node_id, third.node_id]
    assert not rm.open


def test_a_node_that_is_full_by_the_time_it_is_agreed_to_is_not_taken() -> None:
    rm = many(3)
    rm.ask("app", "k", m=2)
    rm.no()
    best, other = rm.pile
    rm.do(UpdateAllocations([replace(ask("app", "sudden", m=1), node_id=other.node_id)]))
    out = rm.answer((best, False), (other, True))
    assert not allocations(out)
    assert rm.refused("app", "k") == ["n000", best.node_id]
    assert rm.pending("app")["k"] == "REFUSED_BY_RM" or rm.open == []


def test_refusals_of_a_probe_are_forgotten_too_when_another_node_was_agreed_to() -> None:
    rm = many(3, retry_ns=4 * SECONDS)
    rm.ask("app", "k", m=2)
    rm.no()  # n000, until 4 s
    rm.wait(3)
    best, other = rm.pile
    rm.do(UpdateAllocations([replace(ask("app", "sudden", m=1), node_id=other.node_id)]))
    rm.now_ns += SECONDS // 2
    rm.answer((best, False), (other, True))  # too late for that one: it is full
    rm.wait(60)
    assert allocations(rm.decide(lambda question: True)[-1]) == [("app", "k", "n000")]


def test_a_node_of_a_probe_may_go_meanwhile() -> None:
    rm = many(4)
    rm.ask("app", "k", m=1)
    rm.no()
    best, other = rm.pile
    rm.do(nodes(NodeAction.DECOMISSION, {best.node_id: None}))
    assert of_m(rm.queue("root.a").allocated) == 0  # nothing is booked any more
    assert allocations(rm.answer((other, True))) == [("app", "k", other.node_id)]
    assert rm.is_quiet()


@pytest.mark.parametrize("nodesort", ["fair", "binpacking", "dotproduct", "fragmentation"])
def test_with_each_node_sort_policy_refusals_lead_to_the_one_node_left(nodesort: str) -> None:
    rm = many(40, nodesort=nodesort)
    rm.do(UpdateAllocations([ask("app", f"k{number}", m=1) for number in range(6)]))
    rm.decide(lambda question: question.node_id in ("n011", "n029", "n037"))
    assert sorted(rm.placed("app").values()) == ["n011", "n011", "n029", "n029", "n037", "n037"]
    assert rm.is_quiet()


@pytest.mark.parametrize("nodesort", ["fair", "binpacking", "dotproduct", "fragmentation"])
def test_the_index_gives_the_first_nodes_in_order_without_some(nodesort: str) -> None:
    for seed in range(20):
        dice = random.Random(seed)
        cluster = Cluster(LEAF, nodesort=nodesort)
        cluster.do(
            nodes(NodeAction.CREATE, {f"n{n}": {"m": dice.randint(1, 9), "v": dice.randint(1, 9)} for n in range(90)})
        )
        cluster.app("app", "root.a")
        cluster.do(UpdateAllocations([ask("app", f"k{n}", m=dice.randint(1, 3), v=1) for n in range(120)]))
        shape = cluster.partition.types.shape({"m": dice.randint(1, 4), "v": 1})
        index, but = cluster.partition.index, set[str]()
        expected = []
        while (node := next(iter(index.fitting(shape.items, but, 1)), None)) is not None:
            if not but:
                assert node is index.first_fit(shape.items)
            expected.append(node)
            but.add(node.node_id)
        room = [
            each for each in cluster.partition.nodes.values() if all(each.available[i] >= v for i, v in shape.items)
        ]
        assert len(expected) == len(room)
        assert set(expected) == set(room)
        some = {node.node_id for node in dice.sample(expected, len(expected) // 2)}
        left = [node for node in expected if node.node_id not in some]
        assert index.fitting(shape.items, some, 7) == left[:7]


# ---- repeats -------------------------------------------------------------------------------------------------------


def test_an_ask_with_a_hundred_repeats_passes_by_refused_nodes() -> None:
    rm = Asking(LEAF)
    rm.do(nodes(NodeAction.CREATE, {f"n{number:02}": {"m": 5} for number in range(40)}))
    rm.app("app", "root.a")
    rm.want("app", item("k", wanted=100, previous_generation=True))
    assert len(rm.open) == 100
    bad = {f"n{number:02}" for number in range(0, 40, 3)}
    rm.decide(lambda question: question.node_id not in bad)
    held = rm.application("app").allocations
    assert len(held) == 100
    assert not {each.node_id for each in held.values()} & bad
    assert [each.ordinal for each in held.values()] == list(range(100))
    assert rm.is_quiet()


def test_of_an_ask_with_repeats_one_at_a_time_looks_far() -> None:
    rm = many(300)
    rm.want("app", item("k", wanted=50, previous_generation=True))
    for _ in range(8):
        rm.no()
        assert len(rm.open) <= 50 + PROBE_NODES_MAX


def test_an_ask_with_fewer_repeats_than_are_asked_about_withdraws_all() -> None:
    rm = many(4)
    rm.want("app", item("k", wanted=5, previous_generation=True))
    old = list(rm.pile)
    rm.want("app", item("k", wanted=2, previous_generation=True))
    rm.answer(*((question, True) for question in old))
    assert not rm.placed("app")
    rm.yes()
    assert len(rm.placed("app")) == 2
    assert rm.is_quiet()


# ---- max applications, users ---------------------------------------------------------------------------------------


def test_an_application_that_is_asked_about_takes_the_place_of_a_running_one() -> None:
    rm = Asking(f"{{name: root, {OPEN}, queues: [{{name: a, maxapplications: 1}}]}}").having(
        {"n1": {"m": 4}}, {"one": "root.a", "two": "root.a"}
    )
    rm.ask("one", "k", m=1)
    rm.ask("two", "k", m=1)
    assert len(rm.open) == 1
    assert rm.pending("two") == {"k": "QUEUE_MAX_APPLICATIONS"}
    rm.no()  # one has no other node: the place is there for the other
    assert [each.app_id for each in rm.asked] == ["one", "two"]
    assert rm.queue("root.a").running_applications == 1
    rm.yes()
    assert rm.application("two").state is AppState.RUNNING
    rm.wait(60)
    assert rm.queue("root.a").running_applications == 1
    assert rm.pending("one") == {"k": "QUEUE_MAX_APPLICATIONS"}


def test_limits_of_a_user_and_a_group_count_what_is_proposed() -> None:
    limits = "limits: [{limit: l, users: [alice], maxresources: {m: 2}}]"
    rm = Asking(f"{{name: root, {OPEN}, queues: [{{name: a, {limits}}}]}}").having({"n1": {"m": 10}}, {"app": "root.a"})
    rm.app("other", "root.a", user="bob")
    for key in "xyz":
        rm.ask("app", key, m=1)
        rm.ask("other", key, m=1)
    assert sorted((each.app_id, each.key) for each in rm.asked) == [
        ("app", "x"),
        ("app", "y"),
        ("other", "x"),
        ("other", "y"),
        ("other", "z"),
    ]
    assert rm.pending("app")["z"] == "USER_LIMIT"
    rm.no()
    assert {(each.app_id, each.key) for each in rm.asked[5:]} == {("app", "z")}


# ---- daemons -------------------------------------------------------------------------------------------------------


def daemon(key: str, node_id: str, m: int = 1) -> Any:
    return item(key, m, tags={REQUIRED_NODE_TAG: node_id})


def test_a_refused_daemon_waits_for_the_pause_and_keeps_no_node_from_others() -> None:
    rm = Asking(LEAF).having({"n1": {"m": 4}}, {"app": "root.a"})
    rm.want("app", daemon("d", "n1"))
    rm.no()
    for _ in range(5):
        rm.wait(0.5)
    assert len(rm.asked) == 1  # it is not asked again and again
    assert not rm.the_node("n1").reservations
    assert rm.pending("app") == {"d": "REFUSED_BY_RM"}
    rm.ask("app", "k", m=1)
    assert allocations(rm.yes()) == [("app", "k", "n1")]
    rm.wait(10)
    assert rm.open == [("d", "n1")]
    assert allocations(rm.yes()) == [("app", "d", "n1")]


def test_a_daemon_whose_node_is_full_keeps_it_and_is_asked_about_when_there_is_room() -> None:
    rm = Asking(LEAF).having({"n1": {"m": 1}}, {"app": "root.a"})
    rm.ask("app", "k", m=1)
    rm.yes()
    rm.want("app", daemon("d", "n1"))
    rm.wait(1)
    assert rm.the_ask("app", "d").reserved_node == "n1"
    rm.release("app", "k")
    assert rm.open == [("d", "n1")]
    rm.no()
    assert not rm.the_node("n1").reservations
    rm.ask("app", "next", m=1)
    assert allocations(rm.yes()) == [("app", "next", "n1")]


# ---- refusals: the pause, changes ----------------------------------------------------------------------------------


def test_the_pause_doubles_up_to_a_minute() -> None:
    rm = Asking(LEAF).having({"n1": {"m": 4}}, {"app": "root.a"})
    rm.ask("app", "k", m=1)
    gaps = []
    for _ in range(6):
        rm.no()
        refused_ns = rm.now_ns
        while not rm.pile:
            due_ns = rm.core.next_deadline_ns()
            assert due_ns is not None
            rm.now_ns = max(due_ns, rm.now_ns + 1)
            rm.do()
        gaps.append((rm.now_ns - refused_ns) // SECONDS)
    assert gaps == [10, 20, 40, 60, 60, 60]
    assert gaps[-1] * SECONDS == RETRY_MAX_NS
    assert allocations(rm.yes())


@pytest.mark.parametrize(
    "change",
    [
        NodeItem("n1", NodeAction.UPDATE, {"disk": "ssd"}),
        NodeItem("n1", NodeAction.UPDATE, capacity={"m": 5}),
        NodeItem("n1", NodeAction.UPDATE, occupied={"m": 1}),
    ],
)
def test_a_node_that_changed_is_asked_about_again_and_no_other(change: NodeItem) -> None:
    rm = one()
    rm.refuse("n1", "n2")
    asked = len(rm.asked)
    rm.do(UpdateNodes((change,)))
    assert [each.node_id for each in rm.asked[asked:]] == ["n1"]
    assert rm.refused("app", "k") == ["n2"]


def _released(app_id: str, key: str) -> UpdateAllocations:
    return UpdateAllocations([], [ReleaseItem("default", app_id, key, Termination.STOPPED_BY_RM)])


def _stop(rm: Asking) -> None:
    rm.do(_released("app", "runs"))


def _stop_foreign(rm: Asking) -> None:
    rm.do(_released("", "foreign"))


def _resize(rm: Asking) -> None:
    rm.want("app", item("runs", 2, node_id="n1"))


def _move(rm: Asking) -> None:
    rm.want("app", item("runs", node_id="n2"))


@pytest.mark.parametrize("end", [_stop, _stop_foreign, _resize, _move])
def test_a_node_on_which_something_ended_is_asked_about_again_at_once(end: Callable[[Asking], None]) -> None:
    """An RM's predicates may depend on the allocations of a node and their ports."""
    rm = Asking(LEAF, nodesort="binpacking").having({"n1": {"m": 9}, "n2": {"m": 9}}, {"app": "root.a"})
    rm.want("app", item("runs", node_id="n1"))
    rm.do(UpdateAllocations([AskItem("foreign", "", "default", {"m": 1}, node_id="n1", tags={FOREIGN: "default"})]))
    rm.ask("app", "k", m=1)
    rm.refuse("n1", "n2")
    asked = len(rm.asked)
    end(rm)
    assert [each.node_id for each in rm.asked[asked:]] == ["n1"]
    assert rm.refused("app", "k") == ([] if end is _move else ["n2"])
    assert allocations(rm.yes())
    assert rm.is_quiet()


def test_a_no_from_before_something_ended_on_the_node_is_asked_for_again() -> None:
    """The RM's answer and its release come on two streams, in any order."""
    rm = Asking(LEAF).having({"n1": {"m": 9}}, {"app": "root.a"})
    rm.want("app", item("runs", node_id="n1"))
    rm.ask("app", "k", m=1)
    _stop(rm)
    assert len(rm.asked) == 1
    rm.no()
    assert len(rm.asked) == 2
    rm.no()
    assert len(rm.asked) == 2
    assert rm.refused("app", "k") == ["n1"]


def test_a_no_from_after_something_ended_on_the_node_holds_whatever_an_older_question_is_answered() -> None:
    """Of an ask with repeats, two questions about one node may be open, with an end of something between them."""
    for newest_first in (False, True):
        rm = Asking(LEAF).having({"n1": {"m": 3}}, {"app": "root.a"})
        rm.want("app", item("runs", 2, node_id="n1"))
        rm.ask("app", "k", m=1, wanted=2)
        _stop(rm)
        assert rm.open == [("k", "n1")] * 2
        first, second = list(rm.pile)
        for each in (second, first) if newest_first else (first, second):
            rm.core.apply(PredicateAnswers([PredicateAnswer(each.question, False, "no")]), rm.now_ns)
        rm.do()
        assert len(rm.asked) == 2, newest_first
        assert rm.refused("app", "k") == ["n1"]


def test_ends_on_a_busy_node_are_no_storm_of_questions() -> None:
    """With 20 ends a second for a minute, a refused ask causes calls at once, then fewer and fewer."""
    rm = Asking(LEAF).having({"n1": {"m": 2000}}, {"app": "root.a"})
    rm.want("app", *(item(f"r{number}", node_id="n1") for number in range(1200)))
    rm.ask("app", "k", m=1)
    rm.no()
    times = []
    for number in range(1200):
        rm.do(_released("app", f"r{number}"))
        if rm.pile:
            times.append(rm.now_ns)
            rm.no()
        rm.wait(0.05)
        if rm.pile:
            times.append(rm.now_ns)
            rm.no()
    gaps = [(later - earlier) / SECONDS for earlier, later in itertools.pairwise(times)]
    assert len(times) < 14
    assert gaps[:4] == [0.25, 0.5, 1.0, 2.0]
    assert max(gaps) <= 10
    # A while of peace, and the next end is asked about at once.
    rm.wait(60)
    rm.decide(lambda _: False)
    rm.want("app", item("late", node_id="n1"))
    rm.decide(lambda _: False)
    rm.wait(30)
    rm.decide(lambda _: False)
    asked = len(rm.asked)
    rm.do(_released("app", "late"))
    assert len(rm.asked) == asked + 1


def test_after_a_restart_a_node_on_which_something_ended_is_asked_about_at_once() -> None:
    rm = Asking(LEAF).having({"n1": {"m": 9}}, {"app": "root.a"})
    rm.want("app", *(item(f"r{number}", node_id="n1") for number in range(2)))
    rm.ask("app", "k", m=1)
    rm.no()
    rm.do(_released("app", "r0"))
    rm.no()
    out = rm.do(_released("app", "r1"))
    assert not rm.pile, "it rests"
    wanted = rm.the_ask("app", "k")
    assert any(what is wanted for _, what, _ in out.objects())
    recorded = pb.AskObject.FromString(state_codec.encode("default", wanted))
    assert (recorded.refused_nodes, recorded.stands_apart) == (0, True)


def test_an_update_of_a_node_that_says_nothing_new_asks_nothing() -> None:
    rm = one()
    rm.refuse("n1", "n2")
    asked = len(rm.asked)
    rm.do(UpdateNodes((NodeItem("n1", NodeAction.UPDATE, capacity={"m": 4}),)))
    assert len(rm.asked) == asked


def test_a_refused_ask_stands_apart_and_those_like_it_go_their_way() -> None:
    rm = Asking(LEAF).having({"n1": {"m": 2}}, {"app": "root.a"})
    rm.ask("app", "picky", m=1)
    rm.no()
    rm.ask("app", "x", m=1)
    rm.ask("app", "y", m=1)
    rm.ask("app", "z", m=1)
    rm.yes()
    assert sorted(rm.placed("app")) == ["x", "y"]
    assert rm.pending("app") == {"picky": "NO_NODE_FITS", "z": "NO_NODE_FITS"} or (
        rm.pending("app")["picky"] in ("REFUSED_BY_RM", "NO_NODE_FITS")
    )
    rm.release("app", "x")
    assert rm.open == [("picky", "n1")], "something ended there, and it is the oldest"
    rm.no()
    assert rm.open == [("z", "n1")]


def test_a_gain_wakes_those_behind_an_ask_that_stands_apart() -> None:
    rm = Asking(LEAF, nodesort="binpacking").having({"n1": {"m": 1}}, {"app": "root.a"})
    rm.ask("app", "first", m=1)
    rm.ask("app", "second", m=1)
    rm.no()
    rm.yes()
    assert rm.placed("app") == {"second": "n1"}
    rm.ask("app", "third", m=1)
    rm.release("app", "second")
    assert rm.open == [("first", "n1")], "something ended there, and it is the oldest"
    rm.no()
    assert rm.open == [("third", "n1")]


# ---- its stream ----------------------------------------------------------------------------------------------------


def test_an_rm_without_the_wish_gets_no_questions() -> None:
    rm = Asking(LEAF, predicates=False, preemption=False, states=False).having({"n1": {"m": 1}}, {"app": "root.a"})
    rm.ask("app", "k", m=1)
    rm.ask("app", "l", m=1)
    rm.wait(5)
    assert rm.placed("app") == {"k": "n1"}
    assert not rm.asked
    assert not rm.states


def test_when_the_stream_is_gone_for_long_what_was_proposed_is_accepted() -> None:
    rm = one(timeout_ns=100 * SECONDS)
    rm.lose()
    rm.ask("app", "later", m=1)
    assert rm.open == [("k", "n1"), ("later", "n1")]  # it may come back
    rm.wait(29.999)
    assert not rm.placed("app")
    out = rm.wait(0.001)
    assert allocations(out) == [("app", "k", "n1"), ("app", "later", "n1")]
    rm.ask("app", "last", m=1)
    assert len(rm.asked) == 2
    assert "last" in rm.placed("app")
    assert rm.is_quiet()


def test_a_refused_ask_is_placed_once_the_rm_is_not_asked_any_more() -> None:
    rm = one()
    rm.refuse("n1", "n2")
    rm.lose()
    rm.wait(200)
    assert "k" in rm.placed("app")


def test_a_stream_that_comes_back_in_time_goes_on() -> None:
    rm = one(timeout_ns=100 * SECONDS)
    rm.lose()
    rm.wait(20)
    rm.connect()
    rm.wait(20)
    assert not rm.placed("app")
    assert allocations(rm.yes()) == [("app", "k", "n1")]


def test_refusals_without_an_answer_are_asked_again_when_the_stream_is_back() -> None:
    rm = one()
    rm.lose()
    rm.forget()
    rm.wait(10)
    rm.forget()
    rm.wait(10)
    rm.forget()
    assert rm.refused("app", "k") == ["n1", "n2"]
    rm.connect()
    assert rm.refused("app", "k") == []
    assert rm.open == [("k", "n1")]


def test_a_no_holds_when_the_stream_comes_back() -> None:
    rm = one()
    rm.no()
    rm.yes()
    rm.ask("app", "l", m=1)
    rm.refuse("n1", "n2")
    rm.lose()
    rm.connect()
    assert rm.refused("app", "l") == ["n1", "n2"]
    assert not rm.open


def test_an_rm_that_wants_to_wait_is_waited_for() -> None:
    rm = Asking(LEAF, connected=False, waits=True)
    rm.do(SetCallbacks(rm.policy))
    rm.node("n1", m=4)
    rm.app("app", "root.a")
    rm.ask("app", "k", m=1)
    for _ in range(20):
        rm.wait(30)
    assert not rm.placed("app")
    assert not rm.pile, "nobody is there who could be asked"
    assert rm.is_quiet()
    rm.connect()
    assert rm.open == [("k", "n1")]
    assert allocations(rm.yes())


def test_an_rm_that_wants_to_wait_is_asked_for_the_grace_and_then_no_more() -> None:
    rm = Asking(LEAF, waits=True, grace_ns=5_000_000_000)
    rm.connect()
    rm.node("n1", m=4)
    rm.app("app", "root.a")
    rm.lose()
    rm.ask("app", "k", m=1)
    assert rm.open == [("k", "n1")]
    out = rm.wait(6)
    assert rm.is_quiet()
    assert not rm.placed("app")
    assert not [fact for fact in out.facts if isinstance(fact, PredicateRequested)]
    rm.forget()
    rm.connect()
    assert allocations(rm.yes())


def test_when_the_rm_is_not_asked_any_more_refusals_end() -> None:
    rm = Asking(LEAF, grace_ns=5_000_000_000, retry_ns=60_000_000_000)
    rm.connect()
    rm.node("n1", m=4)
    rm.app("app", "root.a")
    rm.ask("app", "k", m=1)
    rm.no()
    assert rm.pending("app") == {"k": "REFUSED_BY_RM"}
    rm.lose()
    rm.wait(6)
    assert rm.placed("app") == {"k": "n1"}


def test_a_new_stream_that_wants_less_lets_go_what_it_would_not_be_asked() -> None:
    rm = one()
    rm.connect(predicates=False)
    assert rm.placed("app") == {"k": "n1"}
    assert rm.is_quiet()


# ---- reasons, states -----------------------------------------------------------------------------------------------


def test_after_a_second_the_reason_is_that_the_rm_is_asked() -> None:
    rm = one()
    assert rm.the_ask("app", "k").asked is None
    rm.wait(0.999)
    assert rm.the_ask("app", "k").asked is None
    rm.wait(0.001)
    reason = rm.why("app", "k")
    assert (reason.code, reason.node) == (ReasonCode.RM_ASKED, "n1")
    assert reason.since_ns == rm.now_ns - SECONDS
    rm.no()
    assert rm.the_ask("app", "k").asked is None


def test_after_a_second_it_says_so_though_an_older_question_is_open() -> None:
    rm = one()
    rm.wait(5)
    rm.ask("app", "later", m=1)
    rm.wait(1)
    assert rm.the_ask("app", "later").asked is not None


def test_an_ask_with_repeats_says_so_as_long_as_one_of_them_is_open() -> None:
    rm = many(4)
    rm.want("app", item("k", wanted=3, previous_generation=True))
    rm.wait(1)
    rm.answer((rm.pile[0], True))
    assert rm.the_ask("app", "k").asked is not None
    rm.answer((rm.pile[0], True))
    assert rm.the_ask("app", "k").asked is not None
    rm.answer((rm.pile[0], True))
    assert len(rm.placed("app")) == 3


def test_the_reason_of_a_refused_ask_is_what_the_rm_said() -> None:
    rm = one()
    rm.refuse("n1", "n2")
    reason = rm.why("app", "k")
    assert reason.code is ReasonCode.REFUSED_BY_RM
    assert (reason.nodes, reason.node, reason.said) == (2, "n2", "no disk")


def test_a_long_reason_of_the_rm_is_cut() -> None:
    rm = one()
    rm.answer(PredicateAnswer(rm.pile[0].question, False, "x" * 10_000))
    refusals = rm.the_ask("app", "k").refusals
    assert refusals is not None
    assert len(refusals.nodes["n1"].reason) == 256


def test_states_are_sent_once() -> None:
    rm = Asking(f"{{name: root, {OPEN}, queues: [{{name: a, resources: {{max: {{m: 2}}}}}}, {{name: b}}]}}").having(
        {"n1": {"m": 2}}, {"app": "root.a", "other": "root.b"}
    )
    rm.ask("app", "k", m=2)
    rm.ask("app", "skipped", m=1)
    rm.ask("other", "stuck", m=2)
    rm.yes()
    for _ in range(10):
        rm.decide(lambda question: True)
        rm.wait(1)
    kinds = [(key, state) for key, state, _ in rm.states]
    assert kinds.count(("skipped", SchedulingState.SKIPPED)) == 1
    assert kinds.count(("stuck", SchedulingState.RESERVED)) == 1
    assert ("k", SchedulingState.SKIPPED) not in kinds
    rm.reload(f"{{name: root, {OPEN}, queues: [{{name: a, resources: {{max: {{m: 2}}}}}}, {{name: b}}]}}")
    assert [each[:2] for each in rm.states].count(("skipped", SchedulingState.SKIPPED)) == 1
    skipped = next(reason for key, state, reason in rm.states if key == "skipped")
    assert skipped == rm.why("app", "skipped").sentence()


# ---- RESERVE -------------------------------------------------------------------------------------------------------


def full(nodes_count: int = 2, **more: Any) -> Asking:
    """Full nodes, and an ask that is too large for the room of one release."""
    rm = Asking(LEAF, nodesort="binpacking", partition="reservation: {delay: 2s}, ", **more)
    rm.do(nodes(NodeAction.CREATE, {f"n{number}": {"m": 4} for number in range(nodes_count)}))
    rm.app("app", "root.a")
    for number in range(nodes_count * 4):
        rm.ask("app", f"f{number}", m=1)
    rm.yes()
    rm.ask("app", "large", m=4)
    rm.wait(2)
    return rm


def test_a_node_is_kept_free_only_when_the_rm_agrees() -> None:
    rm = full()
    ((key, node_id),) = rm.open
    question = rm.pile[0]
    assert isinstance(question, PredicateRequested)
    assert key == "large"
    assert not question.allocate
    assert not rm.the_ask("app", "large").reserved_node
    rm.yes()
    assert rm.the_ask("app", "large").reserved_node == node_id
    assert rm.states[-1][:2] == ("large", SchedulingState.RESERVED)


def test_when_it_does_not_another_node_is_kept_or_none() -> None:
    rm = full()
    first = rm.pile[0].node_id
    rm.no()
    rm.wait(15)
    rm.wait(15)
    assert rm.pile
    assert rm.pile[0].node_id != first or rm.refused("app", "large") == []
    rm.no()
    rm.wait(5)
    assert not rm.the_ask("app", "large").reserved_node


def test_two_waiting_asks_are_not_checked_on_the_same_node() -> None:
    rm = Asking(LEAF, partition="reservation: {delay: 2s}, ")
    rm.do(nodes(NodeAction.CREATE, {"n0": {"m": 4}, "n1": {"m": 4}}))
    rm.app("app", "root.a")
    rm.do(UpdateAllocations([ask("app", f"f{number}", m=1) for number in range(8)]))
    rm.yes()
    rm.ask("app", "large", m=4)
    rm.ask("app", "larger", m=3)
    rm.wait(2)
    assert sorted(key for key, _ in rm.open) == ["large", "larger"]
    assert sorted(node_id for _, node_id in rm.open) == ["n0", "n1"]
    rm.yes()
    assert sum(bool(node.reservations) for node in rm.partition.nodes.values()) == 2


def test_a_yes_to_keeping_a_node_that_was_refused_meanwhile_keeps_none() -> None:
    rm = full()
    (keep,) = rm.pile
    for key in [key for key, node in rm.placed("app").items() if node == keep.node_id]:
        rm.release("app", key)
    place = rm.pile[1]
    assert (place.key, place.node_id) == ("large", keep.node_id)
    rm.answer((place, False))
    rm.answer((keep, True))
    assert not rm.the_ask("app", "large").reserved_node


def test_a_yes_for_an_ask_that_needs_no_node_any_more_keeps_none() -> None:
    rm = full()
    question = rm.pile[0]
    rm.release("app", "large")
    rm.answer((question, True))
    assert not any(node.reservations for node in rm.partition.nodes.values())
    assert rm.is_quiet()


def test_on_the_node_that_is_kept_the_rm_is_asked_before_it_is_placed_and_a_no_gives_it_up() -> None:
    rm = full()
    node_id = rm.pile[0].node_id
    rm.yes()
    held = [key for key, node in rm.placed("app").items() if node == node_id]
    for key in held:
        rm.release("app", key)
    assert rm.open == [("large", node_id)]
    rm.no()
    assert not rm.the_node(node_id).reservations
    rm.ask("app", "small", m=1)
    assert ("small", node_id) in rm.open


# ---- PREEMPT -------------------------------------------------------------------------------------------------------

PREEMPTING = (
    f"{{name: root, {OPEN}, queues: [{{name: rich, properties: {{preemption.delay: 1s}}, "
    "resources: {guaranteed: {m: 4}}}, {name: poor}]}"
)


def preempting(nodes_count: int = 2, queues: str = PREEMPTING, **more: Any) -> Asking:
    """A queue below its guarantee, and nodes that another queue fills. The RM agrees to every placement."""
    rm = Asking(queues, partition="reservation: {enabled: false}, ", **more)
    rm.do(nodes(NodeAction.CREATE, {f"n{number}": {"m": 4} for number in range(nodes_count)}))
    rm.app("poor", "root.poor")
    victims = items(" ".join(f"v{number}" for number in range(nodes_count * 2)), 2)
    rm.want("poor", *(replace(each, allow_preempt_self=True, has_preemption_policy=True) for each in victims))
    rm.decide(lambda question: True)
    rm.app("rich", "root.rich")
    rm.want("rich", item("p", 2, allow_preempt_other=True, has_preemption_policy=True))
    rm.wait(2)
    return rm


def test_no_allocation_is_released_before_the_rm_agrees() -> None:
    rm = preempting()
    (question,) = rm.pile
    assert isinstance(question, PreemptionPredicateRequested)
    assert (question.key, question.least) == ("p", 1)
    out = rm.yes()
    assert told(out, Termination.PREEMPTED_BY_SCHEDULER) == [question.victims[0][1]]
    rm.release("poor", question.victims[0][1], Termination.PREEMPTED_BY_SCHEDULER)
    assert rm.open == [("p", question.node_id)]
    rm.yes()
    assert rm.placed("rich") == {"p": question.node_id}
    assert rm.is_quiet()


def test_the_rm_may_want_more_gone_than_room_asks_for_and_they_go_in_the_order_of_the_question() -> None:
    rm = preempting()
    (question,) = rm.pile
    assert isinstance(question, PreemptionPredicateRequested)
    on_node = {key for key, node in rm.placed("poor").items() if node == question.node_id}
    assert question.least == 1
    assert {key for _, key in question.victims} == on_node
    assert len(question.victims) == 2
    out = rm.answer(PredicateAnswer(question.question, True, last_victim=1))
    assert told(out, Termination.PREEMPTED_BY_SCHEDULER) == [key for _, key in question.victims]


@pytest.mark.parametrize(("last_victim", "going"), [(-1, 1), (0, 1), (1, 2), (2, 1), (7, 1), (-(1 << 31), 1)])
def test_an_index_that_names_no_victim_says_nothing(last_victim: int, going: int) -> None:
    rm = preempting()
    (question,) = rm.pile
    out = rm.answer(PredicateAnswer(question.question, True, last_victim=last_victim))
    assert len(told(out, Termination.PREEMPTED_BY_SCHEDULER)) == going


def test_further_victims_leave_every_queue_its_guarantee() -> None:
    guarded = PREEMPTING.replace("{name: poor}", "{name: poor, resources: {guaranteed: {m: 2}}}")
    rm = preempting(1, queues=guarded)
    (question,) = rm.pile
    assert isinstance(question, PreemptionPredicateRequested)
    assert (question.least, len(question.victims)) == (1, 1)


def test_a_further_victim_that_cannot_go_any_more_is_asked_about_anew() -> None:
    rm = preempting(1)
    (question,) = rm.pile
    assert isinstance(question, PreemptionPredicateRequested)
    kept = question.victims[1][1]
    held = rm.application("poor").allocations[kept]
    rm.want("poor", item(kept, 2, node_id=held.node_id, has_preemption_policy=True))  # it opts out
    out = rm.answer(PredicateAnswer(question.question, True, last_victim=1))
    assert not told(out, Termination.PREEMPTED_BY_SCHEDULER)
    (again,) = rm.pile
    assert isinstance(again, PreemptionPredicateRequested)
    assert [key for _, key in again.victims] == [question.victims[0][1]]


def test_after_a_refusal_another_node_is_asked_about_and_no_victim_there_is_released() -> None:
    rm = preempting()
    first = rm.pile[0].node_id
    out = rm.no()
    assert not told(out, Termination.PREEMPTED_BY_SCHEDULER)
    (question,) = rm.pile
    assert question.node_id != first
    assert told(rm.yes(), Termination.PREEMPTED_BY_SCHEDULER)


def test_an_agreement_that_arrives_when_there_is_room_preempts_nothing() -> None:
    rm = preempting()
    (question,) = rm.pile
    assert isinstance(question, PreemptionPredicateRequested)
    other = next(key for key in rm.placed("poor") if key != question.victims[0][1])
    rm.release("poor", other)
    out = rm.answer((question, True))
    assert not told(out, Termination.PREEMPTED_BY_SCHEDULER)
    rm.decide(lambda each: True)
    assert "p" in rm.placed("rich")
    assert rm.is_quiet()


def test_a_yes_to_a_plan_that_changed_is_not_a_yes_to_the_new_one() -> None:
    rm = preempting(1)
    (question,) = rm.pile
    assert isinstance(question, PreemptionPredicateRequested)
    gone = question.victims[0][1]
    rm.do(
        SetSchedulingEnabled(True),
        UpdateAllocations((), [ReleaseItem("default", "poor", gone, Termination.STOPPED_BY_RM)]),
    )
    rm.do(UpdateAllocations([replace(ask("poor", "new", m=2), node_id="n0", allow_preempt_self=True)]))
    out = rm.answer((question, True))
    assert not told(out, Termination.PREEMPTED_BY_SCHEDULER)
    assert not rm.partition.questions._agreed or rm.pile


def test_a_yes_to_a_plan_that_is_not_the_one_any_more_is_forgotten() -> None:
    rm = preempting(1)
    (question,) = rm.pile
    assert isinstance(question, PreemptionPredicateRequested)
    rm.core.apply(
        PredicateAnswers([PredicateAnswer(question.question, True)]), rm.now_ns
    )  # (no cycle: it is not used yet)
    gone = question.victims[0][1]
    rm.do(
        UpdateAllocations(
            [replace(ask("poor", "new", m=2), node_id="n0", allow_preempt_self=True, has_preemption_policy=True)],
            [ReleaseItem("default", "poor", gone, Termination.STOPPED_BY_RM)],
        )
    )
    assert len(rm.pile) == 2
    assert not rm.partition.questions._agreed


def test_a_new_stream_without_that_wish_lets_the_preemption_go_on() -> None:
    rm = preempting()
    (question,) = rm.pile
    out = rm.connect(preemption=False)
    assert told(out, Termination.PREEMPTED_BY_SCHEDULER)
    assert rm.refused("rich", "p") == []
    assert question.node_id == rm.the_node(question.node_id).node_id


def test_an_ask_that_goes_leaves_no_agreement_behind() -> None:
    rm = preempting(1)
    (question,) = rm.pile
    rm.core.apply(
        PredicateAnswers([PredicateAnswer(question.question, True)]), rm.now_ns
    )  # (no cycle: it is not used yet)
    assert rm.partition.questions._agreed
    rm.release("rich", "p")
    assert rm.is_quiet()


# ---- REPLACE, gangs ------------------------------------------------------------------------------------------------


def formed(members: int = 2, nodes_count: int = 3, *, start: str = "whole", **more: Any) -> Asking:
    rm = Asking(f"{{name: root, {OPEN}, queues: [{{name: a, properties: {{gang.start: {start}}}}}]}}", **more)
    rm.do(nodes(NodeAction.CREATE, {f"n{number}": {"m": 2} for number in range(nodes_count)}))
    rm.gang("app", members)
    rm.want("app", *items(" ".join(f"p{number}" for number in range(members)), placeholder=True, task_group="t"))
    rm.decide(lambda question: True)
    gang = rm.application("app").gang
    assert gang is not None
    assert gang.phase is GangPhase.FORMED
    return rm


def test_placeholders_are_asked_about_and_the_gang_forms_with_the_answers() -> None:
    rm = Asking(LEAF)
    rm.node("n1", m=4)
    rm.gang("app", 2)
    rm.want("app", *items("p q", placeholder=True, task_group="t"))
    assert rm.open == [("p", "n1"), ("q", "n1")]
    rm.answer((rm.pile[0], True))
    gang = rm.application("app").gang
    assert gang is not None
    assert gang.phase is GangPhase.FORMING
    assert gang.proposed
    rm.yes()
    assert gang.phase is GangPhase.FORMED
    assert rm.is_quiet()


def test_a_real_ask_takes_its_placeholders_place_in_two_steps_with_a_question_before() -> None:
    rm = formed()
    rm.want("app", item("r", task_group="t"))
    (question,) = rm.pile
    assert isinstance(question, PredicateRequested)
    assert not question.allocate
    out = rm.yes()
    (leaving,) = told(out, Termination.PLACEHOLDER_REPLACED)
    assert not allocations(out)
    out = rm.release("app", leaving, Termination.PLACEHOLDER_REPLACED)
    assert allocations(out) == [("app", "r", question.node_id)]
    assert rm.is_quiet()


def test_a_refused_node_of_a_placeholder_lets_another_one_make_room() -> None:
    rm = formed(members=2)
    on = rm.placed("app")
    rm.want("app", item("r", task_group="t"))
    first = rm.pile[0].node_id
    rm.no()
    (question,) = rm.pile
    assert question.node_id != first
    (leaving,) = told(rm.yes(), Termination.PLACEHOLDER_REPLACED)
    rm.release("app", leaving, Termination.PLACEHOLDER_REPLACED)
    assert rm.placed("app")["r"] == question.node_id
    assert set(on) - set(rm.placed("app")) == {leaving}


def test_elsewhere_is_where_it_was_agreed_to_run_and_not_where_the_placeholder_was() -> None:
    rm = formed(members=1, nodes_count=2)
    (own,) = rm.placed("app").values()
    rm.want("app", item("r", task_group="t"))
    rm.no()
    (question,) = rm.pile
    assert isinstance(question, PredicateRequested)
    assert question.allocate
    assert question.node_id != own
    (leaving,) = told(rm.yes(), Termination.PLACEHOLDER_REPLACED)
    out = rm.release("app", leaving, Termination.PLACEHOLDER_REPLACED)
    assert allocations(out) == [("app", "r", question.node_id)]
    assert rm.is_quiet()


def test_a_placeholder_that_goes_while_it_is_courted_frees_its_ask() -> None:
    rm = formed(members=2)
    rm.want("app", item("r", task_group="t"))
    (question,) = rm.pile
    courted = next(key for key, node in rm.placed("app").items() if node == question.node_id)
    rm.release("app", courted)
    assert not told(rm.answer((question, True)), Termination.PLACEHOLDER_REPLACED)
    (other,) = rm.pile
    assert other.question != question.question
    assert told(rm.yes(), Termination.PLACEHOLDER_REPLACED)


def test_a_time_out_of_placeholders_while_they_are_courted_ends_the_courting() -> None:
    rm = Asking(LEAF, timeout_ns=100 * SECONDS)
    rm.node("n1", m=4)
    rm.gang("app", 2, timeout_ms=5_000, style="Soft")
    rm.want("app", *items("p q", placeholder=True, task_group="t"))
    rm.yes()
    rm.want("app", item("r", task_group="t"))
    (question,) = rm.pile
    out = rm.wait(6)
    assert sorted(told(out, Termination.TIMEOUT)) == ["p", "q"]
    assert not told(rm.answer((question, True)), Termination.PLACEHOLDER_REPLACED)
    assert not rm.partition.checks.of_placeholders


def test_of_two_gangs_that_cannot_both_start_the_one_that_is_asked_about_keeps_the_room() -> None:
    rm = Asking(
        f"{{name: root, {OPEN}, queues: "
        "[{name: a, resources: {max: {m: 3}}, properties: {gang.start: whole}}]}"
    )
    rm.node("n1", m=9)
    for app in ("one", "two"):
        rm.gang(app, 2)
        rm.want(app, *items("p q", placeholder=True, task_group="t"))
    assert [each.app_id for each in rm.asked] == ["one", "one"]
    assert rm.application("two").reason is not None
    rm.no()  # nothing of it is placed, nor anywhere else to go: the other one may start
    assert [each.app_id for each in rm.asked[2:]] == ["two", "two"]
    rm.yes()
    gang = rm.application("two").gang
    assert gang is not None
    assert gang.phase is GangPhase.FORMED
    rm.wait(15)
    assert of_m(rm.queue("root.a").allocated) == 2


def test_gangs_that_waited_for_room_are_asked_about_one_after_the_other_without_an_answer_between() -> None:
    rm = Asking(
        f"{{name: root, {OPEN}, queues: "
        "[{name: a, resources: {max: {m: 4}}, properties: {gang.start: whole}}, {name: b}]}"
    ).having({"n1": {"m": 9}}, {"before": "root.a"})
    rm.ask("before", "k", m=4)
    rm.yes()
    for app in ("one", "two", "three"):
        rm.gang(app, 2)
        rm.want(app, *items("p q", placeholder=True, task_group="t"))
    assert not rm.open
    rm.release("before", "k")
    assert [each.app_id for each in rm.asked[1:]] == ["one", "one", "two", "two"]
    rm.yes()
    assert rm.queue("root.a").allocated == rm.queue("root").allocated


def test_an_application_that_resumes_counts_as_running_while_it_is_asked_about() -> None:
    rm = Asking(f"{{name: root, {OPEN}, queues: [{{name: a, maxapplications: 1}}]}}", timeout_ns=100 * SECONDS)
    rm.node("n1", m=2)
    rm.gang("one", 3, timeout_ms=5_000, style="Soft")
    rm.want("one", *items("p q r", placeholder=True, task_group="t"))
    rm.yes()
    out = rm.wait(6)
    for key in told(out, Termination.TIMEOUT):
        if key != "r":
            rm.do(UpdateAllocations((), [ReleaseItem("default", "one", key, Termination.STOPPED_BY_RM)]), budget=0)
            break
    assert rm.application("one").state is AppState.RESUMING
    rm.want("one", item("real"))
    assert rm.open == [("real", "n1")]
    rm.app("two", "root.a")
    rm.ask("two", "k", m=0, v=1)
    rm.node("n2", m=2, v=2)
    assert rm.pending("two") == {"k": "QUEUE_MAX_APPLICATIONS"}
    assert rm.queue("root.a").running_applications == 1


@pytest.mark.parametrize("restarted", [False, True])
def test_an_ask_with_an_agreed_node_runs_on_its_reserved_node(restarted: bool) -> None:
    rm = formed(members=1, nodes_count=2)
    (own,) = rm.placed("app").values()
    rm.want("app", item("r", task_group="t"))
    rm.no()
    question = rm.pile[0]
    (leaving,) = told(rm.yes(), Termination.PLACEHOLDER_REPLACED)
    if restarted:
        rm.application("app").allocations[leaving].agreed_node = ""  # (what no record says)
    rm.do(UpdateNodes((NodeItem(own, NodeAction.UPDATE, {"refusals": "forgotten"}),)))
    out = rm.release("app", leaving, Termination.PLACEHOLDER_REPLACED)
    assert allocations(out) == [("app", "r", question.node_id)]


def test_half_a_gang_proposed_is_promised_the_other_half() -> None:
    rm = Asking(
        f"{{name: root, {OPEN}, queues: "
        "[{name: a, resources: {max: {m: 4}}, properties: {gang.start: whole}}]}"
    )
    rm.node("n1", m=9)
    rm.gang("one", 3)
    rm.want("one", item("p", placeholder=True, task_group="t"))
    assert list(rm.queue("root.a").promised.values()) == [2]
    rm.gang("two", 2)
    rm.want("two", *items("p q", placeholder=True, task_group="t"))
    assert {each.app_id for each in rm.asked} == {"one"}
    rm.no()
    assert [each.app_id for each in rm.asked[1:]] == ["two", "two"]


# ---- the same as without -------------------------------------------------------------------------------------------

TREE = (
    f"{{name: root, {OPEN}, queues: [{{name: a, properties: {{application.sort.policy: fair}}, "
    "resources: {guaranteed: {m: 6}}}, {name: b, resources: {max: {m: 14}}, maxapplications: 3}, "
    "{name: c, queues: [{name: x, properties: {application.sort.policy: fair}}, {name: y, resources: {max: {m: 5}}}]}]}"
)


@pytest.mark.parametrize("nodesort", ["fair", "binpacking", "dotproduct", "fragmentation"])
def test_an_rm_that_agrees_at_once_gets_the_same_placements_as_one_that_is_not_asked(nodesort: str) -> None:
    for seed in range(6):
        none = "reservation: {enabled: false}, "  # (which needs a question of its own, and then another turn)
        asked = Asking(TREE, nodesort=nodesort, partition=none, states=False)
        plain = Cluster(TREE, nodesort=nodesort, partition=none)
        for cluster in (asked, plain):
            _work(cluster, random.Random(seed))
        assert _story(asked) == _story(plain)
        assert asked.asked


def _work(cluster: Cluster, dice: random.Random) -> None:
    """(Releases go by name: both hold the same.)"""
    numbers = count()
    apps: list[str] = []
    for number in range(5):
        cluster.node(f"n{number}", m=dice.randint(3, 9), v=dice.randint(3, 9))
    for _ in range(60):
        fate = dice.random()
        if len(apps) < 3 or fate < 0.1:
            apps.append(f"app{next(numbers)}")
            cluster.app(apps[-1], dice.choice(["root.a", "root.b", "root.c.x", "root.c.y"]), user=dice.choice("uvw"))
        elif fate < 0.7:
            app_id, m, v = dice.choice(apps), dice.randint(1, 3), dice.randint(0, 2)
            keys = [f"k{next(numbers)}" for _ in range(dice.randint(1, 5))]
            priority = dice.choice([0, 0, 5])
            cluster.do(UpdateAllocations([ask(app_id, key, priority=priority, m=m, v=v) for key in keys]))
        else:
            held = sorted((app.app_id, key) for app in cluster.partition.apps.values() for key in app.allocations)
            if held:
                app_id, key = dice.choice(held)
                cluster.release(app_id, key)
        if isinstance(cluster, Asking):
            cluster.decide(lambda question: True)
        cluster.now_ns += SECONDS // 4
        cluster.do()
        if isinstance(cluster, Asking):
            cluster.decide(lambda question: True)


def _story(cluster: Cluster) -> list[tuple[str, str, str]]:
    return [
        (fact.allocation.app_id, fact.allocation.key, fact.allocation.node_id)
        for out in cluster.outcomes
        for fact in out.facts
        if isinstance(fact, NewAllocation)
    ]


def test_proposals_are_shared_out_as_allocations_are() -> None:
    for seed in range(8):
        asked, plain = Asking(TREE, states=False), Cluster(TREE)
        for cluster in (asked, plain):
            dice = random.Random(seed)
            commands: list[Any] = [nodes(NodeAction.CREATE, {f"n{n}": {"m": 6, "v": 6} for n in range(4)})]
            cluster.do(*commands)
            for number in range(8):
                cluster.app(f"app{number}", dice.choice(["root.a", "root.b", "root.c.x", "root.c.y"]))
            cluster.do(
                UpdateAllocations(
                    [ask(f"app{dice.randint(0, 7)}", f"k{n}", priority=dice.choice([0, 1]), m=1) for n in range(40)]
                )
            )
        assert [(each.app_id, each.key, each.node_id) for each in asked.asked] == _story(plain)


def test_the_default_policy_asks_no_questions() -> None:
    assert CallbackPolicy() == CallbackPolicy(predicates=False, preemption=False, states=False, connected=False)
    cluster = Cluster(LEAF).having({"n1": {"m": 1}}, {"app": "root.a"})
    assert allocations(cluster.ask("app", "k", m=1)) == [("app", "k", "n1")]


# ---- bursts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answers", [1 << 30, 100])
def test_a_burst_of_4000_asks_is_4000_questions_where_all_are_agreed_to(answers: int) -> None:
    """However fast the RM is: with 200 answers in a second half of them would be late, and asked for again, were all of
    them asked at once."""
    rm = Asking(LEAF)
    for number in range(40):
        rm.node(f"n{number}", m=100)
    rm.app("app", "root.a")
    rm.want("app", *(item(f"k{number}") for number in range(4000)))
    while rm.pile:
        rm.wait(0.5)
        rm.answer(*((question, True) for question in rm.pile[:answers]))
    assert len(rm.placed("app")) == 4000
    assert len(rm.asked) == 4000


def test_a_failed_ask_carries_the_sentence_of_its_explanation() -> None:
    rm = Asking(LEAF).having({"n1": {"m": 4}}, {"app": "root.a"})
    rm.ask("app", "large", m=5)
    out = rm.wait(2)
    said = [fact.reason for fact in out.facts if isinstance(fact, ScaleUpHint)]
    assert said == [rm.why("app", "large").sentence()]
    assert said[0].startswith("It asks for 5 m, and the largest node has 4 m in all.")
