"""RMs that register with hostile and with large queue configurations."""

from __future__ import annotations

import asyncio
import contextlib

import grpc

from bench.neighbours.rm import connected, register
from bench.neighbours.rows import Row, Target, begin

AT_ONCE = 3


def configurations() -> list[str]:
    """Return expensive texts, refused and accepted ones, below and above the default limit."""
    head = "partitions:\n- name: default\n  queues:\n  - name: root\n    submitacl: '*'\n    queues:\n"
    line = "    - {name: queue-%05d, submitacl: '*', resources: {max: {memory: 10Gi, vcore: 10}}}\n"
    return [
        "a: [" + "x," * 470_000 + "]\n",
        "a: [" + "x," * 60_000 + "]\n",
        head + "".join(line % number for number in range(1_400)),
        head + "".join(f"    - {{name: q{number}}}\n" for number in range(5_500)),
    ]


async def register_for_ever(target: Target) -> None:
    async def one(number: int) -> None:
        while True:
            for text in configurations():
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await register(channel, f"hostile-{number}", text)

    async with connected(target) as channel:
        begin()
        await asyncio.gather(*(one(number) for number in range(AT_ONCE)))


ROWS = (Row("configs", "hostile and large configurations", register_for_ever),)
