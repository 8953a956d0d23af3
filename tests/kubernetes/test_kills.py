"""The shim, Muster and the apiserver are killed in turn, twice, while 1,000 pods are placed."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from kubernetes.api import ApiFailed, Json, retried
from kubernetes.bindings import Bindings
from kubernetes.cluster import ControlPlane
from kubernetes.kubelets import node
from kubernetes.rig import Rig, eventually, pod

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]

VICTIMS = ("shim", "muster", "apiserver") * 2
WAVE = 167
PODS = 1000
# Room for exactly so many pods: a place that is given twice, or lost, shows.
NODES, PODS_OF_A_NODE = 25, 40


class Creation(threading.Thread):
    """Creates pods, also through an apiserver that restarts."""

    def __init__(self, cluster: Rig, pods: Sequence[Json]) -> None:
        super().__init__(daemon=True)
        self._cluster, self._pods = cluster, pods
        self.failed: list[Exception] = []
        self.start()

    def run(self) -> None:
        try:
            for made in self._pods:
                retried(lambda made=made: self._create(made))
        except Exception as error:
            self.failed.append(error)

    def _create(self, made: Json) -> None:
        try:
            self._cluster.api.create(made)
        except ApiFailed as error:
            # 409: an attempt before was taken, and its answer was lost. 403: the namespace is not in its cache yet.
            if error.code == 409:
                return
            raise

    def over(self) -> bool:
        assert not self.failed, self.failed
        return not self.is_alive()


@pytest.mark.own_control_plane
def test_a_thousand_pods_through_kills_in_turn(
    cluster: Rig, control_plane: ControlPlane | None, bindings: Bindings
) -> None:
    assert control_plane is not None
    space = cluster.namespace("kills")
    cluster.nodes(*(node(f"kills-{i}", cpu="8", pods=PODS_OF_A_NODE) for i in range(NODES)))
    for turn, victim in enumerate(VICTIMS):
        # Each kill finds asks, placements and bindings under way.
        before = turn * WAVE
        names = range(before, min(before + WAVE, PODS))
        creation = Creation(cluster, [pod(f"p{i}", space, app=f"kills-{i % 20}", cpu="200m") for i in names])
        eventually(lambda before=before: len(cluster.placed(space)) >= before + 20, f"turn {turn}: pods are placed")
        if victim == "apiserver":
            control_plane.kill("apiserver")
            control_plane.start_apiserver()
        else:
            process = cluster.shim if victim == "shim" else cluster.muster
            process.kill()
            process.start()
            cluster.works()
        eventually(creation.over, f"turn {turn}: all pods are created")
    cluster.all_placed(space, PODS, within_s=600)
    cluster.settled()
    assert bindings.twice() == {}
    assert len(bindings.seen) >= PODS
    # Both sides are whole: what ends gives its room back, and what comes gets it.
    ended = cluster.placed(space)[:100]
    cluster.api.delete_all(ended, grace_s=0)
    cluster.api.create_all([pod(f"later-{i}", space, app="later", cpu="200m") for i in range(100)])
    cluster.all_placed(space, PODS)
    cluster.settled()
    assert bindings.twice() == {}
