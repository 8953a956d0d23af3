"""Starts Muster's own processes on this machine, waits for them, and ends them by pid."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2
from muster_client.access import PLAIN, Access
from muster_runtime.private_files import open_private

from muster_replay.errors import ReplayFailed

_PROBE_TIMEOUT_S = 1.0
_PROBE_PAUSE_S = 0.1
_LOG_TAIL_BYTES = 2_000


def muster_command(*arguments: str) -> list[str]:
    """Returns the `muster` command of this Python's environment."""
    script = Path(sys.executable).with_name("muster")
    start = [str(script)] if script.exists() else [sys.executable, "-m", "muster_cli"]
    return [*start, *arguments]


# Linux takes ports of its own choice from 32,768 on (net.ipv4.ip_local_port_range), others from 49,152 on.
_PORTS = (20_000, 32_000)
_HOLDERS: deque[socket.socket] = deque(maxlen=200)


def are_free(ports: Sequence[int]) -> bool:
    """Tells whether all these ports of 127.0.0.1 can be bound."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a closed connection is no user
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


def free_ports(count: int) -> list[int]:
    """Returns different free ports of 127.0.0.1.

    They are below the range from which systems take ports for outgoing connections and for port 0. So a process that
    restarts on its port finds it free again. No other call gets one of the newest 200, in whatever process, while this
    one lives: a socket that does not listen holds each. (Servers set SO_REUSEADDR, so they may use it all the same.)
    """
    ports: list[int] = []
    chance = random.SystemRandom()  # (processes that begin at one time try different ones)
    while len(ports) < count:
        port = chance.randrange(*_PORTS)
        holder = socket.socket()
        try:
            holder.bind(("127.0.0.1", port))
        except OSError:
            holder.close()
            continue
        # (Set after the bind, which fails if another one holds the port.)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _HOLDERS.append(holder)
        ports.append(port)
    return ports


class LocalProcess:
    """A process that logs to a file. ``start`` starts it, also again after its end.

    :param command: program and arguments.
    :param log_file: standard output and error are appended to it.
    :param environment: added to this process's own.
    :cvar popen: what starts the process; has the interface of subprocess.Popen.
    """

    popen: ClassVar[Callable[..., subprocess.Popen[bytes]]] = subprocess.Popen

    def __init__(self, command: Sequence[str], log_file: Path, environment: Mapping[str, str] | None = None) -> None:
        self.command, self.log_file = list(command), log_file
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Pid of the running or last process; 0 before the first start."""
        return self._process.pid if self._process else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the process in a group of its own, so that a Ctrl-C at the terminal reaches only its parent."""
        assert not self.running, "started twice"
        with open_private(self.log_file, append=True) as log:
            self._process = type(self).popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kills the process with SIGKILL, and waits until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, timeout_s: float = 60.0) -> int:
        """Asks the process to end, kills it after the time allowed, and returns its exit code."""
        if self._process is None:
            return 0
        if self.running:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL

    def log_tail(self) -> str:
        """Returns the end of its log."""
        try:
            return self.log_file.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError:
            return ""

    async def serving(self, grpc_address: str, timeout_s: float = 60.0, access: Access = PLAIN) -> float:
        """Waits until the process's gRPC health is SERVING. Returns the seconds that this took.

        Raises: ReplayFailed, with the end of the log, if the process ends or does not serve in time.
        """
        began = time.monotonic()
        while time.monotonic() - began < timeout_s:
            if not self.running:
                raise ReplayFailed(f"{self.command[0]} ended before it served:\n{self.log_tail()}")
            if await is_serving(grpc_address, access):
                return time.monotonic() - began
            await asyncio.sleep(_PROBE_PAUSE_S)
        raise ReplayFailed(f"{self.command[0]} does not serve after {timeout_s:.0f} s:\n{self.log_tail()}")


async def is_serving(grpc_address: str, access: Access = PLAIN) -> bool:
    """Tells whether the gRPC health service there answers SERVING. Raises AccessWrong."""
    async with _channel(grpc_address, access) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = await check(health_pb2.HealthCheckRequest(), timeout=_PROBE_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _channel(address: str, access: Access) -> grpc.aio.Channel:
    credentials = access.credentials()
    if credentials is None:
        return grpc.aio.insecure_channel(address)
    return grpc.aio.secure_channel(address, credentials, access.options())
