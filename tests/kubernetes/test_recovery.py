"""Processes are killed while pods are placed: no pod is bound twice, no node over-committed, nothing left behind."""

from __future__ import annotations

import shutil

import pytest
from kubernetes.api import Json
from kubernetes.bindings import Bindings
from kubernetes.cluster import ControlPlane
from kubernetes.kubelets import node
from kubernetes.rig import Rig, eventually, pod
from muster_replay.local_process import LocalProcess, free_ports

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]

PODS = 300


def burst(cluster: Rig, namespace: str) -> list[Json]:
    """Nodes for PODS pods, and the pods, in ten applications."""
    cluster.nodes(*(node(f"{namespace}-{i}", cpu="8") for i in range(10)))
    made = [pod(f"p{i}", namespace, app=f"{namespace}-{i % 10}", cpu="200m") for i in range(PODS)]
    cluster.api.create_all(made)
    return made


def some_are_placed(cluster: Rig, namespace: str, count: int) -> None:
    eventually(lambda: len(cluster.placed(namespace)) >= count, f"{count} pods are placed")


@pytest.mark.kubernetes_long
def test_a_killed_shim_comes_back(cluster: Rig, bindings: Bindings) -> None:
    space = cluster.namespace("shim-killed")
    burst(cluster, space)
    for count in (PODS // 10, PODS // 2):
        some_are_placed(cluster, space, count)
        cluster.shim.kill()
        cluster.shim.start()
        cluster.works()
    cluster.all_placed(space, PODS)
    cluster.settled()
    assert bindings.twice() == {}


@pytest.mark.kubernetes_long
def test_a_killed_muster_comes_back(cluster: Rig, bindings: Bindings) -> None:
    space = cluster.namespace("muster-killed")
    burst(cluster, space)
    pid = cluster.shim.pid
    for count in (PODS // 10, PODS // 2):
        some_are_placed(cluster, space, count)
        cluster.muster.kill()
        cluster.muster.start()
        cluster.works()
    cluster.all_placed(space, PODS)
    cluster.settled()
    assert bindings.twice() == {}
    assert cluster.shim.running
    assert cluster.shim.pid == pid


def test_both_killed_come_back(cluster: Rig, bindings: Bindings) -> None:
    space = cluster.namespace("both-killed")
    burst(cluster, space)
    some_are_placed(cluster, space, PODS // 4)
    cluster.shim.kill()
    cluster.muster.kill()
    cluster.shim.start()
    cluster.muster.start()
    cluster.works()
    cluster.all_placed(space, PODS)
    cluster.settled()
    assert bindings.twice() == {}


def test_what_happens_while_muster_is_away_is_told_later(cluster: Rig) -> None:
    space = cluster.namespace("away")
    cluster.nodes(node("away", cpu="4"))
    cluster.api.create_all([pod(f"before-{i}", space, cpu="1") for i in range(4)])
    cluster.all_placed(space, 4)
    cluster.muster.kill()
    cluster.api.delete("Pod", "before-0", space, grace_s=0)
    cluster.api.create_all([pod(f"after-{i}", space, cpu="1") for i in range(2)])
    eventually(lambda: cluster.health()[0] == 503, "the shim says that streams are lost")
    cluster.muster.start()
    cluster.works()
    eventually(lambda: len(cluster.placed(space)) == 4, "one takes the place of the one that ended")
    assert len(cluster.pods(space)) == 5
    cluster.settled()


@pytest.mark.own_control_plane
@pytest.mark.kubernetes_long
def test_a_restarted_apiserver_stops_nothing(
    cluster: Rig, control_plane: ControlPlane | None, bindings: Bindings
) -> None:
    assert control_plane is not None
    space = cluster.namespace("apiserver")
    burst(cluster, space)
    some_are_placed(cluster, space, PODS // 4)
    control_plane.kill("apiserver")
    control_plane.start_apiserver()
    eventually(lambda: len(cluster.placed(space)) == PODS, f"{PODS} pods are placed")
    cluster.settled()
    assert bindings.twice() == {}


def test_a_muster_without_its_data_learns_what_runs(cluster: Rig, bindings: Bindings) -> None:
    space = cluster.namespace("data-lost")
    burst(cluster, space)
    some_are_placed(cluster, space, PODS // 4)
    before = len(cluster.shim.ends)
    cluster.muster.kill()
    shutil.rmtree(cluster.directory / "data")
    cluster.muster.start()
    # The shim ends, and the next one registers the cluster again.
    eventually(lambda: len(cluster.shim.ends) > before, "the shim ends")
    assert cluster.shim.ends[before] == 4
    cluster.works()
    cluster.all_placed(space, PODS)
    cluster.settled()
    assert bindings.twice() == {}


def test_an_upgrade_of_either_part_moves_no_pod(cluster: Rig, bindings: Bindings) -> None:
    """What `helm upgrade` does: first Muster ends in order and starts again, then the shim."""
    space = cluster.namespace("upgrade")
    burst(cluster, space)
    some_are_placed(cluster, space, PODS // 10)
    cluster.muster.stop()
    cluster.muster.start()
    some_are_placed(cluster, space, PODS // 2)
    assert cluster.shim.stop() == 0
    cluster.shim.start()
    cluster.works()
    cluster.all_placed(space, PODS)
    cluster.settled()
    assert bindings.twice() == {}


def test_another_shim_takes_over(cluster: Rig, bindings: Bindings) -> None:
    space = cluster.namespace("standby")
    (port,) = free_ports(1)
    standby = cluster.another_shim(port)
    standby.start()
    http = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: cluster.health(http)[1].get("leader"), "the standby knows the leader")
        assert cluster.health(http)[1]["role"] == "standby"
        burst(cluster, space)
        some_are_placed(cluster, space, PODS // 4)
        # (The Lease stays, and the standby waits for its end.)
        LocalProcess.kill(cluster.shim)
        eventually(lambda: cluster.health(http)[1].get("role") == "leading", "the standby leads")
        cluster.all_placed(space, PODS)
        cluster.settled()
        assert bindings.twice() == {}
        # In order: the Lease is given back, and nobody waits for its end.
        cluster.shim.start()
        eventually(lambda: cluster.health()[1].get("role") == "standby", "the first one waits")
        assert standby.stop() == 0
        cluster.works()
        cluster.settled()
    finally:
        standby.kill()
        if not cluster.shim.running:
            cluster.shim.start()
            cluster.works()
