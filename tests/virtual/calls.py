"""gRPC without sockets: calls between objects of one event loop, as ``grpc.aio`` has them on both sides.

:class:`Server` takes what a gateway offers (handlers by path, behind interceptors), :class:`Channel` makes calls to the
servers of a :class:`Network`. A call is two pipes of bytes with a window: a writer waits while its reader takes
nothing. ``tests/contract/test_calls.py`` runs over these and over real gRPC.

A :class:`Line` is the connection of a channel with a server. It can break, stop (nothing arrives until it goes on), and
be slow.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import grpc
import grpc.aio
from grpc.aio import AbortError, AioRpcError, InternalError, Metadata, UsageError

WINDOW_BYTES = 1 << 16
_Code = grpc.StatusCode
_NOWHERE = contextvars.Context()  # of nobody: what is called with it happens whoever ends meanwhile
_AWAY = "failed to connect to all addresses"
_BROKEN = "Socket closed"
_NOT_WRITTEN = "Internal error from Core"


def later(delay_s: float, call: Callable[..., None], *args: Any) -> None:
    """Calls back after a time, whoever ends meanwhile."""
    loop = asyncio.get_running_loop()
    if delay_s > 0:
        loop.call_later(delay_s, partial(call, *args), context=_NOWHERE)
    else:
        loop.call_soon(partial(call, *args), context=_NOWHERE)


class Status(NamedTuple):
    """How a call ended."""

    code: grpc.StatusCode
    details: str
    trailing: tuple[tuple[str, str | bytes], ...] = ()


class Details(NamedTuple):
    """As of grpc.HandlerCallDetails."""

    method: str
    invocation_metadata: tuple[tuple[str, str | bytes], ...]


class _Pipe:
    """One direction of a call.

    :param is_back: it is that of the answers.
    :ivar is_closed: nothing more comes.
    """

    __slots__ = ("_is_back", "_is_over", "_items", "_line", "_reader", "_size", "_writer", "is_closed")

    def __init__(self, line: Line, *, is_back: bool = False) -> None:
        self._line, self._is_back = line, is_back
        self._items: deque[bytes] = deque()
        self._size = 0
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self.is_closed = self._is_over = False

    @property
    def is_drained(self) -> bool:
        return not self._items

    async def put(self, item: bytes) -> bool:
        """Adds the item, and returns when the window has room for it. False: the call is over.

        A writer that is cancelled has written, as with gRPC.
        """
        if self._is_over:
            return False
        self._items.append(item)
        self._size += len(item)
        self.look()
        while self._is_full() and not self._is_over:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer
        return not self._is_over

    async def get(self) -> bytes | None:
        """Returns the next item; None: there will be none."""
        line = self._line
        while True:
            if self._is_over:
                return None
            if not self._is_stopped():
                if self._items and line.delay_s > 0:
                    await asyncio.sleep(line.delay_s)
                if self._items and not self._is_stopped():
                    item = self._items.popleft()
                    self._size -= len(item)
                    self._make_room()
                    return item
                if self.is_closed and not self._items:
                    return None
            if self._is_stopped() or (not self._items and not self._is_over):
                self._reader = asyncio.get_running_loop().create_future()
                await self._reader

    def close(self) -> None:
        """Nothing more comes; what is in is read."""
        self.is_closed = True
        self.look()

    def end(self) -> None:
        """The call is over: what is in is lost."""
        self._is_over = True
        self._items.clear()
        for waiter in (self._reader, self._writer):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def look(self) -> None:
        """Lets the reader look again, and the writer if there is room."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        self._make_room()

    def _is_stopped(self) -> bool:
        return self._line.is_stopped or (self._is_back and self._line.is_deaf)

    def _is_full(self) -> bool:
        return self._size > self._line.window_bytes or (self._is_back and self._line.is_clogged)

    def _make_room(self) -> None:
        if self._writer is not None and not self._writer.done() and not self._is_full():
            self._writer.set_result(None)


