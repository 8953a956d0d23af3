"""The shim's image: what is in it runs as the chart runs it, and schedules pods."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest
from kubernetes.kubelets import node
from kubernetes.rig import LEASE_FLAGS, NAMESPACE, SHIM, Rig, eventually, pod
from muster_replay.local_process import LocalProcess, free_ports

pytestmark = [pytest.mark.kubernetes, pytest.mark.docker, pytest.mark.timeout(1800)]

# What the chart says of the container (muster.containerSecurity).
SECURITY = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges")


@pytest.fixture(scope="module")
def image(shim_program: object) -> Iterator[str]:
    name = f"muster-kubernetes-shim:test-{os.getpid()}"
    subprocess.run(["make", "--no-print-directory", "-C", str(SHIM), "image", f"IMAGE={name}"], check=True)
    try:
        yield name
    finally:
        subprocess.run(["docker", "image", "rm", "--force", name], check=False, stdout=subprocess.DEVNULL)


def test_the_image_says_what_it_can(image: str) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["docker", "run", "--rm", *SECURITY, image, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    helped = run("run", "-help")
    assert (helped.returncode, "-gateway" in helped.stderr) == (0, True), helped.stderr
    wrong = run("wrong")
    assert (wrong.returncode, 'unknown command "wrong"' in wrong.stderr) == (2, True), wrong.stderr


def test_the_image_schedules_pods(cluster: Rig, image: str) -> None:
    space = cluster.namespace("image")
    cluster.nodes(node("image"))
    (port,) = free_ports(1)
    name = f"muster-shim-{os.getpid()}-{port}"
    command = ["docker", "run", "--rm", "--name", name, "--network=host", *SECURITY]
    command += ["--volume", f"{cluster.shim_kubeconfig}:/etc/kubeconfig:ro"]
    variables = {
        "KUBECONFIG": "/etc/kubeconfig",
        "NAMESPACE": NAMESPACE,
        "MUSTER_GATEWAY": cluster.grpc,
        "MUSTER_SHIM_HTTP_ADDRESS": f"127.0.0.1:{port}",
    }
    for variable, value in variables.items():
        command += ["--env", f"{variable}={value}"]
    container = LocalProcess([*command, image, "run", *LEASE_FLAGS], cluster.directory / "container.log")
    http = f"http://127.0.0.1:{port}"
    container.start()
    try:
        eventually(lambda: cluster.health(http)[1].get("role") == "standby", "the container waits for the Lease")
        # (Ended in order, the first one gives the Lease back.)
        assert cluster.shim.stop() == 0
        eventually(lambda: cluster.health(http)[1].get("role") == "leading", "the container leads")
        cluster.api.create_all([pod(f"p{i}", space) for i in range(10)])
        cluster.all_placed(space, 10)
        cluster.settled()
        assert container.stop() == 0, container.log_tail()
    finally:
        subprocess.run(["docker", "rm", "--force", name], check=False, capture_output=True)
        container.kill()
        if not cluster.shim.running:
            cluster.shim.start()
            cluster.works()
