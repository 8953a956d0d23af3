"""Single messages with very much in them. All are within the limits of bytes, and most over one of an item."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

import grpc
from muster_client import application, node
from muster_gateway.wire_fields import framed
from muster_proto.si.v1 import si_pb2 as si

from bench.driver import queue_config
from bench.neighbours.rm import Stream, connected, register
from bench.neighbours.rows import Row, Target, begin, neighbour

# The bytes that the quota of an RM allows, 67 MB/s, are 16 messages of 4 MB a second; three streams fill it.
STREAMS = 3
TAGS, TYPES = 280_000, 100_000


def _message(rm_id: str, *items: bytes) -> bytes:
    return b"".join(framed(0x22, item) for item in items) + si.AllocationRequest(rmID=rm_id).SerializeToString()


def _item(key: str, tags: int = 0, types: int = 1) -> bytes:
    """An ask, without protobuf: it takes a second to make a large map."""
    entries = b"".join([framed(0x12, b"\x0a\x07t%06d\x12\x01v" % number) for number in range(tags)])
    resources = b"".join([framed(0x0A, b"\x0a\x07r%06d\x12\x02\x08\x01" % number) for number in range(types)])
    return framed(0x0A, key.encode()) + framed(0x4A, b"app") + framed(0x2A, resources) + entries


def many_tags(rm_id: str) -> bytes:
    return _message(rm_id, _item("a", tags=TAGS))


def many_types(rm_id: str) -> bytes:
    return _message(rm_id, _item("a", types=TYPES))


def empty_items(rm_id: str) -> bytes:
    return b"\x22\x00" * 2_000_000 + _message(rm_id)


def five_hundred_tags(rm_id: str) -> bytes:
    return _message(rm_id, *(_item(f"a{number}", tags=500) for number in range(200)))


def most_tags(rm_id: str) -> bytes:
    return _message(rm_id, *(_item(f"a{number}", tags=4_096) for number in range(60)))


def bad_items(rm_id: str) -> bytes:
    return _message(rm_id, *(_item(f"a{number}", types=0) for number in range(50_000)))


async def send(message: Callable[[str], bytes], target: Target) -> None:
    """Send the message again and again on streams of several RMs, as fast as they are read. One that ends begins
    again.
    """
    async with connected(target) as channel:
        rm_ids = [neighbour(number) for number in range(STREAMS)]
        for rm_id in rm_ids:
            await register(channel, rm_id, queue_config(10))
            room = si.NodeRequest(rmID=rm_id, nodes=[node("n", {"vcore": 1 << 40})])
            await Stream(channel, "UpdateNode", rm_id).write(room)
            new = si.ApplicationRequest(rmID=rm_id, new=[application("app", "root.q1", user="x")])
            await Stream(channel, "UpdateApplication", rm_id).write(new)
        messages = {rm_id: message(rm_id) for rm_id in rm_ids}
        begin()
        await asyncio.gather(*(_send(channel, rm_id, raw) for rm_id, raw in messages.items()))


async def _send(channel: grpc.aio.Channel, rm_id: str, raw: bytes) -> None:
    while True:
        stream = Stream(channel, "UpdateAllocation", rm_id)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await stream.write(raw)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await stream.ended()


def _row(name: str, about: str, message: Callable[[str], bytes]) -> Row:
    attack: Callable[[Target], Awaitable[None]] = partial(send, message)
    return Row(name, f"{STREAMS} RMs that send messages of {about}, one after the other", attack)


ROWS = (
    _row("tags", f"one ask with {TAGS:,} tags", many_tags),
    _row("types", f"one ask with {TYPES:,} resource types", many_types),
    _row("empty", "2,000,000 empty asks", empty_items),
    _row("tags-500", "200 asks with 500 tags each", five_hundred_tags),
    _row("tags-4096", "60 asks with 4,096 tags each", most_tags),
    _row("bad", "50,000 asks that are all rejected", bad_items),
)