class Line:
    """A connection.

    :ivar is_stopped: nothing arrives now, in both directions.
    :ivar is_deaf: nothing reaches the client; what it says arrives.
    :ivar is_clogged: beside that, its window is full: the server's writes wait.
    :ivar delay_s: each message takes so long.
    :ivar window_bytes: a writer waits when so much is not read.
    """

    def __init__(self, network: Network, peer: str, server: Server) -> None:
        self.window_bytes = network.window_bytes
        self.peer, self.server = peer, server
        self.is_stopped = self.is_deaf = self.is_clogged = self.is_broken = False
        self.delay_s = 0.0
        self._network = network
        self.calls: dict[Rpc, None] = {}
        self.left: list[Rpc] = []  # cancelled while nothing arrives

    def stop(self) -> None:
        """Nothing arrives from now on."""
        self.is_stopped = True

    def go_on(self) -> None:
        """All arrives again."""
        self.is_stopped = self.is_deaf = self.is_clogged = False
        self.delay_s = 0.0
        for call in list(self.calls):
            call.requests.look()
            call.responses.look()
            call.look()
        self._tell_left()

    def snap(self, details: str = _BROKEN) -> None:
        """Ends the connection: both sides notice, each at its time."""
        if self.is_broken:
            return
        self.is_broken = True
        self.server.lines.pop(self, None)
        for call in list(self.calls):
            later(self._network.delay_s(), call.lose, Status(_Code.UNAVAILABLE, details))
            later(self._network.delay_s(), call.client_left)
        self._tell_left()

    def _tell_left(self) -> None:
        for call in self.left:
            later(self._network.delay_s(), call.client_left)
        self.left.clear()


class Rpc:
    """What both sides of a call share.

    :ivar status: None: the call goes on, as the client sees it.
    """

    def __init__(
        self, line: Line, path: str, metadata: Sequence[tuple[str, str | bytes]], ends_s: float | None
    ) -> None:
        self.line, self.path, self.ends_s = line, path, ends_s
        self.metadata = tuple((key, value) for key, value in metadata)
        self.requests, self.responses = _Pipe(line), _Pipe(line, is_back=True)
        self.status: Status | None = None
        self.is_cancelled = False  # by the client
        self.has_left = False  # the client, as the server knows
        self.is_cut = False  # the server's process has ended: nothing that it does reaches the client
        self.headers: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.handler: asyncio.Task[None] | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._callbacks: list[Callable[[], None]] = []
        self._coming: Status | None = None
        self._deadline: asyncio.TimerHandle | None = None
        line.calls[self] = None
        if ends_s is not None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_at(ends_s, self._too_late, context=_NOWHERE)

    # ---- as the client sees it ---------------------------------------------------------------------------------------

    async def ended(self) -> Status:
        """Returns the status when there is one."""
        if self.status is None:
            await asyncio.shield(self._done)
        assert self.status is not None
        return self.status

    def on_done(self, call: Callable[[], None]) -> None:
        if self.status is not None:
            asyncio.get_running_loop().call_soon(call)
        else:
            self._callbacks.append(call)

    def lose(self, status: Status) -> None:
        """The client gets this status now. What was not read is lost."""
        if self.status is not None:
            return
        self.status = status
        if self._deadline is not None:
            self._deadline.cancel()
        self.line.calls.pop(self, None)
        self.responses.end()
        self.requests.close()
        for future in (self.headers, self._done):
            if not future.done():
                future.set_result(None)
        for call in self._callbacks:
            asyncio.get_running_loop().call_soon(call)
        self._callbacks.clear()

    def cancel(self, status: Status) -> bool:
        if self.status is not None:
            return False
        self.is_cancelled = True
        self.lose(status)
        if self.line.is_stopped:
            self.line.left.append(self)
        else:
            later(0.0, self.client_left)
        return True

    def look(self) -> None:
        """The client has read: if the status is behind what it read, it has it now."""
        if self._coming is not None and self.responses.is_drained and not (self.line.is_stopped or self.line.is_deaf):
            self.lose(self._coming)

    # ---- as the server sees it ---------------------------------------------------------------------------------------

    def open(self) -> None:
        """The server sends its headers."""
        if not self.headers.done() and not self.is_cut:
            self.headers.set_result(None)

    def finish(self, status: Status) -> None:
        """The server ends the call. The client gets its status behind all that was written."""
        if self._coming is None and not self.is_cut:
            self._coming = status
            self.requests.end()
            self.responses.close()
            self.look()

    @property
    def is_finished(self) -> bool:
        return self._coming is not None

    def client_left(self) -> None:
        """The server hears that the client left, unless the call has ended."""
        if self.has_left or self._coming is not None:
            return
        self.has_left = True
        self.requests.end()
        self.responses.end()
        self.line.calls.pop(self, None)
        if self.handler is not None and not self.handler.done():
            self.handler.cancel()

    def _too_late(self) -> None:
        self.cancel(Status(_Code.DEADLINE_EXCEEDED, "Deadline Exceeded"))


