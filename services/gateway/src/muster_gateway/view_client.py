"""Asks the view over HTTP for gRPC's callers: explanations, dumps and figures, which only the view has.

The view is a Target of ``http_front``: an application in this process, or a service behind a URL. The client asks
either as an HTTP client would, without compression. A whole answer is bounded in size and time. A streamed body is
bounded in the size of each piece and in the time between two pieces.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlencode

import structlog
from muster_runtime.caller import Caller, current
from muster_runtime.default_rm import default_rm_header
from muster_runtime.elapsed import elapsed_s
from muster_runtime.gateway_note import GatewayNote
from muster_runtime.identity import GATEWAY
from muster_runtime.positions import ReadRefused, wait_of
from muster_runtime.read_scope import ReadScope
from muster_si.positions import AFTER_METADATA, WAIT_METADATA

from muster_gateway.errors import InvalidRequest, OverLimit, ViewUnavailable
from muster_gateway.http_front import HttpBackend

log = structlog.get_logger(__name__)

T = TypeVar("T")

# Size of one gRPC message: well under any client's limit (4 MiB by default).
PIECE_BYTES = 64 * 1024
# Number of the view's messages that wait for the reader of a streamed body.
_AHEAD = 1
_CANCEL_AGAIN_S = 1.0
_BAD, _UNAVAILABLE = 400, 503
# A read with a small answer.
_SMALL = "/ws/v1/resource-managers"
# A read that names a position may take so much longer; the view itself ends the wait before.
_AFTER_S = 65.0


@dataclass(frozen=True, slots=True)
class ViewAnswer:
    """A whole answer.

    :param status: HTTP's.
    """

    status: int
    body: bytes

    def json(self) -> Any:
        """Parses the body. Raises ViewUnavailable if it is no JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise ViewUnavailable("the view's answer is not JSON: try again") from None


@dataclass(frozen=True, slots=True)
class ViewBody:
    """An answer whose body comes in pieces of 1 to PIECE_BYTES bytes, as they are read."""

    status: int
    pieces: AsyncIterator[bytes]


class ViewClient:
    """See the module's docstring.

    :param timeout_s: longest wait for a whole answer, and for the next piece of a streamed one.
    :param max_bytes: of a whole answer.
    :param default_rm: the RM of a request that names none, where there are several; "": none.
    :param note: returns what the view needs for its texts.
    """

    def __init__(
        self,
        view: HttpBackend,
        timeout_s: float,
        max_bytes: int,
        default_rm: str = "",
        note: Callable[[], GatewayNote] = GatewayNote,
    ) -> None:
        self._view, self._timeout_s, self._max_bytes = view, timeout_s, max_bytes
        self._default_rm, self._note = default_rm, note

    async def get(
        self,
        path: str,
        rm_id: str = "",
        query: Mapping[str, str] | None = None,
        reach: ReadScope | None = None,
        *,
        any_status: bool = False,
    ) -> ViewAnswer:
        """Returns the view's answer to a GET, whatever its status.

        :param path: from :func:`path_of`.
        :param rm_id: the RM; "": the only one.
        :param reach: what the answer may show; None: what the present caller may read.
        :param any_status: an answer with status 503 is one, too.

        Raises ViewUnavailable if no answer comes in time, if it breaks off, or if the view cannot be reached (status
        503). Raises OverLimit if the answer is over ``max_bytes``.
        """
        timeout_s = self._timeout_s + (_AFTER_S if current().after else 0)
        try:
            async with asyncio.timeout(timeout_s), self.open(path, rm_id, query, reach, any_status) as answer:
                body = bytearray()
                async for piece in answer.pieces:
                    body += piece
                    if len(body) > self._max_bytes:
                        raise OverLimit(f"the view's answer is over {self._max_bytes:,} bytes: ask {path} by HTTP")
                return ViewAnswer(answer.status, bytes(body))
        except TimeoutError:
            raise ViewUnavailable(f"the view did not answer within {timeout_s:g} s: try again") from None

    async def wait_for_position(self) -> None:
        """Returns when the view shows the position that the present caller named, if it named one. Callers that take a
        place for their reads wait here before.

        Raises InvalidRequest, ViewUnavailable.
        """
        if current().after:
            await self.get(_SMALL)

    @asynccontextmanager
    async def open(
        self,
        path: str,
        rm_id: str = "",
        query: Mapping[str, str] | None = None,
        reach: ReadScope | None = None,
        any_status: bool = False,
    ) -> AsyncIterator[ViewBody]:
        """Returns an answer with a body in pieces. Holds one message of the view, and one that waits.

        ::

            async with view.open(path_of("partition", "default", "nodes"), rm_id) as answer:
                async for piece in answer.pieces:
                    ...

        Leaving early ends the call. Raises ViewUnavailable, also while the pieces are read.
        """
        parameters = {**({"rm": rm_id} if rm_id else {}), **(query or {})}
        caller = current()
        shown = reach if reach is not None else caller.read_scope()
        own = [*default_rm_header(self._default_rm), *self._note().header(), *_after(caller)]
        call = _ViewCall(self._view, _scope(path, parameters, own, shown))
        try:
            status = await self._in_time(call.status, _AFTER_S if caller.after else 0)
            if caller.after and status in (_BAD, _UNAVAILABLE):
                await self._refuse(call, status)
            if status == _UNAVAILABLE and not any_status:
                raise ViewUnavailable("the view is not reachable: try again")
            async with aclosing(self._pieces(call)) as pieces:
                yield ViewBody(status, pieces)
        finally:
            await call.end()

    async def _pieces(self, call: _ViewCall) -> AsyncGenerator[bytes, None]:
        while (body := await self._in_time(call.next_body)) is not None:
            for start in range(0, len(body), PIECE_BYTES):
                yield body[start : start + PIECE_BYTES]

    async def _refuse(self, call: _ViewCall, status: int) -> None:
        """Raises the error of a read that named a position, with the view's own text."""
        body = await self._in_time(call.next_body) or b""
        try:
            message = str(json.loads(body)["message"])
        except (ValueError, KeyError, TypeError):
            return
        raise InvalidRequest(message) if status == _BAD else ViewUnavailable(message)

    async def _in_time(self, step: Callable[[], Awaitable[T]], more_s: float = 0) -> T:
        try:
            async with asyncio.timeout(self._timeout_s + more_s):
                return await step()
        except TimeoutError:
            raise ViewUnavailable(f"the view said nothing for {self._timeout_s:g} s: try again") from None


