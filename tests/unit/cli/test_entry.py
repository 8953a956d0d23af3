"""The script's entry: what a container's health check runs is answered without the other commands."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from muster_cli.entry import plain_probe
from muster_cli.probe import DEFAULT_ADDRESS
from unit.cli.test_health import serving

URL = "http://127.0.0.1:9083"


@pytest.mark.parametrize(
    ("arguments", "environment", "address"),
    [
        (["health", "--process"], {"MUSTER_HEALTH_ADDRESS": URL}, URL),
        (["health", "--process"], {}, DEFAULT_ADDRESS),
        (["health", "--process"], {"MUSTER_HEALTH_ADDRESS": "https://127.0.0.1:9083"}, None),
        (["health", "--process"], {"MUSTER_HEALTH_ADDRESS": "127.0.0.1:9083"}, None),
        (["health", "--process"], {"MUSTER_HEALTH_ADDRESS": URL, "MUSTER_TOKEN_FILE": "/token"}, None),
        (["health", "--process"], {"MUSTER_TLS_CA": "/ca.pem"}, None),
        (["health", "--process", URL], {}, None),
        (["health"], {"MUSTER_HEALTH_ADDRESS": URL}, None),
    ],
)
def test_only_a_probe_in_plain_text_is_answered_beforehand(
    arguments: list[str], environment: dict[str, str], address: str | None
) -> None:
    assert plain_probe(arguments, environment) == address


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_a_health_check_loads_neither_the_other_commands_nor_the_client(status: int, code: int) -> None:
    with serving({"/readyz": (status, b"as it is\n")}) as url:
        environment = {"PATH": os.environ["PATH"], "MUSTER_HEALTH_ADDRESS": url}
        command = [sys.executable, "-X", "importtime", "-m", "muster_cli", "health", "--process"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (code, f"{url}: as it is\n")
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "muster_cli.probe" in loaded
    assert loaded.isdisjoint({"muster_cli.main", "muster_client", "cyclopts", "pydantic", "grpc", "asyncio"})


def test_a_command_loads_grpc_only_when_it_calls_by_it() -> None:
    code = "import sys, muster_cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert "muster_client.access" in loaded
    assert loaded.isdisjoint({"grpc", "muster_client.client", "muster_client.admin"})


def test_an_address_of_another_kind_is_refused_as_by_the_command() -> None:
    environment = {"PATH": os.environ["PATH"], "MUSTER_HEALTH_ADDRESS": "127.0.0.1:9090"}
    command = [sys.executable, "-m", "muster_cli", "health", "--process"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "expected grpc://host:port" in done.stderr
