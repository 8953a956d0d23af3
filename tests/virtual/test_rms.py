"""When an RM that registered again may get a second answer to a report."""

from __future__ import annotations

import asyncio
from unittest.mock import MagicMock

import pytest
from muster_proto.si.v1 import si_pb2 as si

from virtual.loop import VirtualLoop
from virtual.rms import VirtualRm


@pytest.mark.parametrize(("lost", "words"), [(0, ["adopted", "new", "new"]), (1, ["adopted", "adopted", "new"])])
def test_a_report_is_answered_again_at_most_once_for_each_lost_stream(lost: int, words: list[str]) -> None:
    async def answers() -> list[str]:
        rm = VirtualRm("rm-1", "virtual", 1, 1, 1.0, asyncio.Event(), 1.0, channel=MagicMock())
        rm.running["ask-1"] = ("app-1", "node-1")
        rm._reported.add("ask-1")
        rm.client.metrics.streams_lost += lost
        for _ in range(3):
            rm._on_allocated([si.Allocation(allocationKey="ask-1", applicationID="app-1", nodeID="node-1")])
        assert list(rm.running) == ["ask-1"]
        return [each.what for each in rm.heard]

    loop = VirtualLoop(1)
    try:
        assert loop.run_until_complete(answers()) == words
    finally:
        loop.close()
