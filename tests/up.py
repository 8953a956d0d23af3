"""`muster up` in a process of its own, as a user starts it."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from muster_replay.local_process import LocalProcess, free_ports, muster_command
from waiting import PATIENCE_S

_START_S = 240.0  # (where no fork starts it, it loads a thousand modules first)
# However slow the machine is, an answer of the view shows what was written before its request.
FRESH = {"MUSTER_VIEW__FRESH_WAIT_S": f"{PATIENCE_S}", "MUSTER_VIEW__WHOLE_WAIT_S": f"{PATIENCE_S}"}


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
        command = muster_command(*self.arguments, *more)
        self.process = LocalProcess(command, directory / "muster.log", {**FRESH, **(environment or {})})

    async def start(self) -> None:
        """Returns when it serves."""
        self.process.start()
        await self.process.serving(self.grpc, _START_S)

    def get(self, path: str) -> tuple[int, bytes]:
        """Returns the status and the body of an answer. Raises urllib's errors.

        (A followers' process that got no time for a while is not asked. The answer is "try again".)
        """
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                with urllib.request.urlopen(f"{self.http}{path}", timeout=60) as answer:
                    return answer.status, answer.read()
            except urllib.error.HTTPError as error:
                is_away = error.code == 503 and "Retry-After" in error.headers and path.startswith("/ws/")
                if not is_away or time.monotonic() > until_s:
                    raise
            time.sleep(0.1)


@asynccontextmanager
async def up(directory: Path, *more: str) -> AsyncIterator[Up]:
    one = Up(directory, *more)
    try:
        await one.start()
        yield one
    finally:
        one.process.kill()
