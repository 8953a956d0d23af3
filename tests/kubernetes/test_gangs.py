"""Gangs by annotation: placeholders, their replacement, and both styles when there is no room."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kubernetes.kubelets import node
from kubernetes.rig import Rig, eventually, names, pod

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]

ANNOTATION = "yunikorn.apache.org/"


def member(
    name: str, namespace: str, app: str, *, members: int, cpu: str = "1", style: str = "Soft", timeout_s: int = 300
) -> Any:
    """A pod of a gang of one task group."""
    groups = [{"name": "workers", "minMember": members, "minResource": {"cpu": cpu, "memory": "64Mi"}}]
    policy = f"placeholderTimeoutInSeconds={timeout_s} gangSchedulingStyle={style}"
    annotations = {
        f"{ANNOTATION}task-group-name": "workers",
        f"{ANNOTATION}task-groups": json.dumps(groups),
        f"{ANNOTATION}schedulingPolicyParameters": policy,
    }
    return pod(name, namespace, app=app, cpu=cpu, annotations=annotations)


def test_placeholders_are_replaced(cluster: Rig) -> None:
    space = cluster.namespace("gang")
    cluster.nodes(node("gang-1", cpu="4"), node("gang-2", cpu="4"))
    cluster.api.create(member("real-0", space, "gang", members=5))
    # The first pod brings placeholders for all five.
    eventually(lambda: len(cluster.pods(space)) >= 5, "placeholders are made")
    eventually(lambda: "real-0" in names(cluster.placed(space)), "the first pod replaces one")
    eventually(lambda: len(cluster.pods(space)) == 5, "its placeholder is gone")
    cluster.settled()
    cluster.api.create_all([member(f"real-{i}", space, "gang", members=5) for i in range(1, 5)])
    eventually(lambda: names(cluster.placed(space)) == [f"real-{i}" for i in range(5)], "all placeholders are replaced")
    cluster.settled()


def test_a_soft_gang_without_room_is_scheduled_one_by_one(cluster: Rig) -> None:
    space = cluster.namespace("soft")
    cluster.nodes(node("soft", cpu="2"))
    cluster.api.create_all([member(f"real-{i}", space, "soft", members=4, timeout_s=3) for i in range(4)])
    eventually(lambda: len([n for n in names(cluster.placed(space)) if n.startswith("real")]) == 2, "two run alone")
    cluster.settled()


def test_a_hard_gang_without_room_fails(cluster: Rig) -> None:
    space = cluster.namespace("hard")
    cluster.nodes(node("hard", cpu="2"))
    cluster.api.create(member("real-0", space, "hard", members=4, style="Hard", timeout_s=3))

    def failed() -> bool:
        return bool(cluster.api.get("Pod", "real-0", space)["status"].get("phase") == "Failed")

    eventually(failed, "the pod of the gang fails")
    eventually(lambda: not cluster.pods(space), "its placeholders are gone")
    cluster.settled()