def _after(caller: Caller) -> list[tuple[bytes, bytes]]:
    """Returns the headers of a caller's position, and of how long the view waits for it. Raises InvalidRequest."""
    if not caller.after:
        return []
    try:
        wait_s = wait_of(caller.after_wait, caller.ends_s - elapsed_s())
    except ReadRefused as refused:
        raise InvalidRequest(str(refused)) from None
    wait = [] if wait_s is None else [(WAIT_METADATA.encode(), f"{wait_s:.3f}".encode())]
    # (The view counts the waiting reads of each caller; to it all of these are the gateway's.)
    client = [(b"x-forwarded-for", caller.peer.encode("ascii", "replace"))] if caller.peer else []
    return [(AFTER_METADATA.encode(), caller.after.encode("ascii", "replace")), *wait, *client]


def path_of(*parts: str) -> str:
    """Returns a path below /ws/v1 with each part escaped, so that ids may hold any character."""
    return "/ws/v1/" + "/".join(_escaped(part) for part in parts)


def _escaped(part: str) -> str:
    # A part of dots alone would be taken as a step up.
    return part.replace(".", "%2E") if part.strip(".") == "" else quote(part, safe="")


def _scope(path: str, query: Mapping[str, str], own: list[tuple[bytes, bytes]], reach: ReadScope) -> dict[str, Any]:
    """Returns the scope that a server makes for a GET without a body."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode("ascii"),
        "query_string": urlencode(query).encode("ascii"),
        "root_path": "",
        "headers": [(b"accept-encoding", b"identity"), *GATEWAY.headers(), *reach.header(), *own],
        "client": None,
        "server": None,
    }


class _ViewCall:
    """One call of the target, in a task of its own. The task waits while the reader does not read."""

    def __init__(self, target: HttpBackend, scope: dict[str, Any]) -> None:
        self._messages: asyncio.Queue[MutableMapping[str, Any] | None] = asyncio.Queue(_AHEAD)
        self._ended = asyncio.Event()
        self._has_asked = False
        self._finished = False
        self._task = asyncio.create_task(self._run(target, scope), name=f"view {scope['path']}")

    async def status(self) -> int:
        """Returns the answer's status. Raises ViewUnavailable if there is none."""
        message = await self._messages.get()
        if message is None:
            raise ViewUnavailable("the view broke off without an answer: try again")
        status: int = message["status"]
        return status

    async def next_body(self) -> bytes | None:
        """Returns the next piece; None at the end. Raises ViewUnavailable if the answer breaks off."""
        if self._finished:
            return None
        message = await self._messages.get()
        if message is None:
            raise ViewUnavailable("the view broke off in its answer: try again")
        self._finished = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        return body

    async def end(self) -> None:
        """Ends the call in any state."""
        self._ended.set()
        while not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_CANCEL_AGAIN_S)  # a library may swallow a cancellation
        del self._task  # where it was cancelled, this call is a variable: a circle

    async def _run(self, target: HttpBackend, scope: dict[str, Any]) -> None:
        try:
            await target(scope, self._receive, self._messages.put)
        except Exception as error:
            log.warning("view failed", path=scope["path"], error=type(error).__name__)
        await self._messages.put(None)

    async def _receive(self) -> MutableMapping[str, Any]:
        if not self._has_asked:
            self._has_asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._ended.wait()
        return {"type": "http.disconnect"}
