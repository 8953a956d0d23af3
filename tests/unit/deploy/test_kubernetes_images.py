"""The Kubernetes packages name the images that the Dockerfiles build, and run them as their users."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
KUBERNETES = ROOT / "deploy" / "kubernetes"
SHIM = (KUBERNETES / "shim" / "Dockerfile").read_text()
MUSTER = (ROOT / "deploy" / "compose" / "Dockerfile").read_text()


def test_the_images_have_the_projects_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((KUBERNETES / "chart" / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version
    assert re.findall(r'image\.version="([^"]*)"', SHIM) == [version]
    assert f"-t muster-kubernetes-shim:{version} " in SHIM


@pytest.mark.parametrize("name", ["muster.yaml", "muster-kafka.yaml"])
def test_pods_run_the_built_images_as_their_users(name: str) -> None:
    values = yaml.safe_load((KUBERNETES / "chart" / "values.yaml").read_text())
    version = yaml.safe_load((KUBERNETES / "chart" / "Chart.yaml").read_text())["appVersion"]
    users = {
        f"{values['image']['repository']}:{version}": re.findall(r"^USER (\d+):\d+$", SHIM, re.MULTILINE),
        f"{values['muster']['image']['repository']}:{version}": re.findall(r"--uid (\d+)", MUSTER),
    }
    assert [len(each) for each in users.values()] == [1, 1]
    seen = set()
    for thing in yaml.safe_load_all((KUBERNETES / "manifests" / name).read_text()):
        if not thing or thing["kind"] not in ("Deployment", "StatefulSet"):
            continue
        pod = thing["spec"]["template"]["spec"]
        for container in pod["containers"]:
            if container["image"] in users:
                seen.add(container["image"])
                assert [str(pod["securityContext"]["runAsUser"])] == users[container["image"]]
            else:
                assert container["image"].startswith("apache/yunikorn:"), container["image"]
    assert seen == set(users)


def test_the_shims_image_has_nothing_but_the_program() -> None:
    final = SHIM[SHIM.rindex("FROM ") :]
    assert "ARG FINAL_IMAGE=scratch" in SHIM
    assert "RUN " not in final
    assert final.startswith("FROM base\n")
    base = SHIM[SHIM.index("FROM ${FINAL_IMAGE} AS base\n") : SHIM.index("FROM base AS packaged")]
    assert "RUN " not in base
    assert 'ENTRYPOINT ["/muster-kubernetes-shim"]' in base


def test_the_shim_knows_the_events_that_it_does_not_write() -> None:
    notices = (KUBERNETES / "shim" / "internal" / "gateway" / "notices.go").read_text()
    line = re.search(r"^var unwritten = .*$", notices, re.MULTILINE)
    assert line
    messages = re.findall(r'"([^"]+)": true', line[0])
    sources = "".join(path.read_text() for path in (ROOT / "libs/core/src/muster_core").rglob("*.py"))
    assert len(messages) == 2
    assert all(f'"{message}"' in sources for message in messages)
