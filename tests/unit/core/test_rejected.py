"""Rejected applications: remembered for a while, beside an accepted one with the same id."""

from __future__ import annotations

import pytest
from builders import Cluster
from muster_core.applications.lifecycle import REJECTED_MAX
from muster_core.model.commands import AppItem, UpdateApplications
from muster_core.model.states import TERMINATED_TIMEOUT_NS, AppState

SECOND_NS = 1_000_000_000


def _cluster() -> Cluster:
    return Cluster("{name: root, queues: [{name: a, submitacl: '*'}]}")


def _submit(cluster: Cluster, app_id: str, queue: str, user: str = "alice") -> None:
    cluster.do(UpdateApplications((AppItem(app_id, queue, "default", user),)))


def test_it_is_kept_with_its_reason_and_its_story() -> None:
    cluster = _cluster()
    _submit(cluster, "x", "root.nowhere")
    rejected = cluster.partition.rejected["x"]
    assert rejected.state is AppState.REJECTED
    assert "no placement rule matched" in rejected.rejected_message
    assert [state for _, state in rejected.state_log] == ["New", "Rejected"]
    assert rejected.requested_queue == "root.nowhere"
    assert "x" not in cluster.partition.apps


def test_it_expires_as_finished_ones_do() -> None:
    cluster = _cluster()
    _submit(cluster, "x", "root.nowhere")
    cluster.wait(TERMINATED_TIMEOUT_NS / SECOND_NS - 1)
    assert "x" in cluster.partition.rejected
    cluster.wait(1)
    assert "x" not in cluster.partition.rejected


def test_a_second_refusal_replaces_the_first_and_starts_the_time_anew() -> None:
    cluster = _cluster()
    _submit(cluster, "x", "root.nowhere")
    cluster.wait(3600)
    _submit(cluster, "x", "root.a", user="")
    assert "empty user" in cluster.partition.rejected["x"].rejected_message
    cluster.wait(TERMINATED_TIMEOUT_NS / SECOND_NS - 3600)
    assert "x" in cluster.partition.rejected


def test_the_same_id_that_is_let_in_lives_beside_its_refusal() -> None:
    cluster = _cluster()
    _submit(cluster, "x", "root.a")
    _submit(cluster, "x", "root.a")
    assert "already existed" in cluster.partition.rejected["x"].rejected_message
    assert cluster.application("x").state is AppState.NEW


def test_there_is_a_bound_and_the_oldest_go() -> None:
    cluster = _cluster()
    for number in range(REJECTED_MAX + 5):
        cluster.core.apply(UpdateApplications((AppItem(f"x{number}", "root.no", "default", "u"),)), cluster.now_ns)
    kept = list(cluster.partition.rejected)
    assert (len(kept), kept[0]) == (REJECTED_MAX, "x5")


@pytest.mark.source
def test_an_application_under_another_id_shares_everything_else() -> None:
    cluster = _cluster()
    _submit(cluster, "x", "root.a")
    app = cluster.partition.apps["x"]
    copied = app.renamed("y")
    assert copied.app_id == "y"
    assert not copied.published
    others = [name for name in vars(app) if name not in ("app_id", "published")]
    assert [name for name in others if vars(copied)[name] is not vars(app)[name]] == []
    assert vars(copied).keys() == vars(app).keys()
