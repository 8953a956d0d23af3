"""Muster's UUIDs of allocations are unique, also after a lost log."""

from __future__ import annotations

from dataclasses import replace

from builders import SECOND_NS, Cluster, ask
from muster_core.model.commands import UpdateAllocations


def test_an_rm_that_outlives_the_log_reports_what_it_was_given_beside_what_it_is_given_now() -> None:
    def life(now_ns: int) -> Cluster:
        cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a}]}")
        cluster.now_ns = now_ns
        cluster.node("n1", vcore=8)
        cluster.app("x", "root.a")
        return cluster

    def wanted(key: str, uuid: str = "", node_id: str = "") -> UpdateAllocations:
        return UpdateAllocations(
            [replace(ask("x", key, vcore=1), previous_generation=True, uuid=uuid, node_id=node_id)]
        )

    before = life(1_000 * SECOND_NS)
    before.do(wanted("old"))
    after = life(2_000 * SECOND_NS)
    after.do(wanted("new"))
    given = {held.uuid for cluster in (before, after) for held in cluster.application("x").allocations.values()}
    assert len(given) == 2
    after.do(wanted("old", before.application("x").allocations["old"].uuid, "n1"))
    assert set(after.placed("x")) == {"old", "new"}
