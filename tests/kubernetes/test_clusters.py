"""Two clusters, one Muster: one queue tree from the group's file, and books of each cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes.cluster import ControlPlane
from kubernetes.kubelets import node
from kubernetes.rig import Rig, eventually, pod
from wanting import server_wanted

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]

GROUP = "company"
TREE = """
partitions:
- name: default
  placementrules:
  - {name: provided, create: false}
  - {name: tag, value: namespace, create: true}
  queues:
  - name: root
    submitacl: '*'
    queues:
    - {name: small, resources: {max: {vcore: 1}}}
"""
GROWN = TREE + "    - {name: later, resources: {max: {vcore: 2}}}\n"


@pytest.fixture(scope="module")
def group_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("groups")
    (folder / f"{GROUP}.yaml").write_text(TREE)
    return folder / f"{GROUP}.yaml"


@pytest.fixture(scope="module")
def other_kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A second control plane, which these tests start."""
    with server_wanted():
        plane = ControlPlane(tmp_path_factory.mktemp("other"))
    try:
        with server_wanted():
            plane.start()
        yield plane.kubeconfig
    finally:
        plane.stop()


@pytest.fixture(scope="module")
def clusters(
    kubeconfig: Path,
    other_kubeconfig: Path,
    shim_program: Path,
    group_file: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Rig, Rig]]:
    directory = tmp_path_factory.mktemp("clusters")
    settings = {"MUSTER_SCHEDULER__POLICY_GROUPS_DIR": str(group_file.parent)}
    east = Rig(directory / "east", kubeconfig, settings=settings, cluster="east")
    west = Rig(directory / "west", other_kubeconfig, cluster="west", beside=east)
    try:
        for rig in (east, west):
            rig.settings = {"service.policyGroup": GROUP}
            rig.start()
        yield east, west
    finally:
        west.close()
        east.close()


@pytest.fixture(autouse=True)
def clean(clusters: tuple[Rig, Rig]) -> Iterator[None]:
    yield
    for rig in clusters:
        rig.clear()


def test_one_tree_holds_in_both_clusters_and_nothing_is_mixed_up(clusters: tuple[Rig, Rig]) -> None:
    east, west = clusters
    # (a node's cores, pods of one core that fit beside one of 600m)
    for rig, cpu, others in ((east, "4", 3), (west, "2", 1)):
        # The same names on both sides: of namespace, node, application and pods.
        space = rig.namespace("same")
        rig.nodes(node("same", cpu=cpu))
        small = [pod(f"small-{i}", space, app="small", cpu="600m", labels={"queue": "root.small"}) for i in range(2)]
        rig.api.create_all(small)
        # The tree's limit is each cluster's: one of two fits.
        eventually(lambda rig=rig: len(rig.placed("same")) == 1, f"{rig.cluster}: one pod fits into the small queue")
        rig.api.create_all([pod(f"p{i}", space, app="same", cpu="1") for i in range(6)])
        eventually(
            lambda rig=rig, others=others: len(rig.placed("same")) == 1 + others, f"{rig.cluster}: its node is full"
        )
        rig.settled()
    for rig in clusters:
        rig.settled()
    shown = {each["rmID"]: each["policyGroup"] for each in east.ask("/ws/v1/resource-managers", of_all=True)}
    assert shown == {"east": GROUP, "west": GROUP}


def test_a_changed_group_file_comes_with_the_next_update(clusters: tuple[Rig, Rig], group_file: Path) -> None:
    group_file.write_text(GROWN)
    for rig in clusters:
        rig.settings["service.group-revision"] = "2"
        rig.configure()
    for rig in clusters:
        space = rig.namespace("later")
        rig.nodes(node("later", cpu="4"))
        eventually(
            lambda rig=rig: "root.later" in str(rig.ask("/ws/v1/partition/default/queues")), "the queue is there"
        )
        rig.api.create_all([pod(f"p{i}", space, cpu="1", labels={"queue": "root.later"}) for i in range(3)])
        eventually(lambda rig=rig: len(rig.placed("later")) == 2, f"{rig.cluster}: two pods fit into the queue")
        rig.settled()


def test_a_cluster_goes_on_while_the_others_shim_is_away(clusters: tuple[Rig, Rig]) -> None:
    east, west = clusters
    for rig in clusters:
        rig.namespace("away")
        rig.nodes(node("away", cpu="8"))
    east.shim.kill()
    for rig in clusters:
        rig.api.create_all([pod(f"p{i}", "away", cpu="100m") for i in range(20)])
    west.all_placed("away", 20)
    west.settled()
    assert not east.placed("away")
    east.muster.kill()
    east.muster.start()
    east.shim.start()
    east.works()
    west.works()
    east.all_placed("away", 20)
    for rig in clusters:
        rig.settled()
