"""A resource manager in Go, with stubs of the interface's current generation alone, against a real Muster."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from muster_client.local import LocalProcess, free_ports, muster_command

EXAMPLE = Path(__file__).parents[2] / "examples" / "go-rm"
BUILD_TIMEOUT_S = 300  # grpc-go is compiled once per machine, on two busy cores
RUN_TIMEOUT_S = 60

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(BUILD_TIMEOUT_S + 2 * RUN_TIMEOUT_S),
    pytest.mark.skipif(shutil.which("go") is None, reason="no Go toolchain here: the Go example is not tried"),
]


@pytest.fixture(scope="module")
def go_rm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built."""
    program = tmp_path_factory.mktemp("go") / "go-rm"
    build = subprocess.run(
        ["go", "build", "-o", str(program), "."],
        cwd=EXAMPLE,
        env={**os.environ, "GOFLAGS": "-buildvcs=false"},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert build.returncode == 0, build.stderr
    return program


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[str]:
    grpc_port, http_port = free_ports(2)
    address = f"127.0.0.1:{grpc_port}"
    muster = LocalProcess(
        muster_command(
            "up",
            "--data-dir",
            str(tmp_path / "data"),
            "--grpc-address",
            address,
            "--http-address",
            f"127.0.0.1:{http_port}",
        ),
        tmp_path / "muster.log",
    )
    muster.start()
    try:
        await muster.serving(address)
        yield address
    finally:
        muster.stop()


@pytest.mark.parametrize("announce", [True, False], ids=["announced", "upstream-only"])
async def test_a_go_rm_gets_its_allocation(go_rm: Path, gateway: str, announce: bool) -> None:
    command = [str(go_rm), "-gateway", gateway, f"-announce={'true' if announce else 'false'}"]
    run = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
    )
    assert run.returncode == 0, run.stderr
    told = ["registered go-rm", "node node-1", "application app-1", "allocation task-1 on node-1"]
    assert run.stdout.splitlines() == told
