"""Reads queue configurations in a process of its own, within limits of time and memory.

A text of an RM may cost seconds and hundreds of MiB. No event loop pays for that: a child process reads one text at a
time. It starts with the first text, ends after a while without one, and is started again after the system ended it. RMs
take turns, so that one RM's texts do not hold another's.

A verdict is final. A text that used up its limits is refused like a text with an error.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from muster_runtime.child_process import BEGIN_AVAILABLE_S, ChildProcess

from muster_queue_config import config_codec, parser_messages
from muster_queue_config.errors import ParserBusy, ParserClosed
from muster_queue_config.parser_messages import OUT_OF_MEMORY, ParseReply, ParseRequest, ParserLimits, ParserReady
from muster_queue_config.settings import QueueConfigSettings
from muster_queue_config.yaml_reader import ConfigProblem

log = structlog.get_logger(__name__)

_CHILD = "muster_queue_config.parser_main"
# Decisions have priority for the processor.
_NICE = 5
# Chance (``muster_runtime.watchdog``) of a child that does not use the processor, beyond what it may use for one text.
# Its own limit ends one that uses too much.
_BEYOND_S = 20.0
# A child that something else ended (a person, the kernel) gets the text once more.
_TRIES = 2
_KEPT_BYTES = 8 << 20
_WAITING_MAX = 1_000


@dataclass(frozen=True, slots=True)
class ParseResult:
    """The verdict on a text.

    :param compiled: of an accepted text, as of ``config_codec.encode``; b"" if it is too large.
    """

    accepted: bool
    compiled: bytes
    problems: tuple[ConfigProblem, ...]


@dataclass(slots=True)
class _QueuedText:
    text: str
    done: asyncio.Future[ParseResult]


class Pipe(Protocol):
    """The used part of the channel to the reading process."""

    def send(self, message: ParserLimits | ParseRequest) -> None: ...


class Reading(Protocol):
    """The used part of the reading process (``ChildProcess``)."""

    @property
    def pid(self) -> int: ...

    async def connect(self) -> Pipe: ...

    async def answer(self, available_s: float) -> Any:
        """Returns the next message; None: the process has ended. Raises ValueError, and TimeoutError if it is stuck."""
        ...

    def kill(self, reason: str) -> None: ...

    async def ended(self, timeout_s: float) -> int:
        """Returns the exit code. Raises TimeoutError."""
        ...

    async def end(self) -> None:
        """Returns when the process has ended."""
        ...


def spawned() -> Reading:
    """Starts the reading process. Raises OSError."""
    return ChildProcess[Any].spawn(_CHILD, parser_messages.ToParent)


class SandboxedParser:
    """See the module's docstring.

    :param start: starts the reading process.
    """

    def __init__(self, settings: QueueConfigSettings, start: Callable[[], Reading] = spawned) -> None:
        self._settings, self._start = settings, start
        self._lines: OrderedDict[str, deque[_QueuedText]] = OrderedDict()  # of RMs, in the order of their turns
        self._count = 0
        self._kept: OrderedDict[bytes, ParseResult] = OrderedDict()
        self._kept_bytes = 0
        self._reading: asyncio.Task[None] | None = None
        self._child: Reading | None = None
        self._channel: Pipe | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def parse(self, text: str, whose: str = "") -> ParseResult:
        """Returns the verdict on a text.

        :param whose: the RM. RMs take turns.

        Raises ParserBusy, ParserClosed.
        """
        if self._closed:
            raise ParserClosed("the service stops")
        # 1. without reading
        size, most = len(text.encode(errors="surrogatepass")), self._settings.max_bytes
        if size > most:
            return _refused(f"the configuration has {size} bytes, expected at most {most}")
        name = config_codec.digest(text)
        if (cached := self._kept.get(name)) is not None:
            self._kept.move_to_end(name)
            return cached
        # 2. in its turn
        if self._count >= _WAITING_MAX:
            raise ParserBusy(f"{self._count} configurations wait to be read already: try again")
        waiting = _QueuedText(text, asyncio.get_running_loop().create_future())
        self._lines.setdefault(whose, deque()).append(waiting)
        self._count += 1
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_all(), name="configurations")
        judged = await waiting.done
        # 3. for the next one with the same text
        self._keep(name, judged)
        return judged

    @property
    def pid(self) -> int | None:
        """The reading process; None: there is none now."""
        return self._child.pid if self._child is not None else None

    def kill(self, reason: str) -> None:
        """Kills the reading process, if there is one."""
        if self._child is not None:
            self._child.kill(reason)

    async def close(self) -> None:
        """Ends the child. Texts that wait get ParserClosed."""
        self._closed = True
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        for line in self._lines.values():
            for waiting in line:
                if not waiting.done.done():
                    waiting.done.set_exception(ParserClosed("the service stops"))
        self._lines.clear()
        await self._end_child()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _keep(self, name: bytes, judged: ParseResult) -> None:
        if name in self._kept:
            return
        self._kept[name] = judged
        self._kept_bytes += _size(judged)
        while self._kept_bytes > _KEPT_BYTES and self._kept:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= _size(dropped)

    # ---- one text after the other ----------------------------------------------------------------------------------

    async def _read_all(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        while self._lines:
            whose, line = next(iter(self._lines.items()))
            waiting = line.popleft()
            self._count -= 1
            del self._lines[whose]
            if line:
                self._lines[whose] = line  # behind all others
            if waiting.done.done():  # its caller has gone
                continue
            try:
                judged = await self._read(waiting.text)
            except asyncio.CancelledError:
                if not waiting.done.done():
                    waiting.done.set_exception(ParserClosed("the service stops"))
                raise
            except Exception as error:  # one text must not stop the others
                log.exception("configuration not read", error=error)
                judged = _refused("the configuration cannot be read now")
            if not waiting.done.done():
                waiting.done.set_result(judged)
        self._idle = asyncio.get_running_loop().call_later(self._settings.idle_s, self._rest)

    async def _read(self, text: str) -> ParseResult:
        for _ in range(_TRIES):
            try:
                channel = await self._ready_channel()
                channel.send(ParseRequest(text, self._settings.max_bytes, self._settings.max_queues))
                assert self._child is not None
                answer = await self._child.answer(self._settings.cpu_s + _BEYOND_S)
            except (OSError, TimeoutError, ValueError) as error:
                log.warning("configuration reader does not answer", error=error)
                await self._end_child()
                continue
            if isinstance(answer, ParseReply):
                return ParseResult(answer.accepted, answer.compiled, tuple(answer.problems))
            code = await self._end_child()
            if code == OUT_OF_MEMORY:
                mib = self._settings.memory_bytes >> 20
                return _refused(f"reading the configuration needs more than {mib} MiB of memory")
            if code is not None and code in ChildProcess.OUT_OF_TIME:
                return _refused(
                    f"reading the configuration needs more than {self._settings.cpu_s:g} s of processor time"
                )
            log.warning("configuration reader ended", code=code)
        return _refused("the configuration cannot be read now")

    async def _ready_channel(self) -> Pipe:
        """Returns the channel to a child that can read. Raises OSError, TimeoutError."""
        if self._channel is not None:
            return self._channel
        settings = self._settings
        self._child = self._start()
        channel = await self._child.connect()
        channel.send(ParserLimits(settings.cpu_s, settings.memory_bytes, _NICE))
        if not isinstance(await self._child.answer(BEGIN_AVAILABLE_S), ParserReady):
            raise OSError("the process that reads configurations did not start")
        self._channel = channel
        return channel

    def _rest(self) -> None:
        """Ends a child that has nothing to read, to free its memory."""
        if self._child is not None and (self._reading is None or self._reading.done()):
            child, self._child, self._channel = self._child, None, None
            task = asyncio.create_task(child.end(), name="configurations end")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _end_child(self) -> int | None:
        """Ends the child. Returns its exit code."""
        if self._idle is not None:
            self._idle.cancel()
        child, self._child, self._channel = self._child, None, None
        if child is None:
            return None
        code: int | None = None
        with contextlib.suppress(TimeoutError):  # it may be about to end by itself
            code = await child.ended(1.0)
        await child.end()
        return code


def _refused(message: str) -> ParseResult:
    return ParseResult(False, b"", (ConfigProblem("error", "", 0, 0, message),))


def _size(judged: ParseResult) -> int:
    return len(judged.compiled) + 200 * (1 + len(judged.problems))
