"""Draws flame graphs of processes of Muster: one ask after the other, and in bulk.

Needs py-spy, which must be allowed to trace (as root, or by ptrace_scope).

.venv/bin/python -m bench.flame_bench [--backend embedded|kafka|both] [--single 2000] [--to docs]

py-spy samples the Python stacks of the deciding process, and on Kafka also of the gateway, while an RM asks. Threads
that wait for sockets or for work are left out. So the width of a frame is its share of the time, by the clock, in which
a thread worked or waited for the disk or the interpreter. Threads without Python are not sampled. The plain form is
sampled, because the compiled one has no Python stacks. ``flames.py`` draws.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from muster_client import RmClient  # noqa: E402

from bench.driver import Driver, Shape  # noqa: E402
from bench.flames import Stacks, figure, read_stacks  # noqa: E402
from bench.profile_bench import Load, Place, apply_load, place_of, warm  # noqa: E402

PLAIN = {"MUSTER_COMPILED": "0"}
# Process, file and title of each figure, by backend.
FIGURES = {
    "embedded": (("up", "flame-embedded.svg", "The deciding process, embedded"),),
    "kafka": (
        ("scheduler", "flame-scheduler.svg", "The scheduler's process, on Kafka"),
        ("gateway", "flame-gateway.svg", "The gateway's process, on Kafka"),
    ),
}
END_S = 60.0


@asynccontextmanager
async def sampled(pid: int, rate: int, out: Path) -> Any:
    """Samples a process while the block runs; the stacks are in the file then."""
    program = Path(sys.executable).with_name("py-spy")
    options = ("--format", "raw", "--nolineno", "--threads", "--rate", str(rate), "--output", str(out))
    sampling = await asyncio.create_subprocess_exec(
        str(program), "record", "--pid", str(pid), *options, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        yield
    finally:
        if sampling.returncode is None:
            sampling.send_signal(signal.SIGINT)  # (It then writes what it has.)
        async with asyncio.timeout(END_S):
            await sampling.wait()


async def one_by_one(driver: Driver, rm: RmClient, asks: int) -> None:
    """Sends each ask when the one before it is placed. So asks stay alone on a busy machine, too."""
    driver.shape = Shape(asks=1)
    for number in range(asks):
        await driver.ask_up_front(rm, f"k{number}")


async def stacks_of(place: Place, load: Load, rate: int) -> Mapping[str, Stacks]:
    """Samples the processes of a new Muster under a load. Returns their stacks."""
    names = [process for process, _, _ in FIGURES[place.backend]]
    with tempfile.TemporaryDirectory(prefix="muster-flame-") as made:
        deployment = place.deployment(Path(made), PLAIN)
        async with deployment.running(), warm(deployment, load) as (driver, rm), AsyncExitStack() as sampling:
            for name in names:
                pid, out = deployment.processes[name].pid, Path(made) / f"{name}.txt"
                await sampling.enter_async_context(sampled(pid, rate, out))
            if load.asks_per_s:
                await one_by_one(driver, rm, load.asks)
            else:
                await apply_load(driver, rm, "k", load)
        return {name: read_stacks((Path(made) / f"{name}.txt").read_text()) for name in names}


async def draw(place: Place, loads: tuple[Load, ...], rate: int, to: Path) -> None:
    """Draws all figures of a backend."""
    panels: dict[str, list[tuple[str, Stacks]]] = {process: [] for process, _, _ in FIGURES[place.backend]}
    for load in loads:
        for process, stacks in (await stacks_of(place, load, rate)).items():
            words = f"{load.asks:,} asks, one after the other" if load.asks_per_s else load.words
            panels[process].append((f"{words}: {sum(stacks.values()):,} samples", stacks))
    for process, file, title in FIGURES[place.backend]:
        (to / file).write_text(figure(title, panels[process]))
        print(f"{to / file}: {(to / file).stat().st_size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=(*FIGURES, "both"), default="both")
    parser.add_argument("--single", type=int, default=2_000, help="asks, one after the other")
    parser.add_argument("--asks", type=int, default=40_000, help="in bulk")
    parser.add_argument("--rate", type=int, default=200, help="samples a second")
    parser.add_argument("--to", type=Path, default=ROOT / "docs")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    loads = (Load(given.single, 500.0), Load(given.asks, 0.0))
    with ExitStack() as stack:
        for backend in FIGURES if given.backend == "both" else (given.backend,):
            asyncio.run(draw(place_of(backend, stack), loads, given.rate, given.to))


if __name__ == "__main__":
    main()
