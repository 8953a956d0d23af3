"""Ends gRPC connections that flood or are too many (connections.py), from a thread that no busy loop stops.

The thread reviews the connections five times a second, and at once when one without a call sends something, or a new
one comes. It uses a tenth of a core at most, and at once what it has saved, up to 50 ms: a flood brings 100 KB in a
millisecond. With thousands of connections, or of other open files, it reviews them less often.

What a flooding connection sends is dropped at once, and the connection is reset a second later. So its client does not
come again meanwhile, and gRPC has little of it: when a connection ends within a header block, gRPC passes a call with
all headers that came to the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection

import structlog
from muster_runtime.process_stats import return_memory
from muster_runtime.tcp_sockets import AcceptedSockets, TcpSocket

from muster_gateway import metrics
from muster_gateway.connections import Accounts, Bounds, ConnectionPolicy, Ending, Review
from muster_gateway.errors import OverLimit
from muster_gateway.log_throttle import LogThrottle

log = structlog.get_logger(__name__)

_INTERVAL_S, _ALARMED_S, _SPACING_S, _SPACING_MAX_S = 0.2, 0.02, 0.001, 2.0
# A listener wakes the thread before gRPC accepts the connection.
_ACCEPTED_S = 0.002
# Of a core: what reviews may use in the long run, and what may be saved for later ones.
_SHARE, _SAVED_S = 1 / 10, 0.05
_LOGGED_S = 60.0
_TRIM_EVERY_S, _TRIM_FOR_S = 5.0, 45.0
_HOSTS_LOGGED = 5
_STOP_S = 2.0

Ended = Callable[[str, OverLimit], None]


class Budget:
    """Processor time that comes in at a steady rate, and may be saved up to a limit.

    :param share: seconds that come in a second.
    :param saved_s: the limit, and what is there at the beginning.
    """

    def __init__(self, share: float, saved_s: float, now_s: float) -> None:
        self._share, self._most_s, self._left_s, self._now_s = share, saved_s, saved_s, now_s

    def use(self, used_s: float) -> None:
        """So much was used; also more than there was."""
        self._left_s -= used_s

    def wait_s(self, now_s: float) -> float:
        """Returns how long to wait until nothing is owed."""
        self._left_s = min(self._most_s, self._left_s + (now_s - self._now_s) * self._share)
        self._now_s = now_s
        return max(0.0, -self._left_s / self._share)


class ConnectionGuard:
    """The thread.

    :param ended: called in the event loop with each host that lost connections, and the limit; once in each review.
    """

    def __init__(self, accounts: Accounts, bounds: Bounds, ended: Ended) -> None:
        self._accounts, self._bounds, self._ended = accounts, bounds, ended
        self._policy = ConnectionPolicy(bounds)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._due, self._failing = LogThrottle(_LOGGED_S), LogThrottle(_LOGGED_S)
        self._trim_s = self._trim_until_s = float("-inf")
        # Descriptors that wake the thread, and their cookies.
        self._waking: dict[int, int] = {}
        # Of the next line of the log.
        self._reasons: Counter[Ending] = Counter()
        self._hosts: Counter[str] = Counter()

    def start(self, ports: Collection[int]) -> None:
        """Begins to guard the connections that were accepted on some ports. Called in the event loop."""
        try:
            sockets = AcceptedSockets(ports)
        except OSError as error:
            log.warning("grpc connections are bounded in number only", why=str(error))
            return
        self._accounts.guarded = True
        run = (sockets, asyncio.get_running_loop())
        self._thread = threading.Thread(target=self._run, args=run, name="muster-connections", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Ends the thread."""
        self._stopping.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _STOP_S)

    # ---- in the thread ---------------------------------------------------------------------------------------------

    def _run(self, sockets: AcceptedSockets, loop: asyncio.AbstractEventLoop) -> None:
        interval_s, poll, budget = _INTERVAL_S, select.epoll(), Budget(_SHARE, _SAVED_S, time.monotonic())
        try:
            while not self._stopping.wait(min(max(_SPACING_S, budget.wait_s(time.monotonic())), _SPACING_MAX_S)):
                began_s = time.thread_time()
                try:
                    coming = sockets.has_waiting()
                    review = self._review(sockets, loop)
                    interval_s = _ACCEPTED_S if coming else _ALARMED_S if review.alarmed else _INTERVAL_S
                    self._wake_for(poll, sockets, review)
                except Exception:  # the next review may succeed
                    if self._failing.suppressed_if_due() is not None:
                        log.exception("grpc connections could not be reviewed")
                budget.use(time.thread_time() - began_s)
                poll.poll(interval_s)
        finally:
            poll.close()
            sockets.close()

    def _wake_for(self, poll: select.epoll, sockets: AcceptedSockets, review: Review) -> None:
        """Has the next review begin when a connection comes, or one without a call sends something."""
        waking = {connection.descriptor: connection.cookie for connection in review.quiet} | dict.fromkeys(
            sockets.listeners, 0
        )
        for descriptor in [number for number, cookie in self._waking.items() if waking.get(number) != cookie]:
            with contextlib.suppress(OSError):  # it is closed
                poll.unregister(descriptor)
        for descriptor in [number for number, cookie in waking.items() if self._waking.get(number) != cookie]:
            with contextlib.suppress(OSError):
                poll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        self._waking = waking

    def _review(self, sockets: AcceptedSockets, loop: asyncio.AbstractEventLoop) -> Review:
        statements = self._accounts.statements()
        review = self._policy.review(sockets.connections(), statements, time.monotonic())
        for connection in review.pausing:
            sockets.pause(connection)
        for connection in review.resuming:
            sockets.resume(connection)
        ended = [(connection, reason) for connection, reason in review.ending if sockets.end(connection)]
        metrics.connections_open.set(review.open)
        for connection, reason in ended:
            metrics.connections_ended.labels(reason).inc()
            self._reasons[reason] += 1
            self._hosts[connection.host] += 1
        self._log()
        self._return_memory(flooded=any(reason is Ending.FLOOD for _, reason in ended))
        if ended or review.closed:
            try:
                loop.call_soon_threadsafe(self._finish, ended, review)
            except RuntimeError:  # the loop has ended
                self._stopping.set()
        return review

    def _return_memory(self, *, flooded: bool) -> None:
        """Returns what a flood brought: gRPC frees it within half a minute, and the allocator would keep it."""
        now_s = time.monotonic()
        if flooded:
            self._trim_until_s = now_s + _TRIM_FOR_S
        if self._trim_s <= now_s < self._trim_until_s:
            self._trim_s = now_s + _TRIM_EVERY_S
            return_memory()

    def _log(self) -> None:
        if self._reasons and self._due.suppressed_if_due() is not None:
            log.warning(
                "grpc connections ended",
                **{reason.value: number for reason, number in self._reasons.items()},
                hosts=[f"{host}: {number}" for host, number in self._hosts.most_common(_HOSTS_LOGGED)],
                limits={"all": self._bounds.connections, "of_host": self._bounds.of_host},
            )
            self._reasons.clear()
            self._hosts.clear()

    # ---- in the event loop -----------------------------------------------------------------------------------------

    def _finish(self, ended: list[tuple[TcpSocket, Ending]], review: Review) -> None:
        self._accounts.drop(review.closed)
        for host, reason in dict.fromkeys((connection.host, reason) for connection, reason in ended):
            self._ended(host, OverLimit(self._words(host, reason)))

    def _words(self, host: str, reason: Ending) -> str:
        bounds = self._bounds
        if reason is Ending.FLOOD:
            return (
                f"a connection of {host} sent more that belongs to no call than expected, at most {bounds.quiet_bytes} "
                "bytes (gateway.connections.max_quiet_bytes)"
            )
        if reason is Ending.TOO_MANY_OF_HOST:
            return (
                f"{host} has too many connections, expected at most {bounds.of_host} "
                "(gateway.connections.max_per_peer): idle ones end"
            )
        return f"too many connections, expected at most {bounds.connections} (gateway.connections.max): idle ones end"
