"""``muster up`` has its view in a process of its own: what readers cost then never delays a decision.

The child (``view_child.py``) follows the embedded log's file by itself and answers HTTP on a Unix socket that is this
process's, and only this user's. Here it is started, listened to, started again when it ends, and ended.

========  ==============================  ======================================================================
state     becomes                         then
========  ==============================  ======================================================================
begun     ready: it has folded the log    it tells every second what does not work; that is a sign of life, too
any       gone: it ended, or was silent   readers wait a little, then are refused (503); decisions go on
gone      begun                           after a wait that grows
========  ==============================  ======================================================================

What shows or changes a process itself (stacks, profiles, log levels) is answered here: this is the one that decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

import structlog
from muster_bus.clock import Clock
from muster_bus.log import Log
from muster_gateway.http_front import respond_error
from muster_gateway.http_target import HttpTarget
from muster_scheduler.view import ViewService
from starlette.types import Message, Receive, Scope, Send

from muster_cli.settings import MusterSettings

log = structlog.get_logger(__name__)

MODULE = "muster_cli.view_child"
# A child that lives is heard every second, once it has folded the log: that takes seconds for a large one.
SILENT_MAX_S, BEGIN_MAX_S = 30.0, 300.0
_WAIT_MIN_S, _WAIT_MAX_S = 0.2, 10.0
# One that lived for so long was good: the next failure is the first one of a new row.
_SETTLED_S = 60.0
_CONNECT_S = 5.0
# Who asks while there is no child waits so long for the next one.
_READER_WAITS_S = 5.0
_SOCKET_NAME = "view.sock"
# Of a Unix socket's path the system takes 107 characters.
_PATH_CHARACTERS = 100
_TEMPORARY = "muster-view-"
_BACKLOG = 1024
_HIDDEN_VARIABLES = "MUSTER_"
# These are about a process.
_OWN_PATHS = ("/debug/stack", "/debug/pprof", "/ws/v1/stack", "/ws/v1/loglevel")
_LEVEL_PATH = "/ws/v1/loglevel/"


class ViewProcess:
    """The view as a service of this process. See the module's words.

    :param bus: started by its owner before this is.
    :ivar starts: how often a child was started.
    """

    def __init__(self, settings: MusterSettings, bus: Log, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        # (Never started: it answers what is about this process.)
        self._here = ViewService(settings.view, bus, settings.log.topics(), clock)
        self._target: HttpTarget | None = None
        self._listening: socket.socket | None = None
        self._path = Path()
        self._child: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._answers = asyncio.Event()
        self._over = asyncio.Event()
        self._problems: list[str] = ["the view's process begins"]
        self._stopping = False
        self.starts = 0

    @property
    def pid(self) -> int:
        """Of the child that runs; 0: none does."""
        return self._child.pid if self._child is not None else 0

    # ---- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the child; readers wait until it answers. Raises OSError: no socket can be made."""
        self._listening, self._path = _listen(self._settings.log.sqlite_path.parent)
        self._target = HttpTarget("http://view", "view", _CONNECT_S, socket_path=str(self._path))
        self._keeping = asyncio.create_task(self._keep(), name="view process")

    async def wait(self) -> None:
        """Returns when it was stopped. A child that ends is started again."""
        await self._over.wait()

    async def stop(self) -> None:
        """Lets it answer what was asked, then ends it."""
        self._stopping = True
        if self._keeping is not None:
            if self._child is not None and self._child.stdin is not None:
                self._child.stdin.close()  # it knows what that means
            await asyncio.wait({self._keeping}, timeout=self._settings.view.stop_timeout_s + 1.0)
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._target is not None:
            await self._target.close()
        if self._listening is not None:
            self._listening.close()
            _remove(self._path)
        self._over.set()

    async def healthy(self) -> bool:
        """Whether everything works; :meth:`problems` says what does not."""
        return not self._problems

    async def problems(self) -> list[str]:
        """What does not work now, one sentence each."""
        return list(self._problems)

    # ---- answers ---------------------------------------------------------------------------------------------------

    async def asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The view's endpoints, as an ASGI application."""
        assert self._target is not None, "start comes first"
        path: str = scope["path"]
        if not path.startswith(_OWN_PATHS):
            if await self._is_there():
                await self._target(scope, receive, send)
            else:
                await respond_error(send, 503, "The view is not reachable, try again", [(b"retry-after", b"1")])
            return
        await self._here.asgi(scope, receive, send)
        if scope["method"] == "PUT" and path.startswith(_LEVEL_PATH) and self._answers.is_set():
            await self._target(scope, receive, _nowhere)  # (the same level there)

    async def _is_there(self) -> bool:
        """Whether it answers, now or soon."""
        if not self._answers.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_READER_WAITS_S):
                    await self._answers.wait()
        return self._answers.is_set()

    # ---- one child after the other ---------------------------------------------------------------------------------

    async def _keep(self) -> None:
        failures = 0
        while not self._stopping:
            began_s = self._clock.monotonic()
            why = await self._run()
            if self._stopping:
                return
            self._problems = [f"the view's process {why}; it is started again"]
            failures = 0 if self._clock.monotonic() - began_s >= _SETTLED_S else failures + 1
            wait_s = min(_WAIT_MIN_S * 2 ** max(failures - 1, 0), _WAIT_MAX_S)
            log.error("view process gone", why=why, again_after_s=wait_s)
            await asyncio.sleep(wait_s)

    async def _run(self) -> str:
        """Runs a child to its end; says how it ended."""
        assert self._listening is not None
        self.starts += 1
        number = self._listening.fileno()
        try:
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # (nothing of the directory that it happens to be in)
                "-m",
                MODULE,
                str(number),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=(number,),
                env={name: text for name, text in os.environ.items() if not name.startswith(_HIDDEN_VARIABLES)},
            )
        except OSError as error:
            return f"cannot be started: {error.strerror or error}"
        self._child = child
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(self._begin())
            if self._stopping:
                child.stdin.close()
            why = await self._listen_to(child.stdout)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await child.wait()
        finally:
            self._answers.clear()
            self._child = None
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            code = await child.wait()
        return why or (f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}")

    def _begin(self) -> bytes:
        settings = self._settings
        own = {
            "log": {"sqlite_path": str(settings.log.sqlite_path.absolute()), "backend": "sqlite"},
            "topics": {"topic_prefix": settings.log.topic_prefix, "partitions": settings.log.partitions},
            "view": settings.view.model_dump(mode="json"),
            "process": settings.process.model_dump(mode="json"),
            "path": sys.path,
        }
        return json.dumps(own).encode() + b"\n"

    async def _listen_to(self, said: asyncio.StreamReader) -> str:
        """Takes what it says until it says no more; "", or why it is ended."""
        silent_max_s = BEGIN_MAX_S
        while True:
            try:
                async with asyncio.timeout(silent_max_s):
                    line = await said.readline()
            except (TimeoutError, ValueError):
                return f"said nothing for {silent_max_s:.0f} s"
            if not line:
                return ""
            told: dict[str, Any] = json.loads(line)
            if silent_max_s == BEGIN_MAX_S:
                log.info("view process ready", pid=self.pid)
            self._problems, silent_max_s = told["problems"], SILENT_MAX_S
            self._answers.set()


async def _nowhere(_message: Message) -> None:
    """Of an answer that nobody waits for."""


def _listen(directory: Path) -> tuple[socket.socket, Path]:
    """A Unix socket that only this user can reach, and its path. Who connects waits until it is served."""
    path = directory.absolute() / _SOCKET_NAME
    if len(str(path)) > _PATH_CHARACTERS:
        path = Path(tempfile.mkdtemp(prefix=_TEMPORARY)) / _SOCKET_NAME
    if path.is_socket():  # of a process that was killed: the log's lock says that it is gone
        path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening, path


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
        if path.parent.name.startswith(_TEMPORARY):
            path.parent.rmdir()
