"""A whole Muster, each service a process, on a Kafka, a Redis and a PostgreSQL that want TLS and a password.

The services have no more rights on Kafka than docs/security.md says.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import secured_servers
from chaos.harness import Deployment, on_kafka
from muster_replay.local_process import free_ports
from secured_servers import Secured

pytestmark = [pytest.mark.kafka, pytest.mark.redis, pytest.mark.postgres, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "rm_minimal.py"
WITHIN_S = 90


def _deployment(secured: Secured, directory: Path) -> Deployment:
    (derive_port,) = free_ports(1)
    ca = str(secured.file("ca.crt"))
    settings = {
        "MUSTER_LOG__KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "MUSTER_LOG__KAFKA_SASL_USERNAME": "muster",
        "MUSTER_LOG__KAFKA_SASL_PASSWORD_FILE": str(secured.file("kafka-muster.password")),
        "MUSTER_LOG__KAFKA_CA_FILE": ca,
        "MUSTER_LOG__PARTITIONS": "2",
        "MUSTER_GATEWAY__SESSIONS_USERNAME": "muster",
        "MUSTER_GATEWAY__SESSIONS_PASSWORD_FILE": str(secured.file("redis-muster.password")),
        "MUSTER_GATEWAY__SESSIONS_CA_FILE": ca,
        "MUSTER_GATEWAY__SESSIONS_PREFIX": f"muster:{directory.name}:",
        "MUSTER_PUBLISHER__POSTGRES_DSN": f"postgresql://muster@{secured.postgres}/muster",
        "MUSTER_PUBLISHER__POSTGRES_SCHEMA": _schema(directory),
        "MUSTER_PUBLISHER__POSTGRES_PASSWORD_FILE": str(secured.file("postgres-muster.password")),
        "MUSTER_PUBLISHER__POSTGRES_SSLMODE": "verify-full",
        "MUSTER_PUBLISHER__POSTGRES_CA_FILE": ca,
        "MUSTER_DERIVE__HTTP_ADDRESS": f"127.0.0.1:{derive_port}",
        "MUSTER_DERIVE__WINDOW_S": "1",
        "MUSTER_DERIVE__BATCH_WAIT_S": "0.05",
    }
    return on_kafka(directory, secured.kafka, f"rediss://{secured.redis}/0", settings, first=("derive",))


def _schema(directory: Path) -> str:
    return "".join(letter for letter in directory.name.lower() if letter.isalnum())


async def _events(secured: Secured, schema: str) -> list[str]:
    connection = await asyncpg.connect(
        f"postgresql://muster@{secured.postgres}/muster",
        password=secured.secret("postgres-muster.password"),
        ssl=ssl.create_default_context(cafile=secured.file("ca.crt")),
    )
    try:
        rows = await connection.fetch(f"select object_id from {schema}.events where type = 'APP'")
        return [row["object_id"] for row in rows]
    except asyncpg.UndefinedTableError:
        return []
    finally:
        await connection.close()


def _usage(http: str) -> Any:
    try:
        return _get(f"{http}/ws/v1/usage?kind=application")["usage"]
    except urllib.error.HTTPError:
        return None  # the publisher is starting


def _partitions(http: str) -> Any:
    try:
        return _get(f"{http}/ws/v1/partitions")
    except urllib.error.HTTPError:
        return None  # the view is starting


async def _until(ask: Callable[[], Awaitable[Any]]) -> None:
    while True:
        if await ask():
            return
        await asyncio.sleep(0.2)


def _get(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return json.loads(answer.read())


async def test_a_whole_muster_runs_on_secured_stores(secured: Secured, tmp_path: Path) -> None:
    deployment = _deployment(secured, tmp_path)
    await secured_servers.allow(secured, deployment.log_settings.topic_prefix)
    async with deployment.running():
        # 1. an RM registers and gets its allocation: gateway, Redis, Kafka, scheduler
        command = [sys.executable, str(EXAMPLE), deployment.gateway]
        rm = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = await asyncio.wait_for(rm.communicate(), WITHIN_S)
        assert rm.returncode == 0, output.decode()
        # 2. the view has it, derive has its usage, and PostgreSQL its events
        async with asyncio.timeout(WITHIN_S):
            await _until(lambda: asyncio.to_thread(_usage, deployment.http))
            await _until(lambda: _events(secured, _schema(tmp_path)))
            await _until(lambda: asyncio.to_thread(_partitions, deployment.http))
    # 3. nothing secret is in any log
    logs = "".join(process.log_file.read_text() for process in deployment.processes.values())
    assert "log.opened" in logs
    for name in ("kafka-muster.password", "redis-muster.password", "postgres-muster.password"):
        assert secured.secret(name) not in logs
