"""The process that ``view_process.py`` starts: a view that follows the embedded log's file.

Standard input has one line of JSON, what to run; its end says to stop. Standard output has a line of JSON each second:
what does not work. The first of them comes when the view answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
from typing import Any

import structlog
from muster_bus.backends.sqlite_follow import FollowedFile
from muster_bus.clock import SystemClock
from muster_bus.settings import LogSettings
from muster_scheduler.view import ViewService
from muster_scheduler.view.settings import ViewSettings
from muster_service import logs
from muster_service.http_server import HttpServer

from muster_cli import garbage

log = structlog.get_logger(__name__)

_PR_SET_PDEATHSIG = 1
# Where the cores do not suffice for all, those who decide go first.
_NICE = 5
_TELL_S = 1.0


async def serve(given: dict[str, Any], number: int, stdin: asyncio.StreamReader) -> None:
    """Runs the view as it is told, until standard input ends. Raises what the view's start raises."""
    settings = ViewSettings.model_validate({**given["view"], "http_address": ""})
    log_settings = LogSettings.model_validate({**given["log"], **given["topics"]})
    file, clock = FollowedFile(log_settings.sqlite_path), SystemClock()
    await file.start()
    view = ViewService(settings, file, log_settings.topics(), clock, look=file.look)
    server = HttpServer(view.asgi, socket.socket(fileno=number), settings.stop_timeout_s)
    await view.start()
    await server.start()
    garbage.settle()
    telling = asyncio.create_task(_tell(view), name="telling")
    over = asyncio.create_task(stdin.read(), name="stop")
    ended = asyncio.create_task(view.wait(), name="view")
    try:
        done, _ = await asyncio.wait({telling, over, ended}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        await server.stop()
        await view.stop()
        await file.close()
    finally:
        for task in (telling, over, ended):
            task.cancel()
        await asyncio.gather(telling, over, ended, return_exceptions=True)


async def _tell(view: ViewService) -> None:
    while True:
        os.write(sys.stdout.fileno(), json.dumps({"problems": await view.problems()}).encode() + b"\n")
        await asyncio.sleep(_TELL_S)


async def _run(number: int) -> None:
    stdin = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    line = await stdin.readline()
    if not line:
        return
    given = json.loads(line)
    sys.path[:] = given["path"]
    logs.configure(given["process"]["log_level"], given["process"]["log_format"])
    await serve(given, number, stdin)


def main() -> None:
    """:raises SystemExit: the command line is not the parent's."""
    if len(sys.argv) != 2 or not sys.argv[1].isdigit():
        raise SystemExit("muster up starts this, nobody else")
    _end_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    garbage.collect_rarely()
    code = 0
    try:
        asyncio.run(_run(int(sys.argv[1])))
    except BrokenPipeError:
        pass  # the parent was killed, and so will be this: nobody is left who could be told anything
    except Exception:
        log.exception("the view's process failed")
        code = 1
    sys.stderr.flush()
    os._exit(code)


def _end_with_parent() -> None:
    """Linux kills this process with the thread that started it; elsewhere the end of standard input has to do."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


if __name__ == "__main__":
    main()
