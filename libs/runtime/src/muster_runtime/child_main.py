"""The child's side of a child process (``child_process.py``).

It loads as few modules as it can: the process that reads configurations starts for a single text.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from muster_runtime.message_channel import Channel

_PR_SET_PDEATHSIG = 1


def become_child(of_whom: str) -> socket.socket:
    """Makes this process a child: it ends with its parent and ignores signals. Call this first. Returns its end of the
    pipe.

    :raises SystemExit: the command line is not the parent's.
    """
    if len(sys.argv) != 2 or not sys.argv[1].isdigit():
        raise SystemExit(f"{of_whom} must start this process")
    _belong()
    end = socket.socket(fileno=int(sys.argv[1]))
    end.set_inheritable(False)  # a program that it starts does not keep it open
    return end


def become_copy(parent: int, hidden: str) -> None:
    """Makes a copy of its parent a child: as :func:`become_child`. Call this first.

    :param parent: its pid.
    :param hidden: variables with this prefix do not stay in the environment.
    """
    _belong()
    if os.getppid() != parent:
        os._exit(1)  # it ended before this process belonged to it
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for name in [variable for variable in os.environ if variable.startswith(hidden)]:
        del os.environ[name]


def _belong() -> None:
    end_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def run_child(end: socket.socket, messages: Any, serve: Callable[[Channel[Any]], Awaitable[int | None]]) -> NoReturn:
    """Runs ``serve`` to its end and exits with the code that it returns. ``serve`` raises EOFError when the parent is
    gone.

    :param messages: the union of message types that the parent can send.
    """
    asyncio.run(_run(end, messages, serve))
    raise AssertionError("unreachable")


async def _run(end: socket.socket, messages: Any, serve: Callable[[Channel[Any]], Awaitable[int | None]]) -> None:
    code = 1
    try:
        code = await serve(await Channel.over(end, messages)) or 0
    except EOFError:
        pass  # the parent is gone, so nobody can be told
    except Exception:
        import structlog

        structlog.get_logger(__name__).exception("a child process failed", process=sys.argv[0])
    sys.stderr.flush()
    os._exit(code)  # a plugin's task or thread might never end


def end_with_parent() -> None:
    """Makes Linux kill this process with the thread that started it. On other systems the closed pipe ends the
    process.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
