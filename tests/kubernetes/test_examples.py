"""The manifests of examples/kubernetes, as they stand there, on fake nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes.api import Json
from kubernetes.kubelets import node
from kubernetes.rig import ROOT, Rig, eventually, names

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]

EXAMPLES = ROOT / "examples" / "kubernetes"


def things(name: str) -> list[Json]:
    return [thing for thing in yaml.safe_load_all((EXAMPLES / name).read_text()) if thing]


@pytest.fixture(scope="module")
def rig(kubeconfig: Path, shim_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    (configuration,) = things("queues.yaml")
    one = Rig(tmp_path_factory.mktemp("rig"), kubeconfig, configuration["data"]["queues.yaml"])
    try:
        one.start()
        yield one
    finally:
        one.close()


def played(cluster: Rig, name: str, space: str) -> str:
    """Creates an example's objects in a namespace of their own."""
    cluster.namespace(space)
    for thing in things(name):
        if thing["kind"] == "PriorityClass":
            cluster.api.apply(thing)
        else:
            thing["metadata"]["namespace"] = space
            cluster.api.create(thing)
    return space


def test_the_gang_starts_as_a_whole(cluster: Rig) -> None:
    cluster.nodes(node("gang", cpu="4"))
    space = played(cluster, "gang.yaml", "example-gang")
    eventually(
        lambda: (pods := names(cluster.placed(space))) and len(pods) == 5 and all(p.startswith("gang-") for p in pods),
        "the five workers have replaced their placeholders",
    )
    cluster.settled()


def test_the_driver_waits_for_room_for_its_executors(cluster: Rig) -> None:
    cluster.nodes(node("small", cpu="3"))
    space = played(cluster, "driver-and-executors.yaml", "example-driver")
    eventually(lambda: len(cluster.placed(space)) == 3, "three of the placeholders have a place")
    assert "driver" not in names(cluster.placed(space))
    cluster.nodes(node("more", cpu="3"))
    eventually(lambda: len(cluster.placed(space)) == 4 and "driver" in names(cluster.placed(space)), "all run")
    cluster.settled()


def test_the_batch_gets_as_many_gpus_as_its_queue_may(cluster: Rig) -> None:
    gpus = node("gpus", cpu="64")
    gpus["status"]["capacity"]["nvidia.com/gpu"] = "12"
    cluster.nodes(gpus)
    space = played(cluster, "gpu-batch.yaml", "example-batch")
    cluster.all_placed(space, 8)
    cluster.settled()
