"""A process of ours that is another one's child: started, listened to, ended; and how it is one.

The child ends when it is told to, when the other end of its pipe is gone, and with the thread that started it, whatever
it is doing. A SIGTERM or SIGINT, which a whole group of processes may get, is its parent's to answer. What it needs of
the settings comes by the pipe: secrets are in no command line and in no environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NoReturn, TypeVar

import msgspec
import structlog

from muster_service.channel import Channel

log = structlog.get_logger(__name__)

# Of the time until the child has begun: its modules are read, on a machine that may be busy.
BEGIN_TIMEOUT_S = 60.0
_LAST_WORDS_S = 5.0
# Its settings: what it needs of them comes by the pipe.
_HIDDEN_VARIABLES = "MUSTER_"
_PR_SET_PDEATHSIG = 1

T = TypeVar("T", bound=msgspec.Struct)


# ---- the parent's side -----------------------------------------------------------------------------------------------


class ChildProcess(Generic[T]):
    """A child, and this end of its pipe."""

    def __init__(self, process: subprocess.Popen[bytes], end: socket.socket, messages: Any) -> None:
        self._process, self._end, self._messages = process, end, messages
        self._channel: Channel[T] | None = None
        self._why = ""
        self._heard = 0

    @classmethod
    def spawn(cls, module: str, messages: Any) -> ChildProcess[T]:
        """Runs a module whose ``main`` calls :func:`become_child`; it reads its modules while its parent goes on.

        To be called in a thread that stays: the child ends with it. Raises OSError.

        :param messages: what it may say: a union of messages.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = subprocess.Popen(
                    [
                        sys.executable,
                        "-P",  # (nothing of the directory that it happens to be in)
                        "-m",
                        module,
                        str(theirs.fileno()),
                    ],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env={name: text for name, text in os.environ.items() if not name.startswith(_HIDDEN_VARIABLES)},
                )
        except BaseException:
            ours.close()
            raise
        return cls(process, ours, messages)

    async def connect(self) -> Channel[T]:
        """Gives this end of the pipe; comes before :meth:`listen`."""
        self._channel = await Channel.over(self._end, self._messages)
        return self._channel

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self, why: str) -> None:
        """:param why: what will be said of its end."""
        self._why = self._why or why
        self._process.kill()

    async def listen(
        self,
        take: Callable[[T], None],
        silent_max_s: int,
        left_behind: Callable[[], Awaitable[None]],
        begin_timeout_s: float = BEGIN_TIMEOUT_S,
    ) -> str:
        """Takes what it says, until it is gone and what it left behind is done; says how it ended.

        :param take: raises ValueError for what makes no sense.
        :param silent_max_s: one that says nothing for so long, once it has begun, is killed.
        """
        assert self._channel is not None, "connect comes first"
        watch = asyncio.create_task(self._watch(silent_max_s, begin_timeout_s), name="child-watch")
        try:
            # 1. as long as it lives
            while (message := await self._channel.receive()) is not None:
                self._heard += 1
                take(message)
        except ValueError as error:  # (msgspec's too)
            self.kill(f"said what cannot be read: {error}")
        finally:
            watch.cancel()
        # 2. what it left behind
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await left_behind()
        # 3. how it ended
        try:
            async with asyncio.timeout(1.0):
                code = await asyncio.to_thread(self._process.wait)
        except TimeoutError:
            self.kill("closed its pipe")
            code = await asyncio.to_thread(self._process.wait)
        return self._why or _ended(code)

    async def end(self) -> None:
        """Leaves nothing behind."""
        self.kill("was ended")
        if self._channel is not None:
            self._channel.close()
        else:
            self._end.close()
        await asyncio.to_thread(self._process.wait)

    async def _watch(self, silent_max_s: int, begin_timeout_s: float) -> None:
        """Ends a child that says nothing: what it does is not done, and nobody would know."""
        heard, silent_s, allowed_s = 0, 0, begin_timeout_s
        while silent_s < allowed_s:
            # Counted, not measured: when this machine slept, so did the child.
            await asyncio.sleep(1.0)
            if self._heard != heard:
                heard, silent_s, allowed_s = self._heard, 0, silent_max_s
            silent_s += 1
        self.kill(f"said nothing for {silent_s} s")


def _ended(code: int) -> str:
    """How a process ended, for people."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


# ---- the child's side ------------------------------------------------------------------------------------------------


def become_child(of_whom: str) -> socket.socket:
    """First of all in a child: it ends with its parent, and leaves signals to it. Gives its end of the pipe.

    :raises SystemExit: the command line is not the parent's.
    """
    if len(sys.argv) != 2 or not sys.argv[1].isdigit():
        raise SystemExit(f"{of_whom} starts this, nobody else")
    _end_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    return socket.socket(fileno=int(sys.argv[1]))


def run_child(end: socket.socket, messages: Any, serve: Callable[[Channel[Any]], Awaitable[int | None]]) -> NoReturn:
    """Runs ``serve`` to its end, and ends the process with the code that it gives; EOFError: the parent is gone.

    :param messages: what the parent may say.
    """
    asyncio.run(_run(end, messages, serve))
    raise AssertionError("unreachable")


async def _run(end: socket.socket, messages: Any, serve: Callable[[Channel[Any]], Awaitable[int | None]]) -> None:
    code = 1
    try:
        code = await serve(await Channel.over(end, messages)) or 0
    except EOFError:
        pass  # nobody is left who could be told anything
    except Exception:
        log.exception("a child process failed", process=sys.argv[0])
    sys.stderr.flush()
    os._exit(code)  # (a task or thread of a plugin may never end)


def _end_with_parent() -> None:
    """Linux kills this process with the thread that started it; elsewhere the end of the pipe has to do."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
