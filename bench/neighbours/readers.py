"""Readers of /metrics without a pause."""

from __future__ import annotations

import asyncio
import contextlib

import httpx

from bench.neighbours.rows import Row, Target, begin

READERS = 40


async def read_metrics(target: Target) -> None:
    async def one() -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            (await client.get(f"{target.http}/metrics")).raise_for_status()
            begin()
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    await client.get(f"{target.http}/metrics")

    await asyncio.gather(*(one() for _ in range(READERS)))


ROWS = (Row("metrics", f"{READERS} readers of `/metrics`", read_metrics),)
