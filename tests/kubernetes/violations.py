"""What is wrong with a cluster, by looking at its pods and nodes alone.

Nothing here asks Muster or the shim. Each result is a list of sentences; an empty one is what tests want. The rules are
Kubernetes' own: room, node selectors and node affinity, taints, pod (anti-)affinity, topology spread, host ports.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Json = dict[str, Any]
_OVER = ("Succeeded", "Failed")
_SUFFIXES = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "k": 10**3, "M": 10**6, "G": 10**9}


def quantity(text: str | int) -> int:
    """A quantity in thousandths of its unit: "1500m" is 1500, "2" is 2000, "1Ki" is 1024000."""
    text = str(text)
    if text.endswith("m"):
        return int(text[:-1])
    for suffix, factor in _SUFFIXES.items():
        if text.endswith(suffix):
            return round(float(text.removesuffix(suffix)) * factor * 1000)
    return round(float(text) * 1000)


def requests(pod: Json) -> Counter[str]:
    """What a pod asks for, in thousandths, with itself as one of "pods"."""
    total: Counter[str] = Counter(pods=1000)
    for container in pod["spec"]["containers"]:
        for name, amount in container.get("resources", {}).get("requests", {}).items():
            total[name] += quantity(amount)
    return total


def violations(nodes: Sequence[Json], pods: Sequence[Json]) -> list[str]:
    """Every violation of a rule by pods that are bound and not over. Node objects must have their labels of now."""
    by_name = {node["metadata"]["name"]: node for node in nodes}
    placed = [p for p in pods if p["spec"].get("nodeName") and p["status"].get("phase") not in _OVER]
    placed = [p for p in placed if p["spec"]["nodeName"] in by_name]
    found: list[str] = []
    found += _overfull(by_name, placed)
    found += _ports(placed)
    for pod in placed:
        node = by_name[pod["spec"]["nodeName"]]
        found += _node_rules(pod, node)
        found += _pod_rules(pod, node, by_name, placed)
    return found


def _overfull(nodes: Mapping[str, Json], placed: Iterable[Json]) -> list[str]:
    used: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for pod in placed:
        used[pod["spec"]["nodeName"]].update(requests(pod))
    found = []
    for name, amounts in used.items():
        for kind, amount in amounts.items():
            room = quantity(nodes[name]["status"]["allocatable"].get(kind, 0))
            if amount > room:
                found.append(f"{name}: {kind} {amount} of {room} (thousandths)")
    return found


def _ports(placed: Iterable[Json]) -> list[str]:
    seen: Counter[tuple[str, str, int]] = Counter()
    for pod in placed:
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", ()):
                if port.get("hostPort"):
                    seen[pod["spec"]["nodeName"], port.get("protocol", "TCP"), port["hostPort"]] += 1
    return [f"{count} pods have host port {port} of {node}" for (node, _, port), count in seen.items() if count > 1]


def _node_rules(pod: Json, node: Json) -> list[str]:
    name, labels = pod["metadata"]["name"], node["metadata"].get("labels", {})
    found = [
        f"{name}: {node['metadata']['name']} has not {key}={value}"
        for key, value in pod["spec"].get("nodeSelector", {}).items()
        if labels.get(key) != value
    ]
    required = (
        pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    )
    if required and not any(_node_term(term, node) for term in required["nodeSelectorTerms"]):
        found.append(f"{name}: {node['metadata']['name']} fits none of its node affinity's terms")
    for taint in node["spec"].get("taints", ()):
        # (PreferNoSchedule forbids nothing; a cordon's taint may be younger than the pod.)
        if taint["effect"] == "PreferNoSchedule" or taint["key"] == "node.kubernetes.io/unschedulable":
            continue
        if not any(_tolerates(each, taint) for each in pod["spec"].get("tolerations", ())):
            found.append(f"{name}: does not tolerate {taint['key']} of {node['metadata']['name']}")
    return found


def _node_term(term: Json, node: Json) -> bool:
    labels = node["metadata"].get("labels", {})
    fields = {"metadata.name": node["metadata"]["name"]}
    return all(_expression(each, labels) for each in term.get("matchExpressions", ())) and all(
        _expression(each, fields) for each in term.get("matchFields", ())
    )


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if not toleration.get("key"):
        return bool(toleration.get("operator") == "Exists")
    if toleration["key"] != taint["key"]:
        return False
    return bool(toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", ""))


def _expression(expression: Json, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values", ())
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[expression["operator"]]


def _selects(selector: Json | None, labels: Mapping[str, str]) -> bool:
    if selector is None:
        return False
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        _expression(each, labels) for each in selector.get("matchExpressions", ())
    )


def _matching(term: Json, pod: Json, placed: Iterable[Json], nodes: Mapping[str, Json], domain: str) -> list[Json]:
    """The other pods that a term selects in the pod's own domain."""
    spaces = term.get("namespaces") or [pod["metadata"]["namespace"]]
    key = term["topologyKey"]
    return [
        other
        for other in placed
        if other["metadata"]["uid"] != pod["metadata"]["uid"]
        and other["metadata"]["namespace"] in spaces
        and nodes[other["spec"]["nodeName"]]["metadata"].get("labels", {}).get(key) == domain
        and _selects(term.get("labelSelector"), other["metadata"].get("labels", {}))
    ]


