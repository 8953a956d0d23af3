"""An RM whose predicates hang on what runs where (Kubernetes' own do), over the whole of Muster: it knows what it was
told, and nothing else. Where it is asked about one proposal at a time it never agrees to what it would not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from e2e.gang_rig import Muster, Rm
from in_virtual_time.test_callbacks_through_muster import QUEUES
from kubelet import Kubelet, kind_of
from muster_client import ask
from muster_proto.muster.v1 import callbacks_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from waiting import eventually

MODES = [
    pb.OPEN_PROPOSALS_NODE,
    pb.OPEN_PROPOSALS_TASK_GROUP,
    pb.OPEN_PROPOSALS_APPLICATION,
    pb.OPEN_PROPOSALS_ONE,
]
NODES = 46


class StatefulRm(Rm):
    """Its predicate hears what it hears.

    No refusal is forgotten because time passes: what is placed after one is placed because something ended. (So no
    answer may be late: that is a refusal.)
    """

    EXTRA: ClassVar[dict[str, str]] = {"muster.callbacks.retry": "1h", "muster.callbacks.timeout": "1h"}

    def __init__(self, muster: Muster, **callbacks: Any) -> None:
        self.kubelet = Kubelet()
        super().__init__(muster.gateway, muster.http, "rm", QUEUES, predicates=self.kubelet, **callbacks)

    def _allocated(self, items: Sequence[si.Allocation]) -> None:
        self.kubelet.allocated(items)
        super()._allocated(items)

    async def _released(self, items: Sequence[si.AllocationRelease]) -> None:
        self.kubelet.released(items)
        await super()._released(items)


@pytest.mark.parametrize("mode", MODES, ids=pb.OpenProposals.Name)
async def test_anti_affinity_and_host_ports_are_kept_where_proposals_take_turns(
    muster: Muster, mode: pb.OpenProposals.ValueType
) -> None:
    async with StatefulRm(muster, open_proposals=mode) as rm:
        await rm.nodes(**{f"n{number:02d}": 10_000 for number in range(NODES)})
        await rm.application("app", "root.batch")
        keys = [f"db-{number}" for number in range(44)]
        keys += [f"port{port}-{number}" for port in (80, 443) for number in range(6)]
        await rm.client.send_asks([ask(key, "app", {"vcore": 100}) for key in keys])
        await rm.runs_these(*keys)
        assert rm.kubelet.wrong == 0
        # As many as there are nodes, and one more, which waits until one of them ends: then it is placed at once.
        more = [f"db-{number}" for number in range(44, NODES + 1)]
        await rm.client.send_asks([ask(key, "app", {"vcore": 100}) for key in more])
        await eventually(lambda: len([key for key in rm.runs if kind_of(key) == "db"]) == NODES, "each node has one")
        await rm.barrier()
        (waits,) = set(more) - set(rm.runs)
        freed = rm.runs["db-0"].nodeID
        await rm.ends("db-0")
        await eventually(lambda: waits in rm.runs, f"{waits} runs in the place of db-0")
        assert rm.runs[waits].nodeID == freed
        assert rm.kubelet.wrong == 0


async def test_with_all_open_at_once_nothing_is_lost_and_turns_may_begin_by_an_asks_tag(muster: Muster) -> None:
    """(What the RM agrees to then, it may regret: it is asked before it hears of the others.)"""
    async with StatefulRm(muster) as rm:
        await rm.nodes(**{f"n{number:02d}": 10_000 for number in range(4)})
        await rm.application("app", "root.batch")
        keys = [f"any{number}-0" for number in range(20)]
        await rm.client.send_asks([ask(key, "app", {"vcore": 100}) for key in keys])
        await rm.runs_these(*keys)
        tagged = [f"db-{number}" for number in range(4)]
        tags = {"muster.callbacks.open": "node"}
        await rm.client.send_asks([ask(key, "app", {"vcore": 100}, tags=tags) for key in tagged])
        await rm.runs_these(*keys, *tagged)
        assert rm.kubelet.wrong == 0
