"""Which failure a client has of several at once."""

from __future__ import annotations

import asyncio

import pytest
from muster_client import (
    RmClient,
)
from muster_client.errors import (
    ClientError,
    Superseded,
)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_of_two_streams_that_fail_at_once_the_first_is_the_clients_failure(order: tuple[int, int]) -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    failures = [Superseded("another connection"), ClientError("a response is unreadable")]
    told: list[Exception] = []

    class Stream:
        def __init__(self, number: int) -> None:
            self.name, self._number = str(number), number

        async def run(self) -> None:
            await gates[self._number].wait()
            raise failures[self._number]

        def end(self, error: Exception) -> None:
            told.append(error)

    client = RmClient("127.0.0.1:1", "rm-1")
    client._streams = [Stream(0), Stream(1)]  # type: ignore[assignment]
    supervising = asyncio.create_task(client._supervise())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for number in order:
        gates[number].set()
    await asyncio.wait_for(supervising, 60)
    assert client._failure is failures[order[0]]
    assert set(told) == {failures[order[0]]}