def _pod_rules(pod: Json, node: Json, nodes: Mapping[str, Json], placed: Sequence[Json]) -> list[str]:
    name, labels = pod["metadata"]["name"], node["metadata"].get("labels", {})
    affinity, found = pod["spec"].get("affinity", {}), []
    kind = "requiredDuringSchedulingIgnoredDuringExecution"
    for term in affinity.get("podAntiAffinity", {}).get(kind, ()):
        domain = labels.get(term["topologyKey"])
        if domain is not None and (others := _matching(term, pod, placed, nodes, domain)):
            found.append(f"{name}: is beside {others[0]['metadata']['name']} in {term['topologyKey']}={domain}")
    for term in affinity.get("podAffinity", {}).get(kind, ()):
        domain = labels.get(term["topologyKey"])
        others = [] if domain is None else _matching(term, pod, placed, nodes, domain)
        # The first pod of a group has nobody to be beside, if it is one of those that it wants.
        alone = _selects(term.get("labelSelector"), pod["metadata"].get("labels", {})) and not any(
            _selects(term.get("labelSelector"), other["metadata"].get("labels", {}))
            for other in placed
            if other["metadata"]["uid"] != pod["metadata"]["uid"]
        )
        if domain is None or (not others and not alone):
            found.append(f"{name}: has nobody of its affinity in {term['topologyKey']}={domain}")
    for spread in pod["spec"].get("topologySpreadConstraints", ()):
        if spread["whenUnsatisfiable"] == "DoNotSchedule":
            found += _skew(pod, spread, nodes, placed)
    return found


def _skew(pod: Json, spread: Json, nodes: Mapping[str, Json], placed: Iterable[Json]) -> list[str]:
    key = spread["topologyKey"]
    domains = {n["metadata"].get("labels", {}).get(key) for n in nodes.values() if not _node_rules(pod, n)} - {None}
    counts: Counter[str | None] = Counter(dict.fromkeys(domains, 0))
    for other in placed:
        labels = other["metadata"].get("labels", {})
        if other["metadata"]["namespace"] == pod["metadata"]["namespace"] and _selects(
            spread.get("labelSelector"), labels
        ):
            counts[nodes[other["spec"]["nodeName"]]["metadata"].get("labels", {}).get(key)] += 1
    most, least = max(counts.values()), min(counts.values())
    if most - least > spread["maxSkew"]:
        return [f"{pod['metadata']['name']}: skew {most - least} over {key} is more than {spread['maxSkew']}"]
    return []