# ---- the server's side ----------------------------------------------------------------------------------------------


class Context:
    """The used part of ``grpc.aio.ServicerContext``."""

    def __init__(self, rpc: Rpc, handler: Any) -> None:
        self._rpc, self._handler = rpc, handler
        self._aborted: AbortError | None = None
        self._code: Any = 0
        self._details = ""
        self._trailing: tuple[tuple[str, str | bytes], ...] = ()
        self._said_open = False

    async def read(self) -> Any:
        self._must_run()
        raw = await self._rpc.requests.get()
        if raw is None:
            return grpc.aio.EOF
        decode = self._handler.request_deserializer
        return raw if decode is None else decode(raw)

    async def write(self, message: Any) -> None:
        self._must_run()
        encode = self._handler.response_serializer
        raw = message if encode is None else encode(message)
        if self._rpc.has_left or self._rpc.is_cut:
            raise InternalError('Failed "execute_batch": the call is over')
        self._said_open = True
        self._rpc.open()
        if not await self._rpc.responses.put(raw):
            raise InternalError('Failed "execute_batch": the call is over')

    async def send_initial_metadata(self, metadata: Any) -> None:
        self._must_run()
        if self._said_open:
            raise UsageError("Send initial metadata failed: already sent")
        if self._rpc.has_left:
            raise InternalError('Failed "execute_batch": the call is over')
        self._said_open = True
        self._rpc.open()
        await asyncio.sleep(0)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        if self._aborted is not None:
            raise UsageError("Abort already called!")
        self._aborted = AbortError("Locally aborted.")
        self._code, self._details = code, details
        self._rpc.finish(Status(code, details, tuple(trailing_metadata) or self._trailing))
        raise self._aborted

    def set_trailing_metadata(self, metadata: Any) -> None:
        self._trailing = tuple(metadata)

    def invocation_metadata(self) -> Any:
        return self._rpc.metadata

    def peer(self) -> str:
        return self._rpc.line.peer

    def auth_context(self) -> dict[str, Any]:
        return {}

    def time_remaining(self) -> float | None:
        if self._rpc.ends_s is None:
            return None
        return max(0.0, self._rpc.ends_s - asyncio.get_running_loop().time())

    def code(self) -> Any:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return self._trailing

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def done(self) -> bool:
        return self._rpc.is_finished or self._rpc.has_left

    def cancelled(self) -> bool:
        return self._rpc.has_left

    def finish(self) -> None:
        """Sends the status of a handler that returned."""
        code = self._code if isinstance(self._code, grpc.StatusCode) else _Code.OK
        self._rpc.open()
        self._rpc.finish(Status(code, self._details, self._trailing))

    def _must_run(self) -> None:
        if self._aborted is not None:
            raise self._aborted
        if self._rpc.is_finished:
            raise UsageError("RPC already finished.")


