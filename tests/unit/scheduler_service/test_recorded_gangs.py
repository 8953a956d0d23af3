"""What the record of a gang says about placeholders that ended, also in records of earlier versions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import Cluster, ask
from muster_core.model.commands import AppItem, UpdateAllocations, UpdateApplications
from muster_proto.muster.bus.v1 import state_pb2 as pb
from muster_state import encoding, fold

QUEUES = "{name: root, submitacl: '*', queues: [{name: a}]}"


@pytest.mark.parametrize("earlier", [False, True])
def test_a_fold_knows_what_ended(earlier: bool) -> None:
    cluster = Cluster(QUEUES)
    cluster.node("n1", vcore=10)
    cluster.node("n2", vcore=10)
    announced = AppItem("x", "root.a", "default", "ann", placeholder_ask={"vcore": 12})
    cluster.do(UpdateApplications((announced,)))
    asks = [replace(ask("x", f"p{number}", vcore=3), placeholder=True, task_group="t") for number in range(3)]
    cluster.do(UpdateAllocations(tuple(asks)))
    gang = cluster.application("x").gang
    assert gang is not None
    cluster.release("x", "p1")
    assert {name: value for name, value in gang.to_come.items() if value} == {
        cluster.partition.types.number("vcore"): 3
    }

    recorded = encoding._gang(gang)
    assert dict(recorded.ended.values) == {"vcore": 3}
    if earlier:
        recorded.ClearField("ended")
    read = pb.GangObject.FromString(recorded.SerializeToString())
    other = Cluster(QUEUES)
    other.do(UpdateApplications((announced,)))
    fold._fold_gang(other.partition, other.application("x"), read)
    folded = other.application("x").gang
    assert folded is not None
    names = other.partition.types.names
    assert {names[number]: value for number, value in folded.ended.items()} == {"vcore": 3}
