"""Measures Muster's start after RMs registered very large configurations. One JSON line.

.venv/bin/python -m bench.start_bench [--rms 6] [--queues 9990] [--bytes 900000] [--starts 3]

The limits of configurations are raised for this (``gateway.queue_config``). ``start_s`` is the time until the gateway
serves, ``cpu_s`` the processor time of all its processes until then. ``empty`` is a start before the registrations.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import grpc  # noqa: E402
from chaos.harness import Deployment, embedded  # noqa: E402
from muster_proto.si.v1 import si_pb2 as si  # noqa: E402

from bench.scenarios_bench import cpu_seconds  # noqa: E402

_LIMITS = {
    "MUSTER_GATEWAY__QUEUE_CONFIG__MAX_BYTES": str(1 << 20),
    "MUSTER_GATEWAY__QUEUE_CONFIG__MAX_QUEUES": "10000",
    "MUSTER_GATEWAY__QUEUE_CONFIG__CPU_S": "60",
    "MUSTER_GATEWAY__QUEUE_CONFIG__MEMORY_BYTES": str(1 << 30),
    "MUSTER_GATEWAY__REGISTRATION_TIMEOUT_S": "300",
}


def configuration(queues: int, size_bytes: int) -> str:
    """Return a configuration with so many queues below root; comments fill the text up to its size."""
    head = "partitions:\n- name: default\n  queues:\n  - name: root\n    submitacl: '*'\n    queues:\n"
    lines = "".join(f"    - {{name: q{number}, resources: {{max: {{vcore: 10}}}}}}\n" for number in range(queues))
    text = head + lines
    filling = max(0, size_bytes - len(text))
    return text + "".join("# " + "-" * 97 + "\n" for _ in range(filling // 100))


async def start(deployment: Deployment) -> dict[str, float]:
    """Measure one start."""
    began_s = time.monotonic()
    await deployment.start()
    return {"start_s": round(time.monotonic() - began_s, 2), "cpu_s": round(sum(cpu_seconds(deployment).values()), 2)}


async def run(rms: int, text: str, starts: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        deployment = embedded(Path(directory), _LIMITS)
        try:
            empty = await start(deployment)
            async with grpc.aio.insecure_channel(deployment.gateway) as channel:
                register = channel.unary_unary("/si.v1.Scheduler/RegisterResourceManager")
                for number in range(rms):
                    request = si.RegisterResourceManagerRequest(rmID=f"rm-{number}", config=text)
                    await register(request.SerializeToString(), timeout=300)
            found = []
            for _ in range(starts):
                await deployment.stop()
                found.append(await start(deployment))
        finally:
            await deployment.stop()
    return {"empty": empty, "starts": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rms", type=int, default=6)
    parser.add_argument("--queues", type=int, default=9_990)
    parser.add_argument("--bytes", type=int, default=900_000)
    parser.add_argument("--starts", type=int, default=3)
    given = parser.parse_args()
    text = configuration(given.queues, given.bytes)
    results = asyncio.run(run(given.rms, text, given.starts))
    print(json.dumps({"cores": os.cpu_count(), "config_bytes": len(text), **results}))


if __name__ == "__main__":
    main()
