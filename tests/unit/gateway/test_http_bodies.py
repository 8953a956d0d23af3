"""Bodies that an application in the front's process reads: bounded in time, and in size together."""

from __future__ import annotations

import asyncio
from typing import Any

from muster_gateway.http_bodies import HeldBodies, bounded
from starlette.types import Message, Receive, Scope, Send


async def _whole(_scope: Scope, receive: Receive, send: Send) -> None:
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % size})


class Client:
    """A client that sends pieces, and what it gets."""

    def __init__(self, *pieces: bytes, method: str = "POST", stays: bool = False) -> None:
        self.scope: dict[str, Any] = {"type": "http", "method": method, "path": "/", "headers": []}
        self._pieces, self._stays = list(pieces), stays
        self.waits = asyncio.Event()
        self.got: list[Message] = []

    async def receive(self) -> Message:
        if not self._pieces:
            self.waits.set()
            await asyncio.Event().wait()
        piece = self._pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self._pieces) or self._stays}

    async def send(self, message: Message) -> None:
        self.got.append(message)


async def test_all_bodies_together_have_a_limit_and_their_room_is_free_again() -> None:
    held = HeldBodies()
    app = bounded(_whole, held, bytes_max=100)
    slow = Client(b"x" * 60, stays=True)
    waiting = asyncio.create_task(app(slow.scope, slow.receive, slow.send))
    await asyncio.wait_for(slow.waits.wait(), 60)
    for pieces, status in (([b"x" * 40], 200), ([b"x" * 20, b"x" * 21], 503), ([b"x" * 30, b"x" * 10], 200)):
        client = Client(*pieces)
        await app(client.scope, client.receive, client.send)
        assert client.got[0]["status"] == status
        assert ((b"retry-after", b"1") in client.got[0]["headers"]) is (status == 503)
        assert held.size == 60
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert held.size == 0


async def test_a_body_that_does_not_come_in_time_is_refused() -> None:
    slow = Client(b"x", stays=True)
    await asyncio.wait_for(bounded(_whole, HeldBodies(), body_s=0.01)(slow.scope, slow.receive, slow.send), 60)
    assert slow.got[0]["status"] == 408
    assert (b"connection", b"close") in slow.got[0]["headers"]


async def test_a_read_is_not_bounded() -> None:
    reader = Client(b"x" * 10, method="GET")
    await bounded(_whole, HeldBodies(), bytes_max=1)(reader.scope, reader.receive, reader.send)
    assert reader.got[0]["status"] == 200
