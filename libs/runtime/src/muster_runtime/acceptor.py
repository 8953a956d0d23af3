"""Accepts the connections of a listening socket, few in each turn of the event loop.

asyncio's own servers accept as many as wait. Clients that connect and leave at once keep the kernel's queue full, so
each turn of the loop would serve a hundred of them before anything else has its turn (docs/security-neighbours.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable

import structlog

from muster_runtime.elapsed import elapsed_s

log = structlog.get_logger(__name__)

# Connections accepted in one turn. Each costs some 0.4 ms until it is answered, and a decision needs many turns. More
# would serve no more connections in a second: a turn without work costs 0.03 ms.
AT_ONCE = 2
# The system has no files or memory for a connection.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RETRY_S = 1.0
# Limits the log messages about that.
_LOGGED_EVERY_S = 60.0


class Acceptor:
    """Accepts connections while it is started. Has the methods of ``asyncio.Server`` that uvicorn uses.

    :param listener: a listening socket; :meth:`close` closes it.
    :param protocol: makes a connection's protocol.
    :param tls: None: plain text.
    :param handshake_s: time for TLS's handshake, in seconds.
    :param is_full: tells whether another connection is too many; it is closed.
    :ivar accepted: connections so far.
    """

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        handshake_s: float,
        is_full: Callable[[int], bool],
    ) -> None:
        self._listener, self._protocol, self._tls, self._handshake_s = listener, protocol, tls, handshake_s
        self._is_full = is_full
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._accepts = False
        self._logged_s = float("-inf")
        self.accepted = 0
        listener.setblocking(False)

    def start(self) -> None:
        """Accepts from now on. Raises OSError: the socket cannot be watched."""
        if not self._accepts:
            self._loop.add_reader(self._listener.fileno(), self._accept_some)
            self._accepts = True

    def pause(self) -> None:
        """Accepts no more until :meth:`start`. Another process may accept meanwhile, or clients wait."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._accepts:
            self._loop.remove_reader(self._listener.fileno())
            self._accepts = False

    def close(self) -> None:
        """Accepts no more, and closes the socket."""
        self.pause()
        for task in self._opening:
            task.cancel()
        self._listener.close()

    async def wait_closed(self) -> None:
        """Returns when no connection is being opened."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _accept_some(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._rest(error)
                return
            self.accepted += 1
            if self._is_full(len(self._opening)):
                connection.close()
                continue
            task = self._loop.create_task(self._open(connection), name="http connection")
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        handshake_s = self._handshake_s if self._tls is not None else None
        try:
            await self._loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
        except (OSError, ssl.SSLError, TimeoutError):  # the client left, or speaks no TLS
            connection.close()
        except BaseException:
            connection.close()
            raise

    def _rest(self, error: OSError) -> None:
        """Waits for files: the socket stays readable."""
        self.pause()
        self._retry = self._loop.call_later(_RETRY_S, self._start_again)
        now_s = elapsed_s()
        if now_s - self._logged_s >= _LOGGED_EVERY_S:
            self._logged_s = now_s
            log.warning("no connection can be accepted", error=error.strerror, again_after_s=_RETRY_S)

    def _start_again(self) -> None:
        self._retry = None
        with contextlib.suppress(OSError, ValueError):
            self.start()
