"""What YuniKorn's shim does in process works over the wire.

Each test plays a scenario on a real control plane, compares the books of Kubernetes and Muster pod by pod, and counts
violations by looking at the pods alone.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from kubernetes.kubelets import RUNS, node
from kubernetes.rig import Rig, conditions, daemon_set, deployment, eventually, job, names, pod

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]


def test_bare_pods_deployments_daemons_and_jobs_run_and_end(cluster: Rig) -> None:
    space = cluster.namespace("kinds")
    cluster.nodes(node("kinds-1"), node("kinds-2"))
    cluster.api.create_all([pod(f"bare-{i}", space, app="bare") for i in range(3)])
    cluster.api.create(deployment("web", pod("web", space, app="web"), 4))
    cluster.api.create(daemon_set("agent", pod("agent", space, app="agents")))
    placed = cluster.all_placed(space, 3 + 4 + 2)
    agents = [each for each in placed if each["metadata"]["name"].startswith("agent")]
    assert {each["spec"]["nodeName"] for each in agents} == {"fake-kinds-1", "fake-kinds-2"}
    cluster.settled()

    made = pod("work", space, app="work", annotations={RUNS: "0.2"})
    cluster.api.create(job("work", made, 5))
    eventually(lambda: cluster.api.get("Job", "work", space)["status"].get("succeeded") == 5, "the job is done")
    # The application of the job has given everything back.
    cluster.settled()
    scaled = {"spec": {"replicas": 1}}
    cluster.api.patch("Deployment", "web", scaled, space)
    cluster.all_placed(space, 3 + 1 + 2)
    cluster.settled()


def test_namespaces_and_queues(cluster: Rig) -> None:
    one, two = cluster.namespace("space-one"), cluster.namespace("space-two")
    cluster.nodes(node("spaces"))
    cluster.api.create(pod("a", one, app="by-namespace-1"))
    cluster.api.create(pod("b", two, app="by-namespace-2"))
    cluster.api.create(pod("c", two, app="by-name", labels={"queue": "root.small"}))
    cluster.all_placed(one, 1)
    cluster.all_placed(two, 2)

    def queues() -> dict[str, str]:
        """By application. (Muster's view may see them after Kubernetes sees their pods placed.)"""
        found = cluster.ask("/ws/v1/partition/default/applications/active")
        by_app = {each["applicationID"]: each["queueName"] for each in found}
        return by_app if {"by-namespace-1", "by-namespace-2", "by-name"} <= by_app.keys() else {}

    shown = eventually(queues, "Muster shows the three applications")
    assert {shown[app] for app in ("by-namespace-1", "by-namespace-2")} == {"root.space-one", "root.space-two"}
    assert shown["by-name"] == "root.small"
    cluster.settled()


def test_a_quota_of_a_namespace_holds(cluster: Rig) -> None:
    quota = {"yunikorn.apache.org/namespace.quota": json.dumps({"cpu": "500m", "memory": "1Gi"})}
    space = cluster.namespace("quota", quota)
    cluster.nodes(node("quota"))
    cluster.api.create_all([pod(f"p{i}", space, cpu="200m") for i in range(4)])
    eventually(lambda: len(cluster.placed(space)) == 2, "two pods fit into the quota")
    waiting = [each for each in cluster.pods(space) if not each["spec"].get("nodeName")]
    assert len(waiting) == 2
    cluster.settled()
    cluster.api.delete("Pod", names(cluster.placed(space))[0], space)
    eventually(lambda: len(cluster.placed(space)) == 2 and len(cluster.pods(space)) == 3, "the next one follows")
    cluster.settled()


def test_a_pod_that_fits_nowhere_says_why(cluster: Rig) -> None:
    space = cluster.namespace("why")
    cluster.nodes(node("why", cpu="4"))
    cluster.api.create(pod("huge", space, cpu="64", app="huge"))

    def unschedulable() -> str:
        condition = conditions(cluster.api.get("Pod", "huge", space)).get("PodScheduled", {})
        return str(condition.get("message", "")) if condition.get("reason") == "Unschedulable" else ""

    message = eventually(unschedulable, "the pod's condition says Unschedulable")
    assert "64 cores" in message, message
    # Above a queue's limit a larger cluster would not help: the autoscaler must not see Unschedulable.
    cluster.api.create(pod("over", space, cpu="2", app="over", labels={"queue": "root.small"}))

    def skipped() -> str:
        condition = conditions(cluster.api.get("Pod", "over", space)).get("PodScheduled", {})
        return str(condition.get("message", "")) if condition.get("reason") == "SchedulingSkipped" else ""

    assert "root.small" in eventually(skipped, "the pod's condition says SchedulingSkipped")


def test_kubectl_describe_says_with_figures_why_a_pod_waits(cluster: Rig) -> None:
    space = cluster.namespace("described")
    cluster.nodes(node("described-1", cpu="4"), node("described-2", cpu="6"))
    cluster.api.create(pod("huge", space, cpu="64", app="huge"))
    cluster.api.create(pod("over", space, cpu="2", app="over", labels={"queue": "root.small"}))

    def events_of(name: str) -> str:
        """The last part of what kubectl describes, with one blank between words."""
        _, _, events = cluster.kubectl("describe", "pod", name, "--namespace", space).partition("\nEvents:")
        return " ".join(events.split())

    def says(name: str, *texts: str) -> str:
        return eventually(
            lambda: all(text in (said := events_of(name)) for text in texts) and said, f"{name}'s events say {texts}"
        )

    says("huge", "is pending for the requested resources become available: ", "64 cores", "6 cores")
    # (What more nodes would not help has YuniKorn's other text.)
    says("over", "the queue quota has been exceed: ", "root.small", "2 cores", "1 core")
    # Another reason is another event. client-go would count the first one up.
    cluster.api.create(pod("both", space, cpu="16", app="both", labels={"queue": "root.small"}))
    says("both", "the queue quota has been exceed: ")
    try:
        cluster.configure(cluster.queues.replace("small, resources: {max: {vcore: 1}}", "small"))
        says("both", "the queue quota has been exceed: ", "16 cores, and the largest node has 6 cores in all")
    finally:
        cluster.api.delete("Pod", "both", space, grace_s=0)
        cluster.api.delete("Pod", "over", space, grace_s=0)
        cluster.configure(cluster.queues)


def test_node_selectors_affinity_and_taints(cluster: Rig) -> None:
    space = cluster.namespace("labels")
    taint = [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    cluster.nodes(
        node("plain"), node("ssd", labels={"disk": "ssd"}), node("gpu", taints=taint), node("zone-b", zone="b")
    )
    tolerates = [{"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}]
    zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["b"]}
    term = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}
    cluster.api.create_all(
        [
            *(pod(f"ssd-{i}", space, nodeSelector={"disk": "ssd"}) for i in range(5)),
            *(pod(f"zone-{i}", space, affinity={"nodeAffinity": term}) for i in range(5)),
            *(
                pod(f"gpu-{i}", space, tolerations=tolerates, nodeSelector={"kubernetes.io/hostname": "fake-gpu"})
                for i in range(5)
            ),
            *(pod(f"any-{i}", space) for i in range(10)),
        ]
    )
    placed = cluster.all_placed(space, 25)
    where = Counter(each["spec"]["nodeName"] for each in placed if each["metadata"]["name"].startswith("any"))
    assert "fake-gpu" not in where
    cluster.settled()


def test_pods_beside_each_other_and_apart(cluster: Rig) -> None:
    space = cluster.namespace("apart")
    cluster.nodes(*(node(f"apart-{i}", zone="ab"[i % 2]) for i in range(6)))
    rule = "requiredDuringSchedulingIgnoredDuringExecution"

    def term(app: str, key: str = "kubernetes.io/hostname") -> list[dict[str, object]]:
        return [{"labelSelector": {"matchLabels": {"group": app}}, "topologyKey": key}]

    spread = [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"group": "spread"}},
        }
    ]
    port = {"ports": [{"containerPort": 80, "hostPort": 8080}]}
    apart, shuns = term("apart"), term("shunned", "topology.kubernetes.io/zone")
    anti = {"podAntiAffinity": {rule: apart}}
    made = [pod(f"apart-{i}", space, app=f"apart-{i % 3}", labels={"group": "apart"}, affinity=anti) for i in range(6)]
    made += [pod(f"port-{i}", space, app=f"port-{i % 3}", container=port) for i in range(6)]
    made += [pod(f"spread-{i}", space, labels={"group": "spread"}, topologySpreadConstraints=spread) for i in range(9)]
    for i in range(3):
        made.append(pod(f"leader-{i}", space, labels={"group": f"pair-{i}"}))
        made.append(pod(f"follower-{i}", space, affinity={"podAffinity": {rule: term(f"pair-{i}")}}))
        # Nothing of their own forbids these; a rule of the last one does.
        made.append(pod(f"shunned-{i}", space, labels={"group": "shunned"}))
    made.append(pod("shuns", space, affinity={"podAntiAffinity": {rule: shuns}}))
    # What is only preferred keeps no pod waiting: there are more of them than nodes.
    wish = {"weight": 100, "podAffinityTerm": term("wishes")[0]}
    wishes = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}
    somehow = [{**spread[0], "whenUnsatisfiable": "ScheduleAnyway"}]
    made += [
        pod(f"wish-{i}", space, labels={"group": "wishes"}, affinity=wishes, topologySpreadConstraints=somehow)
        for i in range(8)
    ]
    cluster.api.create_all(made)
    # (Whether the last one has a place depends on those that it shuns.)
    others = set(names(made)) - {"shuns"}
    eventually(lambda: others <= set(names(cluster.placed(space))), f"{len(others)} pods are placed")
    cluster.settled()


