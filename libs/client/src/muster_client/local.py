"""Muster's own processes on this machine: started, waited for, ended by pid."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from muster_client.errors import ReplayFailed

_PROBE_TIMEOUT_S = 1.0
_PROBE_PAUSE_S = 0.1
_LOG_TAIL_BYTES = 2_000


def muster_command(*arguments: str) -> list[str]:
    """The `muster` command of this Python's environment."""
    script = Path(sys.executable).with_name("muster")
    start = [str(script)] if script.exists() else [sys.executable, "-c", "from muster_cli.main import main; main()"]
    return [*start, *arguments]


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class LocalProcess:
    """A process that logs to a file. It is not started by the constructor, and may be started again after its end.

    :param command: program and arguments.
    :param log_file: standard output and error go there, appended.
    :param environment: on top of this process's own.
    """

    def __init__(self, command: Sequence[str], log_file: Path, environment: Mapping[str, str] | None = None) -> None:
        self.command, self.log_file = list(command), log_file
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running or last run process; 0 before the first start."""
        return self._process.pid if self._process else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts it, in a process group of its own: a Ctrl-C at the terminal does not reach it before its parent."""
        assert not self.running, "started twice"
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def kill(self) -> None:
        """kill -9, and waits until the system has taken it away."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, timeout_s: float = 15.0) -> int:
        """Asks it to end, kills it after the time allowed; gives its exit code."""
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
        """The end of its log."""
        try:
            return self.log_file.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError:
            return ""

    async def serving(self, grpc_address: str, timeout_s: float = 60.0) -> float:
        """Returns when its gRPC health says SERVING; gives the seconds that took.

        Raises: ReplayFailed, with the end of the log, when it ends or does not serve in time.
        """
        began = time.monotonic()
        while time.monotonic() - began < timeout_s:
            if not self.running:
                raise ReplayFailed(f"{self.command[0]} ended before it served:\n{self.log_tail()}")
            if await is_serving(grpc_address):
                return time.monotonic() - began
            await asyncio.sleep(_PROBE_PAUSE_S)
        raise ReplayFailed(f"{self.command[0]} does not serve after {timeout_s:.0f} s:\n{self.log_tail()}")


async def is_serving(grpc_address: str) -> bool:
    """Whether the gRPC health service there says SERVING, now."""
    async with grpc.aio.insecure_channel(grpc_address) as channel:
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
