"""A client that numbers its messages: what it sends again over another connection is taken once."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from e2e.gang_rig import muster_here
from e2e.spoilt import ALLOCATION, APP, APPLICATION, NODE, NODE_ID, QUEUES, allocation, application, node, release
from integration.gateway_rig import Channel, Stream
from muster_proto.si.v1 import si_pb2 as si

RM = "rm"


def asks(*keys: str) -> si.AllocationRequest:
    return si.AllocationRequest(rmID=RM, allocations=[allocation(allocationKey=key) for key in keys])


def ends(key: str) -> si.AllocationRequest:
    gone = si.AllocationReleasesRequest(allocationsToRelease=[release(allocationKey=key)])
    return si.AllocationRequest(rmID=RM, releases=gone)


async def heard_until(stream: Stream, key: str) -> tuple[list[str], list[str]]:
    """Keys of new and released allocations, until one is new."""
    new, released = list[str](), list[str]()
    while key not in new:
        answer = await stream.receive()
        new += [each.allocationKey for each in answer.new]
        released += [each.allocationKey for each in answer.released]
    return new, released


async def test_an_ask_that_ended_is_not_allocated_again(tmp_path: Path) -> None:
    async with muster_here(tmp_path, ["log.partitions=1"]) as muster:
        channel = Channel(int(muster.gateway.rpartition(":")[2]))
        await channel.register(RM, QUEUES, version="1")
        nodes, apps = channel.open(NODE, RM), channel.open(APPLICATION, RM)
        await nodes.send(si.NodeRequest(rmID=RM, nodes=[node(nodeID=NODE_ID)]))
        assert (await nodes.receive()).accepted
        await apps.send(si.ApplicationRequest(rmID=RM, new=[application(applicationID=APP)]))
        assert (await apps.receive()).accepted
        # 1. the first connection, with everything decided
        first = channel.open(ALLOCATION, RM, muster_client="life", muster_first_message="1")
        await first.send(asks("one"))
        await heard_until(first, "one")
        for message in (ends("one"), asks("two")):
            await first.send(message)
        assert await heard_until(first, "two") == (["two"], ["one"])
        first.cancel()
        # 2. the same again, as after a connection that was lost before the answers came, and one more
        second = channel.open(ALLOCATION, RM, resume_after=0, muster_client="life", muster_first_message="1")
        for message in (asks("one"), ends("one"), asks("two"), asks("three")):
            await second.send(message)
        assert await heard_until(second, "three") == (["one", "two", "three"], ["one"])
        # 3. what a paused gateway still had comes after a connection that begins behind it
        second.cancel()
        third = channel.open(ALLOCATION, RM, muster_client="life", muster_first_message="5")
        await third.send(asks("four"))
        assert "four" in (await heard_until(third, "four"))[0]
        third.cancel()
        heard = max(each.responseSequence for each in third.got)
        late = channel.open(ALLOCATION, RM, resume_after=heard, muster_client="life", muster_first_message="1")
        for message in (asks("one"), ends("one"), asks("two"), asks("three"), asks("four"), asks("five")):
            await late.send(message)
        assert await heard_until(late, "five") == (["five"], [])
        late.cancel()
        for stream in (nodes, apps):
            stream.cancel()
        await channel.close()


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"muster_client": "life"}, "muster-first-message"),
        ({"muster_first_message": "1"}, "muster-client"),
        ({"muster_client": "life", "muster_first_message": "0"}, "expected the number of the stream's first message"),
        ({"muster_client": "life", "muster_first_message": "-1"}, "muster-first-message"),
        ({"muster_client": "x" * 65, "muster_first_message": "1"}, "expected 1 to 64 printable characters"),
    ],
)
async def test_wrong_numbers_are_refused_by_their_name(tmp_path: Path, metadata: dict[str, str], words: str) -> None:
    async with muster_here(tmp_path, ["log.partitions=1"]) as muster:
        channel = Channel(int(muster.gateway.rpartition(":")[2]))
        await channel.register(RM, QUEUES, version="1")
        code, said = await channel.open(ALLOCATION, RM, **metadata).status()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert words in said
        await channel.close()