def test_cordon_drain_resize_and_the_end_of_a_node(cluster: Rig) -> None:
    space = cluster.namespace("nodes")
    cluster.nodes(node("stays", cpu="4"), node("goes", cpu="4"))
    # 1. a cordoned node gets nothing, and again something afterwards
    cluster.cordon("fake-goes")
    cluster.api.create(deployment("web", pod("web", space, cpu="500m"), 6))
    cluster.all_placed(space, 6)
    assert {each["spec"]["nodeName"] for each in cluster.placed(space)} == {"fake-stays"}
    cluster.settled()
    cluster.api.patch("Node", "fake-goes", {"spec": {"unschedulable": None}})
    cluster.api.patch("Deployment", "web", {"spec": {"replicas": 10}}, space)
    cluster.all_placed(space, 10)
    cluster.settled()
    # 2. a drained node's pods find another place
    cluster.cordon("fake-goes")
    cluster.nodes(node("comes", cpu="4"))
    evicted = [each for each in cluster.placed(space) if each["spec"]["nodeName"] == "fake-goes"]
    cluster.api.delete_all(evicted)
    eventually(
        lambda: len([p for p in cluster.placed(space) if p["spec"]["nodeName"] != "fake-goes"]) == 10,
        "10 pods elsewhere",
    )
    cluster.settled()
    # 3. a larger node takes more
    cluster.api.patch("Deployment", "web", {"spec": {"replicas": 20}}, space)
    eventually(lambda: len(cluster.placed(space)) == 16, "two nodes of 4 are full")
    status = {"allocatable": {"cpu": "8"}, "capacity": {"cpu": "8"}}
    cluster.api.patch("Node", "fake-comes", {"status": status}, part="status")
    cluster.all_placed(space, 20)
    cluster.settled()
    # 4. a node that is gone takes its pods along (Kubernetes' own collector deletes them)
    cluster.remove_nodes(["fake-stays", "fake-goes"])
    cluster.api.delete_all([p for p in cluster.placed(space) if p["spec"]["nodeName"] == "fake-stays"], grace_s=0)
    eventually(lambda: len(cluster.placed(space)) == 16, "16 pods fit on the node that is left")
    cluster.settled()


