"""Starts Muster's processes by forks of one process that has loaded their modules.

`make test` starts some 400 processes of Muster. Each would load 1,100 modules first: 0.8 s of a core. A fork has them
at once, and runs the same commands from their beginning.

    with forks() as server:
        process = server.start(["…/muster", "up", …], environment, log_file)

One server serves one test process. What is forked:

- the `muster` command of this environment, if its environment differs from the test's in ``MUSTER_…`` variables only
  (others may count before the first module is loaded);
- the followers' process of a forked `muster up`. It ends with its parent, as without a fork.

Every other process is started as always.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NoReturn

from muster_runtime.child_main import end_with_parent

_REQUEST_BYTES = 1 << 20
_FOLLOWERS = "muster_cli.followers_child"
# What the commands load when they run. (The queue configuration's reader is left out: its memory is limited.)
_LOADED = (
    "aiokafka",
    "asyncpg",
    "redis.asyncio",
    "uvicorn.protocols.http.h11_impl",
    "muster_cli.main",
    "muster_cli.bootstrap",
    "muster_cli.settings_loader",
    "muster_cli.followers_process",
    _FOLLOWERS,
)


class ForkedProcess:
    """A process of a fork server: what `subprocess.Popen` has, as far as Muster and its tests use it."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid, self.returncode = pid, None
        self._status = status  # a pipe: the wait status comes when the process has ended
        self._lock = threading.Lock()

    returncode: int | None

    def poll(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while it runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end. Raises subprocess.TimeoutExpired."""
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait(self, timeout: float | None) -> int | None:
        end = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if end is None else max(0.0, end - time.monotonic())
            poller = select.poll()
            poller.register(self._status, select.POLLIN)
            if not poller.poll(None if left is None else left * 1000) and left == 0:
                return None
            with self._lock:
                if self.returncode is None and poller.poll(0):
                    text = os.read(self._status, 16)
                    # (No status: the server itself was killed, and its children with it.)
                    self.returncode = os.waitstatus_to_exitcode(int(text)) if text else -signal.SIGKILL
        return self.returncode

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._status)


class ForkServer:
    """The test's side. ``address`` is the server's Unix socket."""

    def __init__(self, address: str) -> None:
        self.address = address

    def start(
        self,
        target: Sequence[str],
        environment: Mapping[str, str],
        out: int,
        *,
        session: bool,
        pass_fds: Sequence[int] = (),
    ) -> ForkedProcess:
        """Starts a process; its standard input is /dev/null. Raises OSError.

        :param target: ``muster`` and its arguments, or a module and its arguments.
        :param out: a file descriptor: standard output and error.
        :param session: whether it begins a session, else it ends with this process.
        :param pass_fds: file descriptors that the process has under the same numbers.
        """
        ours, theirs = os.pipe()
        try:
            request = {
                "target": list(target),
                "environment": dict(environment),
                "directory": os.getcwd(),  # noqa: PTH109 - a text
                "parent": 0 if session else os.getpid(),
                "pass_fds": list(pass_fds),
            }
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.connect(self.address)
                fds = [out, theirs, *pass_fds]
                socket.send_fds(connection, [json.dumps(request).encode()], fds)
                pid = int(connection.recv(32))
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return ForkedProcess(pid, ours)


def popen_by(server: ForkServer, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """A stand-in for `subprocess.Popen` in `muster_replay.local_process`: forks where that makes no difference."""

    def popen(command: Sequence[str], *, stdout: IO[bytes], env: Mapping[str, str], **more: Any) -> Any:
        script = Path(command[0])
        ours = script.name == "muster" and script.parent == Path(sys.executable).parent
        changed = {name for name in {*env, *os.environ} if env.get(name) != os.environ.get(name)}
        if not ours or not all(name.startswith("MUSTER_") for name in changed):
            return otherwise(command, stdout=stdout, env=env, **more)
        return server.start(["muster", *command[1:]], env, stdout.fileno(), session=True)

    return popen


@contextmanager
def forks() -> Iterator[ForkServer]:
    """A fork server until the end of the block; then it and its processes are killed."""
    with tempfile.TemporaryDirectory(prefix="muster-forks-") as directory:
        address = str(Path(directory, "socket"))
        # (BLAS's thread would not be there after a fork.)
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
        code = f"import forking; forking.serve({address!r}, {os.getpid()})"
        server = subprocess.Popen([sys.executable, "-c", code], env=environment, stdin=subprocess.DEVNULL)
        try:
            begun = time.monotonic()
            while not Path(address).exists():
                if server.poll() is not None or time.monotonic() - begun > 120:
                    raise RuntimeError("the fork server did not start")
                time.sleep(0.02)
            yield ForkServer(address)
        finally:
            server.kill()
            server.wait()


# ---- the server's side ---------------------------------------------------------------------------------------------


def serve(address: str, owner: int) -> None:
    """Serves until its parent, ``owner``, ends. Returns in a child, after its program."""
    end_with_parent()
    if os.getppid() != owner:
        raise SystemExit(1)  # it has ended already
    for module in _LOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address + ".new")
    listener.listen(64)
    Path(address + ".new").rename(address)
    children: dict[int, tuple[int, int]] = {}  # pidfd → pid, status pipe
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    while True:
        for fd, _ in poller.poll():
            if fd != listener.fileno():
                poller.unregister(fd)
                _tell_end(fd, *children.pop(fd))
                continue
            connection, _ = listener.accept()
            with connection:
                run = _fork(connection, poller, children, address)
            if run is not None:
                listener.close()
                for pidfd, (_, status) in children.items():
                    os.close(pidfd)
                    os.close(status)
                return run()


def _fork(
    connection: socket.socket, poller: select.poll, children: dict[int, tuple[int, int]], address: str
) -> Callable[[], None] | None:
    text, fds, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 8)
    request = json.loads(text)
    out, status, *passed = fds
    pid = os.fork()
    if pid == 0:
        os.close(status)
        return lambda: _become(request, out, passed, address)
    os.close(out)
    for fd in passed:
        os.close(fd)
    pidfd = os.pidfd_open(pid)
    children[pidfd] = pid, status
    poller.register(pidfd, select.POLLIN)
    connection.send(str(pid).encode())
    return None


def _tell_end(pidfd: int, pid: int, status: int) -> None:
    # The status is told before the pid is free: whoever asks first never signals another process.
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert found is not None
    killed = found.si_code != os.CLD_EXITED
    with suppress(OSError):
        os.write(status, str(found.si_status if killed else found.si_status << 8).encode())
    os.waitpid(pid, 0)
    os.close(pidfd)
    os.close(status)


def _become(request: dict[str, Any], out: int, passed: list[int], address: str) -> NoReturn:
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, number in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(fd, number)
    os.close(nothing)
    os.close(out)
    sys.argv = list(request["target"])
    if request["parent"]:
        # (Above all numbers that they shall have, first.)
        above = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 1 + max(request["pass_fds"])) for fd in passed]
        for fd in passed:
            os.close(fd)
        for fd, number in zip(above, request["pass_fds"], strict=True):
            os.dup2(fd, number, inheritable=False)
            os.close(fd)
        _end_with(request["parent"])
        importlib.import_module(request["target"][0]).main()
    else:
        os.setsid()
        _fork_followers(address)
        sys.argv[0] = str(Path(sys.executable).with_name("muster"))
        from muster_cli.main import main

        main()
    raise SystemExit(0)


def _fork_followers(address: str) -> None:
    """Lets this process start its followers through the server, too."""
    from muster_runtime.child_process import ChildProcess

    server, otherwise = ForkServer(address), ChildProcess.popen

    def popen(command: list[str], *, pass_fds: tuple[int, ...], env: Mapping[str, str], **more: Any) -> Any:
        if _FOLLOWERS not in command:
            return otherwise(command, pass_fds=pass_fds, env=env, **more)
        return server.start([_FOLLOWERS, command[-1]], env, 2, session=False, pass_fds=pass_fds)

    ChildProcess.popen = popen


def _end_with(parent: int) -> None:
    """Kills this process when the process that asked for it ends, which is not its parent."""
    watched = os.pidfd_open(parent)

    def watch() -> None:
        select.select([watched], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
