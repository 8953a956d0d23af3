"""Kubelets of nodes that are not there: pods on them run, end and go, without containers.

* A pod that is bound to a fake node becomes Running and Ready.
* A pod with the annotation ``test/runs-s`` succeeds after so many seconds.
* A pod with a deletion timestamp is removed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from kubernetes.api import Api, ApiFailed, Json, retried

FAKE = "test/fake"  # the label of nodes that this module plays
RUNS = "test/runs-s"


class Kubelets:
    """All fake kubelets of a cluster, in threads."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="kubelet")
        self._lock = threading.Lock()
        self._running: set[str] = set()  # UIDs of pods that were told to run
        self._going: set[str] = set()
        self._ends: dict[str, tuple[float, Json]] = {}
        self._threads = [
            threading.Thread(target=self._watch, daemon=True),
            threading.Thread(target=self._end, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._ended.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _watch(self) -> None:
        for change, pod in self._api.watch("Pod", self._ended):
            if change == "DELETED":
                self._forget(pod)
            elif pod["spec"].get("nodeName", "").startswith("fake-"):
                self._see(pod)

    def _forget(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        with self._lock:
            self._running.discard(uid)
            self._going.discard(uid)
            self._ends.pop(uid, None)

    def _see(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        with self._lock:
            if "deletionTimestamp" in pod["metadata"]:
                if uid not in self._going:
                    self._going.add(uid)
                    self._pool.submit(self._remove, pod)
            elif uid not in self._running and pod["status"].get("phase") == "Pending":
                self._running.add(uid)
                self._pool.submit(self._run, pod)

    def _run(self, pod: Json) -> None:
        meta, now = pod["metadata"], time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        kept = [each for each in pod["status"].get("conditions", ()) if each["type"] == "PodScheduled"]
        conditions = [
            *kept,
            *(
                {"type": kind, "status": "True", "lastTransitionTime": now}
                for kind in ("Initialized", "Ready", "ContainersReady")
            ),
        ]
        if self._patch(pod, {"phase": "Running", "startTime": now, "conditions": conditions}):
            runs = meta.get("annotations", {}).get(RUNS)
            if runs is not None:
                with self._lock:
                    self._ends[meta["uid"]] = (time.monotonic() + float(runs), pod)

    def _end(self) -> None:
        while not self._ended.wait(0.1):
            now = time.monotonic()
            with self._lock:
                over = [(uid, pod) for uid, (at, pod) in self._ends.items() if at <= now]
                for uid, _ in over:
                    del self._ends[uid]
            for _, pod in over:
                self._pool.submit(self._patch, pod, {"phase": "Succeeded"})

    def _patch(self, pod: Json, status: Json) -> bool:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        # (The UID is a condition: a later pod of the same name is not meant.)
        change = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        try:
            retried(lambda: self._api.patch("Pod", name, change, namespace, "status"))
        except ApiFailed:
            return False  # gone meanwhile, or another pod of this name
        return True

    def _remove(self, pod: Json) -> None:
        meta = pod["metadata"]
        with contextlib.suppress(ApiFailed):
            retried(lambda: self._api.delete("Pod", meta["name"], meta["namespace"], grace_s=0, uid=meta["uid"]))


def node(name: str, *, cpu: str = "16", memory: str = "64Gi", pods: int = 110, zone: str = "a", **more: object) -> Json:
    """A fake node, ready."""
    capacity = {"cpu": cpu, "memory": memory, "pods": str(pods), "ephemeral-storage": "100Gi"}
    labels = {FAKE: "true", "kubernetes.io/hostname": f"fake-{name}", "topology.kubernetes.io/zone": zone}
    labels.update(more.get("labels") or {})  # type: ignore[call-overload]
    spec = {"taints": more["taints"]} if more.get("taints") else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"fake-{name}", "labels": labels},
        "spec": spec,
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Fake", "message": "played by a test"}],
        },
    }