def test_a_pod_that_is_resized_in_place_keeps_its_place(cluster: Rig) -> None:
    space = cluster.namespace("resized")
    cluster.nodes(node("resized", cpu="4"))
    cluster.api.create(pod("changes", space, cpu="1"))
    cluster.all_placed(space, 1)

    def resize(cpu: str) -> None:
        container = cluster.api.get("Pod", "changes", space)["spec"]["containers"][0]
        container["resources"]["requests"]["cpu"] = cpu
        cluster.api.patch("Pod", "changes", {"spec": {"containers": [container]}}, space, part="resize")

    def runs_with(cpu: str) -> None:  # as its kubelet says
        status = {"name": "main", "image": "none", "imageID": "", "ready": True, "restartCount": 0}
        status["resources"] = {"requests": {"cpu": cpu, "memory": "64Mi"}}
        cluster.api.patch("Pod", "changes", {"status": {"containerStatuses": [status]}}, space, part="status")

    def used(cores: int) -> None:
        def is_so() -> bool:
            return [each["allocated"]["vcore"] for each in cluster.muster_nodes()] == [1000 * cores]

        eventually(is_so, f"Muster counts {cores} cores")

    used(1)
    resize("3")
    used(3)
    runs_with("3")
    cluster.api.create(pod("waits", space, cpu="2"))
    eventually(lambda: "waits" in _unplaced(cluster, space), "no room for another one")
    # A pod that shrinks gives its room back when its kubelet says so, not before.
    resize("1")
    runs_with("1")
    cluster.all_placed(space, 2)
    used(3)
    cluster.settled()


