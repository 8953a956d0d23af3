"""Asks that are sent again while they wait: their group and its place follow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import Cluster, ask
from muster_core.model.commands import ReleaseItem, Termination, UpdateAllocations
from muster_core.model.outcome import Outcome
from muster_si.constants import CREATION_TIME, K8S_CREATION_TIME_TAG


def _waiting() -> Cluster:
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a}]}").having({"n": {"vcore": 2}}, {"x": "root.a"})
    cluster.ask("x", "held", vcore=2)
    cluster.ask("x", "k1", vcore=1)
    cluster.ask("x", "k2", vcore=1)
    return cluster


def test_another_preemption_flag_makes_another_group_behind_the_same_wait() -> None:
    cluster = _waiting()
    cluster.do(UpdateAllocations([replace(ask("x", "k1", vcore=1), allow_preempt_other=True)]))
    cluster.release("x", "held")
    assert set(cluster.placed("x")) == {"k1", "k2"}


@pytest.mark.parametrize("tag", [CREATION_TIME, K8S_CREATION_TIME_TAG])
def test_an_older_ask_that_comes_later_goes_first(tag: str) -> None:
    cluster = _waiting()
    cluster.do(UpdateAllocations([replace(ask("x", "k0", vcore=1), tags={tag: "1"})]))
    cluster.do(UpdateAllocations([ask("x", "k0b", vcore=2)]))
    cluster.ask("x", "last", vcore=1)
    cluster.release("x", "held")
    assert set(cluster.placed("x")) == {"k0", "k1"}


def test_an_old_allocation_that_becomes_an_ask_makes_its_application_older_in_the_record_too() -> None:
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a}]}").having({"n": {"vcore": 2}}, {"x": "root.a"})
    reported = replace(ask("x", "old", vcore=2), node_id="n", tags={"creationTime": "1"})
    cluster.do(UpdateAllocations([reported]))
    out = Outcome()
    failed = ReleaseItem("default", "x", "old", Termination.SCHEDULING_FAILED_ON_RM)
    cluster.core.apply(UpdateAllocations((), [failed]), cluster.now_ns, out)
    assert cluster.application("x").submitted_ns == 1_000_000_000
    assert cluster.application("x") in [what for _, what, _ in out.objects()]
