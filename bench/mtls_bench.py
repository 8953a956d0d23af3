"""Measures the cost of mutual TLS with a policy: the same asks through a plain gateway and a guarded one, in turns.

.venv/bin/python -m bench.mtls_bench [--rounds 5] [--asks 5000] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from certificates import Authority  # noqa: E402
from chaos.harness import Deployment, embedded  # noqa: E402
from muster_cli.probe import probe  # noqa: E402
from muster_client.access import PLAIN, Access  # noqa: E402

from bench.driver import Driver, Shape  # noqa: E402
from bench.scenarios_bench import cpu_seconds  # noqa: E402

NAME = "bench.test"
POLICY = f'[[rule]]\nidentities = ["{NAME}"]\nproofs = ["certificate"]\nact = ["bench-*"]\n'
START_S = 120.0


def guarded(directory: Path) -> tuple[Deployment, Access]:
    """The settings of a gateway that requires certificates, and of its clients."""
    authority = Authority()
    files = {
        name: directory / name for name in ("ca", "server.crt", "server.key", "client.crt", "client.key", "policy")
    }
    authority.server().write(files["server.crt"], files["server.key"])
    authority.client(NAME).write(files["client.crt"], files["client.key"])
    files["ca"].write_bytes(authority.pem)
    files["policy"].write_text(POLICY)
    environment = {
        "MUSTER_GATEWAY__TLS__CERTIFICATE": str(files["server.crt"]),
        "MUSTER_GATEWAY__TLS__KEY": str(files["server.key"]),
        "MUSTER_GATEWAY__TLS__CLIENT_CA": str(files["ca"]),
        "MUSTER_GATEWAY__POLICY_FILE": str(files["policy"]),
    }
    access = Access(ca=files["ca"], certificate=files["client.crt"], key=files["client.key"])
    return embedded(directory, environment), access


def start(deployment: Deployment, access: Access) -> None:
    """Start the gateway, and wait until it serves."""
    for process in deployment.processes.values():
        process.start()
    until_s = time.monotonic() + START_S
    while not probe(f"grpc://{deployment.gateway}", 2.0, access)[0]:
        if time.monotonic() > until_s:
            raise SystemExit(f"does not serve:\n{next(iter(deployment.processes.values())).log_tail()}")
        time.sleep(0.2)


async def measured(deployments: dict[str, tuple[Deployment, Access]], shape: Shape, rounds: int) -> dict[str, Any]:
    """Run the rounds of both in turns, so that the machine's other work slows both alike."""
    drivers = {
        name: Driver(deployment.gateway, f"bench-{name}", shape, access=access)
        for name, (deployment, access) in deployments.items()
    }
    clients = {name: driver.client() for name, driver in drivers.items()}
    speeds: dict[str, list[float]] = {name: [] for name in drivers}
    cpu_s: dict[str, list[float]] = {name: [] for name in drivers}
    for name, driver in drivers.items():
        await driver.set_up(clients[name])
    for number in range(-1, rounds):  # the first round warms both up
        for name in list(drivers) if number % 2 else reversed(list(drivers)):
            driver, rm, deployment = drivers[name], clients[name], deployments[name][0]
            before = sum(cpu_seconds(deployment).values())
            found = await driver.ask_up_front(rm, f"r{number}")
            used_s = sum(cpu_seconds(deployment).values()) - before
            await driver.release_all(rm, f"r{number}")
            if number >= 0:
                speeds[name].append(found["allocations_per_s"])
                cpu_s[name].append(round(used_s, 2))
    for rm in clients.values():
        await rm.close()
    plain, mutual = statistics.median(speeds["plain"]), statistics.median(speeds["mtls"])
    return {
        "asks": shape.asks,
        "allocations_per_s": speeds,
        "server_cpu_s": cpu_s,
        "median": {"plain": plain, "mtls": mutual},
        "median_server_cpu_s": {name: statistics.median(each) for name, each in cpu_s.items()},
        "mtls_percent_of_plain": round(100 * mutual / plain, 1),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--asks", type=int, default=5_000)
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        for name in ("plain", "mtls"):
            (directory / name).mkdir()
        both = {"plain": (embedded(directory / "plain"), PLAIN), "mtls": guarded(directory / "mtls")}
        try:
            for deployment, access in both.values():
                start(deployment, access)
            found = asyncio.run(measured(both, Shape(nodes=200, asks=given.asks), given.rounds))
        finally:
            for deployment, _ in both.values():
                for process in deployment.processes.values():
                    process.stop()
    text = json.dumps(found, indent=2)
    print(text)
    if given.json is not None:
        given.json.write_text(text)


if __name__ == "__main__":
    main()