def _unplaced(cluster: Rig, space: str) -> list[str]:
    """The pods of which Muster said that they fit nowhere."""
    waiting = [each for each in cluster.pods(space) if not each["spec"].get("nodeName")]
    return names([each for each in waiting if conditions(each).get("PodScheduled", {}).get("reason")])


def test_pods_of_other_schedulers_take_room(cluster: Rig) -> None:
    space = cluster.namespace("foreign")
    cluster.nodes(node("foreign", cpu="4"))
    others = [
        pod(f"other-{i}", space, cpu="1", nodeName="fake-foreign", schedulerName="default-scheduler") for i in range(3)
    ]
    for other in others:
        del other["metadata"]["labels"]["applicationId"]
    cluster.api.create_all(others)
    cluster.all_placed(space, 3)
    cluster.settled()
    cluster.api.create_all([pod(f"own-{i}", space, cpu="1") for i in range(2)])
    eventually(lambda: len(cluster.placed(space)) == 4, "one fits beside three of others")
    cluster.settled()
    cluster.api.delete("Pod", "other-0", space)
    eventually(lambda: len(cluster.placed(space)) == 4 and len(cluster.pods(space)) == 4, "the second follows")
    cluster.settled()


def test_gated_pods_wait(cluster: Rig) -> None:
    space = cluster.namespace("gates")
    cluster.nodes(node("gates"))
    cluster.api.create(pod("gated", space, schedulingGates=[{"name": "test/gate"}]))
    cluster.api.create(pod("open", space))
    eventually(lambda: names(cluster.placed(space)) == ["open"], "the pod without a gate is placed")
    cluster.api.patch("Pod", "gated", {"spec": {"schedulingGates": []}}, space)
    cluster.all_placed(space, 2)
    cluster.settled()


def test_important_pods_preempt(cluster: Rig) -> None:
    space = cluster.namespace("preempting")
    cluster.nodes(node("preempting", cpu="8"))
    for name, value in (("test-high", 1000), ("test-low", -10)):
        meta = {"name": name}
        cluster.api.apply(
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": meta, "value": value}
        )
    low = {"labels": {"queue": "root.shared.spare"}, "priorityClassName": "test-low"}
    high = {"labels": {"queue": "root.shared.important"}, "priorityClassName": "test-high"}
    cluster.api.create_all([pod(f"low-{i}", space, cpu="1", app="low", **_copied(low)) for i in range(8)])
    cluster.all_placed(space, 8)
    cluster.api.create_all([pod(f"high-{i}", space, cpu="1", app="high", **_copied(high)) for i in range(4)])

    def preempted() -> bool:
        return sum(each["metadata"]["name"].startswith("high") for each in cluster.placed(space)) == 4

    eventually(preempted, "four pods took the place of four others")
    cluster.settled()
    assert len(cluster.placed(space)) == 8


def _copied(spec: dict[str, object]) -> dict[str, object]:
    copied: dict[str, object] = json.loads(json.dumps(spec))
    return copied


def test_pods_that_are_deleted_while_they_are_placed_stall_nothing(cluster: Rig) -> None:
    space = cluster.namespace("hasty")
    cluster.nodes(*(node(f"hasty-{i}") for i in range(4)))
    for round_ in range(5):
        made = [pod(f"gone-{round_}-{i}", space, app=f"gone-{round_}") for i in range(20)]
        cluster.api.create_all(made)
        cluster.api.delete_all(made, grace_s=0)
    cluster.api.create_all([pod(f"stays-{i}", space, app="stays") for i in range(10)])
    cluster.all_placed(space, 10)
    cluster.settled()
