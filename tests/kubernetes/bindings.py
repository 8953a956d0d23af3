"""Every pod's nodes, as a watch of the apiserver tells them."""

from __future__ import annotations

import threading
from pathlib import Path

from kubernetes.api import Api


class Bindings:
    """Watches each pod's node: a pod that ever has two was bound twice."""

    def __init__(self, kubeconfig: Path) -> None:
        self._api = Api(kubeconfig)
        self._ended = threading.Event()
        self.seen: dict[str, set[str]] = {}
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        for _, found in self._api.watch("Pod", self._ended):
            where = found["spec"].get("nodeName")
            if where:
                self.seen.setdefault(found["metadata"]["uid"], set()).add(where)

    def twice(self) -> dict[str, set[str]]:
        return {uid: where for uid, where in self.seen.items() if len(where) > 1}

    def close(self) -> None:
        self._ended.set()
