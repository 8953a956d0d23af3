"""The HTTP server: its address, and the error if that is taken."""

from __future__ import annotations

import asyncio
import socket

import pytest
from unit.view.recorded import Bench


async def test_a_taken_port_is_named_and_nothing_is_left_behind(bench: Bench) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=address):
            async with bench.view(http_address=address):
                pass
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("view: ")]


async def test_it_stops_though_a_client_holds_its_connection(bench: Bench) -> None:
    async with bench.view(http_address="127.0.0.1:0", stop_timeout_s=2) as view:
        port = view.http_port
        assert port is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.wait_for(view.stop(), 60)
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
    with pytest.raises(OSError, match=r"refused|Connect"):
        await asyncio.open_connection("127.0.0.1", port)
