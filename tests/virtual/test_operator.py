"""What the operator reads with a position is judged by what the RM had at that position."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest
from chaos.storm.evidence import Heard
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from virtual.loop import VirtualLoop
from virtual.operator import Operator

RM = "rm-1"


class Rm:
    """An RM that gets allocations when a test gives it some. Its position is how many it got."""

    rm_id, registrations, is_adopting = RM, 0, False

    def __init__(self) -> None:
        self.running: dict[str, tuple[str, str]] = {}
        self.heard: list[Heard] = []
        self.client = SimpleNamespace(position="")

    def give(self, key: str) -> None:
        self.running[key] = ("app-1", "node-1")
        self.heard.append(Heard(0.0, "new", key, "app-1", "node-1"))
        self.client.position = str(len(self.running))

    def still_has(self, keys: Collection[str]) -> set[str]:
        return {key for key in keys if key in self.running}


def failures_of(shown: Callable[[int], int], meanwhile: Callable[[Rm], None] = lambda _: None) -> list[str]:
    """Reads once for an RM with an allocation, and returns what the operator finds wrong.

    :param shown: how many allocations a read with the position of so many shows.
    :param meanwhile: called while the first read is under way.
    """
    loop, rm, failures = VirtualLoop(1), Rm(), list[str]()
    rm.give("ask-1")

    def keys(request: Request) -> list[str]:
        return list(rm.running)[: shown(int(request.headers["muster-after"]))]

    async def pending(_: Request) -> JSONResponse:
        meanwhile(rm)
        return JSONResponse({"pending": []})

    async def nodes(request: Request) -> JSONResponse:
        return JSONResponse([{"allocations": [{"allocationKey": key} for key in keys(request)]}])

    async def batch(request: Request) -> JSONResponse:
        return JSONResponse({"HighestID": 1, "EventRecords": [{"referenceID": key} for key in rm.running]})

    front = Starlette(routes=[
        Route("/ws/v1/explain/pending", pending), Route("/ws/v1/partition/default/nodes", nodes),
        Route("/ws/v1/events/batch", batch),
    ])  # fmt: skip
    world = SimpleNamespace(
        loop=loop, seed=1, now_s=0.0, gateways=["gateway-1"], counts=Counter[str](), failures=failures,
        channel=lambda *_: SimpleNamespace(), web=SimpleNamespace(target=lambda _: front),
    )  # fmt: skip

    async def read() -> None:
        operator = Operator(cast("Any", world), cast("Any", [rm]))
        await operator._own(RM)
        await asyncio.sleep(60.0)  # (what an RM has may end, and it may hear of that later)

    try:
        loop.run_until_complete(read())
    finally:
        loop.close()
    assert world.counts["read after a position: 200"] == 4
    return failures


def test_an_allocation_that_is_told_while_a_read_is_under_way_is_later_than_its_position() -> None:
    assert failures_of(lambda position: position, meanwhile=lambda rm: rm.give("ask-2")) == []


@pytest.mark.parametrize("also", [[], ["ask-2"]], ids=["quiet", "another meanwhile"])
def test_a_read_that_does_not_show_its_position_is_named(also: list[str]) -> None:
    def give(rm: Rm) -> None:
        for key in also:
            rm.give(key)

    newest = ["ask-1", *also][-1]
    assert failures_of(lambda position: position - 1, give) == [
        f"0.000 read with the position of {RM}: not shown is what it has: ['{newest}']"
    ]
