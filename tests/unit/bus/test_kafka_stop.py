"""Kafka clients are stopped completely, even if their own stop fails."""

from __future__ import annotations

import asyncio

import pytest
from muster_bus.backends.kafka_connection import stop


async def test_a_cancellation_that_a_client_hands_on_is_not_ours() -> None:
    async def stopping() -> None:
        fetch = asyncio.ensure_future(asyncio.sleep(60))
        fetch.cancel()
        await fetch  # as aiokafka does with its fetches

    await stop(stopping())


async def test_a_cancellation_of_the_stopping_task_is() -> None:
    stopped = asyncio.create_task(stop(asyncio.sleep(60)))
    await asyncio.sleep(0)
    stopped.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopped
