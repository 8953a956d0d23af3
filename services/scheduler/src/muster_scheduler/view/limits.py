"""What readers may take of the view: memory for answers that are under way, and dumps at once.

Whoever comes when it is used up is refused (503, with ``Retry-After``) before anything of an answer is sent. A reader
that takes nothing for a while is cut: what is held for it is held for nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import structlog
from muster_service.http_server import cut
from starlette.types import Message, Scope, Send

from muster_scheduler.view.errors import ReaderStalled, RequestRefused
from muster_scheduler.view.settings import ViewSettings

log = structlog.get_logger(__name__)

# Smaller answers are let through whatever others hold: a person who looks for one thing.
_SMALL_BYTES = 256 * 1024


class Held:
    """What one answer holds; given back at the end."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._bytes = self._dumps = 0

    def take_dump(self) -> None:
        """Once. Raises RequestRefused: there are as many dumps as may be."""
        if self._limits.dumps >= self._limits.dumps_max:
            raise RequestRefused(503, f"{self._limits.dumps} state dumps are under way already: try again")
        self._limits.dumps += 1
        self._dumps = 1

    def take(self, size: int) -> None:
        """Raises RequestRefused: all large answers together would hold too much."""
        limits, self._bytes = self._limits, self._bytes + size
        limits.held_bytes += size
        if limits.held_bytes > limits.bytes_max and self._bytes > _SMALL_BYTES:
            raise RequestRefused(503, "Too many large answers are under way: try again")

    def give_back(self) -> None:
        """Once."""
        self._limits.held_bytes -= self._bytes
        self._limits.dumps -= self._dumps
        self._bytes = self._dumps = 0


class Limits:
    """All answers'.

    :ivar held_bytes: what they hold now, at most ``bytes_max``.
    :ivar dumps: how many of them are dumps, at most ``dumps_max``.
    """

    def __init__(self, settings: ViewSettings) -> None:
        self.bytes_max, self.dumps_max = settings.answers_bytes_max, settings.dumps_max
        self.held_bytes = self.dumps = 0
        self._stalled_s = settings.stalled_s

    @contextlib.contextmanager
    def holding(self) -> Iterator[Held]:
        """For one answer, until it is sent."""
        held = Held(self)
        try:
            yield held
        finally:
            held.give_back()

    def sending(self, scope: Scope, send: Send) -> Send:
        """Sends as ``send`` does; raises ReaderStalled when nothing is taken for ``stalled_s``."""

        async def sent(message: Message) -> None:
            try:
                async with asyncio.timeout(self._stalled_s):
                    await send(message)
            except TimeoutError:
                log.warning("view.reader_stalled", path=scope["path"], after_s=self._stalled_s)
                await cut(scope)
                raise ReaderStalled(scope["path"], self._stalled_s) from None

        return sent
