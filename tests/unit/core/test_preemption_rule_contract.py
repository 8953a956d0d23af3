"""The contract of preemption rules, for Muster's own and one of an external package."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import SECOND_NS, snapshot
from from_outside import install
from muster_core.config.queue_config import PreemptionConfig
from muster_core.external.model import ExternalChange, ExternalKind, ExternalOffer
from muster_core.model.allocation import PreemptionRecord
from muster_core.model.application import Allocation
from muster_core.model.commands import ApplyExternalChanges
from muster_core.model.outcome import ReleasedAllocation
from muster_core.preemption import registry
from muster_core.preemption.rule import AskRule, OfferRule, PreemptionRule, QueueRule, RequiredNodeRule, RuleGuards
from muster_view.explain import preemption
from preempting import Arena, told

DOC = Path(__file__).parents[3] / "docs/preemption.md"

# The whole of it: one module and one entry. An ask takes from its neighbours, equal priorities too.
NEIGHBOUR = """
from muster_core.preemption.cover_search import VictimLeaf
from muster_core.preemption.rule import RuleGuards, VictimScope, asker_of

class Neighbour:
    name = "NEIGHBOUR"
    promises = RuleGuards(opted_out_stay=True, daemons_stay=True, guarantees_kept=False)

    def reach(self, ask, underway, over):
        return VictimScope([VictimLeaf(ask.app.queue, self.name, ask.priority, spared=ask.app)])

    def sentence(self, told, queue, held, why):
        return f"{told} for its neighbour {why.key}."

    def message(self, queue, held, why):
        return f"{asker_of(why)}, its neighbour."

