"""The packages' certificates and policy: the shim is let in with its certificate, and nobody without one."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes.kubelets import node
from kubernetes.rig import NAMESPACE, ROOT, SHIM_PROGRAM, Rig, eventually, packaged, pod

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]


@pytest.fixture
def secured(kubeconfig: Path, shim_program: Path, tmp_path: Path) -> Iterator[Rig]:
    """Muster and the shim with the Secrets of deploy/kubernetes/secrets and the policy of the plain manifests."""
    made = subprocess.run(
        [ROOT / "deploy/kubernetes/secrets", NAMESPACE], check=True, capture_output=True, text=True, timeout=120
    )
    for secret in filter(None, yaml.safe_load_all(made.stdout)):
        folder = tmp_path / secret["metadata"]["name"]
        folder.mkdir()
        for name, content in secret["data"].items():
            (folder / name).write_bytes(base64.b64decode(content))
            (folder / name).chmod(0o600)
    (policy,) = (thing["data"]["policy.toml"] for thing in packaged("muster.yaml") if "policy.toml" in _data(thing))
    (tmp_path / "policy.toml").write_text(policy)
    muster = {
        "MUSTER_GATEWAY__TLS__CERTIFICATE": tmp_path / "muster-gateway/tls.crt",
        "MUSTER_GATEWAY__TLS__KEY": tmp_path / "muster-gateway/tls.key",
        "MUSTER_GATEWAY__TLS__CLIENT_CA": tmp_path / "muster-gateway/ca.crt",
        "MUSTER_GATEWAY__TLS__HTTP": "false",
        "MUSTER_GATEWAY__POLICY_FILE": tmp_path / "policy.toml",
        "MUSTER_GATEWAY__HTTP_OPEN": "true",
    }
    shim = {
        "MUSTER_TLS_CA": tmp_path / "muster-shim/ca.crt",
        "MUSTER_TLS_CERT": tmp_path / "muster-shim/tls.crt",
        "MUSTER_TLS_KEY": tmp_path / "muster-shim/tls.key",
        "MUSTER_TLS_SERVER": "muster",
    }
    rig = Rig(
        tmp_path / "rig",
        kubeconfig,
        settings={name: str(value) for name, value in muster.items()},
        shim_settings={name: str(value) for name, value in shim.items()},
        cluster="mycluster",  # as the packages say
    )
    try:
        rig.start()
        yield rig
    finally:
        rig.close()


def _data(thing: dict[str, object]) -> object:
    return thing.get("data") or {}


def test_the_packaged_certificates_let_the_shim_in_and_nobody_else(secured: Rig) -> None:
    space = secured.namespace("secured")
    secured.nodes(node("secured"))
    secured.api.create_all([pod(f"p{i}", space) for i in range(5)])
    secured.all_placed(space, 5)
    secured.settled()

    def leave(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        command = [str(SHIM_PROGRAM), "leave", "-gateway", secured.grpc]
        return subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
        )

    # The cluster leaves for good: not without a certificate, and with it.
    without = {**secured.shim_environment, "MUSTER_TLS_CERT": "", "MUSTER_TLS_KEY": ""}
    refused = leave(without)
    assert (refused.returncode, "did not leave" in refused.stderr) == (1, True), refused.stderr
    eventually(lambda: secured.health()[0] == 200, "the shim goes on")
    secured.clear()
    assert secured.shim.stop() == 0
    left = leave(dict(secured.shim_environment))
    # (Before it are YuniKorn's own log lines.)
    assert (left.returncode, left.stdout.splitlines()[-1:]) == (0, [f"{secured.cluster} left"]), left.stderr

    def stopped() -> bool:
        (manager,) = secured.ask("/ws/v1/resource-managers", of_all=True)
        return bool(manager["life"] == "STOPPED")

    eventually(stopped, "Muster knows that the cluster has left")