class Server:
    """A gRPC server without a socket.

    :param task: makes its tasks; None: the running loop does.
    """

    def __init__(self, network: Network, task: Callable[[Any], Any] | None = None) -> None:
        self._network = network
        self._task = task
        self._interceptors: tuple[Any, ...] = ()
        self._handlers: tuple[Any, ...] = ()
        self.lines: dict[Line, None] = {}
        self.serves = False
        self._running: dict[asyncio.Task[None], None] = {}

    def start(self, interceptors: Sequence[Any], handlers: Sequence[Any]) -> None:
        """Takes calls from now on."""
        self._interceptors, self._handlers = tuple(interceptors), tuple(handlers)
        self.serves = True

    async def stop(self, grace_s: float) -> None:
        """Takes no more calls. Open ones may end within ``grace_s``."""
        self.serves = False
        if self._running:
            await asyncio.wait(list(self._running), timeout=grace_s)
        for line in list(self.lines):
            line.snap("the server stops")
        for task in list(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(list(self._running), timeout=1.0)

    def vanish(self) -> None:
        """Its process has ended: all connections end, and no handler hears of it."""
        self.serves = False
        for line in list(self.lines):
            for call in line.calls:
                call.handler, call.is_cut = None, True
            line.snap()

    def take(self, rpc: Rpc) -> None:
        """Begins a call."""
        work = self._serve(rpc)
        task = self._task(work) if self._task is not None else asyncio.get_running_loop().create_task(work)
        rpc.handler = task
        self._running[task] = None
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a handler failed", "exception": task.exception(), "task": task}
            )

    async def _serve(self, rpc: Rpc) -> None:
        details = Details(rpc.path, rpc.metadata)
        handler = await self._found(iter(self._interceptors), details)
        if handler is None:
            rpc.finish(Status(_Code.UNIMPLEMENTED, "Method not found!"))
            return
        context = Context(rpc, handler)
        try:
            await _answer(handler, context)
        except AbortError:
            return
        except asyncio.CancelledError:
            if not rpc.is_finished:
                rpc.finish(Status(_Code.CANCELLED, "the handler was cancelled"))
            raise
        except Exception as error:
            if not rpc.is_finished and not rpc.has_left:
                rpc.finish(Status(_Code.UNKNOWN, f"Unexpected {type(error)}: {error}"))
                raise
            return
        if not rpc.is_finished:
            context.finish()

    async def _found(self, interceptors: Iterator[Any], details: Details) -> Any:
        interceptor = next(interceptors, None)
        if interceptor is not None:
            return await interceptor.intercept_service(partial(self._found, interceptors), details)
        for each in self._handlers:
            handler = each.service(details)
            if handler is not None:
                return handler
        return None


async def _answer(handler: Any, context: Context) -> None:
    if handler.request_streaming:
        given: Any = _messages(context)
    else:
        given = await context.read()
    kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    result = next(each for each in kinds if each is not None)(given, context)
    if hasattr(result, "__aiter__"):
        async for each in result:
            await context.write(each)
        return
    answer = await result
    if not handler.response_streaming:
        await context.write(answer)


async def _messages(context: Context) -> AsyncIterator[Any]:
    while (message := await context.read()) is not grpc.aio.EOF:
        yield message


# ---- the client's side ----------------------------------------------------------------------------------------------


class Network:
    """Who serves under which name, and how long things take.

    :param delay_s: returns after how long one side notices what happened to the other.
    :ivar window_bytes: of new connections.
    """

    def __init__(self, delay_s: Callable[[], float] = lambda: 0.0) -> None:
        self.window_bytes = WINDOW_BYTES
        self.delay_s = delay_s
        self.servers: dict[str, Server] = {}


