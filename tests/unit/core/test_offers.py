"""Offers: parts of nodes that another framework lends (core/offers.py, docs/external-rules.md)."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
from builders import SECOND_NS, nodes
from builders import ask as ask_item
from muster_core.external.model import (
    ExternalAllocation,
    ExternalApplication,
    ExternalKind,
    ExternalNode,
    ExternalOffer,
    OfferState,
    SourceState,
)
from muster_core.model.application import Allocation
from muster_core.model.commands import (
    AppItem,
    AskItem,
    NodeAction,
    NodeItem,
    PredicateAnswer,
    PredicateAnswers,
    SetCallbacks,
    SetSchedulingEnabled,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_core.model.outcome import Outcome, ReleasedAllocation
from muster_core.model.resources import TYPES_MAX
from muster_core.model.scopes import CallbackPolicy
from muster_core.model.states import OFFER_TRANSITIONS, InvalidTransition, OfferEvent, next_offer_state
from muster_core.model.steps import finish
from muster_view.explain import preemption
from outside import LEAVES, Outside, forgets, says

SOURCE = "mesos"


def offer(
    offer_id: str = "o1",
    node_id: str = "n1",
    *,
    idle_s: float = 0,
    grace_s: float = 0,
    revoked: bool = False,
    **quantities: int,
) -> ExternalOffer:
    amounts = quantities or {"vcore": 4}
    idle_ns, grace_ns = round(idle_s * SECOND_NS), round(grace_s * SECOND_NS)
    return ExternalOffer(offer_id, node_id, amounts, idle_ns=idle_ns, revoked=revoked, grace_ns=grace_ns)


def lent(*offers: ExternalOffer) -> Outside:
    """A cluster with an application and these offers."""
    cluster = Outside(LEAVES)
    cluster.app("app", "root.a")
    cluster.says(SOURCE, *offers)
    return cluster


def state(cluster: Outside, offer_id: str = "o1") -> OfferState | None:
    return cluster.entry(SOURCE, ExternalKind.OFFER, offer_id).offer_state


def told(out: Outcome) -> list[str]:
    return [fact.key for fact in out.facts if isinstance(fact, ReleasedAllocation) and not fact.reminder]


def gone(cluster: Outside, offer_id: str = "o1") -> bool:
    return cluster.core.external.for_partition("default").entry(SOURCE, ExternalKind.OFFER, offer_id) is None


def held(cluster: Outside, app_id: str = "app") -> dict[str, Allocation]:
    return cluster.application(app_id).allocations


def free(cluster: Outside, node_id: str = "n1") -> dict[str, int]:
    return cluster.partition.types.quantities(cluster.the_node(node_id).available)


def confirm(cluster: Outside, *keys: str) -> None:
    for key in keys:
        cluster.release("app", key, Termination.PREEMPTED_BY_SCHEDULER)


# ---- the table -------------------------------------------------------------------------------------------------------


def test_states_go_along_their_table_only() -> None:
    for before in OfferState:
        for event in OfferEvent:
            if (before, event) in OFFER_TRANSITIONS:
                assert next_offer_state("offer o1", before, event) is OFFER_TRANSITIONS[before, event]
            else:
                with pytest.raises(InvalidTransition, match="offer o1"):
                    next_offer_state("offer o1", before, event)
    assert not any(before is OfferState.RETURNED for before, _ in OFFER_TRANSITIONS)


# ---- only what is offered --------------------------------------------------------------------------------------------


def test_only_what_is_offered_may_be_used() -> None:
    cluster = lent(offer(vcore=4))
    cluster.ask("app", "k", wanted=5, vcore=1)
    assert len(held(cluster)) == 4
    cluster.says(SOURCE, offer("o2", vcore=1))
    assert len(held(cluster)) == 5
    cluster.ask("app", "m", vcore=1, memory=1)
    assert cluster.pending("app") == {"m": "LARGER_THAN_ANY_NODE"}, "of what is not offered there is none"
    cluster.check_folds()


def test_of_the_rms_node_only_what_is_offered_may_be_used_and_never_more_than_the_rm_says() -> None:
    cluster = Outside(LEAVES)
    cluster.app("app", "root.a")
    cluster.node("n1", vcore=6)
    cluster.says(SOURCE, offer("o1", vcore=4), offer("o2", vcore=4))
    cluster.ask("app", "k", wanted=9, vcore=1)
    assert len(held(cluster)) == 6
    cluster.says(SOURCE, offer("o2", vcore=4, revoked=True, grace_s=5))
    assert free(cluster) == {"vcore": -2}
    cluster.check_folds()


def test_an_offer_of_too_many_types_stands_in_for_no_other() -> None:
    cluster = lent(offer(idle_s=10, vcore=4))
    cluster.node("rm", vcore=4)
    cluster.node("full", **{f"t{number}": 1 for number in range(TYPES_MAX - len(cluster.partition.types.names))})
    bad = offer("o2", idle_s=10, vcore=4, another=1)
    cluster.says(SOURCE, bad, replace(bad, offer_id="o3", node_id="rm"))
    assert "expected at most 256" in cluster.entry(SOURCE, ExternalKind.OFFER, "o2").problem
    cluster.ask("app", "k", wanted=8, vcore=1)
    assert len(held(cluster)) == 8, "half of it on the node that the offer brings"
    cluster.wait(30)
    assert (state(cluster), len(held(cluster))) == (OfferState.OFFERED, 8)
    cluster.says(SOURCE, replace(bad, revoked=True))
    assert state(cluster, "o2") is OfferState.RETURNED, "nothing could need it"
    cluster.says(SOURCE, replace(bad, offer_id="o3", node_id="rm", revoked=True))
    cluster.forgets(SOURCE, replace(bad, offer_id="o3"))
    assert gone(cluster, "o3")
    cluster.check_folds()


def test_an_offer_that_could_be_counted_since_a_restart_stands_in_for_no_other_before_it_is() -> None:
    cluster = lent(offer(idle_s=10, vcore=4))
    types = {f"t{number}": 1 for number in range(TYPES_MAX - len(cluster.partition.types.names))}
    cluster.node("full", **types)
    cluster.says(SOURCE, offer("o2", idle_s=10, vcore=4, another=1))
    cluster.do(UpdateNodes((NodeItem("full", NodeAction.DECOMISSION),)))
    cluster.restart()
    cluster.ask("app", "k", wanted=4, vcore=1)
    cluster.wait(30)
    assert cluster.entry(SOURCE, ExternalKind.OFFER, "o2").problem, "nobody spoke of the node since"
    assert (state(cluster), state(cluster, "o2"), len(held(cluster))) == (OfferState.OFFERED, OfferState.OFFERED, 4)
    cluster.says(SOURCE, offer("o3", vcore=1))
    assert cluster.the_node("n1").named_capacity() == {"vcore": 9, "another": 1}
    cluster.wait(30)
    assert (state(cluster), state(cluster, "o2"), len(held(cluster))) == (OfferState.OFFERED, OfferState.RETURNED, 4)
    cluster.check_folds()


# ---- idle ------------------------------------------------------------------------------------------------------------


def test_an_offer_that_nothing_needs_for_its_time_is_given_back() -> None:
    cluster = lent(offer(idle_s=10))
    cluster.wait(9)
    assert state(cluster) is OfferState.OFFERED
    cluster.wait(1)
    assert state(cluster) is OfferState.RETURNED
    assert "n1" not in cluster.partition.nodes, "nobody says the node any more"
    cluster.check_folds()


def test_an_offer_without_a_time_is_never_given_back_by_itself() -> None:
    cluster = lent(offer())
    cluster.wait(10**6)
    assert state(cluster) is OfferState.OFFERED


def test_an_ask_placed_before_the_idle_clock_ends_keeps_the_offer() -> None:
    cluster = lent(offer(idle_s=10))
    cluster.now_ns += 9 * SECOND_NS
    cluster.ask("app", "k", vcore=1)
    assert cluster.entry(SOURCE, ExternalKind.OFFER, "o1").idle_since_ns == 0
    cluster.wait(100)
    assert state(cluster) is OfferState.OFFERED
    cluster.release("app", "k")
    cluster.wait(9)
    assert state(cluster) is OfferState.OFFERED, "the clock begins anew"
    cluster.wait(1)
    assert state(cluster) is OfferState.RETURNED


def test_an_idle_time_that_is_said_otherwise_counts_from_when_it_was_idle() -> None:
    cluster = lent(offer("o1", idle_s=100), offer("o2", "n2", idle_s=10))
    cluster.wait(5)
    cluster.says(SOURCE, offer("o1", idle_s=20), offer("o2", "n2", idle_s=50))
    cluster.wait(15)
    assert (state(cluster, "o1"), state(cluster, "o2")) == (OfferState.RETURNED, OfferState.OFFERED)
    cluster.wait(30)
    assert state(cluster, "o2") is OfferState.RETURNED


def test_the_youngest_of_the_idle_ones_goes_first() -> None:
    cluster = lent(offer("old", idle_s=10, vcore=4))
    cluster.wait(1)
    cluster.says(SOURCE, offer("young", idle_s=10, vcore=4), offer("kept", vcore=1))
    cluster.ask("app", "k", vcore=3)
    cluster.wait(10)
    assert (state(cluster, "old"), state(cluster, "young")) == (OfferState.OFFERED, OfferState.RETURNED)
    cluster.release("app", "k")
    cluster.wait(10)
    assert state(cluster, "old") is OfferState.RETURNED
    assert cluster.partition.types.quantities(cluster.the_node("n1").capacity) == {"vcore": 1}
    cluster.check_folds()


def test_an_offer_that_makes_no_difference_is_idle() -> None:
    cluster = Outside(LEAVES)
    cluster.app("app", "root.a")
    cluster.node("n1", vcore=4)
    cluster.says(SOURCE, offer("o1", idle_s=5), offer("o2", idle_s=5))
    cluster.ask("app", "k", vcore=4)
    cluster.wait(5)
    assert sorted(map(str, (state(cluster, "o1"), state(cluster, "o2")))) == ["OFFERED", "RETURNED"]


def test_allocations_of_others_on_the_node_need_the_offer_too() -> None:
    cluster = lent(offer(idle_s=5))
    cluster.says("vms", ExternalAllocation("vm", "n1", {"vcore": 2}))
    cluster.wait(60)
    assert state(cluster) is OfferState.OFFERED
    cluster.forgets("vms", ExternalAllocation("vm", "n1", {}))
    cluster.wait(5)
    assert state(cluster) is OfferState.RETURNED


def test_a_reserved_node_needs_its_offers() -> None:
    cluster = lent(offer("o1", idle_s=60, vcore=4), offer("o2", idle_s=60, vcore=4))
    cluster.ask("app", "small", vcore=1)
    cluster.ask("app", "large", vcore=8)
    cluster.wait(3)
    assert cluster.application("app").asks["large"].reserved_node == "n1"
    cluster.wait(600)
    assert state(cluster, "o1") is state(cluster, "o2") is OfferState.OFFERED
    cluster.release("app", "small")
    assert set(cluster.placed("app")) == {"large"}


def test_an_offer_for_a_node_that_is_not_there_is_given_back_when_it_is_idle() -> None:
    cluster = Outside(LEAVES)
    cluster.says(SOURCE, ExternalNode("n1", None, brings=False), offer(idle_s=5))
    assert cluster.entry(SOURCE, ExternalKind.OFFER, "o1").problem
    cluster.wait(5)
    assert state(cluster) is OfferState.RETURNED


def test_while_nothing_is_decided_nothing_is_given_back() -> None:
    cluster = lent(offer(idle_s=5))
    cluster.do(SetSchedulingEnabled(deciding=False))
    cluster.wait(60)
    assert state(cluster) is OfferState.OFFERED
    cluster.do(SetSchedulingEnabled(deciding=True))
    assert state(cluster) is OfferState.RETURNED


def test_a_returned_offer_stays_returned_and_its_source_is_informed_again() -> None:
    cluster = lent(offer(idle_s=5))
    cluster.wait(5)
    assert state(cluster) is OfferState.RETURNED
    key = next(key for key in cluster.kept if key.endswith(b"/offer/o1"))
    del cluster.kept[key]
    cluster.says(SOURCE, offer(idle_s=5))
    assert key in cluster.kept, "its record is written again"
    cluster.forgets(SOURCE, offer())
    assert gone(cluster)
    cluster.says(SOURCE, offer(idle_s=5))
    assert state(cluster) is OfferState.OFFERED, "it is another one"
    cluster.check_folds()


# ---- revoked ---------------------------------------------------------------------------------------------------------


def test_a_revoked_offer_takes_nothing_new_and_what_runs_there_may_end_by_itself() -> None:
    cluster = lent(offer("o1", vcore=4), offer("o2", vcore=4))
    cluster.ask("app", "k", wanted=4, vcore=1)
    cluster.ask("app", "ends", vcore=2)
    cluster.says(SOURCE, offer("o2", revoked=True, grace_s=60, vcore=4))
    assert free(cluster) == {"vcore": -2}
    cluster.ask("app", "late", vcore=1)
    assert "late" in cluster.pending("app")
    cluster.check_folds()
    out = cluster.wait(59)
    assert told(out) == []
    cluster.release("app", "ends")
    assert state(cluster, "o2") is OfferState.RETURNED
    assert told(cluster.wait(10)) == []


def test_at_the_deadline_what_does_not_fit_is_preempted_the_least_first() -> None:
    cluster = lent(offer("o1", vcore=4), offer("o2", vcore=4))
    for key, priority in (("old", 0), ("young", 0), ("first", -5), ("high", 9), ("mid", 3)):
        cluster.now_ns += SECOND_NS
        item = replace(ask_item("app", key, priority=priority, vcore=1), originator=key == "first")
        cluster.do(UpdateAllocations([item]))
    cluster.says(SOURCE, offer("o2", revoked=True, grace_s=60, vcore=4), offer("o1", vcore=4))
    cluster.says(SOURCE, offer("o1", revoked=True, grace_s=100, vcore=4))
    deadlines = [cluster.entry(SOURCE, ExternalKind.OFFER, each).deadline_ns for each in ("o2", "o1")]
    assert deadlines[1] - deadlines[0] == 40 * SECOND_NS
    out = cluster.wait(60)
    assert told(out) == ["young"], "the others fit while o1 is lent"
    why = held(cluster)["young"].preempted
    assert why is not None
    assert (why.rule, why.app_id, why.key, why.queue) == ("REVOKED", "", "mesos/o2", "")
    story = preemption.preempted(cluster.partition, held(cluster)["young"], why, cluster.now_ns)
    assert story.message == (
        "It was preempted because node n1 has no room for it without offer o2, which source mesos has revoked."
    )
    assert preemption.victims_of(cluster.partition) == {}
    cluster.check_folds()
    confirm(cluster, "young")
    assert state(cluster, "o2") is OfferState.RETURNED
    out = cluster.wait(40)
    assert told(out) == ["old", "mid", "high", "first"], "originators last"
    assert told(cluster.wait(600)) == [], "each is asked once, and then reminded"
    confirm(cluster, "old", "mid", "high", "first")
    assert state(cluster, "o1") is OfferState.RETURNED
    assert "n1" not in cluster.partition.nodes
    cluster.check_folds()


def test_no_allocation_is_preempted_without_need() -> None:
    cluster = lent(offer("o1", vcore=4, memory=4), offer("o2", vcore=4, memory=4))
    cluster.ask("app", "large", priority=1, vcore=6, memory=1)
    cluster.ask("app", "small", vcore=1)
    cluster.ask("app", "other", memory=1)
    out = cluster.says(SOURCE, offer("o2", revoked=True, vcore=4, memory=4))
    assert told(out) == ["large"], "without it small fits, and other has nothing that is lacking"


def test_the_offer_revoked_first_is_returned_first() -> None:
    cluster = lent(offer("a"), offer("b"))
    cluster.ask("app", "k", vcore=3)
    late, soon = offer("a", revoked=True, grace_s=60), offer("b", revoked=True, grace_s=30)
    cluster.do(says(SOURCE, late, soon))
    assert (state(cluster, "a"), state(cluster, "b")) == (OfferState.REVOKED, OfferState.RETURNED)
    assert told(cluster.wait(59)) == []
    assert told(cluster.wait(1)) == ["k"]


def test_a_releasing_allocation_counts_as_going() -> None:
    cluster = lent(offer("o1", vcore=2), offer("o2", vcore=2))
    timed = AskItem("timed", "app", "default", {"vcore": 2}, execution_timeout_ms=1000)
    cluster.do(UpdateAllocations([timed, ask_item("app", "k", vcore=2)]))
    cluster.wait(1)
    assert held(cluster)["timed"].releasing
    out = cluster.says(SOURCE, offer("o2", vcore=2, revoked=True))
    assert told(out) == []
    out = cluster.says(SOURCE, offer("o1", vcore=2, revoked=True))
    assert told(out) == ["k"]


def test_daemons_and_opted_out_allocations_go_and_those_of_sources_stay() -> None:
    cluster = lent(offer(vcore=4))
    cluster.says("vms", ExternalAllocation("vm", "n1", {"vcore": 1}))
    daemon = replace(ask_item("app", "daemon", vcore=1), tags={"yunikorn.apache.org/requiredNode": "n1"})
    cluster.do(UpdateAllocations([daemon, ask_item("app", "k", vcore=1)]))
    out = cluster.says(SOURCE, offer(vcore=4, revoked=True))
    assert sorted(told(out)) == ["daemon", "k"]
    confirm(cluster, "daemon", "k")
    assert state(cluster) is OfferState.REVOKED, "the VM is there"
    assert "n1" in cluster.partition.nodes
    cluster.forgets("vms", ExternalAllocation("vm", "n1", {}))
    assert state(cluster) is OfferState.RETURNED
    assert "n1" not in cluster.partition.nodes
    cluster.check_folds()


def test_an_allocation_of_a_sources_application_is_no_victim() -> None:
    cluster = lent(offer(vcore=4))
    cluster.says("vms", ExternalApplication("vm-app", "root.b"))
    cluster.says("vms", ExternalAllocation("vm", "n1", {"vcore": 2}, app_id="vm-app"))
    cluster.ask("app", "k", vcore=2)
    out = cluster.says(SOURCE, offer(vcore=4, revoked=True))
    assert told(out) == ["k"]
    assert not held(cluster, "vm-app")["vm"].releasing


def test_the_grace_period_is_counted_from_when_it_was_first_wanted_back() -> None:
    cluster = lent(offer())
    cluster.ask("app", "k", vcore=4)
    cluster.says(SOURCE, offer(revoked=True, grace_s=30))
    cluster.wait(10)
    cluster.says(SOURCE, offer(revoked=True, grace_s=60))
    assert told(cluster.wait(49)) == []
    assert told(cluster.wait(1)) == ["k"]


def test_an_offer_that_is_lent_on_counts_again() -> None:
    cluster = lent(offer())
    cluster.ask("app", "k", vcore=4)
    cluster.says(SOURCE, offer(revoked=True, grace_s=30))
    cluster.says(SOURCE, offer(idle_s=7))
    assert state(cluster) is OfferState.OFFERED
    assert told(cluster.wait(60)) == []
    assert free(cluster) == {}
    cluster.check_folds()


def test_an_offer_that_its_source_forgets_has_no_grace_left() -> None:
    cluster = lent(offer())
    cluster.ask("app", "k", vcore=3)
    out = cluster.forgets(SOURCE, offer())
    assert told(out) == ["k"]
    assert cluster.entry(SOURCE, ExternalKind.OFFER, "o1").withdrawn
    assert free(cluster) == {"vcore": -3}
    cluster.ask("app", "late", vcore=1)
    assert "late" in cluster.pending("app")
    cluster.check_folds()
    cluster.restart()
    confirm(cluster, "k")
    assert gone(cluster)
    assert "n1" not in cluster.partition.nodes
    cluster.check_folds()


def test_a_grace_period_ends_when_its_source_forgets_the_offer() -> None:
    cluster = lent(offer())
    cluster.ask("app", "k", vcore=3)
    cluster.says(SOURCE, offer(revoked=True, grace_s=600))
    assert told(cluster.forgets(SOURCE, offer())) == ["k"]


def test_a_listing_without_an_offer_forgets_it() -> None:
    cluster = lent(offer("o1", vcore=2), offer("o2", vcore=2))
    cluster.sets(SOURCE, SourceState.LIVE)
    cluster.ask("app", "k", wanted=3, vcore=1)
    cluster.says(SOURCE, offer("o1", vcore=2), life="2")
    out = cluster.sets(SOURCE, SourceState.LIVE, life="2")
    assert len(told(out)) == 1
    confirm(cluster, *told(out))
    assert gone(cluster, "o2")
    cluster.sets(SOURCE, SourceState.LIVE, life="3")
    assert cluster.entry(SOURCE, ExternalKind.OFFER, "o1").withdrawn
    cluster.sets(SOURCE, SourceState.LIVE, life="4")
    assert cluster.entry(SOURCE, ExternalKind.OFFER, "o1").withdrawn, "still needed"
    cluster.check_folds()


def test_an_offer_that_is_said_again_before_it_went_is_lent_anew() -> None:
    cluster = lent(offer())
    cluster.ask("app", "k", vcore=3)
    cluster.forgets(SOURCE, offer())
    cluster.says(SOURCE, offer())
    entry = cluster.entry(SOURCE, ExternalKind.OFFER, "o1")
    assert (entry.offer_state, entry.withdrawn, entry.deadline_ns) == (OfferState.OFFERED, False, 0)
    assert free(cluster) == {"vcore": 1}
    cluster.check_folds()


def test_a_node_that_another_source_reports_stays_without_its_offers() -> None:
    cluster = lent(offer())
    cluster.node("n1", vcore=10)
    cluster.ask("app", "k", vcore=3)
    cluster.forgets(SOURCE, offer())
    confirm(cluster, "k")
    assert cluster.partition.types.quantities(cluster.the_node("n1").capacity) == {"vcore": 10}
    cluster.check_folds()


def test_of_an_rm_that_has_not_registered_an_offer_goes_at_once() -> None:
    cluster = lent(offer())
    books = cluster.core.external
    finish(books.apply_in_steps(says("other", offer("o9", "n9")), 1))
    finish(books.apply_in_steps(forgets("other", offer("o9", "n9")), 2))
    assert books.for_partition("default").entry("other", ExternalKind.OFFER, "o9") is None


def test_a_revoked_offer_of_a_partition_that_is_not_deciding_preempts_when_decisions_go_on() -> None:
    cluster = lent(offer())
    cluster.ask("app", "k", vcore=3)
    cluster.do(SetSchedulingEnabled(deciding=False))
    cluster.says(SOURCE, offer(revoked=True, grace_s=5))
    assert told(cluster.wait(10)) == []
    assert told(cluster.do(SetSchedulingEnabled(deciding=True))) == ["k"]


def test_after_a_restart_the_clocks_go_on() -> None:
    cluster = lent(offer("o1", grace_s=30), offer("o2", "n2", idle_s=40))
    cluster.ask("app", "k", vcore=4)
    node_id = cluster.placed("app")["k"]
    lent_id, idle_id = ("o1", "o2") if node_id == "n1" else ("o2", "o1")
    cluster.says(SOURCE, offer(lent_id, node_id, revoked=True, grace_s=30))
    other = "n2" if node_id == "n1" else "n1"
    cluster.says(SOURCE, offer(idle_id, other, idle_s=40))
    cluster.wait(20)
    cluster.restart()
    assert told(cluster.wait(10)) == ["k"]
    cluster.restart()
    cluster.wait(10)
    assert state(cluster, idle_id) is OfferState.RETURNED
    cluster.check_folds()


def test_an_rm_that_registers_again_finds_the_offers_as_they_are() -> None:
    cluster = lent(offer("o1"), offer("o2", "n2", idle_s=5), offer("o3", "n3"))
    cluster.ask("app", "k", wanted=3, vcore=4)
    cluster.release("app", "k")
    cluster.wait(5)
    assert state(cluster, "o2") is OfferState.RETURNED
    cluster.says(SOURCE, offer("o3", "n3", revoked=True, grace_s=50))
    cluster.register_again()
    assert state(cluster, "o1") is OfferState.OFFERED
    assert state(cluster, "o2") is OfferState.RETURNED
    assert state(cluster, "o3") is OfferState.RETURNED, "nothing was there"
    assert set(cluster.partition.nodes) == {"n1"}
    cluster.check_folds()


def begun_anew(*, grace_s: float = 0, idle_s: float = 0) -> Outside:
    """An allocation on an offered node, whose offer is revoked if it has grace; then the RM registers again."""
    cluster = lent(offer(grace_s=grace_s, idle_s=idle_s))
    cluster.ask("app", "k", vcore=4)
    assert cluster.placed("app") == {"k": "n1"}
    if grace_s:
        cluster.says(SOURCE, offer(revoked=True, grace_s=grace_s))
    cluster.register_again()
    return cluster


@pytest.mark.parametrize("restarted", [False, True])
def test_running_allocations_keep_a_revoked_offer_while_the_rm_registers_again(restarted: bool) -> None:
    cluster = begun_anew(grace_s=50)
    cluster.wait(10)
    if restarted:
        cluster.restart()
    cluster.app("app", "root.a")
    cluster.do(UpdateAllocations([replace(ask_item("app", "k", vcore=4), node_id="n1")]))
    cluster.wait(39)
    assert state(cluster) is OfferState.REVOKED
    assert told(cluster.wait(1)) == ["k"]
    confirm(cluster, "k")
    assert state(cluster) is OfferState.RETURNED
    cluster.check_folds()


def test_an_offer_revoked_before_the_rm_has_reported_all_ends_at_its_time() -> None:
    cluster = begun_anew(grace_s=10)
    cluster.wait(9)
    assert state(cluster) is OfferState.REVOKED
    cluster.wait(1)
    assert state(cluster) is OfferState.RETURNED
    cluster.check_folds()


@pytest.mark.parametrize("restarted", [False, True])
def test_an_offer_that_seems_idle_while_the_rm_registers_again_is_kept(restarted: bool) -> None:
    cluster = begun_anew(idle_s=5)
    cluster.wait(29)
    if restarted:
        cluster.restart()
    assert state(cluster) is OfferState.OFFERED
    cluster.wait(1)
    assert state(cluster) is OfferState.RETURNED
    cluster.check_folds()


def test_a_proposal_on_a_vanishing_offer_is_replaced_by_another_node() -> None:
    cluster = lent(offer("o1", idle_s=60))
    cluster.do(SetCallbacks(CallbackPolicy(predicates=True, connected=True)))
    cluster.ask("app", "k", vcore=4)
    assert free(cluster) == {}
    assert cluster.entry(SOURCE, ExternalKind.OFFER, "o1").idle_since_ns == 0, "it may be needed"
    cluster.says(SOURCE, offer("o1", revoked=True, grace_s=50))
    assert state(cluster) is OfferState.RETURNED
    assert cluster.application("app").proposed == 0
    assert cluster.pending("app") == {"k": "NO_NODES"}


def test_a_gang_that_goes_as_a_whole_goes_from_all_nodes() -> None:
    cluster = Outside("{name: root, submitacl: '*', queues: [{name: a, properties: {gang.preemption: whole}}]}")
    cluster.says(SOURCE, offer("o1", "n1", vcore=2), offer("o2", "n2", vcore=2))
    total = AppItem("app", "root.a", "default", "alice", placeholder_ask={"vcore": 3})
    cluster.do(UpdateApplications((total,)))
    members = [
        AskItem(f"m{n}", "app", "default", {"vcore": 1}, task_group="g", placeholder=True, allow_preempt_self=True)
        for n in range(3)
    ]
    cluster.do(UpdateAllocations(members))
    assert len(held(cluster)) == 3
    out = cluster.says(SOURCE, offer("o2", "n2", vcore=2, revoked=True))
    assert sorted(told(out)) == ["m0", "m1", "m2"]


# ---- whatever happens ------------------------------------------------------------------------------------------------


def offered_of(cluster: Outside, node_id: str) -> dict[str, int]:
    """The offered resources of a node, computed naively."""
    found: dict[str, int] = {}
    for entry in cluster.core.external.for_partition("default").entries(ExternalKind.OFFER):
        said = entry.said
        assert isinstance(said, ExternalOffer)
        if said.node_id == node_id and entry.offer_state is OfferState.OFFERED:
            for name, value in said.quantities.items():
                found[name] = found.get(name, 0) + value
    return found


def used_of(cluster: Outside, node_id: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for app in cluster.partition.apps.values():
        for each in app.allocations.values():
            if each.node_id == node_id:
                for name, value in each.shape.quantities.items():
                    found[name] = found.get(name, 0) + value
    return found


@pytest.mark.parametrize("seed", range(int(os.environ.get("MUSTER_SIMULATION_SEEDS", "8"))))
def test_nothing_new_beyond_what_is_offered_and_all_that_is_wanted_back_is_given_back(seed: int) -> None:
    """Random offers, asks, ends, restarts; the RM confirms late. Folds are as live at each step."""
    rng = random.Random(seed)
    cluster = Outside(LEAVES)
    known: dict[str, ExternalOffer] = {}
    for n in range(3):
        cluster.app(f"app{n}", f"root.{'ab'[n % 2]}")
    if seed % 2:
        cluster.node("n0", vcore=9, memory=9)

    def confirm_some(share: float) -> None:
        for app in list(cluster.partition.apps.values()):
            for each in list(app.allocations.values()):
                if each.releasing and rng.random() < share:
                    cluster.release(app.app_id, each.key, Termination.PREEMPTED_BY_SCHEDULER)

    for step in range(60):
        before = {each: used_of(cluster, each) for each in ("n0", "n1", "n2")}
        match rng.randrange(12):
            case 0 | 1 | 2:
                amounts = {"vcore": rng.randint(1, 4), "memory": rng.randint(0, 4)}
                each = offer(f"o{step}", f"n{rng.randrange(3)}", idle_s=rng.choice([0, 5, 20]), **amounts)
                known[each.offer_id] = each
                cluster.says(SOURCE, each)
            case 3 | 4 if known:
                each = known[rng.choice(list(known))]
                revoked = replace(each, revoked=not each.revoked, grace_ns=rng.choice([0, 3, 15]) * SECOND_NS)
                known[each.offer_id] = revoked
                cluster.says(SOURCE, revoked)
            case 5 if known:
                cluster.forgets(SOURCE, known.pop(rng.choice(list(known))))
            case 6:
                cluster.sets(SOURCE, rng.choice([SourceState.LIVE, SourceState.STALE]))
            case 7:
                cluster.restart(seed=step)
            case 8:
                confirm_some(0.6)
            case 9 if seed % 2:
                figures = {"vcore": rng.randint(3, 12), "memory": rng.randint(3, 12)}
                cluster.do(nodes(NodeAction.UPDATE, {"n0": figures}))
            case _:
                wants = {"vcore": rng.randint(1, 2), "memory": rng.randint(0, 2)}
                cluster.ask(f"app{rng.randrange(3)}", f"k{step}", priority=rng.randint(0, 2), **wants)
        for node_id, was in before.items():
            offered, used = offered_of(cluster, node_id), used_of(cluster, node_id)
            if node_id == "n0" and seed % 2 and not cluster.the_node("n0").sources:
                continue  # nobody lends anything of the RM's own node
            for name, value in used.items():
                most = max(offered.get(name, 0), was.get(name, 0))
                assert value <= most, f"step {step}: {node_id} uses {value} {name}, {offered} is offered"
        cluster.check_folds()
        cluster.wait(rng.choice([0, 1, 4]))
        cluster.check_folds()
    # In the end all is wanted back, and the RM confirms.
    for each in known.values():
        cluster.says(SOURCE, replace(each, revoked=True, grace_ns=0))
    for _ in range(4):
        confirm_some(1)
        cluster.wait(30)
    left = {entry.object_id: entry.offer_state for entry in cluster.core.external.for_partition("default").entries()}
    assert left == dict.fromkeys(known, OfferState.RETURNED)
    assert set(cluster.partition.nodes) <= {"n0"}
    cluster.check_folds()


@pytest.mark.parametrize("seed", range(int(os.environ.get("MUSTER_SIMULATION_SEEDS", "6"))))
def test_an_agreement_after_the_end_of_an_offer_is_not_placed_there(seed: int) -> None:
    rng = random.Random(seed)
    cluster = Outside(LEAVES)
    cluster.do(SetCallbacks(CallbackPolicy(predicates=True, connected=True)))
    cluster.app("app", "root.a")
    questions = cluster.partition.questions
    agreed = 0
    for step in range(60):
        before = {each: used_of(cluster, each) for each in ("n0", "n1")}
        match rng.randrange(6):
            case 0:
                cluster.says(SOURCE, offer(f"o{step}", f"n{rng.randrange(2)}", idle_s=9, vcore=rng.randint(1, 4)))
            case 1 | 2:
                offers = sorted(cluster.core.external.for_partition("default").entries(), key=lambda each: each.order)
                if offers:
                    said = rng.choice(offers).said
                    assert isinstance(said, ExternalOffer)
                    cluster.says(SOURCE, replace(said, revoked=True, grace_ns=rng.randint(0, 9) * SECOND_NS))
            case 3:
                open_now = [each for each in sorted(questions.open) if rng.random() < 0.7]
                agreed += len(open_now)
                cluster.do(PredicateAnswers(tuple(PredicateAnswer(each, rng.random() < 0.8) for each in open_now)))
            case _:
                cluster.ask("app", f"k{step}", vcore=rng.randint(1, 3))
        for node_id, was in before.items():
            offered, used = offered_of(cluster, node_id), used_of(cluster, node_id)
            most = max(offered.get("vcore", 0), was.get("vcore", 0))
            assert used.get("vcore", 0) <= most, f"step {step}: {node_id} uses {used}, {offered} is offered"
        cluster.wait(rng.choice([0, 1, 3]))
    assert agreed, "the RM was asked"