RULE = Neighbour()
"""
MODULE = "neighbour_for_muster"
MEMORY = 10  # of the one node


class Stage:
    """A cluster with one node, n, on which application r of root.top.rich runs, and an occasion for one rule.

    :param guaranteed: of root.top.
    """

    def __init__(self, rule: str, *, guaranteed: int = 0, opted_out_last: bool = False, gangs: str = "members") -> None:
        self.rule = rule
        self._gangs = gangs
        self._guaranteed = f"resources: {{guaranteed: {{memory: {guaranteed}}}}}, " if guaranteed else ""
        config = PreemptionConfig(opted_out_last=opted_out_last, quota_enabled=True)
        self.arena = Arena(self._root(2 * MEMORY), preemption=config)
        if rule == "REVOKED":
            self._lend(0)
        else:
            self.arena.node("n", memory=MEMORY)
        self.arena.app("r", "root.top.rich", user="bob")
        self.arena.app("p", "root.poor")
        self.arena.app("q", "root.top.rich")

    def _root(self, maximum: int) -> str:
        properties = f"properties: {{gang.preemption: {self._gangs}, quota.preemption.delay: 60s}}"
        rich = f"{{name: rich, resources: {{max: {{memory: {maximum}}}}}, {properties}}}"
        top = f"{{name: top, {self._guaranteed}queues: [{rich}]}}"
        return f"{{name: root, submitacl: '*', queues: [{{name: poor, {POOR}}}, {{name: other}}, {top}]}}"

    def _lend(self, back: int) -> None:
        """Offers that are the node; the first so many are wanted back."""
        offers = [ExternalOffer(f"o{n}", "n", {"memory": 1}) for n in range(MEMORY)]
        offers[:back] = [replace(offer, revoked=True, grace_ns=60 * SECOND_NS) for offer in offers[:back]]
        changes = tuple(ExternalChange(ExternalKind.OFFER, offer.offer_id, offer) for offer in offers)
        self.arena.do(ApplyExternalChanges("default", "mesos", "1", changes))

    def held(self, key: str, memory: int, **what: Any) -> None:
        self.arena.held("r", key, "n", memory=memory, **what)

    def member(self, key: str, memory: int, **what: Any) -> None:
        self.held(key, memory, task_group="t", placeholder=True, **what)

    def allocations(self) -> dict[str, Allocation]:
        return self.arena.application("r").allocations

    def take(self, need: int, key: str = "ask") -> list[str]:
        """The occasion: so much is needed. Gives the keys that were told to go."""
        before = len(self.arena.outcomes)
        OCCASIONS[self.rule](self, need, key)
        self.arena.wait(61)
        keys = [key for out in self.arena.outcomes[before:] for _, key in told_once(out)]
        rules = {why.rule for each in self.allocations().values() if (why := each.preempted) is not None}
        assert rules <= {self.rule}, "another rule was first"
        return sorted(keys)


POOR = f"resources: {{guaranteed: {{memory: {MEMORY}}}}}"


def told_once(out: Any) -> list[tuple[str, str]]:
    out.facts = [fact for fact in out.facts if not getattr(fact, "reminder", False)]
    return told(out)


def _cut(stage: Stage, need: int, _: str) -> None:
    used = stage.arena.queue("root.top.rich").by_name(dict(enumerate(stage.arena.queue("root.top.rich").allocated)))
    stage.arena.reload(stage._root((used or {})["memory"] - need))


#: How each rule comes to be consulted.
OCCASIONS: dict[str, Callable[[Stage, int, str], object]] = {
    "GUARANTEE": lambda stage, need, key: stage.arena.want("p", key, memory=need),
    "PRIORITY": lambda stage, need, key: stage.arena.want("q", key, priority=9, memory=need),
    "REQUIRED_NODE": lambda stage, need, key: stage.arena.want("p", key, required_node="n", memory=need),
    "QUOTA": _cut,
    "REVOKED": lambda stage, need, _: stage._lend(need),
    "NEIGHBOUR": lambda stage, need, key: stage.arena.want("q", key, memory=need),
}


# The rules that are consulted for asks.
OF_ASKS = [*(each.name for each in registry.SHIPPED if isinstance(each, AskRule | RequiredNodeRule)), "NEIGHBOUR"]


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores the path and the registry."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(registry, "_rules", registry._Rules(registry.SHIPPED))


@pytest.fixture
def neighbour(tmp_path: Path) -> Iterator[PreemptionRule]:
    """A rule of a package from outside, which registers it."""
    install(tmp_path / "package", "neighbour", MODULE, NEIGHBOUR, "none")
    rule: PreemptionRule = importlib.import_module(MODULE).RULE
    registry.register(rule)
    yield rule
    sys.modules.pop(MODULE)


@pytest.fixture(params=[*(rule.name for rule in registry.SHIPPED), "NEIGHBOUR"])
def rule(request: pytest.FixtureRequest) -> PreemptionRule:
    if request.param == "NEIGHBOUR":
        request.getfixturevalue("neighbour")
    found = registry.rule_named(request.param)
    assert found is not None
    return found


# ---- what may be taken ---------------------------------------------------------------------------------------------


def test_the_rule_takes_what_is_needed_and_nothing_more(rule: PreemptionRule) -> None:
    stage = Stage(rule.name)
    for number in range(5):
        stage.held(f"k{number}", 2)
    keys = stage.take(3)
    # (A queue is never cut below its max, so that a cut takes less than a whole allocation too much.)
    assert len(keys) == (1 if isinstance(rule, QueueRule) else 2)


@pytest.mark.parametrize("need", [4, 6])
@pytest.mark.parametrize("rule", OF_ASKS, indirect=True)
def test_an_ask_takes_nothing_when_it_would_not_fit_after_all(rule: PreemptionRule, need: int) -> None:
    stage = Stage(rule.name)
    stage.held("high", 6, priority=20)
    stage.held("low", 4)
    assert stage.take(need) == (["low"] if need == 4 else [])


@pytest.mark.parametrize("last", [False, True], ids=["never", "last"])
def test_an_allocation_that_opted_out_stays_where_that_is_promised(rule: PreemptionRule, last: bool) -> None:
    stage = Stage(rule.name, opted_out_last=last)
    stage.held("k1", 5, victim=False)
    stage.held("k2", 5, victim=False)
    assert len(stage.take(5)) == (0 if rule.promises.opted_out_stay and not last else 1)


def test_a_daemon_stays_where_that_is_promised(rule: PreemptionRule) -> None:
    stage = Stage(rule.name)
    stage.held("daemon", MEMORY, required_node="n")
    assert stage.take(MEMORY) == ([] if rule.promises.daemons_stay else ["daemon"])


def test_no_queue_falls_below_its_guarantee_where_that_is_promised(rule: PreemptionRule) -> None:
    stage = Stage(rule.name, guaranteed=MEMORY)
    for number in range(5):
        stage.held(f"k{number}", 2)
    assert len(stage.take(4)) == (0 if rule.promises.guarantees_kept else 2)
    stage = Stage(rule.name, guaranteed=MEMORY - 4)
    for number in range(5):
        stage.held(f"k{number}", 2)
    assert len(stage.take(4)) == 2


def test_a_releasing_allocation_is_not_taken_again(rule: PreemptionRule) -> None:
    stage = Stage(rule.name)
    for number in range(5):
        stage.held(f"k{number}", 2)
    first, second = stage.take(4), stage.take(6, "another")
    assert len(first) == 2
    assert not set(first) & set(second)


def test_a_gang_goes_as_a_whole_where_its_queue_says_so(rule: PreemptionRule) -> None:
    for need in (3, 6):
        stage = Stage(rule.name, gangs="whole")
        stage.member("m1", 3)
        stage.member("m2", 3)
        stage.held("high", MEMORY - 6, priority=20)
        whole = ["m1", "m2"]
        assert stage.take(need) == ([] if need < 6 and isinstance(rule, QueueRule) else whole)
    stage = Stage(rule.name, gangs="whole")
    stage.member("m1", 5)
    stage.member("m2", 5, victim=False)
    assert len(stage.take(MEMORY)) == (0 if rule.promises.opted_out_stay else 2)


def test_the_rule_changes_nothing_and_says_the_same_again(
    rule: PreemptionRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(rule.name)
    for number in range(5):
        stage.held(f"k{number}", 2)
    asked = []

    def watch(method: str) -> None:
        consult = getattr(type(rule), method)

        def twice(*arguments: Any, **more: Any) -> Any:
            before = snapshot(stage.arena.core)
            first, second = consult(*arguments, **more), consult(*arguments, **more)
            assert repr(first) == repr(second)
            assert snapshot(stage.arena.core) == before
            asked.append(method)
            return second

        monkeypatch.setattr(type(rule), method, twice)

    for method in ("reach", "plan", "cut", "evict"):
        if hasattr(rule, method):
            watch(method)
    assert stage.take(4)
    assert asked


# ---- how it is told ------------------------------------------------------------------------------------------------


def test_each_victim_says_the_rule_and_why(rule: PreemptionRule) -> None:
    stage = Stage(rule.name)
    stage.held("k1", 5)
    stage.held("k2", 5)
    (key,) = stage.take(5)
    held = stage.allocations()[key]
    why = held.preempted
    assert why is not None
    assert why.rule == rule.name
    story = preemption.preempted(stage.arena.partition, held, why, why.since_ns + SECOND_NS)
    assert story.rule == rule.name
    assert story.sentence.startswith(f"Allocation {key} of application r on node n was preempted 1 second ago")
    assert story.message.startswith("It was preempted ")
    for said in (story.sentence, story.message):
        assert said.endswith(".")
        assert "  " not in said


def test_the_name_is_in_capitals_and_has_one_occasion(rule: PreemptionRule) -> None:
    assert re.fullmatch(r"[A-Z]+(_[A-Z]+)*", rule.name)
    kinds = (AskRule, RequiredNodeRule, QueueRule, OfferRule)
    assert sum(isinstance(rule, kind) for kind in kinds) == 1


def test_the_table_of_the_documentation_has_each_rule_once_in_the_order_of_the_registry() -> None:
    rows = re.findall(r"^\| `?([A-Z_]+)`? \| ", DOC.read_text(encoding="utf-8"), re.MULTILINE)
    names = [rule.name for rule in registry.SHIPPED]
    assert rows[: len(names)] == names
    assert not set(rows[len(names) :]) & set(names)


def test_every_rule_has_an_occasion_here(neighbour: PreemptionRule) -> None:
    assert set(OCCASIONS) == set(registry.names())


# ---- from outside --------------------------------------------------------------------------------------------------


def test_a_rule_from_outside_decides_after_muster_s_own(neighbour: PreemptionRule) -> None:
    stage = Stage("NEIGHBOUR")
    stage.held("low", 5)
    stage.held("equal", 5, priority=9)
    stage.arena.want("q", "ask", priority=9, memory=5)
    stage.arena.wait(31)
    assert rules(stage) == {"low": "PRIORITY"}
    stage = Stage("NEIGHBOUR")
    stage.held("low", 5)
    stage.held("equal", 5, priority=9)
    stage.arena.want("q", "ask", priority=9, memory=MEMORY)  # the lower priorities alone are not enough
    stage.arena.wait(31)
    assert rules(stage) == {"low": "NEIGHBOUR", "equal": "NEIGHBOUR"}
    assert "Preempted by ask from application q in root.top.rich" in {
        fact.message for out in stage.arena.outcomes for fact in out.facts if isinstance(fact, ReleasedAllocation)
    }


def test_rules_are_tried_together_and_of_one_leaf_the_first_counts(neighbour: PreemptionRule) -> None:
    stage = Stage("NEIGHBOUR", guaranteed=12)
    for app_id, queue in (("s", "root.other"), ("t", "root.poor")):
        stage.arena.app(app_id, queue, user="carl")
    stage.held("low", 4)
    stage.arena.held("s", "other", "n", memory=4)
    stage.arena.held("t", "poor", "n", memory=2, priority=20)
    stage.arena.want("q", "ask", priority=9, memory=8)
    stage.arena.wait(31)
    assert rules(stage) == {"low": "PRIORITY"}
    (other,) = stage.arena.application("s").allocations.values()
    assert other.preempted is not None
    assert other.preempted.rule == "GUARANTEE"


def test_without_its_package_the_rule_of_a_record_is_named(neighbour: PreemptionRule) -> None:
    stage = Stage("NEIGHBOUR")
    stage.held("k", MEMORY)
    assert stage.take(4) == ["k"]
    held = stage.allocations()["k"]
    assert held.preempted is not None
    registry._rules.by_name.pop("NEIGHBOUR")
    story = preemption.preempted(stage.arena.partition, held, held.preempted, held.preempted.since_ns + SECOND_NS)
    assert story.sentence.endswith("on node n was preempted 1 second ago by the rule NEIGHBOUR.")
    assert story.message == "It was preempted by the rule NEIGHBOUR."


def rules(stage: Stage) -> dict[str, str]:
    """By key, the rule by which each allocation of application r was told to go."""
    preempted = {key: held.preempted for key, held in stage.allocations().items()}
    return {key: why.rule for key, why in preempted.items() if why is not None}


class Nothing:
    """A rule without an occasion."""

    name = "NOTHING"
    promises = RuleGuards(opted_out_stay=True, daemons_stay=True, guarantees_kept=True)

    def sentence(self, told: str, queue: str, held: Allocation, why: PreemptionRecord) -> str:
        return told

    def message(self, queue: str, held: Allocation, why: PreemptionRecord) -> str:
        return ""


class Twin(Nothing):
    name = "QUOTA"

    def cut(self, *_: object, **__: object) -> tuple[()]:
        return ()


def test_a_rule_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(ValueError, match="NOTHING is for no occasion: expected reach, plan, cut or evict"):
        registry.register(Nothing())
    with pytest.raises(ValueError, match="QUOTA is there already"):
        registry.register(Twin())
    (quota,) = (rule for rule in registry.SHIPPED if rule.name == "QUOTA")
    registry.register(quota)
    assert registry.names() == [rule.name for rule in registry.SHIPPED]
