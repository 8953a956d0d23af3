"""Waiting for a condition: bounded by a limit that no busy machine reaches, never for time to pass."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx

PATIENCE_S = 60.0


async def eventually(
    condition: Callable[[], Any], what: str = "", within_s: float = PATIENCE_S, every_s: float = 0.005
) -> Any:
    """Asks a condition, plain or async, until its answer is true; gives the answer.

    :param what: what is waited for, for the failure's message.
    :param every_s: the first pause; pauses grow to ten times that, so that long waits cost little. 0: asks at each turn
        of the loop, for a condition that holds for a moment only.
    """
    pause_s = every_s
    try:
        async with asyncio.timeout(within_s):
            while True:
                found = condition()
                found = await found if isinstance(found, Awaitable) else found
                if found:
                    return found
                await asyncio.sleep(pause_s)
                pause_s = min(1.2 * pause_s, 10 * every_s)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:g} s: {what or 'the condition'}") from None


async def answered(client: httpx.AsyncClient, path: str, parameters: Mapping[str, str]) -> httpx.Response:
    """REST's answer. (A followers' process that begins, or got no time for a while, is not asked: "try again".)"""

    async def reached() -> httpx.Response | None:
        answer = await client.get(path, params=parameters)
        return None if answer.status_code == 503 and "retry-after" in answer.headers else answer

    found: httpx.Response = await eventually(reached, f"{path} is reachable", every_s=0.05)
    return found
