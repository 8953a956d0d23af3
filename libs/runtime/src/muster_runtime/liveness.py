"""Answers liveness probes from a thread of its own, which a busy event loop cannot stop.

A probe that the event loop answered itself would fail while the loop works on something long, and a supervisor would
end a process that lives. The thread answers at once: 200 while the loop turns, 503 when it has not turned although it
had much available time (``watchdog.py``). A process that gets no processor, or was stopped for a while, lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading

import structlog

from muster_runtime.addresses import listen
from muster_runtime.backoff import aligned_s
from muster_runtime.processor_time import own_usage
from muster_runtime.watchdog import Reading, Watchdog, look_every_s

log = structlog.get_logger(__name__)

# How often the watched loop notes that it turns.
_NOTE_S = 0.1
# A probe sends its request at once. Others are cut.
_REQUEST_S = 2.0
_HEAD_BYTES_MAX = 8 * 1024
_CONNECTIONS_MAX = 64
_STOP_S = 2.0
_PATHS = (b"/", b"/live", b"/livez", b"/health/live")


class Liveness:
    """The thread. The constructor binds the address.

    :param address: host:port; port 0: any free one.
    :param stall_s: the watched loop has stalled if it had so much available time since it turned.
    :param field: name of the setting with the address, for errors.
    :ivar port: the port that it listens on.

    The constructor raises ValueError for an invalid address and OSError if listening fails.
    """

    def __init__(self, address: str, stall_s: float, *, field: str = "live_address") -> None:
        self._socket = listen(field, address)
        self.port: int = self._socket.getsockname()[1]
        self._stall_s = stall_s
        self._turns = 0
        self._watchdog = Watchdog()
        self._is_stalled = False
        self._turning: asyncio.TimerHandle | None = None
        self._watched: asyncio.AbstractEventLoop | None = None
        self._answering = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="muster-liveness", daemon=True)
        self._open = 0

    async def start(self) -> None:
        """Watches the running loop, and answers from now on."""
        self._watched = asyncio.get_running_loop()
        self._note()
        self._thread.start()

    async def stop(self) -> None:
        """Ends the thread."""
        if self._turning is not None:
            self._turning.cancel()
        if not self._thread.is_alive():
            self._socket.close()
            self._answering.close()
            return
        self._answering.call_soon_threadsafe(self._answering.stop)
        await asyncio.to_thread(self._thread.join, _STOP_S)

    def _note(self) -> None:
        assert self._watched is not None
        self._turns += 1
        self._turning = self._watched.call_later(_NOTE_S, self._note)

    # ---- in the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        loop = self._answering
        asyncio.set_event_loop(loop)
        watching = loop.create_task(self._watch())
        try:
            server = loop.run_until_complete(
                asyncio.start_server(self._serve, sock=self._socket, limit=_HEAD_BYTES_MAX)
            )
            loop.run_forever()
            server.close()
            if watching.done():
                watching.result()
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
        except Exception:
            log.exception("liveness is not answered")
        finally:
            self._socket.close()
            loop.close()

    async def _watch(self) -> None:
        loop = self._answering
        while True:
            due_s = loop.time() + aligned_s(look_every_s(self._stall_s))
            await asyncio.sleep(due_s - loop.time())
            if self._watchdog.moves(self._turns):
                self._is_stalled = False
                continue
            now_s = loop.time()
            if self._watchdog.look(Reading(now_s, now_s - due_s, own_usage()), self._stall_s):
                self._is_stalled = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _CONNECTIONS_MAX:
                async with asyncio.timeout(_REQUEST_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(head))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # no probe
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _answer(self, head: bytes) -> bytes:
        method, _, tail = head.partition(b" ")
        path = tail.partition(b" ")[0].partition(b"?")[0]
        if path not in _PATHS:
            return _response("404 Not Found", {"status": "unknown path"}, method)
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", {"status": "expected GET or HEAD"}, method)
        if not self._is_stalled or self._watchdog.moves(self._turns):
            self._is_stalled = False
            return _response("200 OK", {"status": "live"}, method)
        stalled = {"status": "stalled", "stalled_s": round(self._watchdog.available_s, 1)}
        return _response("503 Service Unavailable", stalled, method)


def _response(status: str, content: dict[str, object], method: bytes) -> bytes:
    body = json.dumps(content).encode() + b"\n"
    lines = (f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(body)}")
    head = "".join(f"{line}\r\n" for line in (*lines, "connection: close", ""))
    return head.encode() + (b"" if method == b"HEAD" else body)
