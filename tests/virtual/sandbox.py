"""The sandbox of queue configurations without a process: it stands in for ``judge_child`` in the event loop.

It reads with the same function. What the system would end (time, memory) it ends by what its maker says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from muster_queue_config.parser_messages import ParseReply, ParseRequest, ParserLimits, ParserReady
from muster_queue_config.verdict import verdict_on


@lru_cache(maxsize=1024)
def _verdict(text: str, bytes_max: int, queues_max: int) -> ParseReply:
    return verdict_on(ParseRequest(text, bytes_max, queues_max))


class InlineReading:
    """See ``muster_queue_config.sandboxed_parser.Reading``.

    :param ends: returns the exit code with which the process ends at a text; None: it reads the text.
    :param delay_s: returns how long a text takes.
    """

    pid = 0

    def __init__(
        self, ends: Callable[[str], int | None] = lambda _: None, delay_s: Callable[[], float] = lambda: 0.001
    ) -> None:
        self._ends, self._delay_s = ends, delay_s
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def connect(self) -> InlineReading:
        return self

    def send(self, message: ParserLimits | ParseRequest) -> None:
        if isinstance(message, ParserLimits):
            self._messages.put_nowait(ParserReady())
            return
        code = self._ends(message.text)
        if code is None:
            self._messages.put_nowait(_verdict(message.text, message.bytes_max, message.queues_max))
        else:
            self._end(code)

    async def answer(self, available_s: float) -> Any:
        await asyncio.sleep(self._delay_s())
        return await self._messages.get()

    def kill(self, reason: str) -> None:
        self._end(-9)

    async def ended(self, timeout_s: float) -> int:
        async with asyncio.timeout(timeout_s):
            return await asyncio.shield(self._code)

    async def end(self) -> None:
        self.kill("was ended")

    def _end(self, code: int) -> None:
        if not self._code.done():
            self._code.set_result(code)
            self._messages.put_nowait(None)
