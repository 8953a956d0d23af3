"""Dozens of asks that must be alone in the RM, and that no node takes, beside others: those are placed meanwhile."""

from __future__ import annotations

from e2e.gang_rig import Muster, Rm
from muster_client import ask
from muster_proto.muster.v1 import callbacks_pb2 as pb
from waiting import eventually

NODES = 150
STUCK = 30
QUEUES = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - {name: batch}
"""


class Labels:
    """No node has the label of asks whose keys begin with "stuck".

    :ivar asked: the key of each question, in order.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, question: pb.PredicatesQuestion) -> bool | str:
        key = question.args.allocationKey
        self.asked.append(key)
        return "no node has the label" if key.startswith("stuck") else True


async def test_plain_asks_are_placed_while_others_walk_through_all_nodes(muster: Muster) -> None:
    labels = Labels()
    async with Rm(muster.gateway, muster.http, "rm", QUEUES, predicates=labels) as rm:
        await rm.nodes(**{f"n{number:03d}": 10_000 for number in range(NODES)})
        for app in ("stuck", "plain"):  # the first one comes first in the queue
            await rm.application(app, "root.batch")
        tags = {"muster.callbacks.open": "one"}
        stuck = [ask(f"stuck-{number:02d}", "stuck", {"vcore": 100}, tags=tags) for number in range(STUCK)]
        early = [f"early-{number:02d}" for number in range(50)]
        await rm.client.send_asks([*stuck, *(ask(key, "plain", {"vcore": 100}) for key in early)])
        await rm.runs_these(*early)
        # Each stuck ask was asked about once, and a few again: not about all nodes.
        assert len(labels.asked) < STUCK * NODES / 4
        await eventually(lambda: len(labels.asked) > STUCK * 20, "each stuck ask is asked about many nodes at a time")
        waited: list[int] = []
        for number in range(12):
            key, before = f"late-{number:02d}", len(labels.asked)
            await rm.client.send_asks([ask(key, "plain", {"vcore": 100})])
            await eventually(lambda key=key: key in rm.runs, f"{key} runs")  # type: ignore[misc]
            waited.append(labels.asked.index(key) - before)
        # A probe has up to 32 questions. (Some are sent while the ask is on its way.)
        assert max(waited) < 20 * 32, waited
        assert not any(key.startswith("stuck") for key in rm.runs)
        # None of the stuck ones is forgotten: each is asked about further nodes.
        await eventually(lambda: len(set(labels.asked[-STUCK * 40 :])) >= STUCK, "they take turns")
