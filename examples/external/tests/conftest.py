"""A VM manager for tests: within this process, or on a port of this machine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import NamedTuple

import httpx
import pytest
import uvicorn
from muster_example_vmhosts.manager import Inventory, make_app


class Manager(NamedTuple):
    """A VM manager without hosts.

    :param inventory: what it has; a test may change it.
    :param http: asks it.
    """

    inventory: Inventory
    http: httpx.AsyncClient


@pytest.fixture
async def manager() -> AsyncIterator[Manager]:
    """One that is only asked over ``http``."""
    inventory = Inventory()
    transport = httpx.ASGITransport(make_app(inventory))
    async with httpx.AsyncClient(transport=transport, base_url="http://manager") as http:
        yield Manager(inventory, http)


@pytest.fixture
async def served() -> AsyncIterator[Manager]:
    """One that listens; the base URL of ``http`` says where."""
    inventory = Inventory()
    server = uvicorn.Server(uvicorn.Config(make_app(inventory), log_level="error", timeout_graceful_shutdown=1))
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve([bound]))
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{bound.getsockname()[1]}") as http:
            yield Manager(inventory, http)
        server.should_exit = True
        await serving