class Channel:
    """The used part of ``grpc.aio.Channel``.

    :param names: of servers; the channel stays with one as long as its connection holds.
    :param peer: as servers see it.
    :param without: metadata that its calls do not have.
    :param first_port: of its connections, less one.
    """

    def __init__(
        self,
        network: Network,
        names: Sequence[str],
        peer: str,
        *,
        without: frozenset[str] = frozenset(),
        first_port: int = 40000,
    ) -> None:
        self._network, self._names, self._peer, self._without = network, tuple(names), peer, without
        self._first_port = first_port
        self._next = 0
        self.line: Line | None = None
        self._is_closed = False
        self.opened = 0

    def unary_unary(self, method: str, **coding: Any) -> Callable[..., Any]:
        return partial(self._unary, method, coding)

    def unary_stream(self, method: str, **coding: Any) -> Callable[..., Any]:
        return partial(self._streamed, method, coding)

    def stream_stream(self, method: str, **coding: Any) -> Callable[..., Any]:
        return partial(self._stream, method, coding)

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    async def close(self, grace: float | None = None) -> None:
        self.leave()

    def leave(self) -> None:
        """Ends all calls and the connection."""
        self._is_closed = True
        line, self.line = self.line, None
        if line is not None:
            for call in list(line.calls):
                call.cancel(Status(_Code.CANCELLED, "Channel closed."))
            line.snap()

    def connection(self) -> Line | None:
        """Returns the connection; a new one if there is none. None: nobody serves."""
        if self.line is not None and not self.line.is_broken and self.line.server.serves:
            return self.line
        self.line = None
        for step in range(len(self._names)):
            place = (self._next + step) % len(self._names)
            server = self._network.servers.get(self._names[place])
            if server is not None and server.serves:
                self._next = (place + 1) % len(self._names)
                self.opened += 1
                self.line = Line(self._network, f"{self._peer}:{self._first_port + self.opened}", server)
                server.lines[self.line] = None
                return self.line
        return None

    def _begin(self, path: str, metadata: Any, timeout: float | None) -> Rpc:
        line = None if self._is_closed else self.connection()
        metadata = [each for each in metadata or () if each[0] not in self._without]
        loop = asyncio.get_running_loop()
        ends_s = None if timeout is None else loop.time() + timeout
        if line is None:
            nowhere = Line(self._network, self._peer, Server(self._network))
            rpc = Rpc(nowhere, path, metadata, ends_s)
            later(self._network.delay_s(), rpc.lose, Status(_Code.UNAVAILABLE, _AWAY))
            return rpc
        rpc = Rpc(line, path, metadata, ends_s)
        line.server.take(rpc)
        return rpc

    def _stream(
        self,
        path: str,
        coding: dict[str, Any],
        requests: Any = None,
        *,
        metadata: Any = None,
        timeout: float | None = None,
    ) -> Any:
        call = StreamCall(self._begin(path, metadata, timeout), coding)
        if requests is not None:
            call.send_all(requests)
        return call

    def _streamed(
        self, path: str, coding: dict[str, Any], request: Any, *, metadata: Any = None, timeout: float | None = None
    ) -> Any:
        rpc = self._begin(path, metadata, timeout)
        _send_one(rpc, coding, request)
        return StreamCall(rpc, coding)

    def _unary(
        self, path: str, coding: dict[str, Any], request: Any, *, metadata: Any = None, timeout: float | None = None
    ) -> Any:
        rpc = self._begin(path, metadata, timeout)
        _send_one(rpc, coding, request)
        return UnaryCall(rpc, coding)


def _send_one(rpc: Rpc, coding: dict[str, Any], request: Any) -> None:
    encode = coding.get("request_serializer")
    raw = request if encode is None else encode(request)
    rpc.requests._items.append(raw)
    rpc.requests._size += len(raw)
    rpc.requests.close()


