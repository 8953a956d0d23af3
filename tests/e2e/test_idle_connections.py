"""Idle gRPC connections, more than the process may have files: health answers, and a new RM registers."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.request
from pathlib import Path

import pytest
from muster_client import RmClient
from muster_runtime.tcp_sockets import has_counters
from raw_http2 import connect
from up import Up

pytestmark = pytest.mark.skipif(not has_counters(), reason="this system has no counters of sockets")

FILES, CONNECTIONS, PROBES = 512, 700, 6
PROBE_S = 15.0  # (gRPC ends connections that answer no ping only after 40 s)
LINES_MAX = 40


def _probe(http: str) -> int:
    """Health as a supervisor asks for it: without an answer in time it ends the process."""
    try:
        with urllib.request.urlopen(f"{http}/health", timeout=PROBE_S) as answer:
            return int(answer.status)
    except OSError:
        return 0


async def test_idle_connections_take_no_file_from_health_and_no_place_from_an_rm(tmp_path: Path) -> None:
    one = Up(tmp_path)
    one.process.command = ["sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", *one.process.command]
    host, _, port = one.grpc.rpartition(":")
    try:
        await one.start()
        before = len((tmp_path / "muster.log").read_text().splitlines())
        with contextlib.ExitStack() as stack:
            for _ in range(CONNECTIONS):
                with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                    stack.enter_context(connect(host, int(port)))
            answers = [await asyncio.to_thread(_probe, one.http) for _ in range(PROBES)]
            assert answers == [200] * PROBES
            async with RmClient(one.grpc, "late"):
                pass
            metrics = one.get("/metrics")[1].decode()
        lines = (tmp_path / "muster.log").read_text().splitlines()[before:]
        assert len(lines) <= LINES_MAX, lines[:10]
        assert not any("out of system resource" in line for line in lines)
        assert sum("grpc connections ended" in line for line in lines) <= 2
        ended = sum(
            float(line.rpartition(" ")[2])
            for line in metrics.splitlines()
            if line.startswith("muster_gateway_connections_ended_total{")
        )
        assert ended > 0
    finally:
        one.process.kill()
