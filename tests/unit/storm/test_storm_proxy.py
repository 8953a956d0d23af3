"""The proxy of storms: it passes bytes on, and its faults end as they begin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from chaos.storm.proxy import Link
from muster_replay.local_process import free_ports
from waiting import eventually

MANY = b"x" * 3_000_000


@pytest.fixture
async def link() -> AsyncIterator[Link]:
    """In front of a server that sends all back."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(1 << 16):
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    there, here = free_ports(2)
    server = await asyncio.start_server(echo, "127.0.0.1", there)
    made = Link("link", f"127.0.0.1:{there}", here)
    await made.start()
    yield made
    await made.stop()
    server.close()


async def opened(link: Link) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", link.port)


async def ends(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


async def test_bytes_pass_in_order_and_whole(link: Link) -> None:
    reader, writer = await opened(link)
    writer.write(MANY)
    writer.write_eof()
    assert await reader.read(-1) == MANY


async def test_a_cut_ends_connections_and_refuses_new_ones_until_it_is_mended(link: Link) -> None:
    reader, writer = await opened(link)
    writer.write(b"a")
    assert await reader.readexactly(1) == b"a"
    link.cut()
    assert await ends(reader)
    assert await ends((await opened(link))[0])
    link.mend()
    reader, writer = await opened(link)
    writer.write(b"b")
    assert await reader.readexactly(1) == b"b"


async def test_a_stall_holds_bytes_back_and_loses_none(link: Link) -> None:
    reader, writer = await opened(link)
    link.stall()
    writer.write(b"abc")
    waiting = asyncio.create_task(reader.readexactly(3))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.2)
    link.mend()
    assert await waiting == b"abc"


async def test_a_delay_takes_its_time_in_each_direction(link: Link) -> None:
    reader, writer = await opened(link)
    link.delay(0.1)
    began_s = asyncio.get_running_loop().time()
    writer.write(b"a")
    assert await reader.readexactly(1) == b"a"
    assert asyncio.get_running_loop().time() - began_s >= 0.2


async def test_without_a_server_a_connection_ends(link: Link) -> None:
    alone = Link("alone", f"127.0.0.1:{free_ports(1)[0]}", free_ports(1)[0])
    await alone.start()
    try:
        reader, _ = await opened(alone)
        await eventually(lambda: ends(reader), "the connection ends")
    finally:
        await alone.stop()
