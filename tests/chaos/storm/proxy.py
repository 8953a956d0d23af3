"""A TCP proxy between two processes: it cuts connections, holds their bytes back, and delays them."""

from __future__ import annotations

import asyncio
import contextlib

_PIECE_BYTES = 1 << 16


class Link:
    """Forwards each connection to a target. A fault concerns all connections of the link.

    :param name: as the plan names it.
    :param target: host:port.
    :ivar port: where it listens on 127.0.0.1; it stays the same through all faults.
    """

    def __init__(self, name: str, target: str, port: int) -> None:
        self.name, self.target, self.port = name, target, port
        self._delay_s = 0.0
        self._is_cut = False
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Ends all connections and closes the port."""
        if self._server is not None:
            self._server.close()
        self._abort()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    # ---- faults ----------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Resets all connections, and each new one at once, until :meth:`mend`."""
        self._is_cut = True
        self._abort()

    def stall(self) -> None:
        """Holds all bytes back until :meth:`mend`. Connections stay open, as behind a broken switch."""
        self._flows.clear()

    def delay(self, seconds: float) -> None:
        """Each piece of bytes takes so long in each direction, until :meth:`mend`."""
        self._delay_s = seconds

    def mend(self) -> None:
        self._is_cut, self._delay_s = False, 0.0
        self._flows.set()

    # ---- connections -----------------------------------------------------------------------------------------------

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._writers.add(writer)
        try:
            if not self._is_cut:
                await self._forward(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._serving.discard(task)
            self._writers.discard(writer)
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        self._writers.add(there_writer)
        try:
            if not self._is_cut:
                await asyncio.gather(self._pump(reader, there_writer), self._pump(there_reader, writer))
        finally:
            self._writers.discard(there_writer)
            there_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(_PIECE_BYTES):
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            await self._flows.wait()
            writer.write(piece)
            await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            writer.write_eof()
