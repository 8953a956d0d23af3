"""The limits of readers: memory for the answers under way, and dumps at once.

Beyond a limit the view refuses a request (503, with ``Retry-After``) before it sends any part of an answer. It cuts the
connection of a client that reads nothing for a while, because its answer holds memory that other clients need.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import structlog
from muster_runtime.http_server import cut
from starlette.types import Message, Scope, Send

from muster_view.errors import HttpError, ReaderStalled
from muster_view.settings import ViewSettings

log = structlog.get_logger(__name__)

# Smaller answers are never refused, even if others use all memory: a person looks for one object.
_SMALL_BYTES = 256 * 1024


class AnswerMemory:
    """The memory of one answer; given back at the end."""

    def __init__(self, limits: AnswerLimits) -> None:
        self._limits = limits
        self._bytes = self._dumps = 0

    def take_dump(self) -> None:
        """Counts a dump; called once. Raises RequestRefused: ``dumps_max`` is reached."""
        if self._limits.dumps >= self._limits.dumps_max:
            raise HttpError(503, f"{self._limits.dumps} state dumps are under way already: try again")
        self._limits.dumps += 1
        self._dumps = 1

    def charge(self, size: int) -> None:
        """Counts more bytes. Raises RequestRefused: all large answers together would exceed ``bytes_max``."""
        limits, self._bytes = self._limits, self._bytes + size
        limits.held_bytes += size
        if limits.held_bytes > limits.bytes_max and self._bytes > _SMALL_BYTES:
            raise HttpError(503, "Too many large answers are under way: try again")

    def release(self) -> None:
        """Gives the memory back, once."""
        self._limits.held_bytes -= self._bytes
        self._limits.dumps -= self._dumps
        self._bytes = self._dumps = 0


class AnswerLimits:
    """The limits for all answers together.

    :ivar held_bytes: the bytes of the answers under way, at most ``bytes_max``.
    :ivar dumps: the dumps under way, at most ``dumps_max``.
    """

    def __init__(self, settings: ViewSettings) -> None:
        self.bytes_max, self.dumps_max = settings.answers_bytes_max, settings.dumps_max
        self.held_bytes = self.dumps = 0
        self._stalled_s = settings.stalled_s

    @contextlib.contextmanager
    def account(self) -> Iterator[AnswerMemory]:
        """Returns the account of one answer, until it is sent."""
        memory = AnswerMemory(self)
        try:
            yield memory
        finally:
            memory.release()

    def sending(self, scope: Scope, send: Send) -> Send:
        """Sends like ``send``; raises ReaderStalled when the client reads nothing for ``stalled_s``."""

        async def sent(message: Message) -> None:
            try:
                async with asyncio.timeout(self._stalled_s):
                    await send(message)
            except TimeoutError:
                log.warning("view.reader_stalled", path=scope["path"], after_s=self._stalled_s)
                await cut(scope)
                raise ReaderStalled(scope["path"], self._stalled_s) from None

        return sent
