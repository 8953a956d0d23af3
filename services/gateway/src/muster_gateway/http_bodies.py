"""Limits of the requests' bodies that the HTTP front, or an application in its process, holds in memory."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from muster_gateway.http_front import HttpBackend, respond_error

# Bodies of these methods mean nothing. They are not read, because the client may have sent no token.
WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})
# Limit of all bodies together, so that many slow senders cannot use up the memory.
BODIES_BYTES_MAX = 64 * 1024 * 1024
# Time for a whole body.
BODY_S = 30.0
RETRY_AFTER_S = b"1"


class NoRoom(OSError):
    """The bodies of other requests take up all room."""


class HeldBodies:
    """The bytes of all bodies that are held.

    :ivar size: in bytes.
    """

    def __init__(self) -> None:
        self.size = 0


async def refuse_body(send: Send, failed: OSError, body_s: float) -> None:
    """Answers a request whose body cannot be had: there is no room, or it is too slow. Others' clients have left."""
    if isinstance(failed, NoRoom):
        headers = [(b"retry-after", RETRY_AFTER_S), (b"connection", b"close")]
        await respond_error(send, 503, "Too many requests with large bodies are under way, try again", headers)
    elif isinstance(failed, TimeoutError):
        message = f"The request's body did not arrive within {body_s:g} s"
        await respond_error(send, 408, message, [(b"connection", b"close")])


def bounded(
    app: HttpBackend, bodies: HeldBodies, *, bytes_max: int = BODIES_BYTES_MAX, body_s: float = BODY_S
) -> HttpBackend:
    """Wraps an application that reads whole bodies: beyond the limit of all bodies, or of the time, it is refused.

    :param bodies: shared by the applications of a process.
    """

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in WITHOUT_BODY:
            await app(scope, receive, send)
            return
        until_s, whole, size, refused = asyncio.get_running_loop().time() + body_s, False, 0, list[OSError]()

        async def counted() -> Message:
            nonlocal whole, size
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(until_s):
                    message: dict[str, Any] = dict(await receive())
            except TimeoutError as error:
                refused.append(error)
                raise
            whole = not message.get("more_body", False)
            more = len(message.get("body", b""))
            size += more
            bodies.size += more
            if bodies.size > bytes_max:
                refused.append(NoRoom())
                raise refused[0]
            return message

        try:
            await app(scope, counted, send)
        except OSError as error:
            if error not in refused:
                raise
            await refuse_body(send, error, body_s)
        finally:
            bodies.size -= size

    return serve