class _Call:
    def __init__(self, rpc: Rpc, coding: dict[str, Any]) -> None:
        self._rpc = rpc
        self._encode, self._decode = coding.get("request_serializer"), coding.get("response_deserializer")

    async def initial_metadata(self) -> Metadata:
        await asyncio.shield(self._rpc.headers)
        return Metadata()

    async def trailing_metadata(self) -> Metadata:
        return Metadata(*(await self._rpc.ended()).trailing)

    async def code(self) -> grpc.StatusCode:
        return (await self._rpc.ended()).code

    async def details(self) -> str:
        return (await self._rpc.ended()).details

    def done(self) -> bool:
        return self._rpc.status is not None

    def cancelled(self) -> bool:
        return self._rpc.status is not None and self._rpc.status.code is _Code.CANCELLED

    def cancel(self) -> bool:
        return self._rpc.cancel(Status(_Code.CANCELLED, "Locally cancelled by application!"))

    def add_done_callback(self, call: Callable[[Any], None]) -> None:
        self._rpc.on_done(partial(call, self))

    async def _raise_for_status(self) -> None:
        if self._rpc.is_cancelled and self.cancelled():
            raise asyncio.CancelledError
        status = await self._rpc.ended()
        if status.code is not _Code.OK:
            raise AioRpcError(status.code, Metadata(), Metadata(*status.trailing), status.details)

    async def _read(self) -> Any:
        try:
            raw = await self._rpc.responses.get()
        except asyncio.CancelledError:
            self.cancel()
            raise
        self._rpc.look()
        if raw is None:
            return grpc.aio.EOF
        return raw if self._decode is None else self._decode(raw)


class StreamCall(_Call):
    """A call that answers with a stream."""

    def __init__(self, rpc: Rpc, coding: dict[str, Any]) -> None:
        super().__init__(rpc, coding)
        self._is_half_closed = False
        self._sending: asyncio.Task[None] | None = None

    def send_all(self, requests: Any) -> None:
        """Writes what an iterable has, and then no more."""
        self._sending = asyncio.get_running_loop().create_task(self._send_all(requests))

    async def _send_all(self, requests: Any) -> None:
        try:
            if hasattr(requests, "__aiter__"):
                async for request in requests:
                    await self.write(request)
            else:
                for request in requests:
                    await self.write(request)
            await self.done_writing()
        except (AioRpcError, asyncio.InvalidStateError):
            return  # the call is over, as its reader hears

    async def read(self) -> Any:
        if not self.done():
            found = await self._read()
            if found is not grpc.aio.EOF:
                return found
        await self._raise_for_status()
        return grpc.aio.EOF

    async def write(self, message: Any) -> None:
        if self.done():
            raise asyncio.InvalidStateError("RPC already finished.")
        if self._is_half_closed:
            raise asyncio.InvalidStateError('RPC is half closed after calling "done_writing".')
        raw = message if self._encode is None else self._encode(message)
        try:
            if not await self._rpc.requests.put(raw):
                # A write that meets the end of the call hides its reason.
                self._rpc.lose(Status(_Code.INTERNAL, _NOT_WRITTEN))
                await self._raise_for_status()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self.done():
            await self._raise_for_status()

    async def done_writing(self) -> None:
        if not self.done() and not self._is_half_closed:
            self._is_half_closed = True
            self._rpc.requests.close()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._all()

    async def _all(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message


class UnaryCall(_Call):
    """A call with one request and one answer."""

    def __init__(self, rpc: Rpc, coding: dict[str, Any]) -> None:
        super().__init__(rpc, coding)
        self._answering = asyncio.get_running_loop().create_task(self._invoke())

    def cancel(self) -> bool:
        if super().cancel():
            self._answering.cancel()
            return True
        return False

    async def _invoke(self) -> Any:
        try:
            answer = await self._read()
            status = await self._rpc.ended()
        except asyncio.CancelledError:
            super().cancel()
            return grpc.aio.EOF
        return answer if status.code is _Code.OK else grpc.aio.EOF

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            answer = yield from asyncio.shield(self._answering).__await__()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if answer is not grpc.aio.EOF:
            return answer
        status = self._rpc.status
        assert status is not None
        if self._rpc.is_cancelled and status.code is _Code.CANCELLED:
            raise asyncio.CancelledError
        raise AioRpcError(status.code, Metadata(), Metadata(*status.trailing), status.details)
