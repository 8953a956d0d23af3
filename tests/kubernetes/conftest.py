"""One cluster, one Muster and one shim for all scenarios. Tests of recovery have their own Muster and shim."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes.bindings import Bindings
from kubernetes.cluster import VARIABLE, ControlPlane
from kubernetes.rig import Rig, build_shim
from wanting import give_up, server_wanted

QUEUES = """
partitions:
- name: default
  nodesortpolicy: {type: binpacking}
  placementrules:
  - {name: provided, create: false}
  - {name: tag, value: namespace, create: true}
  queues:
  - name: root
    submitacl: '*'
    queues:
    - name: shared
      parent: true
      resources: {max: {vcore: 8}}
      queues:
      - {name: important, resources: {guaranteed: {vcore: 4}}}
      - {name: spare}
    - {name: small, resources: {max: {vcore: 1}}}
"""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A cluster that was given keeps its apiserver, whose audit log nobody has; pytest reports what is deselected."""
    if os.environ.get(VARIABLE):
        kept = [item for item in items if item.get_closest_marker("own_control_plane") is None]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane | None]:
    """The control plane that the session started; None: the environment names a cluster."""
    if os.environ.get(VARIABLE):
        yield None
        return
    if os.environ.get("MUSTER_REQUIRE_SERVERS") != "1":
        give_up("make kubernetes-test builds what these tests need")
    with server_wanted():
        plane = ControlPlane(tmp_path_factory.mktemp("kubernetes"))
    try:
        with server_wanted():
            plane.start()
        yield plane
    finally:
        plane.stop()


@pytest.fixture(scope="session")
def kubeconfig(control_plane: ControlPlane | None) -> Path:
    return control_plane.kubeconfig if control_plane else Path(os.environ[VARIABLE])


@pytest.fixture(scope="session")
def shim_program() -> Path:
    return build_shim()


@pytest.fixture(scope="module")
def rig(kubeconfig: Path, shim_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    one = Rig(tmp_path_factory.mktemp("rig"), kubeconfig, QUEUES)
    try:
        one.start()
        yield one
    finally:
        one.close()


@pytest.fixture
def cluster(rig: Rig) -> Iterator[Rig]:
    """The module's rig, without pods and nodes before and after each test."""
    yield rig
    rig.clear()


@pytest.fixture
def bindings(kubeconfig: Path) -> Iterator[Bindings]:
    one = Bindings(kubeconfig)
    yield one
    one.close()
