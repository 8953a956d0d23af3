"""A resource manager's stateful predicate, as Kubernetes' own are: it knows what it was told, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from muster_proto.muster.v1 import callbacks_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si


class Kubelet:
    """Required hostname anti-affinity by a key's first part ("db-7"); host ports are the same ("port80-3").

    :ivar questions: how many it was asked.
    :ivar wrong: how often it was told of one of a kind where it had one already.
    """

    def __init__(self) -> None:
        self.questions = self.wrong = 0
        self._runs: dict[str, str] = {}
        self._on: Counter[tuple[str, str]] = Counter()

    def __call__(self, question: pb.PredicatesQuestion) -> bool | str:
        self.questions += 1
        about = kind, node_id = kind_of(question.args.allocationKey), question.args.nodeID
        return f"{kind} is on {node_id}" if self._on[about] else True

    def allocated(self, items: Sequence[si.Allocation]) -> None:
        for item in items:
            self._runs[item.allocationKey] = item.nodeID
            about = kind_of(item.allocationKey), item.nodeID
            self.wrong += self._on[about] > 0
            self._on[about] += 1

    def released(self, items: Sequence[si.AllocationRelease]) -> None:
        for item in items:
            node_id = self._runs.pop(item.allocationKey, None)
            if node_id is not None:
                self._on[kind_of(item.allocationKey), node_id] -= 1


def kind_of(key: str) -> str:
    """What there may be one of on a node."""
    return key.partition("-")[0]
