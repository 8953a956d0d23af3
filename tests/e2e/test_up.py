"""`muster up` as a user runs it: ready, found, asked, stopped, killed, started again; and refused with one line."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from muster_replay.local_process import LocalProcess, free_ports, is_serving, muster_command
from up import Up
from waiting import eventually


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read()


def get(up: Up, path: str) -> tuple[int, bytes]:
    with urllib.request.urlopen(f"{up.http}{path}", timeout=60) as answer:
        return answer.status, answer.read()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    one = Up(tmp_path)
    yield one
    one.process.kill()


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(muster_command(*arguments), capture_output=True, text=True, timeout=60)


async def test_it_serves_all_its_parts_and_stops_on_sigterm(up: Up) -> None:
    await up.start()
    status, said = get(up, "/health/ready")
    assert (status, said.splitlines()[0]) == (200, b"SERVING")
    assert b"muster_bus_" in get(up, "/metrics")[1]
    assert isinstance(json.loads(get(up, "/ws/v1/partitions")[1]), list)
    assert "EventRecords" in json.loads(get(up, "/ws/v1/events/batch")[1])
    assert _run("health", f"grpc://{up.grpc}").returncode == 0
    assert up.data.stat().st_mode & 0o077 == 0, "other users must not read the log"
    assert up.process.stop() == 0
    banner = up.process.log_file.read_text()
    assert "Muster is ready" in banner
    assert "log.db, sessions.db, history/**/*.parquet" in banner
    assert "si.v1.Scheduler; muster.v1 Callbacks, Admin, Metrics, Events; health and reflection" in banner
    assert _run("health", f"grpc://{up.grpc}").returncode == 1


async def test_health_names_a_store_that_is_away_and_serves_all_the_same(tmp_path: Path) -> None:
    (nobody,) = free_ports(1)
    up = Up(tmp_path, "--set", f"publisher.postgres_dsn=postgresql://muster:hidden@127.0.0.1:{nobody}/muster")
    try:
        await up.start()
        async with asyncio.timeout(60):
            while b"publisher: postgres" not in get(up, "/health")[1]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        status, said = get(up, "/health")
        assert (status, said.splitlines()[0]) == (200, b"SERVING")
        assert b"hidden" not in said
    finally:
        up.process.kill()


async def test_it_starts_again_after_a_stop_and_after_a_kill(up: Up) -> None:
    for end in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
        await up.start()
        if end == signal.SIGKILL:
            up.process.kill()
        else:
            os.kill(up.process.pid, end)
            assert up.process.stop() == 0
    await up.start()
    assert "Traceback" not in up.process.log_file.read_text()


async def test_a_second_one_is_refused_with_one_line(up: Up, tmp_path: Path) -> None:
    await up.start()
    same_ports = _run(*up.arguments)
    assert same_ports.returncode == 2
    assert same_ports.stderr == f"muster: --grpc-address: {up.grpc} is taken by another process\n"
    same_data = Up(tmp_path, "--set", "process.log_level=error")
    refused = _run(*same_data.arguments, "--set", "process.log_level=error")
    assert refused.returncode == 2
    assert "is in use by another process" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert get(up, "/health/ready")[0] == 200


async def test_a_wide_address_needs_a_token(tmp_path: Path) -> None:
    token = "e2e-token-0123456789"
    tokens = json.dumps({"ops": {"role": "read", "token": token}})
    up = Up(tmp_path)
    port = up.http.rpartition(":")[2]
    wide = [f"0.0.0.0:{port}" if argument == f"127.0.0.1:{port}" else argument for argument in up.arguments]
    refused = _run(*wide)
    assert refused.returncode == 2
    assert f"gateway.http_address 0.0.0.0:{port}: other machines can reach this address" in refused.stderr
    up.process = LocalProcess(muster_command(*wide, "--set", f"gateway.tokens={tokens}"), tmp_path / "up.log")
    try:
        await up.start()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(up, "/ws/v1/partitions")
        request = urllib.request.Request(f"{up.http}/ws/v1/partitions", headers={"Authorization": f"Bearer {token}"})
        answer = await asyncio.to_thread(urllib.request.urlopen, request, timeout=60)
        with answer:
            assert isinstance(json.load(answer), list)
        assert get(up, "/health/ready") == (200, b"SERVING\n")
        assert up.process.stop() == 0
        assert token not in up.process.log_file.read_text()
    finally:
        up.process.kill()


async def test_it_tells_the_chosen_ports_and_its_supervisor(tmp_path: Path) -> None:
    arguments = ["--data-dir", str(tmp_path / "data"), "--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
    process = LocalProcess(
        muster_command("up", *arguments), tmp_path / "muster.log", {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    )
    supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    supervisor.bind(str(tmp_path / "notify"))
    supervisor.settimeout(60)
    process.start()
    try:
        await eventually(lambda: "  data   " in process.log_file.read_text(), "the lines after ready")
        banner = process.log_file.read_text()
        [grpc_address] = re.findall(r"  gRPC   (127\.0\.0\.1:[1-9]\d*)   ", banner)
        [page] = re.findall(r"  page   (http://127\.0\.0\.1:[1-9]\d*/)$", banner, re.MULTILINE)
        assert f"  REST   {page}ws/v1/partitions\n" in banner
        assert await is_serving(grpc_address)
        assert b"<title>" in _read(page)
        assert supervisor.recv(100) == b"READY=1"
        assert process.stop() == 0
        assert supervisor.recv(100) == b"STOPPING=1"
    finally:
        process.kill()
        supervisor.close()
