"""The load driver with stateful predicates counts its allocations, and only the mode "all" has violations."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from chaos.harness import embedded
from kubelet import Kubelet
from muster_proto.muster.v1 import callbacks_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si

from bench.turns_driver import MODES, SIZE, broken_promises, run_turns, scenario_of

SMALL = replace(SIZE, nodes=5, asks=40, applications=4)


def test_every_mode_is_measured_and_what_it_promises_holds(tmp_path: Path) -> None:
    async def play() -> dict[str, dict[str, float]]:
        deployment = embedded(tmp_path)
        await deployment.start()
        try:
            return {scenario_of(mode): await run_turns(deployment.gateway, mode, SMALL, 0.2) for mode in MODES}
        finally:
            await deployment.stop()

    found = asyncio.run(play())
    assert list(found) == [f"stateful_{mode}" for mode in ("all", "node", "task_group", "application", "one")]
    for one in found.values():
        assert one["allocations_per_s"] > 0
        assert 0 < one["latency_p50_ms"] <= one["latency_p99_ms"]
        assert one["questions_each"] >= 1
    assert broken_promises(found) == []


def test_two_of_a_kind_on_one_node_are_counted_and_a_promise_is_a_promise() -> None:
    kubelet = Kubelet()
    kubelet.allocated([si.Allocation(allocationKey=key, nodeID="n1") for key in ("db-1", "web-1", "db-2")])
    assert kubelet.wrong == 1
    question = pb.PredicatesQuestion()
    question.args.allocationKey, question.args.nodeID = "web-2", "n1"
    assert kubelet(question) == "web is on n1"
    kubelet.released([si.AllocationRelease(allocationKey="web-1")])
    assert kubelet(question) is True
    assert broken_promises({"stateful_all": {"violations": 3}, "stateful_node": {"violations": 0}}) == []
    assert broken_promises({"stateful_one": {"violations": 1}}) == ["stateful_one"]
