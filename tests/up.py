"""`muster up` in a process of its own, as a user starts it."""

from __future__ import annotations

import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from muster_replay.local import LocalProcess, free_ports, muster_command

SERVING_TIMEOUT_S = 150.0  # for a start on a busy machine; a few seconds otherwise


class Up:
    """One on ports of its own; its data are in ``directory/data``, its log is ``directory/muster.log``.

    :param more: further arguments.
    :ivar grpc: host:port; ``http``: a URL.
    """

    def __init__(self, directory: Path, *more: str, environment: Mapping[str, str] | None = None) -> None:
        grpc_port, http_port = free_ports(2)
        self.grpc, http = f"127.0.0.1:{grpc_port}", f"127.0.0.1:{http_port}"
        self.http, self.data = f"http://{http}", directory / "data"
        self.arguments = ["up", "--data-dir", str(self.data), "--grpc-address", self.grpc, "--http-address", http]
        self.process = LocalProcess(muster_command(*self.arguments, *more), directory / "muster.log", environment)

    async def start(self) -> None:
        """Returns when it serves."""
        self.process.start()
        await self.process.serving(self.grpc, SERVING_TIMEOUT_S)

    def get(self, path: str) -> tuple[int, bytes]:
        """Returns the status and the body of an answer. Raises urllib's errors."""
        with urllib.request.urlopen(f"{self.http}{path}", timeout=60) as answer:
            return answer.status, answer.read()


@asynccontextmanager
async def up(directory: Path, *more: str) -> AsyncIterator[Up]:
    one = Up(directory, *more)
    try:
        await one.start()
        yield one
    finally:
        one.process.kill()
