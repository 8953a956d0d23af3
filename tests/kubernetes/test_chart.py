"""The Helm chart: lint, several sets of values against a real apiserver, and the plain manifests made of it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.api import Api
from kubernetes.cluster import kubectl
from kubernetes.rig import ROOT

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]

KAFKA = "muster.log=kafka,muster.kafka.bootstrapServers=kafka:9092,muster.kafka.sessionsUrl=redis://redis:6379/0"
VALUES = {
    "defaults": "",
    "token": "access.mode=token",
    "open": "access.mode=open,embedAdmissionController=false",
    "kafka": f"{KAFKA},enableWebService=true,ingress.enabled=true",
    "elsewhere": "muster.enabled=false,gateway.address=muster.example:9090,access.generate=false",
}

# Wrong values, and what the error names.
WRONG = {
    "muster.log=redis": "/muster/log",
    "shim.replcas=3": "replcas",
    "gateway.address=muster": "/gateway/address",
    "muster.enabled=false": "/gateway/address",
    "muster.log=kafka": "/muster/kafka/bootstrapServers",
    "shim.leaseDuration=15": "/shim/leaseDuration",
    "shim.leaseDuration=soon": "/shim/leaseDuration",
    "access.mode=password": "/access/mode",
    "service.port=0": "/service/port",
    "muster.settings.gateway=open": "MUSTER_",
    "yunikornDefaults.queues\\.yaml.partitions=none": "/yunikornDefaults/queues.yaml",
}


def _helm(*arguments: str) -> str:
    done = subprocess.run([ROOT / "scripts" / "helm", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def api(kubeconfig: Path) -> Any:
    one = Api(kubeconfig)
    one.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "yunikorn"}})
    yield one
    one.close()


def test_lint() -> None:
    _helm("lint", "--strict", str(ROOT / "deploy/kubernetes/chart"))


@pytest.mark.parametrize("value", WRONG)
def test_a_wrong_value_is_refused_with_its_place(value: str) -> None:
    command = [ROOT / "scripts" / "helm", "template", "check", str(ROOT / "deploy/kubernetes/chart"), "--set", value]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert WRONG[value] in done.stderr, done.stderr


@pytest.mark.parametrize("name", VALUES)
def test_the_apiserver_takes_each_object_strictly(api: Api, name: str) -> None:
    more = ["--set", VALUES[name]] if VALUES[name] else []
    text = _helm("template", "check", str(ROOT / "deploy/kubernetes/chart"), "--namespace", "yunikorn", *more)
    things = [thing for thing in yaml.safe_load_all(text) if thing]
    assert len(things) > 5
    for thing in things:
        # Another name: objects of other tests are there already.
        thing["metadata"]["name"] = f"check-{thing['metadata']['name']}"
        api.dry_run(thing)


def test_kubectl_takes_what_the_guide_applies(api: Api, kubeconfig: Path) -> None:
    secrets = subprocess.run(
        [ROOT / "deploy/kubernetes/secrets", "yunikorn"], capture_output=True, text=True, check=True
    )
    manifests = ROOT / "deploy" / "kubernetes" / "manifests"
    texts = [secrets.stdout, *(each.read_text() for each in sorted(manifests.glob("*.yaml")))]
    for text in texts:
        command = ("apply", "--dry-run=server", "--validate=strict", "--filename", "-")
        lines = kubectl(kubeconfig, *command, given=text).splitlines()
        assert len(lines) == len([thing for thing in yaml.safe_load_all(text) if thing])
        assert all(line.endswith("(server dry run)") for line in lines), lines


def test_the_plain_manifests_are_those_of_the_chart() -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "kubernetes-manifests", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
