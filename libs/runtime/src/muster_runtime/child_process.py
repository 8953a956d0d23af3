"""Child processes as seen from their parent: start, listen, end. ``child_main.py`` is the child's side.

A child ends when its parent ends it, when the other end of its pipe closes, and with the thread that started it. It
ignores SIGTERM and SIGINT, which a whole process group may get; the parent handles them. The child gets its settings
over the pipe, so no secret is in a command line or an environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

import msgspec

from muster_runtime.backoff import backoff_s
from muster_runtime.child_main import become_copy
from muster_runtime.ending import Ending
from muster_runtime.message_channel import Channel
from muster_runtime.processor_time import usage_of
from muster_runtime.watchdog import Usage, patiently, until_stuck

# Processor time that a child may have before its first message. It loads its modules meanwhile, which takes 2 s of it.
BEGIN_AVAILABLE_S = 50.0
_LAST_WORDS_S = 5.0
WAIT_MIN_S, _WAIT_MAX_S = 0.5, 30.0
# After so long a run, the next failure counts as the first one.
_SETTLED_S = 60.0
# The child does not inherit these settings; it gets what it needs over the pipe.
_HIDDEN_VARIABLES = "MUSTER_"

# It closed its end of the pipe before anybody killed it.
_ITSELF = "ended by itself"

T = TypeVar("T", bound=msgspec.Struct)


class ForkedProcess:
    """A forked process: what of subprocess.Popen a child process needs. Any thread may wait."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ends = os.pidfd_open(pid)
        self._waiting = threading.Lock()

    def kill(self) -> None:
        with self._waiting:
            if self.returncode is None:
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code, or minus the signal. Raises subprocess.TimeoutExpired."""
        ended = select.poll()
        ended.register(self._ends, select.POLLIN)
        if not ended.poll(None if timeout is None else timeout * 1000):
            raise subprocess.TimeoutExpired("a forked process", timeout or 0)
        with self._waiting:
            if self.returncode is None:
                self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def __del__(self) -> None:
        os.close(self._ends)


class ChildProcess(Generic[T]):
    """A child process, and the parent's end of the pipe.

    :cvar OUT_OF_TIME: exit codes of a process that used up its processor time.
    :cvar popen: what starts the process; has the interface of subprocess.Popen.
    """

    popen: ClassVar[Callable[..., subprocess.Popen[bytes]]] = subprocess.Popen

    OUT_OF_TIME = (-signal.SIGXCPU, -signal.SIGPROF)

    def __init__(self, process: subprocess.Popen[bytes] | ForkedProcess, end: socket.socket, messages: Any) -> None:
        self._process, self._end, self._messages = process, end, messages
        self._channel: Channel[T] | None = None
        self._ending: Ending[str] = Ending()
        self._heard = 0

    @classmethod
    def spawn(cls, module: str, messages: Any, inherits: Sequence[socket.socket] = ()) -> ChildProcess[T]:
        """Starts a module whose ``main`` calls :func:`become_child`. The child loads its modules while the parent
        continues.

        Call this in a thread that stays alive: the child ends with it. Raises OSError.

        :param messages: the union of message types that the child can send.
        :param inherits: sockets that the child has under the same numbers.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = cls.popen(
                    [
                        sys.executable,
                        "-P",  # no imports from the current directory
                        "-m",
                        module,
                        str(theirs.fileno()),
                    ],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), *(inherited.fileno() for inherited in inherits)),
                    env={name: text for name, text in os.environ.items() if not name.startswith(_HIDDEN_VARIABLES)},
                )
        except BaseException:
            ours.close()
            raise
        return cls(process, ours, messages)

    @classmethod
    def fork(cls, main: Callable[[socket.socket], NoReturn], messages: Any) -> ChildProcess[T] | None:
        """Starts a copy of this process, which shares the memory of all that is loaded. None: it may not be copied.

        Call this before the process has another thread or an event loop, and in a thread that stays alive. Raises
        OSError.

        :param main: runs in the copy, with its end of the pipe.
        :param messages: the union of message types that the child can send.
        """
        if threading.active_count() > 1 or not hasattr(os, "pidfd_open"):
            return None
        ours, theirs = socket.socketpair()
        gc.freeze()  # a collection would write to every object, and no page would stay shared
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            try:
                ours.close()
                become_copy(parent, _HIDDEN_VARIABLES)
                main(theirs)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        theirs.close()
        return cls(ForkedProcess(pid), ours, messages)

    async def connect(self) -> Channel[T]:
        """Returns the parent's end of the channel. Call this before :meth:`listen`."""
        self._channel = await Channel.over(self._end, self._messages)
        return self._channel

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self, reason: str) -> None:
        """Kills the child.

        :param reason: the text that :meth:`listen` returns, if it is the first one.
        """
        self._ending.by(reason)
        self._process.kill()

    async def listen(
        self,
        take: Callable[[T], None],
        available_s: float,
        left_behind: Callable[[], Awaitable[None]],
        begin_available_s: float = BEGIN_AVAILABLE_S,
    ) -> str:
        """Takes the child's messages until the child is gone and ``left_behind`` has returned. Returns how the child
        ended.

        :param take: raises ValueError for an invalid message.
        :param available_s: a child that sends nothing for so much available time (``watchdog.py``) is killed.
        :param begin_available_s: the same for its first message.
        """
        assert self._channel is not None, "connect comes first"
        watch = asyncio.create_task(self._watch(available_s, begin_available_s), name="child-watch")
        try:
            # 1. while the child lives
            while (message := await self._channel.receive()) is not None:
                self._heard += 1
                take(message)
        except ValueError as error:  # msgspec's errors, too
            self.kill(f"sent an unreadable message: {error}")
        finally:
            watch.cancel()
        reason = self._ending.by(_ITSELF)
        # 2. work that the child left behind
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await left_behind()
        # 3. how the child ended
        try:
            async with asyncio.timeout(1.0):
                code = await asyncio.to_thread(self._process.wait)
        except TimeoutError:
            reason = "closed its pipe" if reason is _ITSELF else reason
            self._process.kill()
            code = await asyncio.to_thread(self._process.wait)
        return _ended(code) if reason is _ITSELF else reason

    async def answer(self, available_s: float) -> T | None:
        """Returns the child's next message, for a caller that does not :meth:`listen`; None: the child is gone.

        Raises ValueError for a message that cannot be read, and TimeoutError when the child is stuck: it had so much
        available time (``watchdog.py``) without an answer.
        """
        assert self._channel is not None, "connect comes first"
        return await patiently(self._channel.receive(), until_stuck(lambda: 0, self.usage, lambda: available_s))

    def usage(self) -> Usage:
        """Returns what the child had of the processor."""
        return usage_of(self.pid)

    async def ended(self, timeout_s: float) -> int:
        """Returns the exit code of a child that ends by itself, for a caller that does not :meth:`listen`. Raises
        TimeoutError.
        """
        try:
            return await asyncio.to_thread(self._process.wait, timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None

    async def end(self) -> None:
        """Kills the child, closes the channel and waits until the process has ended."""
        self.kill("was ended")
        if self._channel is not None:
            self._channel.close()
        else:
            self._end.close()
        await asyncio.to_thread(self._process.wait)

    async def _watch(self, available_s: float, begin_available_s: float) -> None:
        """Kills a stuck child, because its work is not being done."""
        assert self._channel is not None

        def allowed_s() -> float:
            return available_s if self._heard else begin_available_s

        self.kill(await until_stuck(lambda: self._heard, self.usage, allowed_s))
        # A process that it was about to start may keep its end of the pipe open.
        await asyncio.to_thread(self._process.wait)
        await asyncio.sleep(_LAST_WORDS_S)
        self._channel.close()


async def keep_running(
    run: Callable[[], Awaitable[str]],
    gone: Callable[[str, float], Awaitable[None]],
    stopping: asyncio.Event,
    monotonic_s: Callable[[], float],
    wait_min_s: float = WAIT_MIN_S,
) -> None:
    """Runs one child after the other until ``stopping`` is set. Waits longer after each failure in a row.

    :param run: runs a child to its end and returns how it ended.
    :param gone: called with the way it ended and the seconds until the next start. Its exceptions end the loop.
    """
    failures = 0
    while not stopping.is_set():
        began_s = monotonic_s()
        reason = await run()
        if stopping.is_set():
            return
        if monotonic_s() - began_s >= _SETTLED_S:
            failures = 0
        wait_s = backoff_s(failures, wait_min_s, _WAIT_MAX_S)
        failures += 1
        await gone(reason, wait_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), wait_s)


def _ended(code: int) -> str:
    """Describes how a process ended."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
